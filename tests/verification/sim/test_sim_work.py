"""What a turn does is counted against a budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.replica.engine import Engine
from verification.sim.options import swarm
from verification.sim.run import run

if TYPE_CHECKING:
    import pytest

EVENTS = 500


def test_a_turn_that_says_too_much_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Engine.turn

    def chatty(self, inputs, now_ms, wall_us=0):  # type: ignore[no-untyped-def]
        effects = turn(self, inputs, now_ms, wall_us)
        effects.sends *= 100_000
        return effects

    monkeypatch.setattr(Engine, "turn", chatty)
    options = replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={"held_messages": 16})
    violation = run(options).violation
    assert violation is not None
    assert violation.rule == "work"
