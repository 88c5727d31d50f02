"""Simplifies a failing run: forgets choices as long as the same rule stays broken.

Delta debugging (Zeller): first whole streams, then ever smaller pieces of the list of choices. A
forgotten choice falls back to its default: no fault, an ordinary delay, the leader as target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from verification.sim.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.decisions import Choice
    from verification.sim.options import Options
    from verification.sim.run import Outcome

__all__ = ["shrink"]


class _Budget:
    def __init__(self, runs: int) -> None:
        self.left = runs

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def shrink(outcome: Outcome, runs: int, report: Callable[[str], None]) -> Outcome:
    """The smallest run found in ``runs`` tries that breaks the same rule as ``outcome``."""
    if outcome.violation is None:
        raise ValueError("only a failing run can be shrunk")
    rule = outcome.violation.rule
    budget = _Budget(runs)
    best = outcome

    def attempt(options: Options, choices: list[Choice]) -> bool:
        nonlocal best
        if not budget.spend():
            return False
        tried = run(options, choices)
        if tried.violation is None or tried.violation.rule != rule:
            return False
        best = tried
        report(f"{len(tried.choices)} choices, {tried.events} events")
        return True

    attempt(replace(outcome.options, events=outcome.events), outcome.choices)
    for options in _plainer(best.options):
        attempt(options, best.choices)
    for stream in sorted({name for name, _, _ in best.choices}):
        attempt(best.options, [choice for choice in best.choices if choice[0] != stream])
    _drop_pieces(lambda: best, attempt, budget)
    return best


def _plainer(options: Options) -> list[Options]:
    """The same run without gathering, small limits or noise, one at a time."""
    return [
        replace(options, gather_us=0),
        replace(options, limits={}),
        replace(options, noise={}),
    ]


def _drop_pieces(
    best: Callable[[], Outcome],
    attempt: Callable[[Options, list[Choice]], bool],
    budget: _Budget,
) -> None:
    size = max(1, len(best().choices) // 2)
    while budget.left > 0:
        start = 0
        dropped = False
        while start < len(best().choices) and budget.left > 0:
            choices = best().choices
            if attempt(best().options, choices[:start] + choices[start + size :]):
                dropped = True
            else:
                start += size
        if size == 1 and not dropped:
            return
        size = max(1, size // 2)
