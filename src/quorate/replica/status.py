"""The status of a replica, for operators and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.progress import ProgressState
from quorate.wire.calls import PeerStatus

if TYPE_CHECKING:
    from quorate.replica.engine import Engine
    from quorate.types import Index, NodeId, Role, Term

__all__ = ["ReplicaStatus", "status_of"]


class ReplicaStatus(NamedTuple):
    """The status of one replica, as it knows itself."""

    role: Role
    leader: NodeId | None
    term: Term
    first_offset: int
    end_offset: int
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
    # The priorities that were set, by node, in the newest membership that is applied here.
    priorities: tuple[tuple[NodeId, int], ...]


def status_of(engine: Engine, first_offset: int) -> ReplicaStatus:
    raft, membership = engine.core.raft, engine.state.membership
    return ReplicaStatus(
        role=raft.role,
        leader=raft.leader,
        term=raft.term,
        first_offset=first_offset,
        end_offset=engine.state.end,
        committed=raft.committed,
        persisted=raft.persisted,
        last=raft.log.last_index,
        damaged=len(raft.without_body),
        staged_bytes=engine.state.staging.attempts.bytes,
        full=raft.full,
        peers=_peers(engine),
        unsure=not raft.sure,
        priorities=membership.membership.priorities if membership is not None else (),
    )


def _peers(engine: Engine) -> tuple[PeerStatus, ...]:
    leader, raft = engine.core.leader, engine.core.raft
    if leader is None:
        return ()
    # A peer that was silent for an election timeout would not help to elect a leader either.
    silent = raft.clock - raft.election_ticks
    found = []
    for node, peer in leader.progress.items():
        known = peer.state is not ProgressState.COMPARE or peer.match > 0
        state = "down" if peer.heard_at < silent else str(peer.state)
        found.append(
            PeerStatus(
                node=node,
                match=peer.match if known else None,
                state=state,
                full=bool(peer.full),
            )
        )
    return tuple(found)
