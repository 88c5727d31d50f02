"""Random lives of a log whose disk spoils a page or two: what was durable is there, or the node
knows that it is not. ``make crashes`` takes many more."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.disk.rot import Unnoticed
from verification.disk.wander import wander, wander_all

LIVES = 300


@pytest.mark.parametrize("first", range(0, 4 * LIVES, LIVES))
def test_a_page_or_two_that_a_disk_spoils_cost_no_entry_that_was_durable_unnoticed(
    first: int,
) -> None:
    answers = Counter(wander(seed) for seed in range(first, first + LIVES))
    # Else nothing would be tried.
    assert min(answers["whole"], answers["damaged"], answers["unsure"]) > LIVES // 30


def test_a_life_that_is_forgotten_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(seed: int) -> str:
        if seed == 1:
            raise Unnoticed("seed 1")
        return "whole"

    monkeypatch.setattr("verification.disk.wander.wander", forgetful)
    outcome = wander_all(range(3))
    assert (outcome.states, outcome.problems) == (2, ["seed 1"])
