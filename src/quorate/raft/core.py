"""The consensus core: takes inputs one by one and gives one output per turn.

The replica's engine drives it: any number of :meth:`Core.step`, :meth:`Core.tick`,
:meth:`Leader.append`, :meth:`Core.read`, :meth:`Core.persisted` and link inputs, then one
:meth:`Core.finish`. The core does not use disks or sockets; the engine holds messages back until
the state that they depend on is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.errors import Busy, check
from quorate.raft.changes import Changes
from quorate.raft.election import Election
from quorate.raft.follower import Follower
from quorate.raft.leader import Leader
from quorate.raft.log import BEGINNING, LogStart, RaftLog
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
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.raft.output import EventKind, Output, Refusal
from quorate.raft.reads import UNSURE_READ, Reads
from quorate.raft.state import RaftState
from quorate.raft.transfer import Transfers
from quorate.types import ORIGIN, BootId, Index, NodeId, Role, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from quorate.config import Config
    from quorate.entry import Entry
    from quorate.membership import Membership
    from quorate.raft.changes import MemberChange

__all__ = ["Core"]

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

# Messages that count only from members, and from those that a leader still feeds: answers, since
# only members are asked, followers' questions for reads, and digests. Requests for votes and a
# leader's messages are judged by group, term and log, never by the receiver's own view of the
# membership (R11, Raft § 6).
FROM_MEMBERS = frozenset(
    {
        PreVoteReply,
        VoteReply,
        Ack,
        Mismatch,
        HeartbeatReply,
        ReadIndex,
        ReadIndexReply,
        StateHash,
        TransferRefused,
    }
)


class Core:
    """The consensus of one replica. None of its methods waits."""

    __slots__ = (
        "_boots", "_election", "_follower", "_from_leader", "_in_any_role", "_reads",
        "_to_leader", "changes", "leader", "raft", "transfers",
    )  # fmt: skip

    def __init__(
        self,
        node: NodeId,
        membership: Membership,
        config: Config,
        random: Random,
        *,
        boot: int,
        term: Term,
        vote: NodeId | None,
        entries: Iterable[Entry] = (),
        start: LogStart = BEGINNING,
        committed: Index = ORIGIN.index,
        without_body: Iterable[Index] = (),
        first_to_campaign: bool = False,
        sure: bool = True,
    ) -> None:
        log = RaftLog(entries, start)
        check(term >= log.last.term, "the term is at least that of the last entry")
        self.raft = RaftState(node, membership, config, random, boot, term, vote, log)
        self._election = Election(self.raft, first_to_campaign=first_to_campaign)
        self.raft.sure = sure
        self.raft.commit(committed)
        self.raft.without_body = set(without_body)
        if not sure:
            voters = self.raft.electorate.voters
            detail = LOST_END if len(voters) > NEEDED_BY_ALL_MAX else f"{LOST_END}; {NO_LEADER}"
            self.raft.report(EventKind.UNSURE, index=log.last_index, detail=detail)
        self._follower = Follower(self.raft)
        self._reads = Reads(self.raft)
        self.transfers = Transfers(self.raft)
        self.changes = Changes(self.raft)
        # The current leadership; None unless this node leads.
        self.leader: Leader | None = None
        # The newest boot of each member that was heard, and of each peer that is still fed:
        # messages of earlier boots are refused.
        self._boots: dict[NodeId, BootId] = {}
        self._in_any_role: dict[type[Message], Callable[[NodeId, Any], None]] = {
            PreVote: self._election.on_pre_vote,
            PreVoteReply: self._election.on_pre_vote_reply,
            Vote: self._election.on_vote,
            VoteReply: self._election.on_vote_reply,
            ReadIndex: self._reads.on_read_index,
            ReadIndexReply: self._reads.on_read_index_reply,
            TransferRefused: self.transfers.on_refused,
        }
        self._from_leader: dict[type[Message], Callable[[NodeId, Any], None]] = {
            Compare: self._follower.on_compare,
            Append: self._follower.on_append,
            Heartbeat: self._follower.on_heartbeat,
            Transfer: self._election.on_transfer,
        }
        self._to_leader: dict[type[Message], Callable[[Leader, NodeId, Any], None]] = {
            Ack: Leader.on_ack,
            Mismatch: Leader.on_mismatch,
            HeartbeatReply: Leader.on_heartbeat_reply,
        }

    # -- inputs --------------------------------------------------------------------------------

    def step(
        self, source: NodeId, boot: BootId, message: Message, takes: int | None = None
    ) -> None:
        """Take a message. The caller has checked its shape; this decides whether it may count.

        ``takes``: the number of entries of an append that find room on the disk; None: all.
        """
        raft = self.raft
        kind = type(message)
        if not self.admits(source, boot, kind):
            return
        if message.term > raft.term and kind is not PreVote and kind is not Vote:
            leader = source if kind in self._from_leader else None
            raft.follow(message.term, leader, f"{source} has a higher term")
            self._settle()
        if kind in self._from_leader:
            self._step_from_leader(source, message, takes)
        elif kind in self._to_leader:
            self._step_to_leader(source, message)
        else:
            self._in_any_role[kind](source, message)
        self._settle()

    def tick(self, missed: int = 0) -> None:
        """Count one tick of time. ``missed`` more passed in real time: they only make heartbeats
        due earlier, since followers wait for these, and no peer is judged by them."""
        raft = self.raft
        raft.clock += 1
        if self.leader is None:
            self._election.tick()
        elif not self.leader.tick(missed):
            raft.follow(raft.term, None, "no majority answered for an election timeout")
        else:
            self._consider_step_down(self.leader)
        self._reads.tick()
        self.transfers.tick(self.leader)
        self.changes.tick(self.leader)
        self._settle()

    def _consider_step_down(self, leader: Leader) -> None:
        """Step down if other nodes can do work that this leader cannot; less and less often if no
        other node leads then: they may not be able to lead."""
        raft, step_down, election = self.raft, leader.step_down, self._election
        if step_down.disk_too_slow() and election.patience.ends():
            raft.report(EventKind.SLOW_DISK, index=raft.persisted)
            self._hand_over("a majority syncs faster than this node")
        elif step_down.others_have_room() and election.patience.ends():
            raft.report(EventKind.DISK_FULL, index=raft.persisted)
            self._hand_over("this node's disk has no room for what clients append, others have")
        elif step_down.others_can_begin() and election.patience.ends():
            self._hand_over("a majority has no room for what this node logged, and needs none")
        elif (lost := step_down.others_can_feed()) and election.damage_patience.ends():
            # Longer than the wait for a campaign of any node that stepped down before.
            self._hand_over(f"a peer cannot be fed entry {lost} from this disk", elections=3)
        elif step_down.others_can_serve() and election.damage_patience.ends():
            self._hand_over(f"entry {raft.lost} is damaged, others have all", elections=3)
        elif self.transfers.may_give_way(leader, self.changes) and election.patience.ends():
            self.transfers.begin_to_leave(leader)

    def _hand_over(self, why: str, elections: int = 2) -> None:
        self.raft.follow(self.raft.term, None, why)
        self._election.bar(elections)

    def read(self, token: int) -> None:
        """Begin a linearizable read: the output returns its token with an index, or as refused."""
        self._reads.read(token)

    def transfer(self, token: int, target: NodeId | None) -> None:
        """Begin to transfer the leadership: the output returns the token when that ended."""
        if self.leader is not None and self.changes.joint and target != self.raft.node:
            problem = Busy("a change of the members is under way")
            self.raft.out.ended.append((token, problem))
            return
        self.transfers.request(token, target, self.leader)
        if self.transfers.target is not None:
            self.changes.give_up(Busy("a transfer of the leadership began"))

    def change(self, token: int, change: MemberChange) -> None:
        """Begin to change the members: the output returns the token when that ended."""
        if self.transfers.target is not None and self.leader is not None:
            problem = Busy(f"a transfer to {self.transfers.target} is under way")
            self.raft.out.ended.append((token, problem))
        else:
            self.changes.request(token, change, self.leader)

    @property
    def membership_due(self) -> Membership | None:
        """The membership that is to be logged now; None if there is none."""
        if self.leader is None or self.transfers.target is not None:
            return None
        return self.changes.due(self.leader)

    @property
    def turn_due(self) -> bool:
        """Whether a transfer or a change of the members waits only for the next turn."""
        leader = self.leader
        if leader is None:
            return False
        if self.transfers.target is not None:
            return self.transfers.due(leader)
        return self.changes.due(leader) is not None

    def stop(self) -> None:
        """Note that this node stops: it campaigns no more, and its leader is told at once."""
        raft = self.raft
        raft.stopping = True
        if raft.role is Role.PRE_CANDIDATE:
            raft.follow(raft.term, None, "this node stops")  # an answer on its way counts no more
        if raft.leader not in (None, raft.node):
            raft.send(raft.leader, raft.heartbeat_reply(0))

    def persisted(self, index: Index, term: Term) -> None:
        """Note that the log up to ``index`` and the vote record of ``term`` are on this disk."""
        raft = self.raft
        check(index <= raft.log.last_index, "only what is in the log is persisted")
        if index > raft.persisted and self.leader is not None:
            self.leader.step_down.own_copy_moved()
        raft.persisted = max(raft.persisted, index)
        raft.persisted_term = max(raft.persisted_term, term)
        self._election.vote_persisted()
        self._settle()

    def link_closed(self, peer: NodeId) -> None:
        """Note that the connection to ``peer`` ended."""
        self._election.link_closed(peer)
        self.transfers.link_closed(peer)

    def link_refused(self, peer: NodeId) -> None:
        """Note that a new connection to ``peer`` was refused: no process listens there."""
        self._election.link_refused(peer)

    def finish(self) -> Output:
        """End the turn. Returns the messages, reads and events of the turn."""
        raft = self.raft
        self._election.take_over()
        leader = self.leader
        if leader is not None:
            leader.advance_commit()
        if not raft.sure:
            self._ask_what_is_committed()
        self._reads.proceed(leader)
        if not raft.sure:
            self._become_sure()
        if leader is not None:
            leader.feeder.feed()
        self.transfers.proceed(leader)
        self.changes.proceed(leader)
        self._leave(leader)
        output, raft.out = raft.out, Output()
        return output

    def _leave(self, leader: Leader | None) -> None:
        """Step down if the committed membership has this leader no more, after an attempt to give
        the leadership to a voter (R10)."""
        raft = self.raft
        if leader is None or raft.eligible:
            return
        if raft.applied < max(leader.start, raft.memberships.index):
            return
        if not leader.leaves:
            leader.leaves = True
            # The others know of the commit before this node goes: on full disks they may not begin
            # to lead without it.
            leader.beat()
            self.transfers.begin_to_leave(leader)
        if self.transfers.target is None:
            raft.follow(raft.term, None, "the members of this log are others now")
            self._settle()

    def _ask_what_is_committed(self) -> None:
        """Ask for an index that was committed after this node restarted, as it may have lost
        entries that it acknowledged. Once its log reaches that index, it lacks no entry whose
        commit counted on its copy."""
        if self._reads.unsure_until is None and not self._reads.unsure_read_waits:
            self._reads.read(UNSURE_READ)

    def _become_sure(self) -> None:
        """Become sure once the log has all entries up to the answer: they are known to be the
        committed ones, and they are on this disk."""
        raft, until = self.raft, self._reads.unsure_until
        out = raft.out
        out.reads_refused = [token for token in out.reads_refused if token != UNSURE_READ]
        if until is not None and min(raft.committed, raft.persisted) >= until:
            raft.sure = out.sure = True
            raft.report(EventKind.SURE_AGAIN, index=until)

    # -- messages that may count ---------------------------------------------------------------

    @property
    def reads_waiting(self) -> int:
        return self._reads.waiting

    def admits(self, source: NodeId, boot: BootId, kind: type[Message]) -> bool:
        """Whether a message of that kind from ``source`` in ``boot`` may count."""
        leader, raft = self.leader, self.raft
        # A leader may be removed by an entry that is not committed: it still answers reads.
        known = source in raft.memberships.members or source == raft.leader
        if known or (leader and source in leader.progress):
            return self._boot_counts(source, boot)
        if kind in FROM_MEMBERS:
            self.raft.refuse(Refusal.UNKNOWN_PEER)
            return False
        return True

    def _boot_counts(self, source: NodeId, boot: BootId) -> bool:
        """Whether ``boot`` is the newest heard of the sender; a newer one voids its acks."""
        known = self._boots.get(source)
        if known == boot:
            return True
        if known is not None and boot.counter <= known.counter:
            earlier = boot.counter < known.counter
            self.raft.refuse(Refusal.EARLIER_BOOT if earlier else Refusal.CLONED_BOOT)
            return False
        self._boots[source] = boot
        if known is not None and self.leader is not None:
            self.leader.peer_restarted(source)
        return True

    def _step_from_leader(self, source: NodeId, message: Message, takes: int | None) -> None:
        """Take a message of a leader. All of them pass here; one of an old leader is refused."""
        raft = self.raft
        if message.term < raft.term:
            raft.refuse(Refusal.STALE_TERM)
            # Tells the sender that its leadership is over.
            raft.send(source, HeartbeatReply(raft.term, 0))
            return
        if raft.leader not in (None, source):
            # Raft excludes two leaders in one term. If there are two all the same, neither stays.
            raft.report(EventKind.SPLIT_LEADERS, source)
            raft.follow(Term(raft.term + 1), None, "two leaders in one term")
            raft.send(source, HeartbeatReply(raft.term, 0))
            return
        raft.follow(raft.term, source, f"{source} leads")
        self._election.leader_heard(message)
        if type(message) is Append:
            self._follower.on_append(source, message, takes)
        else:
            self._from_leader[type(message)](source, message)

    def _step_to_leader(self, source: NodeId, message: Message) -> None:
        raft = self.raft
        if message.term < raft.term:
            raft.refuse(Refusal.STALE_TERM)
        elif self.leader is None:
            raft.refuse(Refusal.NOT_LEADING)
        else:
            self.leader.peer_heard(source)
            self._to_leader[type(message)](self.leader, source, message)

    def _settle(self) -> None:
        """Begin or end the leadership as the role demands."""
        raft = self.raft
        leads = raft.role is Role.LEADER
        if self.leader is not None and not (leads and self.leader.term == raft.term):
            self.leader = None
            self._reads.role_changed()
            self._election.led()
            self.transfers.leadership_ended()
        if leads and self.leader is None:
            self._reads.role_changed()
            # The last pages of full disks are kept for entries that are necessary. A noop is not
            # if all of the log is committed. And a leader that cannot serve must not add an entry
            # for which the only node that can serve may have no room.
            told = self._election.told_room
            scarce = raft.full or raft.without_room or any(full for _, full in told.values())
            spared = (scarce or raft.lost is not None) and raft.all_committed
            self.leader = Leader(raft, told, noop=not spared)
