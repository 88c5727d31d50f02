"""Refuses messages of peers that are not for this replica, or cannot be true.

The checks need no state but the replica's own identity and term. A message that passes may still be
old, late or unasked for: the core judges that.
"""

from __future__ import annotations

from quorate.entry import chain_holds
from quorate.raft.messages import (
    TERM_LEAP_MAX,
    Ack,
    Append,
    Compare,
    Envelope,
    Heartbeat,
    Message,
    PreVote,
    ReadIndexReply,
    Transfer,
    Vote,
)
from quorate.raft.output import Refusal
from quorate.types import ORIGIN, GroupId, NodeId, Position, Term

__all__ = ["refusal"]

# Messages of candidates and leaders. No node stands or leads in term 0: a node is in that term only
# before it first stands or hears of another term.
NEVER_IN_TERM_0 = frozenset({Vote, Compare, Append, Heartbeat, Transfer})


def refusal(envelope: Envelope, group: GroupId, node: NodeId, term: Term) -> Refusal | None:
    """The reason why ``node`` in ``term`` refuses ``envelope``; None if the core may judge it."""
    if envelope.group != group:
        same_cluster = envelope.group.cluster == group.cluster
        return Refusal.OTHER_INCARNATION if same_cluster else Refusal.OTHER_CLUSTER
    if envelope.target != node:
        return Refusal.NOT_ADDRESSED
    if envelope.source == node:
        return Refusal.FROM_SELF
    message = envelope.message
    if not 0 <= message.term <= term + TERM_LEAP_MAX:
        return Refusal.IMPOSSIBLE_TERM
    if message.term == 0 and type(message) in NEVER_IN_TERM_0:
        return Refusal.IMPOSSIBLE_TERM
    return _impossible(message)


def _impossible(message: Message) -> Refusal | None:
    kind = type(message)
    if kind is Append:
        return _impossible_append(message)  # type: ignore[arg-type]  # narrowed by its exact type
    if isinstance(message, Ack):
        return Refusal.IMPOSSIBLE_INDEX if message.match < 0 else None
    if isinstance(message, Compare):
        return _impossible_position(message.prev, message.term)
    if isinstance(message, PreVote | Vote | Transfer):
        return _impossible_position(message.last, message.term)
    if isinstance(message, Heartbeat):
        return _impossible_position(message.committed, message.term)
    if isinstance(message, ReadIndexReply) and message.index is not None and message.index < 0:
        return Refusal.IMPOSSIBLE_INDEX
    return None


def _impossible_append(message: Append) -> Refusal | None:
    if message.committed < 0 or not message.entries:
        return Refusal.IMPOSSIBLE_INDEX
    problem = _impossible_position(message.prev, message.term)
    if problem is not None:
        return problem
    if message.entries[-1].term > message.term:
        return Refusal.IMPOSSIBLE_TERM
    return None if chain_holds(message.prev, message.entries) else Refusal.BROKEN_CHAIN


def _impossible_position(position: Position, term: Term) -> Refusal | None:
    if position.index <= 0:
        return None if position == ORIGIN else Refusal.IMPOSSIBLE_INDEX
    return None if 0 < position.term <= term else Refusal.IMPOSSIBLE_TERM
