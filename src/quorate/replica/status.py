"""The status of a replica, for operators and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.progress import ProgressState

if TYPE_CHECKING:
    from quorate.replica.engine import Engine
    from quorate.types import Index, NodeId, Role, Term

__all__ = ["PeerStatus", "ReplicaStatus", "status_of"]


class PeerStatus(NamedTuple):
    """The status of a peer, as the leader knows it."""

    node: NodeId
    # None until the leader knows where the logs agree.
    match: Index | None
    # compare, append, blocked or down.
    state: str
    # Whether its disk has no room, by its last report.
    full: bool


class ReplicaStatus(NamedTuple):
    """The status of one replica, as it knows itself."""

    role: Role
    leader: NodeId | None
    term: Term
    first_offset: int
    end_offset: int
    applied: Index
    committed: Index
    persisted: Index
    last: Index
    # Number of entries that this disk lost.
    damaged: int
    # Bytes of the frames of chunks that are staged and not published.
    staged_bytes: int
    # Whether this disk has no room for clients' appends.
    full: bool
    # Empty unless this node leads: only a leader knows its peers' status.
    peers: tuple[PeerStatus, ...]
    # Whether this node lost entries that were durable: it gives no vote until it has them again.
    unsure: bool


def status_of(engine: Engine, first_offset: int) -> ReplicaStatus:
    standing = engine.core.standing
    return ReplicaStatus(
        standing.role,
        standing.leader,
        standing.term,
        first_offset,
        engine.state.end,
        engine.applied,
        standing.committed,
        standing.persisted,
        standing.log.last_index,
        len(standing.hollow),
        engine.state.staging.bytes,
        standing.full,
        _peers(engine),
        not standing.sure,
    )


def _peers(engine: Engine) -> tuple[PeerStatus, ...]:
    leader, standing = engine.core.leader, engine.core.standing
    if leader is None:
        return ()
    # A peer that was silent for an election timeout would not help to elect a leader either.
    silent = standing.clock - standing.election_ticks
    found = []
    for node, peer in leader.progress.items():
        known = peer.state is not ProgressState.COMPARE or peer.match > 0
        state = "down" if peer.heard_at < silent else str(peer.state)
        found.append(PeerStatus(node, peer.match if known else None, state, bool(peer.full)))
    return tuple(found)
