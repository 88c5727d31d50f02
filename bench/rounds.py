"""In turn: every system does the same, one after the other, round after round.

What the machine does meanwhile then happens to all of them. A row of the results is one system
under one load; its rounds stand in the order in which they were run, so that the same round of two
systems can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.effort import effort
from bench.systems import rest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.outcome import Outcome
    from bench.systems import System
    from quorate.cli.workloads import Workload

    Row = dict[str, Any]

__all__ = ["Runner", "Settings", "Turn", "in_turn", "loads", "reason"]


class Settings(NamedTuple):
    """How much is measured."""

    # Of one round of one system, and what comes before it and does not count.
    seconds: float
    warm_up: float
    rounds: int
    # Times that the leader is killed.
    kills: int
    # Bytes of values that are read back.
    read_bytes: int
    # Milliseconds by which syncs are slowed down, one after the other.
    delays_ms: tuple[int, ...]
    # Bytes of values that are there when growth is measured; 0 leaves it out.
    stored_bytes: int


class Turn(NamedTuple):
    """One system in one of its variants."""

    system: str
    variant: str
    run: Callable[[], Outcome]


def in_turn(
    workload: str, turns: Sequence[Turn], rounds: int, report: Runner, *, delay_ms: int = 0
) -> list[Row]:
    """A row for each of ``turns``. A peer that fails is left out, and it is said why."""
    rows: list[Row] = [
        {
            "workload": workload,
            "system": turn.system,
            "variant": turn.variant,
            "delay_ms": delay_ms,
            "rounds": [],
        }
        for turn in turns
    ]
    failed: set[str] = set()
    for number in range(rounds):
        for turn, row in zip(turns, rows, strict=True):
            if turn.system in failed:
                continue
            rest()
            who = f"{turn.system} {turn.variant}".strip()
            report.say(f"{workload} round {number + 1} of {rounds}: {who}")
            try:
                with effort() as spent:
                    outcome = turn.run()
                row["rounds"].append({**outcome, "cpu_s": spent})
            except (OSError, RuntimeError, ValueError) as error:
                if turn.system in OURS:
                    raise
                failed.add(turn.system)
                report.skipped[f"{turn.system} in {workload}"] = reason(error)
    return [row for row in rows if row["system"] not in failed]


def reason(error: Exception) -> str:
    """What went wrong, without the place on this machine where it did."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


# Without them there is nothing to compare.
OURS = {"quorate", "pipe"}


class Runner:
    """Says what is going on, and remembers what could not be measured, and why."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.skipped: dict[str, str] = {}


def loads(
    workload: Workload,
    systems: Sequence[tuple[str, System]],
    settings: Settings,
    report: Runner,
    *,
    delay_ms: int = 0,
) -> list[Row]:
    """One load on each of ``systems``, which come with the name of their variant."""

    def turn(variant: str, system: System) -> Turn:
        return Turn(
            system.name,
            variant,
            lambda: system.measure(workload, settings.seconds, settings.warm_up),
        )

    turns = [turn(variant, system) for variant, system in systems]
    return in_turn(workload.name, turns, settings.rounds, report, delay_ms=delay_ms)
