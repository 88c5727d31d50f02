"""Limits for the work of a node in one turn.

Virtual turns cost no time, while a real one holds up all logs of its node. So the work of a turn is
counted, the same on every machine, and bounded by its inputs and by the limits, never by the amount
of state that the log remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.state.operations import EPOCHS_MAX, FORGOTTEN_MAX
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.replica.engine_io import Effects
    from quorate.types import Index
    from verification.sim.node import SimulatedNode

__all__ = ["check_work"]

# Messages to a peer besides appends: beats, a question, a vote, a digest, each also as an answer.
TALK = 8
# The lookups in the state that one input, or one applied entry, may make.
LOOKS = 64
# Producers and attempts that one search for idle ones finds, and then drops.
FORGOTTEN = 2 * (EPOCHS_MAX + FORGOTTEN_MAX)


class _Work(NamedTuple):
    messages: int
    # Producers and attempts that were examined one by one, or changed.
    looked_at: int
    # Entries that were read from disk for peers.
    fetched: int
    applied: int


def check_work(node: SimulatedNode, inputs: int, effects: Effects, applied: Index) -> None:
    """Check the work of a turn with so many inputs, earlier ones that waited among them, that
    applied so many entries."""
    done = _Work(len(effects.sends), effects.work, effects.fetched, applied)
    peers, limits = len(node.world.names) - 1, node.config.limits
    budget = _Work(
        limits.held_messages + peers * (limits.window_messages + TALK + inputs + applied),
        # Now and then a leader looks at each producer once, and forgets the idle ones.
        limits.producers + FORGOTTEN + LOOKS * (1 + inputs + applied),
        # One message for each peer.
        peers * limits.append_entries,
        limits.apply_entries,
    )
    for name, count, most in zip(_Work._fields, done, budget, strict=True):
        if count > most:
            raise Violation("work", f"{node.name}: {name} {count} in one turn, budget {most}")
