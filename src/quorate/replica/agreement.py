"""Do all replicas have the same state? They tell each other what theirs is, every so many entries.

Logs are equal by their chain; this compares what came of applying them. A replica that differs from
a majority must not go on: whatever it answers may be wrong. If replicas differ and no majority says
which of them is right, none of them may go on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import StateDiverged
from quorate.raft.quorum import majority

if TYPE_CHECKING:
    from quorate.raft.messages import StateHash
    from quorate.types import Index, NodeId

__all__ = ["COMPARED_EVERY", "Agreement"]

# Entries between two comparisons. Rare enough to cost nothing, often enough to name the place.
COMPARED_EVERY = 256
# How many comparisons are kept for replicas that are behind.
KEPT = 64


class _Doubt(NamedTuple):
    """Another replica differs, and no majority has said yet which one is right."""

    since: int
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    digest: int
    what: str


class Agreement:
    """What each replica said its state was, at the newest indexes compared.

    A doubt is given ``patience`` ticks: replicas that are behind, and messages that were lost, may
    still decide it.
    """

    __slots__ = ("_clock", "_doubt", "_node", "_patience", "_said", "_told_at", "_voters")

    def __init__(self, node: NodeId, voters: int, patience: int) -> None:
        self._node = node
        self._voters = voters
        self._patience = patience
        self._said: dict[Index, dict[NodeId, int]] = {}
        self._clock = 0
        # The oldest difference that nothing has decided since.
        self._doubt: _Doubt | None = None
        # When the own digest was last told because of it.
        self._told_at = 0

    def note_own(self, index: Index, digest: int) -> None:
        """This replica has applied ``index``. Raises StateDiverged if it must not go on."""
        self._note(index, self._node, digest)

    def note_peer(self, peer: NodeId, message: StateHash) -> int | None:
        """What ``peer`` said. Raises StateDiverged if this replica must not go on.

        Gives this replica's own digest if the peer asks for it and it is known.
        """
        if message.index % COMPARED_EVERY != 0:
            return None
        self._note(message.index, peer, message.digest)
        return self._said.get(message.index, {}).get(self._node) if message.asks else None

    def tick(self, clock: int) -> tuple[Index, int] | None:
        """Time passes. Raises StateDiverged if a doubt lasted too long. What to tell every peer
        again: the message that would have decided it may be lost."""
        self._clock = clock
        doubt = self._doubt
        if doubt is None:
            return None
        if clock - doubt.since >= self._patience:
            raise self._undecided(doubt.what)
        if clock - self._told_at < self._patience // 10:
            return None
        self._told_at = clock
        return doubt.index, doubt.digest

    def _note(self, index: Index, node: NodeId, digest: int) -> None:
        if index not in self._said and len(self._said) >= KEPT:
            oldest = min(self._said)
            if index < oldest:
                return
            del self._said[oldest]
        said = self._said.setdefault(index, {})
        said[node] = digest
        own = said.get(self._node)
        if own is not None:
            self._judge(index, own, said)

    def _judge(self, index: Index, own: int, said: dict[NodeId, int]) -> None:
        counts, quorum = Counter(said.values()), majority(self._voters)
        # A majority that agreed on an older state says nothing about the one in doubt.
        if counts[own] >= quorum and self._doubt is not None and index >= self._doubt.index:
            self._doubt = None
        others = {digest: count for digest, count in counts.items() if digest != own}
        if counts[own] >= quorum or not others:
            return
        for other, count in others.items():
            if count >= quorum:
                raise StateDiverged(
                    f"{self._node}: the state after entry {index} is {own:016x} here and "
                    f"{other:016x} on {count} replicas; this copy must not be used: "
                    f"remove the file checkpoint of this log and start the node again, which makes "
                    f"its state from the log; report it"
                )
        named = ", ".join(
            f"{digest:016x} on {name}" for name, digest in sorted(said.items()) if digest != own
        )
        what = f"the state after entry {index} is {own:016x} here and {named}"
        if max(counts.values()) + self._voters - len(said) < quorum:
            raise self._undecided(what)
        if self._doubt is None:
            self._doubt = _Doubt(self._clock, index, own, what)
            self._told_at = self._clock

    def _undecided(self, what: str) -> StateDiverged:
        return StateDiverged(
            f"{self._node}: {what}; no majority says which is right, so neither copy may be used: "
            f"start the nodes that are down, run `quorate verify` on each copy, and remove the "
            f"file `checkpoint` of this log on the nodes that differ, so that its state is made "
            f"again from the log"
        )
