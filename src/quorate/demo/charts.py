"""Charts of lines over time as SVG. The page has the colours: each line names its class."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Line", "Mark", "chart"]

LEFT = 52.0
RIGHT = 14.0
BOTTOM = 26.0
# Pixels above the drawing, and of a row of labels: labels that would overlap get rows of their own.
TOP = 12.0
ROW = 17.0
# Approximate width of a letter of a label, in pixels.
LETTER = 6.3
TICKS_Y = 4
# Pixels that a label below the drawing needs.
TICK_WIDTH = 64.0


class Line(NamedTuple):
    name: str
    # A class of the page's style sheet.
    style: str
    # Seconds and values, in order; None leaves a gap.
    points: Sequence[tuple[float, float | None]]


class Mark(NamedTuple):
    """A moment that the chart marks, with its label."""

    at: float
    label: str


def chart(
    title: str, lines: Sequence[Line], marks: Sequence[Mark], *, width: int, height: int
) -> str:
    """The SVG of a drawing of ``width`` by ``height`` pixels; the page may scale it."""
    rows = _rows(marks, lines, width)
    top = TOP + ROW * (max(rows, default=-1) + 1)
    frame = _Frame(lines, width, height, top)
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
        *frame.axes(),
        *(text for line in lines for text in frame.line(line)),
        *(frame.moment(mark, row) for mark, row in zip(marks, rows, strict=True)),
        # Labels are drawn over the lines of all marks.
        *(frame.label(mark, row) for mark, row in zip(marks, rows, strict=True)),
        "</svg>",
    ]
    return "\n".join(parts)


class _Frame:
    """The places of seconds and values on the drawing."""

    def __init__(self, lines: Sequence[Line], width: int, height: int, top: float) -> None:
        self._right = width - RIGHT
        self._top = top
        self._bottom = height - BOTTOM
        self._seconds = _seconds(lines)
        values = [value for line in lines for _, value in line.points if value is not None]
        self._step = _nice(max(values, default=0.0) / TICKS_Y)
        self._most = self._step * max(1, math.ceil(max(values, default=0.0) / self._step))

    def x(self, seconds: float) -> float:
        return LEFT + (self._right - LEFT) * min(seconds / self._seconds, 1.0)

    def y(self, value: float) -> float:
        return self._bottom - (self._bottom - self._top) * value / self._most

    def axes(self) -> Iterator[str]:
        for number in range(round(self._most / self._step) + 1):
            value = number * self._step
            y = self.y(value)
            yield f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{self._right:.0f}"/>'
            place = f'x="{LEFT - 8:.0f}" y="{y + 4:.1f}"'
            yield f'<text class="tick" {place} text-anchor="end">{_short(value)}</text>'
        step = _nice(self._seconds * TICK_WIDTH / (self._right - LEFT))
        for number in range(int(self._seconds / step) + 1):
            at = number * step
            place = f'x="{self.x(at):.1f}" y="{self._bottom + 18:.0f}"'
            yield f'<text class="tick" {place} text-anchor="middle">{at:g} s</text>'

    def line(self, line: Line) -> Iterator[str]:
        for run in _runs(line.points):
            path = "L".join(f"{self.x(at):.1f} {self.y(value):.1f}" for at, value in run)
            title = f"<title>{escape(line.name)}</title>"
            yield f'<path class="line {line.style}" d="M{path}">{title}</path>'

    def moment(self, mark: Mark, row: int) -> str:
        return (
            f'<path class="mark" d="M{self.x(mark.at):.1f} {_y(row) + 4:.1f}V{self._bottom:.1f}"/>'
        )

    def label(self, mark: Mark, row: int) -> str:
        begin = _begin(self.x(mark.at), mark.label, self._right)
        place = f'x="{begin:.1f}" y="{_y(row):.1f}"'
        return f'<text class="label" {place}>{escape(mark.label)}</text>'


def _rows(marks: Sequence[Mark], lines: Sequence[Line], width: int) -> list[int]:
    """The first row for each label in which it overlaps no other."""
    seconds = _seconds(lines)
    ends: list[float] = []
    rows = []
    for mark in marks:
        x = LEFT + (width - RIGHT - LEFT) * min(mark.at / seconds, 1.0)
        begin = _begin(x, mark.label, width - RIGHT)
        row = next((number for number, end in enumerate(ends) if end < begin), len(ends))
        ends[row : row + 1] = [begin + LETTER * (len(mark.label) + 1)]
        rows.append(row)
    return rows


def _y(row: int) -> float:
    return TOP + ROW * row


def _begin(x: float, label: str, right: float) -> float:
    """The left edge of a label: centred above its moment, and inside the drawing."""
    length = LETTER * len(label)
    return max(0.0, min(x - length / 2, right - length))


def _seconds(lines: Sequence[Line]) -> float:
    return max((at for line in lines for at, _ in line.points), default=0.0) or 1.0


def _runs(
    points: Sequence[tuple[float, float | None]],
) -> Iterator[list[tuple[float, float]]]:
    """The parts of a line without gaps; a value that stays the same for long is two points."""
    run: list[tuple[float, float]] = []
    for at, value in points:
        if value is None:
            if run:
                yield run
            run = []
            continue
        if len(run) > 1 and run[-1][1] == run[-2][1] == value:
            run.pop()
        run.append((at, value))
    if run:
        yield run


def _nice(least: float) -> float:
    """The smallest 1, 2 or 5 with zeros that is not below ``least``; at least 1."""
    if least <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
