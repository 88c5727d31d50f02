"""The page of the results, ``docs/benchmarks.md``: written from the JSON and from nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.effort import NAMES
from bench.machine import described
from bench.report import HEADS, effort_lines, lines, missed_count, pipe_lines, title_of, voids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.report import Line, Results

__all__ = ["page"]

RULES = """\
- Ratios, of systems that ran side by side: all systems in turn, round after round, on one machine.
  Shown is the median of the rounds, with the lowest and the highest. Absolute figures promise
  nothing.
- The limit is the bare pipe of `bench/limit.py`: the same processes, sockets, bytes, checksums and
  syncs, without consensus and without a log. Nothing that does this work in Python can be faster.
- A bar is the ratio or the figure that quorate is to reach. *Missed* in the last column means that
  the bar of this row was missed. Such rows are shown like the others.
- Every system has three nodes, the same values, as many appends in flight and its data on the same
  disk. If a system cannot do something, such as a sync before it answers, its line in the list
  above says so.
- Every system is driven by the fastest client that makes sense for it. One request is one record
  unless it says batch, and nothing is gathered before it is sent; only the row named producer does,
  and no bar is about it.
- The first part of each round is not counted. Nothing else runs meanwhile; the other systems stand
  by, which takes a few percent of one core."""


def page(results: Results, pictures: Sequence[str]) -> str:
    """``pictures`` are links to them, seen from the page."""
    parts = [*_opening(results), *_tables(results), *_closing(results, pictures)]
    return "\n".join(parts).rstrip() + "\n"


def _opening(results: Results) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "The speed of quorate, compared with a bare pipe, PySyncObj and etcd. `make bench` writes"
    yield "this page from its measurements; do not edit it. [The rules](#rules) say how to read it."
    yield ""
    run = "{rounds} rounds of {seconds:g} s, after {warm_up:g} s that do not count"
    run = run.format_map(results["settings"])
    yield from described(results, run, missed_count(results), voids(results))


def _tables(results: Results) -> Iterator[str]:
    found = lines(results)
    plain = [line for line in found if not line.delay_ms]
    for workload in dict.fromkeys(line.workload for line in plain):
        yield from _section(
            title_of(workload), [line for line in plain if line.workload == workload]
        )
    slowed = [line for line in found if line.delay_ms]
    if slowed:
        yield from _section("Slow disks", slowed)
        yield ""
        yield "Every sync takes so many milliseconds longer, for quorate and for the pipe."


def _section(title: str, found: Sequence[Line]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    # A column that says nothing here is left out.
    used = [place for place in range(len(HEADS)) if any(line.cells[place] for line in found)]
    yield _row([HEADS[place] for place in used])
    yield _row(["---"] * len(used))
    for line in found:
        yield _row([line.cells[place] for place in used])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _closing(results: Results, pictures: Sequence[str]) -> Iterator[str]:
    if pictures:
        yield ""
        yield "## Pictures"
        for picture in pictures:
            yield ""
            yield f"![{picture.rpartition('/')[2].rpartition('.')[0]}]({picture})"
    yield ""
    yield "## The limit itself"
    yield ""
    yield "What the pipe reached in this run, and before on a machine with two cores. A share below"
    yield "0.85 voids the ratios, unless this machine is slower than that one."
    yield ""
    yield "| | pipe | known | share |"
    yield "|---|---|---|---|"
    for line in pipe_lines(results):
        yield _row(line)
    yield ""
    yield "## Where the time goes"
    yield ""
    yield "Microseconds of processor time for each record. The load, the leader and two followers"
    yield "share the cores: what all of them spend is what the speed comes to, unless a disk or a"
    yield "turn-around is waited for. What they spend it on, and what was tried to spend less,"
    yield "[another page](internals/speed.md) says."
    yield ""
    yield _row(["", "system", *NAMES])
    yield "|---|---|---|---|---|"
    for found in effort_lines(results):
        yield _row(found)
    yield ""
    yield "## How each was run"
    yield ""
    for system, note in results["systems"].items():
        yield f"- {system}: {note}"
    for what, why in results["skipped"].items():
        yield f"- not measured: {what}: {why}"
    yield ""
    yield "## Rules"
    yield ""
    yield RULES
