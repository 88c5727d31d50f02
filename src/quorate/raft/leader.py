"""Leading: one object per leadership, made when a term is won and dropped when it ends.

Each peer is fed on its own: nothing here waits for anybody, so a hung peer costs the others
nothing. Commit follows Raft § 5.4.2: only entries of the own term are counted, those before them
come along.
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
    """One leadership."""

    __slots__ = (
        "_beat_at", "_quota_at", "_standing", "_timed_at", "_timed_us", "handover", "progress",
        "round", "start", "term", "uncommitted_bytes",
    )  # fmt: skip

    def __init__(
        self, standing: Standing, told_room: Mapping[NodeId, tuple[int, bool]], *, noop: bool = True
    ) -> None:
        """``told_room`` is what voters told of their disks. Without ``noop`` only if all of the log
        is known to be committed."""
        self._standing = standing
        self.term: Term = standing.term
        # The newest read round. Rounds are counted within the term, so an answer of another
        # leadership cannot be taken for one of this.
        self.round = 0
        following = Index(standing.log.last_index + 1)
        self.progress = {peer: Progress(peer, following, standing.clock) for peer in standing.peers}
        for voter, (room, full) in told_room.items():
            self.progress[voter].tells_room(room, full=full)
        self.handover = Handover(standing, self.progress)
        self.uncommitted_bytes = standing.log.bytes_after(standing.committed)
        self._beat_at = standing.clock
        self._quota_at = standing.clock
        # The last time that the wall clock gave, or the latest of all when this leadership began;
        # and the clock then.
        self._timed_us = max(standing.wall_time, standing.log.last_append_time)
        self._timed_at = standing.clock
        # The noop: entries of earlier terms commit only along with one of this term, and reads
        # wait for it (Raft § 5.4.2, § 8).
        self.start = self.append(EntryKind.NOOP).index if noop else standing.log.last_index

    # -- the log -------------------------------------------------------------------------------

    @property
    def append_time(self) -> int:
        """What the next entry gets: this node's clock. If that went back, or another one was ahead,
        the time before and what has passed since: a log never stops growing older.

        Less than that, by up to a tick: so a clock that is right is never overtaken, and two
        entries have one time only if it has shown them the same.
        """
        standing = self._standing
        passed = max(0, standing.clock - self._timed_at - 1)
        run_on = self._timed_us + passed * standing.config.timing.tick_ms * 1000
        return max(standing.wall_time, standing.log.last_append_time, run_on)

    def append(
        self, kind: EntryKind, body: bytes = b"", count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Entry:
        """Add an entry. It leaves for disk and peers with the rest of the turn."""
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
        """Whether an entry of this term is committed, or was not needed: only then is committed up
        to date."""
        return self._standing.committed >= self.start

    def synced(self, index: Index) -> int:
        """How many replicas have ``index`` on disk, as far as is known here.

        A peer that restarted has yet to say what it has; but what is committed was on a majority.
        """
        standing = self._standing
        have = sum(peer.match >= index for peer in self.progress.values())
        known = have + (standing.persisted >= index)
        return max(known, standing.quorum) if index <= standing.committed else known

    def advance_commit(self) -> None:
        """Raft § 5.3, § 5.4.2. The own copy counts only as far as it is on disk."""
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
        """Another boot: what the peer had acked before says nothing about it now."""
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
        """One round trip per conflicting term, not per entry: of the terms that the peer has if
        they are older than what is in memory here."""
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
            # Above its own last entry of the peer's term or an earlier one, nothing can agree.
            own = log.last_index_up_to_term(reply.hint_term)
            if own is None:
                following = min(following, Index(log.first_in_memory - 1))
            elif log.term_at(own) == reply.hint_term:
                following = Index(own + 1)
            else:
                following = min(following, Index(own + 1))
        # An ack may have overtaken this answer. What it refused is lost all the same: the
        # stream starts over above match.
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
            peer.sent_at = None  # the question or its answer was lost and the peer is there: ask

    def confirmed_round(self) -> int:
        """The newest round that a majority, this node included, vouched for."""
        rounds = [peer.round for peer in self.progress.values()]
        rounds.append(self.round)
        return reached_by_majority(rounds)

    # -- time ----------------------------------------------------------------------------------

    def tick(self, missed: int) -> bool:
        """Do what is due. Returns False if this leadership should end."""
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
        # A slow node is not a dead one: its followers count real time.
        self._beat_at -= missed
        if standing.clock >= self._beat_at:
            self.beat()
        for peer in self.progress.values():
            if peer.commit_sent < standing.committed:
                self._beat(peer)  # nothing else carried the commit for a tick: push it alone
        return self._quorum_heard()

    def beat(self) -> None:
        """Tell everybody who leads and what is committed."""
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
        """Check-quorum: a leader that a majority has not answered for a timeout leads nobody."""
        heard = sum(self.hears(peer) for peer in self.progress.values())
        return heard + 1 >= self._standing.quorum

    def hears(self, peer: Progress) -> bool:
        """Whether ``peer`` said anything within an election timeout."""
        standing = self._standing
        return standing.clock - peer.heard_at <= standing.election_ticks

    def has_room(self, size: int = 0) -> bool:
        """Whether this node and a majority have room for what clients append; of peers so many
        bytes of it. A peer that is not heard has none; one that has not told yet may have some."""
        return self._majority_takes(lambda peer: size <= peer.room)

    def has_room_now(self, size: int) -> bool:
        """The same, beside all that is on its way, and only by peers that have told. An entry that
        no majority can take would be in the way of all that come after it."""
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
        """No answer in time. Ask at the end of what was sent: if only the acks were lost nothing
        needs to go twice, otherwise the answer names the first entry that does."""
        if peer.state is ProgressState.COMPARE:
            peer.sent_at = None  # the same question again: an answer to either copy counts
            return
        peer.compare(peer.next)
        self._standing.report(Happening.PEER_RESENT, peer.node, peer.next)

    def _watch(self, peer: Progress) -> None:
        """Notice a peer that answers heartbeats and still does not move.

        Its line or its disk may be slow: what it was sent is still under way then, and so is a
        question. So nothing is asked below that, and no question is taken back.
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
        """Send each peer what its state allows: called once at the end of a turn."""
        for peer in self.progress.values():
            # What cannot be read from the disk right now is read in a later turn.
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
        """Where the log stands before the next entry for ``peer``. If that is lost on this disk,
        nothing can be asked or sent from there on."""
        try:
            return self._standing.log.position(Index(peer.next - 1))
        except Corrupt:
            self._block(peer, Index(peer.next - 1))
            return None

    def _stream(self, peer: Progress) -> None:
        """Fill the window; of what has to be read from disk one message, the rest in other turns:
        a turn holds up all logs of the node."""
        standing = self._standing
        limits = standing.config.limits
        log = standing.log
        # A peer without room drops what it is sent: one message shows when it has some again.
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
        """``lost``, which ``peer`` cannot go on without, is damaged on this disk: others are fed as
        before, and so is this node: what is only on disk is applied, or never will be."""
        standing = self._standing
        standing.hollow.add(lost)
        if peer.lacks != peer.next:
            standing.report(Happening.PEER_BLOCKED, peer.node, lost)
        peer.block(standing.clock)

    def _over_quota(self, peer: Progress) -> bool:
        """A peer far behind gets a share of the bandwidth, so that catching up hurts nobody.

        Far behind what is committed: entries above that may need this very peer for their commit.
        """
        standing = self._standing
        lag = standing.committed - peer.next
        if lag < standing.config.limits.catchup_lag_entries or peer.quota > 0:
            return False
        if not peer.throttled:
            peer.throttled = True
            standing.report(Happening.PEER_THROTTLED, peer.node, peer.next)
        return True
