"""From what was measured with Spark to tables, and to the page ``docs/benchmarks-spark.md``.

A ratio is taken round by round, against what ran beside it in the same round, and the median of
those is shown. Rows whose bar was missed look like the others.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.machine import described, disturbed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rounds import Row

    Results = dict[str, Any]

__all__ = ["HEADS", "Line", "lines", "missed_count", "page", "voids"]

HEADS = ("", "values", "system", "figure", "median", "low to high", "beside", "ratio", "bar", "")
TITLES = {
    "W9": "W9: batch read",
    "W10": "W10: write, a million records in each micro-batch of a stream",
    "W11": "W11: append, through a micro-batch, visible in a second log",
}

RULES = """\
- Ratios, of what ran side by side: all in turn, round after round, in one session of Spark, beside
  the three nodes that it reads and writes. Shown is the median of the rounds, with the lowest and
  the highest. Absolute figures promise nothing.
- Parquet is Spark's own, compressed with snappy, with the same rows and the same four columns:
  a number, a time, a key of 8 bytes, the value. It is written to one disk once, without a sync; a
  log is on three disks, two of them synced, before a write ends.
- Values are random bytes, which cannot be compressed, or orders as JSON, of which Parquet stores a
  part: names of fields come again, numbers do not.
- A read ends with Spark's sink `noop`: every row comes to Java. `tuples` is the same source, with
  tuples in place of Arrow. `path` reads a copy of the directory of one node.
- Spark and its workers in Python, whatever their source, are connected by Unix sockets.
- The limit is what Spark and a source or sink in Python come to with no log behind them: record
  batches of the same rows that lie ready in memory, and a sink that counts what it is given.
- A write reads Parquet files. A stream counts what its micro-batches took, not what comes before.
- Memory is that of the driver: Java and the processes that it started, after a collection; what
  they share is counted once.
