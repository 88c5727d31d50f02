"""How often a leader may send a peer the same entry.

A peer that turns an entry down, or never gets it, is sent it again: after a while, and not as fast
as the network takes it. Messages that are lost or overtaken cost a few more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Append
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.raft.progress import Progress
    from quorate.replica.engine_io import Effects
    from quorate.types import Index, NodeId
    from verification.sim.node import SimulatedNode

__all__ = ["Resends"]

# Resends allowed besides one for each timeout after which a leader asks again.
SLACK = 20


class _Sent:
    """The first entry that a peer lacks."""

    __slots__ = ("match", "peer", "since_us", "times")

    def __init__(self, peer: Progress, now_us: int) -> None:
        self.peer = peer
        self.match: Index = peer.match
        self.since_us = now_us
        self.times = 0


class Resends:
    """Checks the entries that one node sends again."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._sent: dict[NodeId, _Sent] = {}

    def check(self, effects: Effects) -> None:
        """Check the messages of a turn."""
        node = self._node
        leader = node.engine.core.leader if node.engine is not None else None
        if leader is None:
            return
        now = node.local_us()
        for envelope in effects.sends:
            message = envelope.message
            if type(message) is not Append or message.term != leader.term:
                continue
            peer = leader.progress[envelope.target]
            sent = self._sent.get(envelope.target)
            if sent is None or sent.peer is not peer or sent.match != peer.match:
                sent = self._sent[envelope.target] = _Sent(peer, now)
            sent.times += message.prev.index == peer.match
            passed = (now - sent.since_us) // (1000 * node.config.timing.resend_ms)
            if sent.times > SLACK + passed:
                what = f"{envelope.target} entry {peer.match + 1} for the {sent.times}. time"
                raise Violation("resend", f"{node.name} sends {what}")
