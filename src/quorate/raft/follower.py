"""The follower: takes the leader's messages. It compares logs, appends, and follows the commit.

The core has checked term and leader of every message that arrives here (no control message skips
the check), and the engine's peer filter has checked the shape and the chain of entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Damaged
from quorate.raft.messages import Ack, Append, Compare, Heartbeat, Mismatch
from quorate.raft.output import EventKind, Refusal
from quorate.types import Index, NodeId, Position, Term

if TYPE_CHECKING:
    from quorate.raft.state import RaftState

__all__ = ["Follower"]


class Follower:
    """The receiving side of replication."""

    __slots__ = ("_raft",)

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft

    def on_compare(self, leader: NodeId, ask: Compare) -> None:
        if self._agrees(leader, ask.number, ask.prev):
            self._ack(leader, ask.number, ask.prev.index)

    def on_append(self, leader: NodeId, message: Append, takes: int | None = None) -> None:
        """Append entries (Raft § 5.3). The engine sends the ack when its entries are on disk.

        ``takes``: the number of entries that find room on the disk, from the first one; None: all.
        Own entries that differ from the leader's are dropped even if the leader's find no room in
        their place: what is dropped makes room, and no leader will ever need it.
        """
        raft = self._raft
        if not self._agrees(leader, message.number, message.prev):
            return
        taken = message.entries[:takes]
        mismatch = self._first_mismatch(message)
        if mismatch is not None:
            if mismatch <= raft.log.last_index:
                self._truncate(mismatch)
            raft.append(taken[mismatch - message.prev.index - 1 :])
        if not taken:
            raft.refuse(Refusal.NO_SPACE)
            return
        proved = taken[-1].index
        raft.commit(min(message.committed, proved))
        self._ack(leader, message.number, proved)

    def on_heartbeat(self, leader: NodeId, message: Heartbeat) -> None:
        """Follow the leader's commit. The committed position proves itself: a log that holds it
        holds all entries up to it."""
        raft = self._raft
        if raft.log.holds(message.committed):
            raft.commit(message.committed.index)
        elif message.committed.index <= raft.committed:
            raise self._damaged(message.committed)
        raft.send(leader, raft.heartbeat_reply(message.round))

    def _ack(self, leader: NodeId, number: int, proved: Index) -> None:
        """Acknowledge entries up to ``proved``, or up to the committed index if that is higher: the
        leader has all entries that are committed here, so they count as proved."""
        raft = self._raft
        raft.send(leader, Ack(raft.term, number, max(proved, raft.committed)))

    def _agrees(self, leader: NodeId, number: int, prev: Position) -> bool:
        """Whether the log holds ``prev``; answers the leader if it does not."""
        raft = self._raft
        log = raft.log
        if log.holds(prev):
            return True
        if prev.index <= raft.committed:
            raise self._damaged(prev)
        if prev.index > log.last_index:
            hint_index, hint_term = Index(log.last_index + 1), Term(0)
        else:
            hint_term = log.term_at(prev.index)
            # The leader has the entries that are committed here: it need not compare below them.
            hint_index = max(log.first_index_of_term_at(prev.index), Index(raft.committed + 1))
        raft.send(leader, Mismatch(raft.term, number, prev.index, hint_index, hint_term))
        return False

    def _first_mismatch(self, message: Append) -> Index | None:
        """The first index at which the log lacks the leader's entry; None if it has them all."""
        log = self._raft.log
        if log.holds(message.entries[-1].position):
            return None  # the usual duplicate, found without looking at each entry
        return next(entry.index for entry in message.entries if not log.holds(entry.position))

    def _truncate(self, first: Index) -> None:
        """Drop the entries from ``first``. Called for a real mismatch only: to truncate at a mere
        overlap would drop acknowledged entries."""
        raft = self._raft
        if first <= raft.committed:
            raise self._damaged(raft.log.position(first))
        raft.truncate(first)
        raft.report(EventKind.TRUNCATES, index=first)

    def _damaged(self, position: Position) -> Damaged:
        raft = self._raft
        return Damaged(
            f"{raft.node}: the entry at index {position.index} is committed here (up to "
            f"{raft.committed}) and differs from the one that leader {raft.leader} of "
            f"term {raft.term} has; this copy must be repaired from its peers"
        )