- Rows whose bar was missed are shown like the others."""


class Bar(NamedTuple):
    """What a row has to reach beside another one of the same values."""

    workload: str
    variant: str
    # Of the values that it is about: what their name begins with.
    shape: str
    bound: float
    against: tuple[str, str]


PARQUET = ("parquet", "")
LIMIT = ("limit", "arrow")
BARS = (
    Bar("W9", "cluster", "100 B", 0.5, PARQUET),
    Bar("W9", "cluster", "1 KiB", 0.6, PARQUET),
    Bar("W9", "cluster", "", 3.0, ("quorate", "tuples")),
    Bar("W9", "path", "1 KiB", 0.8, PARQUET),
    Bar("W9", "path", "100 B", 0.0, PARQUET),
    Bar("W9", "cluster", "", 0.0, LIMIT),
    Bar("W9", "path", "", 0.0, LIMIT),
    Bar("W9", "arrow", "", 0.0, PARQUET),
    Bar("W9", "arrow", "", 0.0, ("quorate", "tuples")),
    Bar("W10", "batch", "", 0.3, PARQUET),
    Bar("W10", "batch", "", 0.0, LIMIT),
    Bar("W10", "arrow", "", 0.0, PARQUET),
    Bar("W10", "stream", "100 B", 0.75, ("quorate", "batch")),
    Bar("W10", "stream", "1 KiB", 0.75, ("quorate", "batch")),
)
LATENCY_MS_MAX = 600.0
GROWTH_MAX = 1.1


class Line(NamedTuple):
    """One row of a table, as text, under :data:`HEADS`."""

    workload: str
    cells: tuple[str, ...]
    missed: bool


def lines(results: Results) -> list[Line]:
    found: list[Line] = []
    for row in results["rows"]:
        found += _passing(row) if row["workload"] == "W11" else _throughput(results, row)
    return found


def missed_count(results: Results) -> int:
    return sum(line.missed for line in lines(results))


def voids(results: Results) -> list[str]:
    """Why the ratios prove nothing, if they do not."""
    found = disturbed(results)
    if results["mode"] == "part":
        found.append("it is a part of a run, or a small one: it shows that the benchmark works")
    return found


def _throughput(results: Results, row: Row) -> Iterator[Line]:
    rates = [one["records_per_s"] for one in row["rounds"]]
    name = f"{row['system']} {row['variant']}".strip()
    shown = (row["workload"], row["shape"], name, "records/s", *_spread(rates))
    compared = [
        (bar, ratios)
        for bar in BARS
        if (bar.workload, bar.variant) == (row["workload"], row["variant"])
        and row["shape"].startswith(bar.shape)
        and (ratios := _ratios(results, row, bar))
    ]
    if not compared:
        yield Line(row["workload"], (*shown, "", "", "", ""), missed=False)
    for bar, ratios in compared:
        missed = median(ratios) < bar.bound
        beside = " ".join(bar.against).strip()
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        bound = f"≥ {bar.bound:g}" if bar.bound else ""
        cells = (*shown, beside, ratio, bound, "missed" if missed else "")
        yield Line(row["workload"], cells, missed)


def _ratios(results: Results, row: Row, bar: Bar) -> list[float]:
    for other in results["rows"]:
        same = (other["workload"], other["shape"]) == (row["workload"], row["shape"])
        if same and (other["system"], other["variant"]) == bar.against:
            pairs = zip(row["rounds"], other["rounds"], strict=True)
            return [one["records_per_s"] / two["records_per_s"] for one, two in pairs]
    return []


def _passing(row: Row) -> Iterator[Line]:
    for figure, bound in (("p50_ms", LATENCY_MS_MAX), ("p99_ms", None)):
        taken = [one[figure] for one in row["rounds"]]
        missed = bound is not None and median(taken) > bound
        bar = f"≤ {bound:g}" if bound is not None else ""
        shown = ("W11", "", "quorate", figure.replace("_", " "), *_spread(taken))
        yield Line("W11", (*shown, "", "", bar, "missed" if missed else ""), missed)
    early, late = row["memory"]["early"], row["memory"]["late"]
    growth = late["memory_mb"] / early["memory_mb"]
    shown = ("W11", "", "quorate", f"MB after {late['batches']}", f"{late['memory_mb']:.0f}", "")
    beside = f"after {early['batches']}: {early['memory_mb']:.0f}"
    missed = growth > GROWTH_MAX
    cells = (*shown, beside, f"{growth:.2f}", f"≤ {GROWTH_MAX:g}", "missed" if missed else "")
    yield Line("W11", cells, missed)
    staged = row["staged_bytes"]
    shown = ("W11", "", "quorate", "bytes staged", str(staged), "")
    yield Line("W11", (*shown, "", "", "0", "missed" if staged else ""), staged > 0)


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return _number(median(values)), f"{_number(min(values))} to {_number(max(values))}"


def _number(value: float) -> str:
    for unit, factor in ((" M", 1e6), (" k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


# -- the page ------------------------------------------------------------------------------------


def page(results: Results) -> str:
    parts = [*_opening(results), *_tables(results), *_stored(results), "", "## Rules", "", RULES]
    return "\n".join(parts) + "\n"


def _opening(results: Results) -> Iterator[str]:
    yield "# Benchmarks with Spark"
    yield ""
    yield "Written by `make bench-spark` from what it measured; do not edit. The log by itself is"
    yield "measured on [another page](benchmarks.md)."
    yield ""
    run = "{rounds} rounds, {small:,} records of 100 B, {large:,} of 1 KiB"
    run = run.format_map(results["settings"])
    yield from described(results, run, missed_count(results), voids(results))


def _stored(results: Results) -> Iterator[str]:
    """How much of the values Parquet has left to read."""
    if results["stored"]:
        yield ""
        yield "## What Parquet stores"
        yield ""
        yield "| values | bytes for each byte of the values |"
        yield "| --- | --- |"
        yield from (f"| {name} | {share:.2f} |" for name, share in results["stored"].items())


def _tables(results: Results) -> Iterator[str]:
    found = lines(results)
    for workload in sorted({line.workload for line in found}, key=lambda name: int(name[1:])):
        rows = [line.cells for line in found if line.workload == workload]
        used = [place for place in range(1, len(HEADS)) if any(row[place] for row in rows)]
        yield ""
        yield f"## {TITLES[workload]}"
        yield ""
        yield f"| {' | '.join(HEADS[place] for place in used)} |"
        yield f"| {' | '.join('---' for _ in used)} |"
        yield from (f"| {' | '.join(row[place] for place in used)} |" for row in rows)
