"""From the results to rows that people read: medians, spreads, ratios, and the bars.

A ratio is taken round by round, against what ran beside it in the same round, and the median of
those is shown. Rows whose bar was missed look like the others. The same results give the same rows.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.effort import NAMES
from bench.machine import disturbed

if TYPE_CHECKING:
    from bench.rounds import Row

    Results = dict[str, Any]

__all__ = [
    "BARS",
    "HEADS",
    "Bar",
    "Line",
    "effort_lines",
    "lines",
    "missed_count",
    "pipe_lines",
    "title_of",
    "voids",
]

HEADS = ("", "system", "figure", "median", "low to high", "p99 ms", "of the limit", "bar", "")

TITLES = {
    "W1": "append 100 B, one in flight",
    "W2": "append 100 B, 64 in flight, one connection",
    "W3": "append 100 B, 2000 in flight over 4 connections",
    "W4": "append batches of 100 x 100 B, 64 in flight",
    "W5": "append batches of 100 x 1 KiB, 32 in flight",
    "W6": "read back records of 1 KiB",
    "W8": "leader killed, until the first append is answered",
    "W13": "batches of 100 x 100 B on a log that has grown",
}
# What a row is about; the first name is that of the figure in a round's outcome.
FIGURES = {
    "W1": ("p50_ms", "p50 ms"),
    "W2": ("records_per_s", "appends/s"),
    "W3": ("records_per_s", "appends/s"),
    "W4": ("records_per_s", "records/s"),
    "W5": ("mb_per_s", "MB/s"),
    "W6": ("mb_per_s", "MB/s"),
    "W13": ("records_per_s", "records/s"),
}
# What stands for the limit, where it is not the pipe.
LIMITS = {"W6": ("sendfile", ""), "W13": ("quorate", "new")}
PIPE = ("pipe", "")
PEER = ("pysyncobj", "")

# The bare pipe as measured on two cores when it was designed, the weaker end of what was seen. A
# pipe that reaches less than a good part of it is no limit, unless the machine itself is slower.
PIPE_KNOWN = {"W1": 0.59, "W2": 73e3, "W3": 415e3, "W4": 2.2e6, "W5": 184.0}
PIPE_SHARE = 0.85


class Bar(NamedTuple):
    """What a row has to reach: a figure by itself, or as a ratio to another row of the workload."""

    workload: str
    system: str
    variant: str
    figure: str
    bound: float
    against: tuple[str, str] | None = None
    at_most: bool = False
    # The row beside which it is shown, if that is another one.
    beside: tuple[str, str] | None = None

    @property
    def text(self) -> str:
        sign = "≤" if self.at_most else "≥"
        if self.beside is not None:
            return f"ours {sign} {self.bound:g} x"
        unit = (
            "" if self.against else {"records_per_s": " records/s", "memory_mb": " MB"}[self.figure]
        )
        return f"{sign} {_number(self.bound) if unit else f'{self.bound:g}'}{unit}"


BARS = (
    Bar("W1", "quorate", "", "p50_ms", 2.0, PIPE, at_most=True),
    Bar("W2", "quorate", "", "records_per_s", 0.5, PIPE),
    Bar("W3", "quorate", "submitted", "records_per_s", 0.4, PIPE),
    Bar("W3", "quorate", "submitted", "records_per_s", 10.0, PEER, beside=PEER),
    Bar("W4", "quorate", "", "records_per_s", 0.6, PIPE),
    Bar("W5", "quorate", "", "mb_per_s", 0.8, PIPE),
    Bar("W6", "quorate", "arrow", "mb_per_s", 0.6, ("sendfile", "")),
    Bar("W6", "quorate", "records", "records_per_s", 300e3),
    Bar("W13", "quorate", "grown", "records_per_s", 0.9, ("quorate", "new")),
    Bar("W13", "quorate", "memory", "memory_mb", 250.0, at_most=True),
)  # fmt: skip


class Line(NamedTuple):
    """One row of a table, as text, under :data:`HEADS`."""

    workload: str
    delay_ms: int
    cells: tuple[str, ...]
    missed: bool


def title_of(workload: str) -> str:
    return f"{workload}: {TITLES[workload]}"


def lines(results: Results) -> list[Line]:
    """All rows, in the order in which they were measured."""
    found: list[Line] = []
    for row in results["rows"]:
        if row["workload"] == "W8":
            found.append(_failover_line(row))
        elif _values(row, FIGURES[row["workload"]][0]):
            found.append(_line(results, row))
        if "memory_bytes" in row:
            found += _growth_lines(row)
    return found


def missed_count(results: Results) -> int:
    return sum(line.missed for line in lines(results))


def _line(results: Results, row: Row) -> Line:
    workload, delay_ms = row["workload"], row["delay_ms"]
    figure, unit = FIGURES[workload]
    values = _values(row, figure)
    tails = _values(row, "p99_ms")
    limit = LIMITS.get(workload, PIPE)
    ratios = [] if _key(row) == limit else _ratios(results, row, limit, figure)
    bar, value = _bar(results, row)
    missed = bar is not None and value is not None and not _kept(bar, value)
    extra = ""
    if workload == "W6":
        extra = f"{_number(median(_values(row, 'records_per_s')))} records/s"
    errors = sum(outcome["errors"] for outcome in row["rounds"])
    notes = [extra, "missed" * missed, f"{errors} errors" * bool(errors)]
    cells = (
        workload + (f" +{delay_ms} ms" if delay_ms else ""),
        f"{row['system']} {row['variant']}".strip(),
        unit,
        _number(median(values)),
        f"{_number(min(values))} to {_number(max(values))}",
        _number(median(tails)) if tails else "",
        f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "",
        _bar_text(bar, value),
        ", ".join(note for note in notes if note),
    )
    return Line(workload, delay_ms, cells, missed)


def _bar_text(bar: Bar | None, value: float | None) -> str:
    if bar is None:
        return ""
    return f"{bar.text}, {value:.1f} x" if bar.beside and value is not None else bar.text


def _failover_line(row: Row) -> Line:
    taken = row["failovers_ms"]
    last = len(taken) - 1
    cells = (
        "W8",
        "quorate",
        f"ms, {len(taken)} kills",
        _number(median(taken)),
        f"{_number(taken[0])} to {_number(taken[-1])}",
        _number(taken[min(last, len(taken) * 99 // 100)]),
        "",
        "",
        "",
    )
    return Line("W8", 0, cells, missed=False)


def _growth_lines(row: Row) -> list[Line]:
    bar = next(bar for bar in BARS if bar.figure == "memory_mb")
    memory = row["memory_bytes"] / 1e6
    opened = row["open_s"]
    stored = f"quorate, {row['stored_bytes'] / 1e9:g} GB"
    missed = not _kept(bar, memory)
    size = ("W13", stored, "MB of memory", _number(memory), "", "", "", bar.text, "missed" * missed)
    spread = f"{_number(min(opened))} to {_number(max(opened))}"
    opening = ("W13", stored, "s to open", _number(median(opened)), spread, "", "", "", "")
    return [Line("W13", 0, size, missed), Line("W13", 0, opening, missed=False)]


def effort_lines(results: Results) -> list[tuple[str, ...]]:
    """Microseconds of processor time for each record: workload, system, then as in NAMES."""
    found = []
    for row in results["rows"]:
        outcomes = [one for one in row.get("rounds", ()) if one.get("cpu_s") and one.get("done")]
        if outcomes and not row["delay_ms"]:
            shares = [
                median(1e6 * outcome["cpu_s"][name] / outcome["done"] for outcome in outcomes)
                for name in NAMES
            ]
            who = f"{row['system']} {row['variant']}".strip()
            found.append((row["workload"], who, *map(_number, shares)))
    return found


# -- figures -------------------------------------------------------------------------------------


def _key(row: Row) -> tuple[str, str]:
    return row["system"], row["variant"]


def _values(row: Row, figure: str) -> list[float]:
    found = (outcome.get(figure) for outcome in row["rounds"])
    return [value for value in found if value is not None]


def _row_of(results: Results, like: Row, key: tuple[str, str]) -> Row | None:
    """The row of ``key`` under the same load and delay as ``like``."""
    for row in results["rows"]:
        same = row["workload"] == like["workload"] and row["delay_ms"] == like["delay_ms"]
        if same and _key(row) == key:
            found: Row = row
            return found
    return None


def _ratios(results: Results, row: Row, against: tuple[str, str], figure: str) -> list[float]:
    """Round by round; empty if the other one was not measured."""
    other = _row_of(results, row, against)
    if other is None:
        return []
    pairs = zip(row["rounds"], other["rounds"], strict=False)
    figures = [(ours.get(figure), theirs.get(figure)) for ours, theirs in pairs]
    return [ours / theirs for ours, theirs in figures if ours is not None and theirs]


def _bar(results: Results, row: Row) -> tuple[Bar | None, float | None]:
    """The bar that is shown beside ``row``, and what was reached of it. None with a slowed disk."""
    if row["delay_ms"]:
        return None, None
    for bar in BARS:
        if bar.workload == row["workload"] and (bar.beside or (bar.system, bar.variant)) == _key(
            row
        ):
            judged = _row_of(results, row, (bar.system, bar.variant))
            if judged is None:
                return bar, None
            if bar.against is None:
                return bar, median(_values(judged, bar.figure))
            ratios = _ratios(results, judged, bar.against, bar.figure)
            return bar, median(ratios) if ratios else None
    return None, None


def _kept(bar: Bar, value: float) -> bool:
    return value <= bar.bound if bar.at_most else value >= bar.bound


def _number(value: float) -> str:
    """Three digits that matter, and k or M."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{_three(value / unit)}{name}"
    return _three(value)


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# -- whether it counts ---------------------------------------------------------------------------


def voids(results: Results) -> list[str]:
    """Why this run proves nothing; empty if it may."""
    found = disturbed(results)
    found += [
        f"the pipe reached {share.split()[0]} of what is known of it in {workload}"
        for workload, _, _, share in pipe_lines(results)
        if share.endswith("too low")
    ]
    return found


# -- the limit itself ----------------------------------------------------------------------------


def pipe_lines(results: Results) -> list[tuple[str, str, str, str]]:
    """Workload, what the pipe reached, what is known of it, and whether that will do."""
    found = []
    for row in results["rows"]:
        known = PIPE_KNOWN.get(row["workload"])
        if _key(row) != PIPE or row["delay_ms"] or known is None:
            continue
        figure, unit = FIGURES[row["workload"]]
        values = _values(row, figure)
        if not values or not (value := median(values)):
            continue
        share = known / value if figure == "p50_ms" else value / known
        verdict = f"{share:.2f}" + (" too low" if share < PIPE_SHARE else "")
        found.append((row["workload"], f"{_number(value)} {unit}", _number(known), verdict))
    return found
