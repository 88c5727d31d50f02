"""The consensus core: takes inputs one by one and gives one output per turn.

The replica's engine drives it: any number of :meth:`Core.step`, :meth:`Core.tick`,
:meth:`Core.append`, :meth:`Core.read`, :meth:`Core.persisted` and link inputs, then one
:meth:`Core.finish`. The core does not use disks or sockets; the engine holds messages back until
the state that they depend on is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.errors import InvalidArgument, check
from quorate.raft.election import Election
from quorate.raft.follower import Follower
from quorate.raft.leader import Leader
from quorate.raft.log import BEGINNING, Log, LogStart
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Heartbeat,
    HeartbeatReply,
    Message,
    Mismatch,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    StateHash,
    Vote,
    VoteReply,
)
from quorate.raft.output import Happening, Output, Refusal
from quorate.raft.reads import DOUBT, Reads
from quorate.raft.roles import Standing
from quorate.types import ORIGIN, BootId, EntryKind, Index, NodeId, Role, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from quorate.config import Config
    from quorate.entry import Entry

__all__ = ["VOTERS_MAX", "Core"]

VOTERS_MAX = 7

# The report of an unsure node; and the addition where no leader is elected without its vote.
LOST_END = (
    "entries after this index were durable here and are lost; this node gives no vote until it has "
    "all that is committed"
)
NO_LEADER = (
    "with fewer than three voters there is no leader until then: keep the data directory, see "
    "'A lost end' in the guide to operation"
)
NEEDED_BY_ALL_MAX = 2

# Messages that count only from voters: answers, since only voters are asked, followers' questions
# for reads, and digests. Requests for votes and a leader's messages are judged by group, term and
# log, never by the receiver's own view of the membership (Raft § 6).
FROM_VOTERS = frozenset(
    {PreVoteReply, VoteReply, Ack, Mismatch, HeartbeatReply, ReadIndex, ReadIndexReply, StateHash}
)


class Core:
    """The consensus of one replica. None of its methods waits."""

    __slots__ = (
        "_boots", "_doubt", "_election", "_follower", "_from_leader", "_reads", "_requests",
        "_to_leader", "leader", "standing",
    )  # fmt: skip

    def __init__(
        self,
        node: NodeId,
        voters: tuple[NodeId, ...],
        config: Config,
        random: Random,
        *,
        boot: int,
        term: Term,
        vote: NodeId | None,
        entries: Iterable[Entry] = (),
        start: LogStart = BEGINNING,
        committed: Index = ORIGIN.index,
        hollow: Iterable[Index] = (),
        first_to_campaign: bool = False,
        sure: bool = True,
    ) -> None:
        if node not in voters or not 0 < len(voters) <= VOTERS_MAX:
            raise InvalidArgument(f"{node} needs 1 to {VOTERS_MAX} voters, itself among them")
        log = Log(entries, start)
        check(term >= log.last.term, "the term is at least that of the last entry")
        self.standing = Standing(node, voters, config, random, boot, term, vote, log)
        self._election = Election(self.standing, first_to_campaign=first_to_campaign)
        self.standing.sure = sure
        self.standing.commit(committed)
        self.standing.hollow = set(hollow)
        # An index that was committed after this node, being unsure, asked for it; None until the
        # answer came.
        self._doubt: Index | None = None
        if not sure:
            detail = LOST_END if len(voters) > NEEDED_BY_ALL_MAX else f"{LOST_END}; {NO_LEADER}"
            self.standing.report(Happening.UNSURE, index=log.last_index, detail=detail)
        self._follower = Follower(self.standing)
        self._reads = Reads(self.standing)
        # The current leadership; None unless this node leads.
        self.leader: Leader | None = None
        # The newest boot of each voter that was heard: messages of earlier boots are refused.
        self._boots: dict[NodeId, BootId] = {}
        self._requests: dict[type[Message], Callable[[NodeId, Any], None]] = {
            PreVote: self._election.on_pre_vote,
            PreVoteReply: self._election.on_pre_vote_reply,
            Vote: self._election.on_vote,
            VoteReply: self._election.on_vote_reply,
            ReadIndex: self._reads.on_read_index,
            ReadIndexReply: self._reads.on_read_index_reply,
        }
        self._from_leader: dict[type[Message], Callable[[NodeId, Any], None]] = {
            Compare: self._follower.on_compare,
            Append: self._follower.on_append,
            Heartbeat: self._follower.on_heartbeat,
        }
        self._to_leader: dict[type[Message], Callable[[Leader, NodeId, Any], None]] = {
            Ack: Leader.on_ack,
            Mismatch: Leader.on_mismatch,
            HeartbeatReply: Leader.on_heartbeat_reply,
        }

    # -- inputs --------------------------------------------------------------------------------

    def step(self, source: NodeId, boot: BootId, message: Message) -> None:
        """Take a message. The caller has checked its shape; this decides whether it may count."""
        standing = self.standing
        kind = type(message)
        if not self.admits(source, boot, kind):
            return
        if message.term > standing.term and kind is not PreVote and kind is not Vote:
            leader = source if kind in self._from_leader else None
            standing.follow(message.term, leader, f"{source} has a higher term")
            self._settle()
        if kind in self._from_leader:
            self._step_from_leader(source, message)
        elif kind in self._to_leader:
            self._step_to_leader(source, message)
        else:
            self._requests[kind](source, message)
        self._settle()

    def tick(self, missed: int = 0) -> None:
        """Count one tick of time. ``missed`` more passed in real time: they only make heartbeats
        due earlier, since followers wait for these, and no peer is judged by them."""
        standing = self.standing
        standing.clock += 1
        if self.leader is None:
            self._election.tick()
        elif not self.leader.tick(missed):
            standing.follow(standing.term, None, "no majority answered for an election timeout")
        else:
            self._consider_handover(self.leader)
        self._reads.tick()
        self._settle()

    def _consider_handover(self, leader: Leader) -> None:
        """Step down if other nodes can do work that this leader cannot; less and less often if no
        other node leads then: they may not be able to lead."""
        standing, handover, election = self.standing, leader.handover, self._election
        if handover.disk_too_slow() and election.patience.ends():
            standing.report(Happening.SLOW_DISK, index=standing.persisted)
            self._hand_over("a majority syncs faster than this node")
        elif handover.others_have_room() and election.patience.ends():
            standing.report(Happening.DISK_FULL, index=standing.persisted)
            self._hand_over("this node's disk has no room for what clients append, others have")
        elif handover.others_can_begin() and election.patience.ends():
            self._hand_over("a majority has no room for what this node logged, and needs none")
        elif (lost := handover.others_can_feed()) and election.damage_patience.ends():
            # Longer than the wait for a campaign of any node that stepped down before.
            self._hand_over(f"a peer cannot be fed entry {lost} from this disk", elections=3)
        elif handover.others_can_serve() and election.damage_patience.ends():
            self._hand_over(f"entry {standing.lost} is damaged, others have all", elections=3)

    def _hand_over(self, why: str, elections: int = 2) -> None:
        self.standing.follow(self.standing.term, None, why)
        self._election.bar(elections)

    def append(
        self, kind: EntryKind, body: bytes, count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Entry:
        """Add an entry as leader. It is sent and flushed with the other entries of the turn."""
        check(self.leader is not None, "only a leader appends")
        assert self.leader is not None  # for the type checker
        return self.leader.append(kind, body, count, runs, stamps)

    def read(self, token: int) -> None:
        """Begin a linearizable read: the output returns its token with an index, or as refused."""
        self._reads.read(token)

    def persisted(self, index: Index, term: Term) -> None:
        """Note that the log up to ``index`` and the vote record of ``term`` are on this disk."""
        standing = self.standing
        check(index <= standing.log.last_index, "only what is in the log is persisted")
        if index > standing.persisted and self.leader is not None:
            self.leader.handover.own_copy_moved()
        standing.persisted = max(standing.persisted, index)
        standing.persisted_term = max(standing.persisted_term, term)
        self._election.vote_persisted()
        self._settle()

    def link_closed(self, peer: NodeId) -> None:
        """Note that the connection to ``peer`` ended."""
        self._election.link_closed(peer)

    def link_refused(self, peer: NodeId) -> None:
        """Note that a new connection to ``peer`` was refused: no process listens there."""
        self._election.link_refused(peer)

    def finish(self) -> Output:
        """End the turn. Returns the messages, reads and events of the turn."""
        standing = self.standing
        leader = self.leader
        if leader is not None:
            leader.advance_commit()
        if not standing.sure:
            self._ask_in_doubt()
        self._reads.proceed(leader)
        if not standing.sure:
            self._end_doubt()
        if leader is not None:
            leader.feed()
        output, standing.out = standing.out, Output()
        return output

    def _ask_in_doubt(self) -> None:
        """Ask for an index that was committed after this node restarted, as it may have lost
        entries that it acknowledged. Once its log reaches that index, it lacks no entry whose
        commit counted on its copy."""
        if self._doubt is None and not self._reads.doubting:
            self._reads.read(DOUBT)

    def _end_doubt(self) -> None:
        standing = self.standing
        out = standing.out
        told = [index for token, index in out.reads_confirmed if token == DOUBT]
        out.reads_confirmed = [item for item in out.reads_confirmed if item[0] != DOUBT]
        out.reads_refused = [token for token in out.reads_refused if token != DOUBT]
        self._doubt = told[0] if told else self._doubt
        if self._doubt is not None and standing.persisted >= self._doubt:
            standing.sure = out.sure = True
            standing.report(Happening.SURE_AGAIN, index=self._doubt)

    # -- messages that may count ---------------------------------------------------------------

    @property
    def reads_waiting(self) -> int:
        return self._reads.waiting

    def admits(self, source: NodeId, boot: BootId, kind: type[Message]) -> bool:
        """Whether a message of that kind from ``source`` in ``boot`` may count."""
        if source in self.standing.voters:
            return self._boot_counts(source, boot)
        if kind in FROM_VOTERS:
            self.standing.refuse(Refusal.UNKNOWN_PEER)
            return False
        return True

    def _boot_counts(self, source: NodeId, boot: BootId) -> bool:
        """Whether ``boot`` is the newest heard of the sender; a newer one voids its acks."""
        known = self._boots.get(source)
        if known == boot:
            return True
        if known is not None and boot.counter <= known.counter:
            earlier = boot.counter < known.counter
            self.standing.refuse(Refusal.EARLIER_BOOT if earlier else Refusal.CLONED_BOOT)
            return False
        self._boots[source] = boot
        if known is not None and self.leader is not None:
            self.leader.peer_restarted(source)
        return True

    def _step_from_leader(self, source: NodeId, message: Message) -> None:
        """Take a message of a leader. All of them pass here; one of an old leader is refused."""
        standing = self.standing
        if message.term < standing.term:
            standing.refuse(Refusal.STALE_TERM)
            # Tells the sender that its leadership is over.
            standing.send(source, HeartbeatReply(standing.term, 0))
            return
        if standing.leader not in (None, source):
            # Raft excludes two leaders in one term. If there are two all the same, neither stays.
            standing.report(Happening.SPLIT_LEADERS, source)
            standing.follow(Term(standing.term + 1), None, "two leaders in one term")
            standing.send(source, HeartbeatReply(standing.term, 0))
            return
        standing.follow(standing.term, source, f"{source} leads")
        self._election.leader_heard()
        self._from_leader[type(message)](source, message)

    def _step_to_leader(self, source: NodeId, message: Message) -> None:
        standing = self.standing
        if message.term < standing.term:
            standing.refuse(Refusal.STALE_TERM)
        elif self.leader is None:
            standing.refuse(Refusal.NOT_LEADING)
        else:
            self.leader.peer_heard(source)
            self._to_leader[type(message)](self.leader, source, message)

    def _settle(self) -> None:
        """Begin or end the leadership as the role demands."""
        standing = self.standing
        leads = standing.role is Role.LEADER
        if self.leader is not None and not (leads and self.leader.term == standing.term):
            self.leader = None
            self._reads.role_changed()
            self._election.led()
        if leads and self.leader is None:
            self._reads.role_changed()
            # The last pages of full disks are kept for entries that are necessary. A noop is not
            # if all of the log is committed.
            told = self._election.told_room
            scarce = standing.full or standing.cramped or any(full for _, full in told.values())
            self.leader = Leader(standing, told, noop=not (scarce and standing.all_committed))
