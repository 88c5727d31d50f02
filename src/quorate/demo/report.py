"""One page of HTML about a run, made from its document. The page loads no other file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.demo.charts import Line, Mark, chart
from quorate.demo.findings import NAIVE, QUORATE, Sample
from quorate.demo.watching import RATE_S, rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["render"]

STYLE = Path(__file__).with_name("report.css")
# Pixels of a drawing on a desk and on a phone, where scaled letters would be too small to read.
SIZES = (("wide", 1000, 300), ("narrow", 380, 260))

_LAG_NOTE = "Committed entries that a node does not have yet. No line: the node is down."


def render(document: dict[str, Any]) -> str:
    """The page as HTML. The same document gives the same page."""
    samples = [Sample(**sample) for sample in document["samples"]]
    marks = [Mark(kill["at"], f"kill -9 {kill['what']}") for kill in document["kills"]]
    parts = [
        *_head(document),
        *_columns(document),
        *_figures(document),
        *_drawing("Orders per second", "", _rates(samples), marks),
        *_drawing("Lag of each node's replicas", _LAG_NOTE, _lags(samples), marks),
        *_checks(document),
        *_steps(document),
        *_foot(document),
    ]
    return "\n".join(parts) + "\n"


# -- the first screen --------------------------------------------------------------------------


def _head(document: dict[str, Any]) -> Iterator[str]:
    failed = [check for check in document["checks"] if not check["kept"]]
    verdict = f"{len(failed)} of {len(document['checks'])} checks failed"
    if not failed:
        verdict = f"all {len(document['checks'])} checks passed"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>quorate demo: {verdict}</title>"
    yield f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body><main>"
    yield f'<header><h1>quorate demo</h1><p class="{"bad" if failed else "good"}">{verdict}</p>'
    yield (
        f"<p>{document['orders']:,} orders went from one replicated log to another through Spark. "
        f"Meanwhile the leader was killed, and then the Spark drivers, inside a batch.</p></header>"
    )


def _columns(document: dict[str, Any]) -> Iterator[str]:
    yield '<section class="columns">'
    for name, title, kind in (
        (NAIVE, "naive sink", "at least once"),
        (QUORATE, "quorate", "exactly once"),
    ):
        tally = document["sinks"][name]
        clean = not tally["duplicates"] and not tally["lost"]
        yield f'<div class="card {name}"><h2>{title} <small>{kind}</small></h2>'
        yield f'<p class="big {"good" if clean else "bad"}">{tally["duplicates"]:,}</p>'
        yield "<p>duplicates</p>"
        yield f"<p>lost {tally['lost']:,}; {tally['records']:,} records in the log</p></div>"
    yield "</section>"


def _figures(document: dict[str, Any]) -> Iterator[str]:
    figures = (
        (f"{document['orders']:,}", "orders"),
        (f"{document['failover_ms']} ms", "leader killed, until the next append"),
        (f"{document['letters']:,}", "dead letters"),
        (f"{document['seconds']:.0f} s", "for the whole demo"),
    )
    yield '<section class="figures">'
    for figure, what in figures:
        yield f"<div><b>{figure}</b><span>{what}</span></div>"
    yield "</section>"


# -- over time ---------------------------------------------------------------------------------


def _rates(samples: Sequence[Sample]) -> list[Line]:
    # On a slow machine batches are rare: the rate is smoothed over a longer time, 1/40 of the run.
    over_s = max(RATE_S, samples[-1].at / 40) if samples else RATE_S
    lines = []
    for name in (QUORATE, NAIVE):
        points = [
            (one.at, rate(samples[:end], name, over_s)) for end, one in enumerate(samples, start=1)
        ]
        lines.append(Line(name, name, points))
    return lines


def _lags(samples: Sequence[Sample]) -> list[Line]:
    nodes = sorted({node for sample in samples for node in sample.lags})
    return [
        Line(node, f"node{number}", [(one.at, one.lags.get(node)) for one in samples])
        for number, node in enumerate(nodes, start=1)
    ]


def _drawing(title: str, note: str, lines: Sequence[Line], marks: Sequence[Mark]) -> Iterator[str]:
    yield f"<section><h2>{escape(title)}</h2>"
    if note:
        yield f'<p class="note">{escape(note)}</p>'
    yield '<p class="legend">'
    for line in lines:
        yield f'<span><i class="{line.style}"></i>{escape(line.name)}</span>'
    yield "</p>"
    for size, width, height in SIZES:
        drawn = chart(title, lines, marks, width=width, height=height)
        yield f'<div class="{size}">{drawn}</div>'
    yield "</section>"


# -- tables ------------------------------------------------------------------------------------


def _checks(document: dict[str, Any]) -> Iterator[str]:
    yield "<section><h2>What was known beforehand, and what was found</h2>"
    yield '<table class="checks">'
    yield '<tr><th>what</th><th class="number">expected</th>'
    yield '<th class="number">found</th><th></th></tr>'
    for check in document["checks"]:
        sign = "✓" if check["kept"] else "✗"
        yield (
            f"<tr><td>{escape(check['what'])}</td>"
            f'<td class="number">{_shown(check["expected"])}</td>'
            f'<td class="number">{_shown(check["found"])}</td>'
            f'<td class="{"good" if check["kept"] else "bad"}">{sign}</td></tr>'
        )
    yield "</table></section>"


def _steps(document: dict[str, Any]) -> Iterator[str]:
    yield "<section><h2>Step by step</h2><table>"
    for step in document["steps"]:
        yield (
            f"<tr><td>{escape(step['title'])}<small>{escape(step['detail'])}</small></td>"
            f'<td class="number">{step["seconds"]:.1f} s</td></tr>'
        )
    yield "</table></section>"


def _foot(document: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    yield f"<footer><p>{escape(versions)}</p>"
    yield "<p>Made by <code>quorate demo</code>; run it again with <code>make demo</code>.</p>"
    yield "</footer></main></body></html>"


def _shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(value)
