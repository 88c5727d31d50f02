"""Command line: ``python -m bench [--full]``. ``make bench`` and ``make bench-full`` call it.

Prints a table; leaves the results as JSON in ``bench/results``, and the page of the documentation
that is made from them, with its pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING

from bench.lasting import failovers, growth
from bench.machine import busy_share, describe
from bench.page import page
from bench.plots import draw
from bench.reading import reads
from bench.report import HEADS, lines, missed_count, pipe_lines, voids
from bench.rounds import Runner, Settings, loads
from bench.storage import sync_p50
from bench.systems import NOTES, Pipe, Quorate, ours_and_pipe, peers, slowed_disks
from quorate.cli.workloads import WORKLOADS
from verification.preload import why_not

if TYPE_CHECKING:
    from bench.limit import Limit
    from bench.report import Results
    from bench.rounds import Row
    from bench.systems import System

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = "figures"

QUICK = Settings(
    seconds=2.0, warm_up=0.5, rounds=3, kills=20, read_bytes=256 << 20, delays_ms=(2, 10),
    stored_bytes=0,
)  # fmt: skip
FULL = Settings(
    seconds=8.0, warm_up=2.0, rounds=5, kills=100, read_bytes=10**9, delays_ms=(2, 10),
    stored_bytes=10 * 10**9,
)  # fmt: skip

ALL = ("W1", "W2", "W3", "W4", "W5", "W6", "W8", "W13")
# Whoever cannot append a batch is not asked to.
WITHOUT_BATCHES = {"pysyncobj"}
SLOWED = ("W1", "W2", "W3")


class _Run:
    """One run of everything that was asked for."""

    def __init__(self, settings: Settings, wanted: list[str], folder: Path) -> None:
        self.settings = settings
        self.wanted = wanted
        self.folder = folder
        self.report = Runner(_say)
        self.rows: list[Row] = []

    def run(self) -> None:
        self._beside_peers()
        for delay_ms in self.settings.delays_ms:
            self._slowed(delay_ms)
        if "W8" in self.wanted:
            self.rows += failovers(self.settings, self.report)
        if "W13" in self.wanted and self.settings.stored_bytes:
            self.rows += growth(self.folder, self.settings, self.report)

    def _beside_peers(self) -> None:
        names = [name for name in WORKLOADS if name in self.wanted]
        if not names and "W6" not in self.wanted:
            return
        with ExitStack() as stack:
            # What they stored is gone before a log is to grow: that takes much room.
            folder = Path(stack.enter_context(TemporaryDirectory(dir=self.folder)))
            endpoints, pipe = stack.enter_context(ours_and_pipe(folder / "plain"))
            others = stack.enter_context(peers(folder, self.report.skipped)) if names else []
            for name in names:
                systems = _variants(name, endpoints, pipe)
                systems += [
                    ("", peer)
                    for peer in others
                    if WORKLOADS[name].records == 1 or peer.name not in WITHOUT_BATCHES
                ]
                self._load(name, systems)
            if "W6" in self.wanted:
                self.rows += reads(endpoints, folder, self.settings, self.report)

    def _slowed(self, delay_ms: int) -> None:
        names = [name for name in SLOWED if name in self.wanted]
        reason = why_not()
        if reason is not None:
            self.report.skipped["slow disks"] = reason
            return
        if not names:
            return
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=self.folder)))
            environment = stack.enter_context(slowed_disks(folder, delay_ms / 1000))
            endpoints, pipe = stack.enter_context(ours_and_pipe(folder, environment))
            for name in names:
                self._load(name, _variants(name, endpoints, pipe), delay_ms)

    def _load(self, name: str, systems: list[tuple[str, System]], delay_ms: int = 0) -> None:
        self.rows += loads(WORKLOADS[name], systems, self.settings, self.report, delay_ms=delay_ms)


def _variants(name: str, endpoints: str, pipe: Limit) -> list[tuple[str, System]]:
    """Ours and the pipe, in turn. Only where much is in flight does it matter how one waits."""
    if name != "W3":
        return [("", Quorate(endpoints)), ("", Pipe(pipe))]
    return [
        ("submitted", Quorate(endpoints)),
        ("", Pipe(pipe)),
        ("awaited", Quorate(endpoints, awaited=True)),
        ("awaited", Pipe(pipe, awaited=True)),
        ("producer", Quorate(endpoints, gathered=True)),
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(mode: str, settings: Settings, wanted: list[str], parent: Path) -> Results:
    """Everything that was asked for, and where and how it was measured."""
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    busy, sync = busy_share(), sync_p50(parent)
    with TemporaryDirectory(prefix="quorate-bench-", dir=parent) as name:
        run = _Run(settings, wanted, Path(name))
        run.run()
    return {
        "mode": mode,
        "began": began,
        **describe(parent),
        "settings": settings._asdict(),
        "busy": [busy, busy_share()],
        "sync_p50_us": [round(sync, 1), round(sync_p50(parent), 1)],
        "systems": NOTES,
        "skipped": run.report.skipped,
        "rows": run.rows,
    }


def show(results: Results) -> None:
    """The table, for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(HEADS):
        table.add_column(head, justify="right" if 3 <= place <= 6 else "left")
    before = ""
    for line in lines(results):
        if line.cells[0] != before:
            table.add_section()
        before = line.cells[0]
        table.add_row(*line.cells, style="yellow" if line.missed else "")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for what, why in results["skipped"].items():
        console.print(f"skipped: {what}: {why}")
    for workload, reached, known, share in pipe_lines(results):
        console.print(f"pipe {workload}: {reached}, known from two cores {known}, share {share}")
    console.print(
        "fdatasync p50: {:.0f} µs before, {:.0f} µs after".format(*results["sync_p50_us"])
    )
    console.print("cores in use: {:.0%} before, {:.0%} after".format(*results["busy"]))
    for why in voids(results):
        console.print(f"void: {why}")


