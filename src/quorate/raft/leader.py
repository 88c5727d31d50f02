"""The leader: one object per leadership, made when a term is won and dropped when it ends.

Each peer is fed on its own: no method waits for a peer, so a hung peer does not delay the others.
Commit follows Raft § 5.4.2: only entries of the own term are counted, and entries before them are
committed with them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.entry import Entry, make_entry
from quorate.errors import Busy, Corrupt
from quorate.raft.handover import Handover
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Heartbeat,
    HeartbeatReply,
    Mismatch,
)
from quorate.raft.output import Happening, Refusal
from quorate.raft.progress import Progress, ProgressState
from quorate.raft.quorum import reached_by_majority
from quorate.types import EntryKind, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quorate.raft.roles import Standing
    from quorate.types import Position

__all__ = ["Leader"]

SECOND_MS = 1000


class Leader:
    """One leadership: it appends entries, sends them to the peers, and advances the commit."""

    __slots__ = (
        "_beat_at", "_quota_at", "_standing", "_timed_at", "_timed_us", "handover", "progress",
        "round", "start", "term", "uncommitted_bytes",
    )  # fmt: skip

    def __init__(
        self, standing: Standing, told_room: Mapping[NodeId, tuple[int, bool]], *, noop: bool = True
    ) -> None:
        """Begin a leadership. ``told_room``: the room on the voters' disks and whether it is too
        little, as told with their votes. ``noop`` may be False only if all of the log is known to
        be committed."""
        self._standing = standing
        self.term: Term = standing.term
        # The newest read round. Rounds are counted within the term, so an answer to another
        # leadership cannot be taken for an answer to this one.
        self.round = 0
        following = Index(standing.log.last_index + 1)
        self.progress = {peer: Progress(peer, following, standing.clock) for peer in standing.peers}
        for voter, (room, full) in told_room.items():
            self.progress[voter].tells_room(room, full=full)
        self.handover = Handover(standing, self.progress)
        self.uncommitted_bytes = standing.log.bytes_after(standing.committed)
        self._beat_at = standing.clock
        self._quota_at = standing.clock
        # The last append time that was the wall clock's; at first the later of the wall clock and
        # the log's last append time. And the clock in ticks then.
        self._timed_us = max(standing.wall_time, standing.log.last_append_time)
        self._timed_at = standing.clock
        # The noop: entries of earlier terms are committed only with an entry of this term, and
        # reads wait for it (Raft § 5.4.2, § 8).
        self.start = self.append(EntryKind.NOOP).index if noop else standing.log.last_index

    # -- the log -------------------------------------------------------------------------------

    @property
    def append_time(self) -> int:
        """The append time of the next entry: this node's wall clock. If that clock went back, or an
        earlier leader's was ahead: the time before plus the ticks that passed since, so that append
        times never stop advancing.

        The sum is up to a tick less than the time that passed: so a correct clock is never
        overtaken, and gives two entries the same time only if it showed the same time for both.
        """
        standing = self._standing
        passed = max(0, standing.clock - self._timed_at - 1)
        run_on = self._timed_us + passed * standing.config.timing.tick_ms * 1000
        return max(standing.wall_time, standing.log.last_append_time, run_on)

    def append(
        self, kind: EntryKind, body: bytes = b"", count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Entry:
        """Add an entry. It goes to disk and peers with the other entries of the turn."""
        standing = self._standing
        log = standing.log
        entry = make_entry(
            log.last,
            self.term,
            kind,
            body,
            base_offset=log.next_offset,
            count=count,
            append_time=self.append_time,
            runs=runs,
            stamps=stamps,
        )
        standing.log.append((entry,))
        if standing.log.last_append_time == standing.wall_time:
            self._timed_us, self._timed_at = standing.wall_time, standing.clock
        self.uncommitted_bytes += entry.size
        return entry

    @property
    def ready(self) -> bool:
        """Whether an entry of this term is committed, or was not needed: only then the committed
        index is up to date."""
        return self._standing.committed >= self.start

    def synced(self, index: Index) -> int:
        """The number of replicas that are known to have ``index`` on disk.

        A peer that restarted has yet to acknowledge its entries; but a committed entry was on a
        majority.
        """
        standing = self._standing
        have = sum(peer.match >= index for peer in self.progress.values())
        known = have + (standing.persisted >= index)
        return max(known, standing.quorum) if index <= standing.committed else known

    def advance_commit(self) -> None:
        """Commit the entries that a majority has on disk (Raft § 5.3, § 5.4.2). The own copy counts
        only as far as it is on disk."""
        standing = self._standing
        copies = [peer.match for peer in self.progress.values()]
        copies.append(standing.persisted)
        agreed = Index(reached_by_majority(copies))
        if agreed > standing.committed and standing.log.term_at(agreed) == self.term:
            for entry in standing.log.entries(Index(standing.committed + 1), Index(agreed + 1)):
                self.uncommitted_bytes -= entry.size
            standing.commit(agreed)

    # -- answers -------------------------------------------------------------------------------

    def peer_heard(self, peer: NodeId) -> None:
        self.progress[peer].heard_at = self._standing.clock

    def peer_restarted(self, peer: NodeId) -> None:
        """Start over with a peer in a new boot: the acks of its earlier boot are void."""
        standing = self._standing
        following = Index(standing.log.last_index + 1)
        before = self.progress[peer]
        after = Progress(peer, following, standing.clock, before.number + 1)
        after.quota = before.quota  # a restart neither adds to it nor uses it up
        self.progress[peer] = after
        standing.report(Happening.PEER_RESTARTED, peer)

    def on_ack(self, source: NodeId, ack: Ack) -> None:
        standing = self._standing
        peer = self.progress[source]
        if not 0 < ack.number <= peer.number:
            standing.refuse(Refusal.NOT_ASKED)
            return
        if ack.match > standing.log.last_index:
            standing.refuse(Refusal.IMPOSSIBLE_INDEX)
            return
        peer.acked(ack.match, standing.clock)
        if peer.state is ProgressState.COMPARE and ack.number == peer.number:
            peer.stream()
            standing.report(Happening.PEER_STREAMS, source, ack.match)

    def on_mismatch(self, source: NodeId, reply: Mismatch) -> None:
        """Compare the logs further below: one round trip per conflicting term, not per entry. Below
        the entries in memory here, the terms that count are those of the peer's log."""
        standing = self._standing
        log = standing.log
        peer = self.progress[source]
        if reply.number != peer.number:
            standing.refuse(Refusal.NOT_ASKED)
            return
        if not 0 < reply.hint_index <= reply.prev + 1 <= log.last_index + 1:
            standing.refuse(Refusal.IMPOSSIBLE_INDEX)
            return
        following = reply.hint_index
        in_memory = reply.prev >= log.first_in_memory
        if in_memory and 0 < reply.hint_term < log.term_at(reply.prev):
            # Above the own last entry of the peer's term or an earlier term, no entry can agree.
            own = log.last_index_up_to_term(reply.hint_term)
            if own is None:
                following = min(following, Index(log.first_in_memory - 1))
            elif log.term_at(own) == reply.hint_term:
                following = Index(own + 1)
            else:
                following = min(following, Index(own + 1))
        # An ack may have overtaken this answer. The entries that the peer refused are lost all the
        # same: the stream starts over above match.
        peer.compare(min(following, reply.prev))
        standing.report(Happening.PEER_COMPARES, source, peer.next)

    def on_heartbeat_reply(self, source: NodeId, reply: HeartbeatReply) -> None:
        standing = self._standing
        peer = self.progress[source]
        if reply.round > self.round:
            standing.refuse(Refusal.NOT_ASKED)
            return
        peer.round = max(peer.round, reply.round)
        peer.tells_room(reply.room, full=reply.full)
        if peer.state is ProgressState.COMPARE and self._overdue(
            peer, standing.config.timing.heartbeat_ms
        ):
            peer.sent_at = None  # the question or its answer was lost, the peer is alive: ask again

    def confirmed_round(self) -> int:
        """The newest read round that a majority, this node included, has confirmed."""
        rounds = [peer.round for peer in self.progress.values()]
        rounds.append(self.round)
        return reached_by_majority(rounds)

    # -- time ----------------------------------------------------------------------------------

    def tick(self, missed: int) -> bool:
        """Send the messages that are due. Returns False if this leadership should end."""
        standing = self._standing
        timing = standing.config.timing
        if standing.clock >= self._quota_at:
            self._quota_at = standing.clock + standing.ticks(SECOND_MS)
            for peer in self.progress.values():
                peer.quota = standing.config.limits.catchup_bytes_per_s
                peer.throttled = False
        for peer in self.progress.values():
            if self._overdue(peer, timing.resend_ms):
                self._resend(peer)
            self._watch(peer)
        # A slow node must not seem dead: its followers count real time.
        self._beat_at -= missed
        if standing.clock >= self._beat_at:
            self.beat()
        for peer in self.progress.values():
            if peer.commit_sent < standing.committed:
                self._beat(peer)  # no other message carried the commit for a tick
        return self._quorum_heard()

    def beat(self) -> None:
        """Send every peer a heartbeat, with the committed position and the newest read round."""
        standing = self._standing
        self._beat_at = standing.clock + standing.ticks(standing.config.timing.heartbeat_ms)
        for peer in self.progress.values():
            self._beat(peer)

    def _beat(self, peer: Progress) -> None:
        standing = self._standing
        committed = standing.log.position(standing.committed)
        standing.send(peer.node, Heartbeat(self.term, self.round, committed))
        peer.commit_sent = standing.committed

    def _quorum_heard(self) -> bool:
        """Check-quorum: whether a majority, this node included, was heard within an election
        timeout. A leader without that majority steps down."""
        heard = sum(self.hears(peer) for peer in self.progress.values())
        return heard + 1 >= self._standing.quorum

    def hears(self, peer: Progress) -> bool:
        """Whether a message of ``peer`` came within an election timeout."""
        standing = self._standing
        return standing.clock - peer.heard_at <= standing.election_ticks

    def has_room(self, size: int = 0) -> bool:
        """Whether this node and enough peers for a majority have room for clients' appends, each
        peer for ``size`` bytes. A peer that is not heard has no room; one that has not told its
        room yet may have some."""
        return self._majority_takes(lambda peer: size <= peer.room)

    def has_room_now(self, size: int) -> bool:
        """As :meth:`has_room`, besides all bytes that are not committed or are under way to the
        peer, and counting only peers that have told their room. An entry that no majority can take
        would block all entries after it."""
        size += self.uncommitted_bytes
        return self._majority_takes(
            lambda peer: peer.full is not None and size + peer.since_told <= peer.room
        )

    def _majority_takes(self, takes: Callable[[Progress], bool]) -> bool:
        standing = self._standing
        roomy = [peer for peer in self.progress.values() if not peer.full and self.hears(peer)]
        return not standing.full and sum(map(takes, roomy)) + 1 >= standing.quorum

    def _overdue(self, peer: Progress, milliseconds: int) -> bool:
        standing = self._standing
        if peer.sent_at is None:
            return False
        return standing.clock - peer.sent_at >= standing.ticks(milliseconds)

    def _resend(self, peer: Progress) -> None:
        """Ask a peer that gave no answer in time. The question is about the last entry sent: if
        only the acks were lost, no entry is sent twice; otherwise the answer names the first entry
        to send again."""
        if peer.state is ProgressState.COMPARE:
            peer.sent_at = None  # the same question again: an answer to either copy counts
            return
        peer.compare(peer.next)
        self._standing.report(Happening.PEER_RESENT, peer.node, peer.next)

    def _watch(self, peer: Progress) -> None:
        """Notice a peer that answers heartbeats and still acknowledges no further entries.

        Its line or its disk may be slow: then the entries sent are still under way, and so is a
        question. So no question is asked about earlier entries, and none is given up.
        """
        standing = self._standing
        timing = standing.config.timing
        if peer.match == standing.log.last_index or peer.throttled or not self.hears(peer):
            peer.moved_at = standing.clock
        elif standing.clock - peer.moved_at >= standing.ticks(timing.watchdog_ms):
            if peer.state is not ProgressState.BLOCKED:
                standing.report(Happening.PEER_STALLED, peer.node, peer.match)
            peer.moved_at = standing.clock
            if peer.state is not ProgressState.COMPARE:
                peer.compare(peer.next)

    # -- sending -------------------------------------------------------------------------------

    def feed(self) -> None:
        """Send each peer the messages that its state allows: called once at the end of a turn."""
        for peer in self.progress.values():
            # Entries that cannot be read from the disk right now are read in a later turn.
            with suppress(Busy):
                if peer.state is ProgressState.APPEND:
                    self._stream(peer)
                elif peer.state is ProgressState.COMPARE and peer.sent_at is None:
                    self._ask(peer)

    def _ask(self, peer: Progress) -> None:
        standing = self._standing
        prev = self._before_next(peer)
        if prev is not None:
            peer.sent_at = standing.clock
            standing.send(peer.node, Compare(self.term, peer.number, prev))

    def _before_next(self, peer: Progress) -> Position | None:
        """The position before the next entry for ``peer``. None if it is lost on this disk: then no
        question and no entry can be sent from there on, and ``peer`` is blocked."""
        try:
            return self._standing.log.position(Index(peer.next - 1))
        except Corrupt:
            self._block(peer, Index(peer.next - 1))
            return None

    def _stream(self, peer: Progress) -> None:
        """Fill the peer's window. Of entries that have to be read from disk one message is sent,
        the others in later turns: a turn delays all logs of the node."""
        standing = self._standing
        limits = standing.config.limits
        log = standing.log
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
                standing.out.more = True
                return
            fetched = peer.next < log.first_in_memory
            prev = self._before_next(peer)
            if prev is None:
                return
            entries = log.slice(peer.next, limits.append_entries, limits.append_bytes)
            if not entries:
                self._block(peer, peer.next)
                return
            if fetched:
                standing.out.fetched += len(entries)
            size = sum(entry.size for entry in entries)
            standing.send(
                peer.node, Append(self.term, peer.number, prev, entries, standing.committed)
            )
            peer.commit_sent = min(standing.committed, entries[-1].index)
            peer.sent(entries[-1].index, size, standing.clock)
            peer.quota -= size

    def _block(self, peer: Progress, lost: Index) -> None:
        """Block ``peer``: the entry ``lost``, which it needs, is damaged on this disk. The other
        peers are fed as before, and so is this node's state: an entry that is only on disk is
        applied already, or never will be."""
        standing = self._standing
        standing.hollow.add(lost)
        if peer.lacks != peer.next:
            standing.report(Happening.PEER_BLOCKED, peer.node, lost)
        peer.block(standing.clock)

    def _over_quota(self, peer: Progress) -> bool:
        """Whether ``peer`` is far behind and has used up its share of the bandwidth: a peer that
        catches up must not slow down the others.

        Far behind the committed index: entries above it may need this very peer for their commit.
        """
        standing = self._standing
        lag = standing.committed - peer.next
        if lag < standing.config.limits.catchup_lag_entries or peer.quota > 0:
            return False
        if not peer.throttled:
            peer.throttled = True
            standing.report(Happening.PEER_THROTTLED, peer.node, peer.next)
        return True
