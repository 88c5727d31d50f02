"""Pictures of the results: bars with the limit as a line, and latencies as distributions.

Needs matplotlib, which only whoever measures has. The same results give the same files.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from bench.report import FIGURES, title_of

if TYPE_CHECKING:
    from pathlib import Path

    from bench.report import Results
    from bench.rounds import Row

__all__ = ["draw"]

COLOURS = {"quorate": "#1f6feb", "pipe": "#8b949e", "pysyncobj": "#d29922", "etcd": "#3fb950"}
STYLES = {"": "-", "submitted": "-", "awaited": "--", "producer": ":"}
# The same ids in every file.
SALT = "quorate"


def draw(results: Results, folder: Path) -> list[Path]:
    """The files that were made. ImportError if matplotlib is not installed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = SALT
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters as letters, not as paths
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in results["rows"] if not row["delay_ms"]]
    drawn = []
    for name, draw_one in (
        ("throughput", _bars),
        ("latency", _latencies),
        ("failover", _failovers),
    ):
        figure = draw_one(rows)
        if figure is not None:
            path = folder / f"bench-{name}.svg"
            figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
            drawn.append(path)
    return drawn


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * count, 3.2), layout="constrained")
    return figure, [figure.add_subplot(1, count, place + 1) for place in range(count)]


def _label(row: Row) -> str:
    return f"{row['system']} {row['variant']}".strip()


def _bars(rows: list[Row]) -> Any:
    """A panel for each load that has a rate; whiskers from the lowest round to the highest."""
    names = [name for name in ("W2", "W3", "W4", "W5") if any(_of(rows, name))]
    if not names:
        return None
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=True):
        key, unit = FIGURES[name]
        found = _of(rows, name)
        for place, row in enumerate(found):
            values = [outcome[key] for outcome in row["rounds"]]
            middle = median(values)
            spread = [[middle - min(values)], [max(values) - middle]]
            colour = COLOURS.get(row["system"], "black")
            panel.bar(place, middle, yerr=spread, color=colour, capsize=3)
            if _label(row) == "pipe":
                panel.axhline(middle, color="black", linewidth=1, linestyle=":")
        panel.set_xticks(
            range(len(found)), [_label(row) for row in found], rotation=60, ha="right", fontsize=8
        )
        panel.set_title(title_of(name), fontsize=7)
        panel.set_ylabel(unit, fontsize=8)
    return figure


def _latencies(rows: list[Row]) -> Any:
    """How many of the appends were answered within a time; the median of the rounds at each."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [name for name in ("W1", "W2", "W3") if any(_of(rows, name))]
    if not names:
        return None
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=True):
        for row in _of(rows, name):
            rounds = [taken for outcome in row["rounds"] if (taken := outcome["quantiles_ms"])]
            times = [median(taken) for taken in zip(*rounds, strict=True)]
            panel.plot(
                times,
                range(len(times)),
                label=_label(row),
                color=COLOURS.get(row["system"], "black"),
                linestyle=STYLES.get(row["variant"], "-"),
            )
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_title(title_of(name), fontsize=7)
        panel.set_xlabel("ms", fontsize=8)
        panel.set_ylabel("percent answered", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.legend(fontsize=7)
    return figure


def _failovers(rows: list[Row]) -> Any:
    found = [row for row in rows if row["workload"] == "W8"]
    if not found:
        return None
    figure, [panel] = _panels(1)
    taken = found[0]["failovers_ms"]
    panel.step(taken, [100 * (place + 1) / len(taken) for place in range(len(taken))], where="post")
    panel.set_title(title_of("W8"), fontsize=7)
    panel.set_xlabel("ms", fontsize=8)
    panel.set_ylabel("percent of the kills", fontsize=8)
    return figure


def _of(rows: list[Row], workload: str) -> list[Row]:
    return [row for row in rows if row["workload"] == workload and row["rounds"]]
