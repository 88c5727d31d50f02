"""A share of the cases in which a node breaks at a step of a change of the members."""

from __future__ import annotations

import pytest

from verification import change_steps
from verification.change_steps import FAULTS, Case, cases, changes, play

EVERY = 37


@pytest.mark.parametrize(("old", "new"), changes())
def test_a_share_of_all_steps_of_a_change(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    chosen = [*cases(old, new)][len(old) + sum(new) :: EVERY]
    assert chosen
    assert [found for found in map(play, chosen) if found] == []


def test_all_sets_of_one_and_three_of_four_are_played_and_disjoint_ones() -> None:
    found = changes()
    assert len(found) == len(set(found)) == 15
    assert any(len(old) == len(new) == 3 and not {*old} & {*new} for old, new in found)
    assert {case.fault for case in cases((1,), (2,))} == {*FAULTS}


def test_a_cluster_that_finds_no_agreement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_steps, "HEALED_ELECTIONS", 0)
    broken = play(Case((1,), (2,), 3, 2, "killed"))
    assert broken is not None
    assert "no agreement in 0 election timeouts" in broken
