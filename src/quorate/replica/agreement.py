"""Do all replicas have the same state? They tell each other what theirs is, every so many entries.

Logs are equal by their chain; this compares what came of applying them. A replica that differs from
a majority must not go on: whatever it answers may be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import StateDiverged

if TYPE_CHECKING:
    from quorate.raft.messages import StateHash
    from quorate.types import Index, NodeId

__all__ = ["COMPARED_EVERY", "Agreement"]

# Entries between two comparisons. Rare enough to cost nothing, often enough to name the place.
COMPARED_EVERY = 256
# How many comparisons are kept for replicas that are behind.
KEPT = 64


class Agreement:
    """What each replica said its state was, at the newest indexes compared."""

    __slots__ = ("_node", "_quorum", "_said")

    def __init__(self, node: NodeId, quorum: int) -> None:
        self._node = node
        self._quorum = quorum
        self._said: dict[Index, dict[NodeId, int]] = {}

    def note_own(self, index: Index, digest: int) -> None:
        """This replica has applied ``index``. Raises StateDiverged if a majority differs."""
        self._note(index, self._node, digest)

    def note_peer(self, peer: NodeId, message: StateHash) -> None:
        """What ``peer`` said. Raises StateDiverged if a majority differs from this replica."""
        if message.index % COMPARED_EVERY == 0:
            self._note(message.index, peer, message.digest)

    def _note(self, index: Index, node: NodeId, digest: int) -> None:
        if index not in self._said and len(self._said) >= KEPT:
            oldest = min(self._said)
            if index < oldest:
                return
            del self._said[oldest]
        said = self._said.setdefault(index, {})
        said[node] = digest
        own = said.get(self._node)
        if own is None:
            return
        others = [other for name, other in said.items() if name != self._node and other != own]
        for other in set(others):
            if others.count(other) >= self._quorum:
                raise StateDiverged(
                    f"{self._node}: the state after entry {index} is {own:016x} here and "
                    f"{other:016x} on {others.count(other)} replicas; this copy must not be used: "
                    f"replace this node"
                )
