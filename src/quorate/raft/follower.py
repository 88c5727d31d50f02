"""The follower: takes the leader's messages. It compares logs, appends, and follows the commit.

The core has checked term and leader of every message that arrives here (no control message skips
the check), and the engine's admission has checked the shape and the chain of entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Damaged
from quorate.raft.messages import Ack, Append, Compare, Heartbeat, HeartbeatReply, Mismatch
from quorate.raft.output import Happening
from quorate.types import Index, NodeId, Position, Term

if TYPE_CHECKING:
    from quorate.raft.roles import Standing

__all__ = ["Follower"]


class Follower:
    """The receiving side of replication."""

    __slots__ = ("_standing",)

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def on_compare(self, leader: NodeId, ask: Compare) -> None:
        if self._agrees(leader, ask.number, ask.prev):
            self._ack(leader, ask.number, ask.prev.index)

    def on_append(self, leader: NodeId, message: Append) -> None:
        """Append entries (Raft § 5.3). The engine sends the ack when its entries are on disk."""
        standing = self._standing
        if not self._agrees(leader, message.number, message.prev):
            return
        proved = message.last_index
        mismatch = self._first_mismatch(message)
        if mismatch is not None:
            if mismatch <= standing.log.last_index:
                self._truncate(mismatch)
            standing.log.append(message.entries[mismatch - message.prev.index - 1 :])
        standing.commit(min(message.committed, proved))
        self._ack(leader, message.number, proved)

    def on_heartbeat(self, leader: NodeId, message: Heartbeat) -> None:
        """Follow the leader's commit. The committed position proves itself: a log that holds it
        holds all entries up to it."""
        standing = self._standing
        if standing.log.holds(message.committed):
            standing.commit(message.committed.index)
        elif message.committed.index <= standing.committed:
            raise self._damaged(message.committed)
        answer = HeartbeatReply(standing.term, message.round, standing.room, standing.full)
        standing.send(leader, answer)

    def _ack(self, leader: NodeId, number: int, proved: Index) -> None:
        """Acknowledge entries up to ``proved``, or up to the committed index if that is higher: the
        leader has all entries that are committed here, so they count as proved."""
        standing = self._standing
        standing.send(leader, Ack(standing.term, number, max(proved, standing.committed)))

    def _agrees(self, leader: NodeId, number: int, prev: Position) -> bool:
        """Whether the log holds ``prev``; answers the leader if it does not."""
        standing = self._standing
        log = standing.log
        if log.holds(prev):
            return True
        if prev.index <= standing.committed:
            raise self._damaged(prev)
        if prev.index > log.last_index:
            hint_index, hint_term = Index(log.last_index + 1), Term(0)
        else:
            hint_term = log.term_at(prev.index)
            # The leader has the entries that are committed here: it need not compare below them.
            hint_index = max(log.first_index_of_term_at(prev.index), Index(standing.committed + 1))
        standing.send(leader, Mismatch(standing.term, number, prev.index, hint_index, hint_term))
        return False

    def _first_mismatch(self, message: Append) -> Index | None:
        """The first index at which the log lacks the leader's entry; None if it has them all."""
        log = self._standing.log
        if log.holds(message.entries[-1].position):
            return None  # the usual duplicate, found without looking at each entry
        return next(entry.index for entry in message.entries if not log.holds(entry.position))

    def _truncate(self, first: Index) -> None:
        """Drop the entries from ``first``. Called for a real mismatch only: to truncate at a mere
        overlap would drop acknowledged entries."""
        standing = self._standing
        if first <= standing.committed:
            raise self._damaged(standing.log.position(first))
        standing.log.truncate(first)
        standing.hollow = {index for index in standing.hollow if index < first}
        standing.persisted = min(standing.persisted, Index(first - 1))
        standing.report(Happening.TRUNCATES, index=first)

    def _damaged(self, position: Position) -> Damaged:
        standing = self._standing
        return Damaged(
            f"{standing.node}: the entry at index {position.index} is committed here (up to "
            f"{standing.committed}) and differs from the one that leader {standing.leader} of "
            f"term {standing.term} has; this copy must be repaired from its peers"
        )
