"""Command line: ``python -m bench.spark [--full]``. ``make bench-spark`` calls it.

Spark reads and writes logs of three real nodes beside it, and Parquet files in turn. Prints a
table; leaves the results as JSON in ``bench/results``, and the page of the documentation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import quorate.spark
from bench.machine import busy_share, describe
from bench.rounds import Runner
from bench.spark_data import Shape
from bench.spark_report import HEADS, lines, missed_count, page, voids
from bench.spark_work import Bench, Marks
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from bench.rounds import Row
    from bench.spark_report import Results

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks-spark.md"
ALL = ("W9", "W11")


class Settings(NamedTuple):
    """How much is measured."""

    rounds: int
    # Records of 100 B, and of 1 KiB.
    small: int
    large: int
    # Records that are sent one by one through a stream, in each round.
    samples: int
    # After so many micro-batches the driver's memory is looked at.
    early: int
    late: int


# So many that the start of a query matters little: the bars are about more.
QUICK = Settings(rounds=3, small=4_000_000, large=1_000_000, samples=40, early=200, late=400)
FULL = Settings(rounds=5, small=10_000_000, large=2_000_000, samples=200, early=200, late=1000)


def measure(mode: str, settings: Settings, wanted: list[str], parent: Path) -> Results:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    busy = busy_share()
    report = Runner(lambda text: print(text, file=sys.stderr, flush=True))
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="quorate-bench-", dir=parent) as name,
        cluster(3, directory=Path(name), cuttable=False) as nodes,
    ):
        folder = Path(name)
        spark = quorate.spark.session(
            "bench",
            master="local[2]",
            config={
                "spark.ui.enabled": False,
                # As the guide advises whoever moves much; for every source in Python alike.
                "spark.python.unix.domain.socket.enabled": True,
                "spark.driver.memory": "2g",
                "spark.sql.shuffle.partitions": 2,
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            },
        )
        bench = Bench(spark, nodes, folder, settings.rounds, report)
        # First: what W9 leaves in memory and gives back meanwhile would hide a growth.
        if "W11" in wanted:
            rows += bench.pass_through(settings.samples, Marks(settings.early, settings.late))
        if "W9" in wanted:
            for shape in _shapes(settings):
                rows += bench.read_and_write(shape)
        spark.stop()
    return {
        "mode": mode,
        "began": began,
        **describe(parent),
        "settings": settings._asdict(),
        "busy": [busy, busy_share()],
        "stored": bench.stored,
        "rows": rows,
    }


def _shapes(settings: Settings) -> list[Shape]:
    return [
        Shape(f"{size}, {'random' if random else 'like JSON'}", records, value_bytes, random)
        for size, records, value_bytes in (
            ("100 B", settings.small, 100),
            ("1 KiB", settings.large, 1024),
        )
        for random in (True, False)
    ]


def show(results: Results) -> None:
    """The table, for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(HEADS):
        table.add_column(head, justify="right" if place in (4, 7) else "left")
    for line in lines(results):
        table.add_row(*line.cells, style="yellow" if line.missed else "")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for why in voids(results):
        console.print(f"void: {why}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--full", action="store_true", help="more records, more rounds")
    parser.add_argument("--workloads", default=",".join(ALL), help="W9 (with W10), W11")
    for name in Settings._fields:
        parser.add_argument(f"--{name}", type=int, help="instead of the usual")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--page", type=Path, help="where the page goes, also of a part")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--from", type=Path, dest="source", help="write the page from this JSON")
    parsed = parser.parse_args(arguments)
    if parsed.source is not None:
        results = json.loads(parsed.source.read_text(encoding="utf-8"))
        (parsed.page or PAGE).write_text(page(results), encoding="utf-8")
        return 0
    wanted = parsed.workloads.split(",")
    if unknown := set(wanted) - set(ALL):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    given = {name: getattr(parsed, name) for name in Settings._fields}
    changed = {name: value for name, value in given.items() if value is not None}
    settings = (FULL if parsed.full else QUICK)._replace(**changed)
    whole = not changed and set(wanted) == set(ALL)
    mode = ("full" if parsed.full else "quick") if whole else "part"
    results = measure(mode, settings, wanted, (parsed.folder or Path(tempfile.gettempdir())))
    parsed.results.mkdir(parents=True, exist_ok=True)
    path = parsed.results / f"spark-{mode}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)
    # A part of a run does not take the place of a whole one.
    if whole or parsed.page is not None:
        (parsed.page or PAGE).write_text(page(results), encoding="utf-8")
    rows = len(results["rows"])
    print(f"bench-spark: rows={rows} missed={missed_count(results)} json={path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
