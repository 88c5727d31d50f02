"""The events in few lines: similar events next to each other are reported together.

Answers to ``a1``, ``a2``, … share a line, and so do nodes that did the same one after the other; an
event that happened again and again is reported once, where it happened first.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from quorate.commands import Receipt
from verification.scenario.rendering import answer_line, disks

if TYPE_CHECKING:
    from verification.scenario.rendering import Result

__all__ = ["Transcript"]

_NUMBERED = re.compile(r"(\D*)(\d+)")


class Transcript:
    """Collects events until they are taken."""

    def __init__(self) -> None:
        # The node and the event of each line; no node for lines about answers.
        self._lines: list[tuple[str, str]] = []
        # Answers that came since the last line.
        self._answers: list[tuple[str, Result]] = []

    def tell(self, node: str, text: str) -> None:
        self._tell_answers()
        self._lines.append((node, text))

    def answered(self, label: str, result: Result) -> None:
        self._answers.append((label, result))

    def take(self) -> list[str]:
        self._tell_answers()
        times = Counter(self._lines)
        self._lines = []
        told = []
        for (text, repeated), same in groupby(times, lambda line: (line[1], times[line] > 1)):
            who = " ".join(node for node, _ in same if node)
            told.append((f"{who}: " if who else "") + text + " (repeatedly)" * repeated)
        return told

    def _tell_answers(self) -> None:
        runs: list[list[tuple[str, Result]]] = []
        for label, result in self._answers:
            if runs and _continues(runs[-1][-1], (label, result)):
                runs[-1].append((label, result))
            else:
                runs.append([(label, result)])
        self._lines += [("", _run_line(run)) for run in runs]
        self._answers = []


def _continues(before: tuple[str, Result], after: tuple[str, Result]) -> bool:
    """Whether the second answer continues the numbering of the first one."""
    (label, result), (next_label, next_result) = before, after
    number = _NUMBERED.fullmatch(label)
    if number is None or next_label != f"{number[1]}{int(number[2]) + 1}":
        return False
    if isinstance(result, Receipt) and isinstance(next_result, Receipt):
        counted_on = result._replace(offset=result.offset + 1, index=next_result.index)
        return next_result == counted_on
    return answer_line("", result) == answer_line("", next_result)


def _run_line(run: list[tuple[str, Result]]) -> str:
    (first, start), (last, stop) = run[0], run[-1]
    if len(run) == 1:
        return answer_line(first, start)
    if isinstance(start, Receipt) and isinstance(stop, Receipt):
        place = f"offset {start.offset}..{stop.offset}, index {start.index}..{stop.index}"
        return f"{first}..{last} -> {place}, term {start.term}, on {disks(start)}"
    return answer_line(f"{first}..{last}", start)
