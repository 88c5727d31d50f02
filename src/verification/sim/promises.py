"""The messages that leave a node, checked as promises: each rests on bytes that no power cut takes.

A message tells its receiver a term, a vote or an ack, and the receiver counts on it from then on.
So a process that begins must know all that earlier processes of its node have told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Ack, Append, Envelope, Vote, VoteReply
from quorate.types import Index, NodeId, Position, Term
from verification.sim.committed import has_committed, is_committed, position_in
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.entry import Entry
    from quorate.raft.state import RaftState
    from verification.sim.node import SimulatedNode

__all__ = ["Promises"]


class Promises:
    """The terms, votes and acks that nodes have told each other in a run."""

    def __init__(self, committed: Sequence[Entry]) -> None:
        self._committed = committed
        # I6: votes and terms that other nodes may have seen.
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._terms_sent: dict[NodeId, Term] = {}
        # I17: the newest vote of each node, and its term.
        self._last_votes: dict[NodeId, tuple[Term, NodeId]] = {}
        # I13: the positions that each node ever acknowledged and has not truncated since, rising.
        self._acked: dict[NodeId, list[Position]] = {}

    def started(self, node: SimulatedNode, raft: RaftState) -> None:
        """A process begins: it may have forgotten nothing that another node has seen."""
        known = self._terms_sent.get(node.name, Term(0))
        if raft.term < known:
            raise Violation("I6", f"{node.name} restarts in term {raft.term}, sent {known} before")
        cast = self._votes.get((node.name, raft.term))
        if cast is not None and raft.vote != cast:
            raise Violation("I6", f"{node.name} forgot its vote for {cast} in term {raft.term}")

    def voted(self, name: NodeId, term: Term) -> NodeId | None:
        """The candidate that got the vote of a node; None if none was told of it."""
        return self._votes.get((name, term))

    def last_vote(self, name: NodeId) -> tuple[Term, NodeId] | None:
        """The newest vote of a node that was told, and its term."""
        return self._last_votes.get(name)

    def truncated(self, node: SimulatedNode, last: Index) -> None:
        """A node drops its entries after ``last``, none of which is committed."""
        acks = self._acked.get(node.name, [])
        while acks and acks[-1].index > last:
            acks.pop()

    def check_send(self, node: SimulatedNode, raft: RaftState, envelope: Envelope) -> None:
        """I10: no message leaves that depends on a change which a power cut could still take
        away."""
        message = envelope.message
        record = node.store.durable.vote
        if record is None or record.term < message.term:
            raise Violation("I10", f"{node.name} speaks in term {message.term}, has {record}")
        self._terms_sent[node.name] = max(self._terms_sent.get(node.name, Term(0)), message.term)
        if type(message) is VoteReply and message.granted:
            self._check_vote(node, raft, message.term, envelope.target)
        elif type(message) is Vote:
            self._check_vote(node, raft, message.term, node.name)
        elif type(message) is Append:
            _check_append(node, message)
        elif type(message) is Ack:
            position = position_in(self._committed, raft, message.match)
            if node.store.durable.position(position.index) != position:
                raise Violation("I10", f"{node.name} acks {position}, which is not on its disk")
            self._note_ack(node, position)

    def _check_vote(
        self, node: SimulatedNode, raft: RaftState, term: Term, candidate: NodeId
    ) -> None:
        self._check_nothing_lost(node, raft)
        cast = self._votes.setdefault((node.name, term), candidate)
        if cast != candidate:
            raise Violation("I6", f"{node.name} voted for {cast} and {candidate} in term {term}")
        known = self._last_votes.get(node.name)
        if known is None or term > known[0]:
            self._last_votes[node.name] = (term, candidate)
        record = node.store.durable.vote
        if record is None or (record.term, record.vote) != (term, candidate):
            raise Violation("I10", f"{node.name} votes for {candidate} in {term}, has {record}")

    def _check_nothing_lost(self, node: SimulatedNode, raft: RaftState) -> None:
        """I13: a node that votes has every entry that was committed with its help."""
        for acked in reversed(self._acked.get(node.name, [])):
            if is_committed(self._committed, acked):
                if not has_committed(self._committed, raft, acked.index):
                    raise Violation("I13", f"{node.name} votes, lost {acked.index} that it acked")
                return

    def _note_ack(self, node: SimulatedNode, position: Position) -> None:
        acks = self._acked.setdefault(node.name, [])
        if position.index > (acks[-1].index if acks else 0):
            acks.append(position)


def _check_append(node: SimulatedNode, message: Append) -> None:
    if not all(entry.whole for entry in message.entries):
        raise Violation("I14", f"{node.name} sends an entry without its body")
    limits = node.config.limits
    size = sum(entry.size for entry in message.entries)
    count = len(message.entries)
    if count > limits.append_entries or (count > 1 and size > limits.append_bytes):
        raise Violation("I15", f"{node.name}: an append of {count} entries, {size} bytes")