def publish(results: Results, target: Path) -> None:
    """The page, and the pictures beside it."""
    try:
        drawn = draw(results, target.parent / PICTURES)
    except ImportError as error:
        _say(f"no pictures: {error}")
        drawn = []
    links = [f"{PICTURES}/{path.name}" for path in drawn]
    target.write_text(page(results, links), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--full", action="store_true", help="longer, and with logs that have grown")
    parser.add_argument("--workloads", default=",".join(ALL), help="some of these, with commas")
    parser.add_argument("--seconds", type=float, help="of each round, instead of the usual")
    parser.add_argument("--rounds", type=int, help="instead of the usual")
    parser.add_argument("--kills", type=int, help="instead of the usual")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--page", type=Path, help="where the page goes, also of a part")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--from", type=Path, dest="source", help="write the page from this JSON")
    parsed = parser.parse_args(arguments)
    if parsed.source is not None:
        publish(json.loads(parsed.source.read_text(encoding="utf-8")), parsed.page or PAGE)
        return 0
    wanted = parsed.workloads.split(",")
    if unknown := set(wanted) - set(ALL):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    given = {name: getattr(parsed, name) for name in ("seconds", "rounds", "kills")}
    changed = {name: value for name, value in given.items() if value is not None}
    settings = (FULL if parsed.full else QUICK)._replace(**changed)
    whole = not changed and set(wanted) == set(ALL)
    mode = ("full" if parsed.full else "quick") if whole else "part"
    parent = (parsed.folder or Path(gettempdir())).resolve()
    results = measure(mode, settings, wanted, parent)
    parsed.results.mkdir(parents=True, exist_ok=True)
    path = parsed.results / f"{mode}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)
    # A part of a run does not take the place of a whole one.
    if whole or parsed.page is not None:
        publish(results, parsed.page or PAGE)
    print(f"bench: rows={len(results['rows'])} missed={missed_count(results)} json={path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
