"""Where a replica stands, for whoever looks at it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.progress import ProgressState

if TYPE_CHECKING:
    from quorate.replica.engine import Engine
    from quorate.types import Index, NodeId, Role, Term

__all__ = ["PeerStatus", "ReplicaStatus", "status_of"]


class PeerStatus(NamedTuple):
    """A peer as the leader sees it."""

    node: NodeId
    # None until the leader knows where the logs agree.
    match: Index | None
    # compare, append, blocked or down.
    state: str
    # Whether its disk has no room, by what it said last.
    full: bool


class ReplicaStatus(NamedTuple):
    """One replica as it sees itself."""

    role: Role
    leader: NodeId | None
    term: Term
    first_offset: int
    end_offset: int
    applied: Index
    committed: Index
    persisted: Index
    last: Index
    # Entries that this disk lost.
    damaged: int
    # Frames of chunks that are staged and not published.
    staged_bytes: int
    # Whether this disk has no room for what clients append.
    full: bool
    # Only a leader knows them.
    peers: tuple[PeerStatus, ...]
    # Whether it lost entries that were durable, and gives no vote until it has them again.
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
    # Who said nothing for an election timeout would not help to elect anybody either.
    silent = standing.clock - standing.election_ticks
    found = []
    for node, peer in leader.progress.items():
        known = peer.state is not ProgressState.COMPARE or peer.match > 0
        state = "down" if peer.heard_at < silent else str(peer.state)
        found.append(PeerStatus(node, peer.match if known else None, state, bool(peer.full)))
    return tuple(found)
