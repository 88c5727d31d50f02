"""The comparison of states: replicas send each other digests of theirs, every so many entries.

The chain proves that logs are equal; this module compares the states that result from applying
them. A replica that differs from a majority must not go on: each of its answers may be wrong. If
replicas differ and no majority says which of them is right, none of them may go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import StateDiverged

if TYPE_CHECKING:
    from quorate.raft.memberships import Memberships
    from quorate.raft.messages import StateHash
    from quorate.types import Index, NodeId

__all__ = ["COMPARED_EVERY", "StateCheck"]

# Entries between two comparisons: enough that the cost is negligible, few enough that a difference
# is found near the entry that caused it.
COMPARED_EVERY = 256
# Number of comparisons that are kept for replicas that are behind.
KEPT = 64


class _Disagreement(NamedTuple):
    """A difference between two replicas about which no majority has decided yet."""

    since: int
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    digest: int
    what: str


class StateCheck:
    """The digests that each replica sent of its state, at the newest indexes compared.

    A disagreement may last ``patience`` ticks: digests of replicas that are behind, or digests that
    were lost and are sent again, may still decide it.
    """

    __slots__ = (
        "_clock",
        "_disagreement",
        "_memberships",
        "_node",
        "_patience",
        "_said",
        "_told_at",
    )

    def __init__(self, node: NodeId, memberships: Memberships, patience: int) -> None:
        self._node = node
        self._memberships = memberships
        self._patience = patience
        self._said: dict[Index, dict[NodeId, int]] = {}
        self._clock = 0
        # The oldest difference that no majority has decided since.
        self._disagreement: _Disagreement | None = None
        # The tick at which this replica's digest was last sent because of the disagreement.
        self._told_at = 0

    def note_own(self, index: Index, digest: int) -> None:
        """Note this replica's digest after ``index``. Raises StateDiverged if it must not go on."""
        self._note(index, self._node, digest)

    def note_peer(self, peer: NodeId, message: StateHash) -> int | None:
        """Note the digest of ``peer``. Raises StateDiverged if this replica must not go on.

        Returns this replica's own digest if the peer asks for it and it is known.
        """
        if message.index % COMPARED_EVERY != 0:
            return None
        self._note(message.index, peer, message.digest)
        return self._said.get(message.index, {}).get(self._node) if message.asks else None

    def tick(self, clock: int) -> tuple[Index, int] | None:
        """Set the clock. Raises StateDiverged if a disagreement lasted too long. Returns the index
        and digest to send to every peer again: the message that would decide may be lost."""
        self._clock = clock
        disagreement = self._disagreement
        if disagreement is None:
            return None
        if clock - disagreement.since >= self._patience:
            raise self._undecided(disagreement.what)
        if clock - self._told_at < self._patience // 10:
            return None
        self._told_at = clock
        return disagreement.index, disagreement.digest

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
        electorate = self._memberships.electorate
        nodes: dict[int, set[NodeId]] = {}
        for node, digest in said.items():
            nodes.setdefault(digest, set()).add(node)
        decided = electorate.won(nodes[own])
        # A majority that agreed on an older state does not decide about the one that differs.
        if decided and self._disagreement is not None and index >= self._disagreement.index:
            self._disagreement = None
        if decided or len(nodes) == 1:
            return
        for other, agreeing in nodes.items():
            if electorate.won(agreeing):
                raise StateDiverged(
                    f"{self._node}: the state after entry {index} is {own:016x} here and "
                    f"{other:016x} on {len(agreeing)} replicas; this copy must not be used: "
                    f"remove the file checkpoint of this log and start the node again, which makes "
                    f"its state from the log; report it"
                )
        named = ", ".join(
            f"{digest:016x} on {name}" for name, digest in sorted(said.items()) if digest != own
        )
        what = f"the state after entry {index} is {own:016x} here and {named}"
        silent = electorate.voters - said.keys()
        if not any(electorate.won(agreeing | silent) for agreeing in nodes.values()):
            raise self._undecided(what)
        if self._disagreement is None:
            self._disagreement = _Disagreement(self._clock, index, own, what)
            self._told_at = self._clock

    def _undecided(self, what: str) -> StateDiverged:
        return StateDiverged(
            f"{self._node}: {what}; no majority says which is right, so neither copy may be used: "
            f"start the nodes that are down, run `quorate verify` on each copy, and remove the "
            f"file `checkpoint` of this log on the nodes that differ, so that its state is made "
            f"again from the log"
        )
