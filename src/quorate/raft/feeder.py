"""The feeder of a leader: it sends each peer the entries that it lacks, or asks where to begin.

Each peer is fed on its own: no method waits for a peer, so a hung peer does not delay the others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.errors import Busy, Corrupt
from quorate.raft.messages import Append, Compare
from quorate.raft.output import EventKind
from quorate.raft.progress import ProgressState
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState
    from quorate.types import NodeId, Position, Term

__all__ = ["Feeder"]

SECOND_MS = 1000
# Entries that are tried for one question to a peer if others are lost on this disk.
PROBES = 16


class Feeder:
    """Feeds the peers of one leadership."""

    __slots__ = ("_progress", "_quota_at", "_raft", "_term")

    def __init__(self, raft: RaftState, progress: Mapping[NodeId, Progress]) -> None:
        self._raft = raft
        self._term: Term = raft.term
        self._progress = progress
        # The clock when each peer gets its share of the next second.
        self._quota_at = raft.clock

    def feed(self) -> None:
        """Send each peer the messages that its state allows: called once at the end of a turn."""
        last = self._raft.log.last_index
        for peer in self._progress.values():
            if peer.state is ProgressState.APPEND:
                if peer.next <= last:
                    self._try(self._stream, peer)
            elif peer.state is ProgressState.COMPARE and peer.sent_at is None:
                self._try(self._ask, peer)

    @staticmethod
    def _try(feed: Callable[[Progress], None], peer: Progress) -> None:
        """Feed ``peer``. Entries that cannot be read from the disk right now are read in a later
        turn."""
        with suppress(Busy):
            feed(peer)

    def _ask(self, peer: Progress) -> None:
        raft = self._raft
        prev = self._before_next(peer)
        if prev is not None:
            peer.sent_at = raft.clock
            raft.send(peer.node, Compare(self._term, peer.number, prev))

    def _before_next(self, peer: Progress) -> Position | None:
        """The position before the next entry for ``peer``. None if it is lost on this disk: then no
        question and no entry can be sent from there on, and another way was taken."""
        try:
            return self._raft.log.position(Index(peer.next - 1))
        except Corrupt:
            self._pass_over(peer, Index(peer.next - 1))
            return None

    def _stream(self, peer: Progress) -> None:
        """Fill the peer's window. Of entries that have to be read from disk one message is sent,
        the others in later turns: a turn delays all logs of the node."""
        raft = self._raft
        limits = raft.config.limits
        log = raft.log
        # A peer without room drops entries: one message shows when it has room again.
        messages_max = 1 if peer.full else limits.window_messages
        fetched = False
        while (
            peer.next <= log.last_index
            and len(peer.inflight) < messages_max
            and peer.inflight_bytes < limits.window_bytes
            and not self._over_quota(peer)
        ):
            if fetched:
                raft.out.more = True
                return
            fetched = peer.next < log.first_in_memory
            prev = self._before_next(peer)
            if prev is None:
                return
            entries = log.slice(peer.next, limits.append_entries, limits.append_bytes)
            if not entries:
                self._pass_over(peer, peer.next)
                return
            if fetched:
                raft.out.fetched += len(entries)
            size = sum(entry.size for entry in entries)
            raft.send(peer.node, Append(self._term, peer.number, prev, entries, raft.committed))
            peer.commit_sent = min(raft.committed, entries[-1].index)
            peer.sent(entries[-1].index, size, raft.clock)
            peer.quota -= size

    def _pass_over(self, peer: Progress, lost: Index) -> None:
        """Ask ``peer`` about an entry behind ``lost``, which is damaged on this disk: the peer may
        have both. If there is no entry left to ask about, the peer is blocked."""
        raft = self._raft
        behind = self._position_between(peer.next, peer.differs)
        if behind is None:
            self._block(peer, lost)
            return
        peer.compare(Index(behind.index + 1))
        peer.sent_at = raft.clock
        raft.send(peer.node, Compare(self._term, peer.number, behind))

    def _position_between(self, start: Index, stop: Index) -> Position | None:
        """A position among start..stop-1 that this disk has, near the middle: each answer halves
        what is left. None if there is none among some evenly spaced ones."""
        indexes = range(start, stop, max(1, (stop - start) // PROBES))
        for index in sorted(indexes, key=lambda index: abs(2 * index - start - stop)):
            with suppress(Corrupt):
                return self._raft.log.position(Index(index))
        return None

    def _block(self, peer: Progress, lost: Index) -> None:
        """Block ``peer``: the entry ``lost``, which it needs, is damaged on this disk. The other
        peers are fed as before, and so is this node's state: an entry that is only on disk is
        applied already, or never will be."""
        raft = self._raft
        raft.without_body.add(lost)
        if peer.lacks != peer.next:
            raft.report(EventKind.PEER_BLOCKED, peer.node, lost)
        peer.block(raft.clock)

    def _over_quota(self, peer: Progress) -> bool:
        """Whether ``peer`` is far behind and has used up its share of the bandwidth: a peer that
        catches up must not slow down the others.

        Far behind the committed index: entries above it may need this very peer for their commit.
        """
        raft = self._raft
        lag = raft.committed - peer.next
        if lag < raft.config.limits.catchup_lag_entries or peer.quota > 0:
            return False
        if not peer.throttled:
            peer.throttled = True
            raft.report(EventKind.PEER_THROTTLED, peer.node, peer.next)
        return True

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Give each peer its share of a new second, ask peers that owe an answer, and notice peers
        that stand still."""
        raft = self._raft
        if raft.clock >= self._quota_at:
            self._quota_at = raft.clock + raft.ticks(SECOND_MS)
            for peer in self._progress.values():
                peer.quota = raft.config.limits.catchup_bytes_per_s
                peer.throttled = False
        patience = raft.ticks(raft.config.timing.resend_ms)
        for peer in self._progress.values():
            if peer.overdue(raft.clock, patience):
                self._resend(peer)
            self._watch(peer)

    def _resend(self, peer: Progress) -> None:
        """Ask a peer that gave no answer in time. The question is about the last entry sent: if
        only the acks were lost, no entry is sent twice; otherwise the answer names the first entry
        to send again."""
        if peer.state is ProgressState.COMPARE:
            peer.sent_at = None  # the same question again: an answer to either copy counts
            return
        peer.compare(peer.next)
        self._raft.report(EventKind.PEER_RESENT, peer.node, peer.next)

    def _watch(self, peer: Progress) -> None:
        """Notice a peer that answers heartbeats and still acknowledges no further entries.

        Its line or its disk may be slow: then the entries sent are still under way, and so is a
        question. So no question is asked about earlier entries, and none is given up.
        """
        raft = self._raft
        heard = peer.heard_within(raft.clock, raft.election_ticks)
        if peer.match == raft.log.last_index or peer.throttled or not heard:
            peer.moved_at = raft.clock
        elif raft.clock - peer.moved_at >= raft.ticks(raft.config.timing.watchdog_ms):
            if peer.state is not ProgressState.BLOCKED:
                raft.report(EventKind.PEER_STALLED, peer.node, peer.match)
            peer.moved_at = raft.clock
            if peer.state is not ProgressState.COMPARE:
                peer.compare(peer.next)
