"""The leader: one object per leadership, made when a term is won and dropped when it ends.

Commit follows Raft § 5.4.2: only entries of the own term are counted, and entries before them are
committed with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.entry import Entry, make_entry
from quorate.raft.feeder import Feeder
from quorate.raft.messages import Ack, Heartbeat, HeartbeatReply, Mismatch
from quorate.raft.output import EventKind, Refusal
from quorate.raft.progress import Progress, ProgressState
from quorate.raft.step_down import StepDown
from quorate.types import EntryKind, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quorate.raft.state import RaftState

__all__ = ["Leader"]

# Election timeouts for which a leader feeds a peer that was removed and does not answer.
REMOVED_ELECTIONS = 10


class Leader:
    """One leadership: it appends entries, takes the answers of the peers, and advances the commit.
    Its feeder sends the entries."""

    __slots__ = (
        "_beat_at", "_raft", "_timed_at", "_timed_us", "feeder", "leaves", "progress", "round",
        "start", "step_down", "term", "uncommitted_bytes",
    )  # fmt: skip

    def __init__(
        self, raft: RaftState, told_room: Mapping[NodeId, tuple[int, bool]], *, noop: bool = True
    ) -> None:
        """Begin a leadership. ``told_room``: the room on the voters' disks and whether it is too
        little, as told with their votes. ``noop`` may be False only if all of the log is known to
        be committed."""
        self._raft = raft
        self.term: Term = raft.term
        # The newest read round. Rounds are counted within the term, so an answer to another
        # leadership cannot be taken for an answer to this one.
        self.round = 0
        following = Index(raft.log.last_index + 1)
        self.progress = {peer: Progress(peer, following, raft.clock) for peer in raft.peers}
        for voter, (room, full) in told_room.items():
            self.progress[voter].tells_room(room, full=full)
        self.feeder = Feeder(raft, self.progress)
        self.step_down = StepDown(raft, self.progress)
        # Whether this leader, which the members do not include any more, has begun to leave.
        self.leaves = False
        self.uncommitted_bytes = raft.log.bytes_after(raft.committed)
        self._beat_at = raft.clock
        # The last append time that was the wall clock's; at first the later of the wall clock and
        # the log's last append time. And the clock in ticks then.
        self._timed_us = max(raft.wall_time, raft.log.last_append_time)
        self._timed_at = raft.clock
        # The noop: entries of earlier terms are committed only with an entry of this term, and
        # reads wait for it (Raft § 5.4.2, § 8).
        self.start = self.append(EntryKind.NOOP).index if noop else raft.log.last_index

    # -- the log -------------------------------------------------------------------------------

    @property
    def append_time(self) -> int:
        """The append time of the next entry: this node's wall clock. If that clock went back, or an
        earlier leader's was ahead: the time before plus the ticks that passed since, so that append
        times never stop advancing.

        The sum is up to a tick less than the time that passed: so a correct clock is never
        overtaken, and gives two entries the same time only if it showed the same time for both.
        """
        raft = self._raft
        passed = max(0, raft.clock - self._timed_at - 1)
        run_on = self._timed_us + passed * raft.config.timing.tick_ms * 1000
        return max(raft.wall_time, raft.log.last_append_time, run_on)

    def append(
        self, kind: EntryKind, body: bytes = b"", count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Entry:
        """Add an entry. It goes to disk and peers with the other entries of the turn."""
        raft = self._raft
        log = raft.log
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
        raft.append((entry,))
        if kind is EntryKind.MEMBERSHIP:
            self._follow_members()
        if raft.log.last_append_time == raft.wall_time:
            self._timed_us, self._timed_at = raft.wall_time, raft.clock
        self.uncommitted_bytes += entry.size
        return entry

    def _follow_members(self) -> None:
        """Begin to feed new members, and note which peers are members no more."""
        raft = self._raft
        following = Index(raft.log.last_index + 1)
        for node in raft.peers:
            before = self.progress.get(node)
            if before is None:
                self.progress[node] = Progress(node, following, raft.clock)
            elif before.removed_by is not None:
                # Its copy may have been dropped since, so what it acknowledged does not count.
                self.progress[node] = Progress(node, following, raft.clock, before.number + 1)
        for peer in self.progress.values():
            if peer.node not in raft.memberships.members and peer.removed_by is None:
                peer.removed_by = raft.memberships.index
                peer.removed_until = raft.clock + REMOVED_ELECTIONS * raft.election_ticks

    def _drop_removed(self) -> None:
        """Stop feeding peers that are members no more, once they know it: a node that has the entry
        that removes it and knows it to be committed campaigns no more (R11). The commit is told for
        an election timeout, because a message may be lost. A peer that is down must ask to learn of
        it."""
        raft = self._raft
        for peer in tuple(self.progress.values()):
            if peer.removed_by is None:
                continue
            if raft.clock >= peer.removed_until:
                del self.progress[peer.node]
            elif not peer.told and min(peer.match, peer.commit_sent) >= peer.removed_by:
                peer.told = True
                peer.removed_until = min(peer.removed_until, raft.clock + raft.election_ticks)

    @property
    def ready(self) -> bool:
        """Whether an entry of this term is committed, or was not needed: only then the committed
        index is up to date."""
        return self._raft.committed >= self.start

    def synced(self, index: Index) -> int:
        """The number of voters that are known to have ``index`` on disk.

        A peer that restarted has yet to acknowledge its entries; but a committed entry was on a
        majority of the voters of its time.
        """
        raft = self._raft
        voters = raft.electorate.voters
        have = [peer.node for peer in self.progress.values() if peer.match >= index]
        if raft.persisted >= index:
            have.append(raft.node)
        known = len(voters.intersection(have))
        counted = raft.memberships.index <= index <= raft.committed
        return max(known, raft.electorate.fewest) if counted else known

    def advance_commit(self) -> None:
        """Commit the entries that a majority has on disk (Raft § 5.3, § 5.4.2). The own copy counts
        only as far as it is on disk."""
        raft = self._raft
        if raft.all_committed:
            return  # as in most turns
        copies = {node: peer.match for node, peer in self.progress.items()}
        copies[raft.node] = raft.persisted
        agreed = Index(raft.electorate.reached(copies))
        if agreed > raft.committed and raft.log.term_at(agreed) == self.term:
            for entry in raft.log.entries(Index(raft.committed + 1), Index(agreed + 1)):
                self.uncommitted_bytes -= entry.size
            raft.commit(agreed)

    # -- answers -------------------------------------------------------------------------------

    def peer_heard(self, peer: NodeId) -> None:
        self.progress[peer].heard_at = self._raft.clock

    def peer_restarted(self, peer: NodeId) -> None:
        """Start over with a peer in a new boot: the acks of its earlier boot are void."""
        raft = self._raft
        following = Index(raft.log.last_index + 1)
        before = self.progress[peer]
        after = Progress(peer, following, raft.clock, before.number + 1)
        after.quota = before.quota  # a restart neither adds to it nor uses it up
        after.removed_by, after.removed_until = before.removed_by, before.removed_until
        self.progress[peer] = after
        raft.report(EventKind.PEER_RESTARTED, peer)

    def on_ack(self, source: NodeId, ack: Ack) -> None:
        raft = self._raft
        peer = self.progress[source]
        if not 0 < ack.number <= peer.number:
            raft.refuse(Refusal.NOT_ASKED)
            return
        if ack.match > raft.log.last_index:
            raft.refuse(Refusal.IMPOSSIBLE_INDEX)
            return
        peer.acked(ack.match, raft.clock)
        if peer.state is ProgressState.COMPARE and ack.number == peer.number:
            peer.stream()
            raft.report(EventKind.PEER_STREAMS, source, ack.match)

    def on_mismatch(self, source: NodeId, reply: Mismatch) -> None:
        """Compare the logs further below: one round trip per conflicting term, not per entry. Below
        the entries in memory here, the terms that count are those of the peer's log."""
        raft = self._raft
        log = raft.log
        peer = self.progress[source]
        if reply.number != peer.number:
            raft.refuse(Refusal.NOT_ASKED)
            return
        if not 0 < reply.hint_index <= reply.prev + 1 <= log.last_index + 1:
            raft.refuse(Refusal.IMPOSSIBLE_INDEX)
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
        # Without a term the peer has no entry from the hint on.
        peer.differs = reply.prev if reply.hint_term else reply.hint_index
        # An ack may have overtaken this answer. The entries that the peer refused are lost all the
        # same: the stream starts over above match.
        peer.compare(min(following, reply.prev))
        raft.report(EventKind.PEER_COMPARES, source, peer.next)

    def on_heartbeat_reply(self, source: NodeId, reply: HeartbeatReply) -> None:
        raft = self._raft
        peer = self.progress[source]
        if reply.round > self.round:
            raft.refuse(Refusal.NOT_ASKED)
            return
        peer.round = max(peer.round, reply.round)
        peer.tells_room(reply.room, full=reply.full)
        peer.unfit = reply.unfit
        patience = raft.ticks(raft.config.timing.heartbeat_ms)
        if peer.state is ProgressState.COMPARE and peer.overdue(raft.clock, patience):
            peer.sent_at = None  # the question or its answer was lost, the peer is alive: ask again

    def confirmed_round(self) -> int:
        """The newest read round that a majority, this node included, has confirmed."""
        rounds = {node: peer.round for node, peer in self.progress.items()}
        rounds[self._raft.node] = self.round
        return self._raft.electorate.reached(rounds)

    # -- time ----------------------------------------------------------------------------------

    def tick(self, missed: int) -> bool:
        """Send the messages that are due. Returns False if this leadership should end."""
        raft = self._raft
        self.feeder.tick()
        # A slow node must not seem dead: its followers count real time.
        self._beat_at -= missed
        if raft.clock >= self._beat_at:
            self.beat()
        self._drop_removed()
        for peer in self.progress.values():
            if peer.commit_sent < raft.committed:
                self._beat(peer)  # no other message carried the commit for a tick
        return self._majority_heard()

    def beat(self) -> None:
        """Send every peer a heartbeat, with the committed position and the newest read round."""
        raft = self._raft
        self._beat_at = raft.clock + raft.ticks(raft.config.timing.heartbeat_ms)
        for peer in self.progress.values():
            self._beat(peer)

    def _beat(self, peer: Progress) -> None:
        raft = self._raft
        committed = raft.log.position(raft.committed)
        raft.send(peer.node, Heartbeat(self.term, self.round, committed))
        peer.commit_sent = raft.committed

    def _majority_heard(self) -> bool:
        """Check-quorum: whether a majority, this node included, was heard within an election
        timeout. A leader without that majority steps down."""
        heard = [peer.node for peer in self.progress.values() if self.hears(peer)]
        return self._raft.electorate.won([self._raft.node, *heard])

    def hears(self, peer: Progress) -> bool:
        """Whether a message of ``peer`` came within an election timeout."""
        return peer.heard_within(self._raft.clock, self._raft.election_ticks)

    def has_room(self, size: int = 0) -> bool:
        """Whether this node and enough peers for a majority have room for clients' appends, each
        peer for ``size`` bytes. A peer that is not heard has no room; one that has not told its
        room yet may have some."""
        return self._majority_takes(lambda peer: size <= peer.room)

    def reserve_takes(self, size: int) -> bool:
        """Whether ``size`` bytes fit into the reserves of this node and of enough peers for a
        majority."""
        heard = [peer for peer in self.progress.values() if self.hears(peer)]
        raft = self._raft
        able = [peer.node for peer in heard if size <= peer.room]
        return size <= raft.room and raft.electorate.won([raft.node, *able])

    def has_room_now(self, size: int) -> bool:
        """As :meth:`has_room`, besides all bytes that are not committed or are under way to the
        peer, and counting only peers that have told their room. An entry that no majority can take
        would block all entries after it."""
        size += self.uncommitted_bytes
        return self._majority_takes(
            lambda peer: peer.full is not None and size + peer.since_told <= peer.room
        )

    def _majority_takes(self, takes: Callable[[Progress], bool]) -> bool:
        raft = self._raft
        with_room = [
            peer.node
            for peer in self.progress.values()
            if not peer.full and self.hears(peer) and takes(peer)
        ]
        return not raft.full and raft.electorate.won([raft.node, *with_room])
