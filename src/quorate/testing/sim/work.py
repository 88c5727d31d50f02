"""How much a node may do in one turn.

Virtual turns cost nothing, while a real one holds up all logs of its node. So what a turn does is
counted, the same on every machine, and bounded by what came in and by the limits, never by how much
the log remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.testing.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.replica.exchange import Effects
    from quorate.testing.sim.node import Node
    from quorate.types import Index

__all__ = ["check_work"]

# Messages to a peer besides appends: beats, a question, a vote, a digest, each also as an answer.
TALK = 8
# What one input, or one entry that is applied, may look at in the state.
LOOKS = 64


class _Work(NamedTuple):
    messages: int
    # Producers and attempts that were looked at one by one, or changed.
    looked_at: int
    # Entries that were read from disk for peers.
    fetched: int


def check_work(node: Node, inputs: int, effects: Effects, applied: Index) -> None:
    """After a turn with so many inputs, earlier ones that waited among them, that applied so many
    entries."""
    done = _Work(len(effects.sends), effects.work, effects.fetched)
    peers, limits = len(node.world.names) - 1, node.config.limits
    budget = _Work(
        limits.held_messages + peers * (limits.window_messages + TALK + inputs + applied),
        # Every ten seconds a leader looks at each producer once.
        limits.producers + LOOKS * (1 + inputs + applied),
        # One message for each peer.
        peers * limits.append_entries,
    )
    for name, count, most in zip(_Work._fields, done, budget, strict=True):
        if count > most:
            raise Violation("work", f"{node.name}: {name} {count} in one turn, budget {most}")
