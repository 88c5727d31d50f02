"""The consensus state of one replica, and the transitions between its roles.

::

                 timeout            pre-votes             votes
    FOLLOWER ──────────▶ PRE_CANDIDATE ────▶ CANDIDATE ────────▶ LEADER
        ▲                     │                  │                  │
        └─────────────────────┴──────────────────┴──────────────────┘
           a leader of this term or a higher term is seen; no majority

Only this file sets term, vote, role and leader. The other files of the core decide when.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.raft.memberships import Memberships
from quorate.raft.messages import ROOM_UNBOUNDED, HeartbeatReply
from quorate.raft.output import Event, EventKind, Output, Refusal
from quorate.types import Index, NodeId, Role, Term

if TYPE_CHECKING:
    from random import Random

    from quorate.config import Config
    from quorate.entry import Entry
    from quorate.membership import Membership
    from quorate.raft.electorate import Electorate
    from quorate.raft.log import RaftLog
    from quorate.raft.messages import Message

__all__ = ["RaftState"]


class RaftState:
    """The mutable consensus state that election, follower, leader and reads of one core share."""

    __slots__ = (
        "applied", "boot", "clock", "committed", "config", "election_ticks", "free", "lacking",
        "leader", "log", "memberships", "node", "on_reserve", "out", "persisted", "persisted_term",
        "random", "refused", "role", "room", "stopping", "sure", "term", "turned_down", "vote",
        "vote_changed", "wall_time", "without_body", "without_room",
    )  # fmt: skip

    def __init__(
        self,
        node: NodeId,
        membership: Membership,
        config: Config,
        random: Random,
        boot: int,
        term: Term,
        vote: NodeId | None,
        log: RaftLog,
    ) -> None:
        self.node = node
        # The memberships that the log sets: the newest one counts.
        self.memberships = Memberships(membership)
        self.memberships.take(log.entries(log.first_in_memory, Index(log.last_index + 1)))
        self.config = config
        self.election_ticks = config.timing.ticks(config.timing.election_ms)
        self.random = random
        self.boot = boot
        # Ticks since this boot.
        self.clock = 0
        # Wall clock in microseconds, for append times only: no decision depends on it.
        self.wall_time = 0
        # Never goes back, not even in a crash; at least the term of the last entry.
        self.term = term
        # Set at most once per term; None until then.
        self.vote = vote
        # Whether term or vote changed since the engine last took them for its disk.
        self.vote_changed = False
        self.role = Role.FOLLOWER
        # The only leader of this term, once it is known.
        self.leader: NodeId | None = None
        self.log = log
        # The last index that is known to be on a majority for ever. Never goes back within a boot.
        self.committed = Index(0)
        # The last index that is applied to the state. Never goes back; at most committed.
        self.applied = Index(0)
        # The last index that is on this node's disk. Falls only by truncation.
        self.persisted = log.last_index
        # Whether the log has all entries that this node ever acknowledged. If it has not, this
        # node's vote could elect a leader that lacks a committed entry.
        self.sure = True
        # Maximum bytes of entries that this node's disk takes.
        self.room = ROOM_UNBOUNDED
        # Bytes of entries that may still be logged: the disk has allocated space for them.
        self.free = ROOM_UNBOUNDED
        # Whether that is only the reserve, which is not for clients' appends; and whether it is too
        # little for the entry that the leader of this term sent last.
        self.on_reserve = False
        self.turned_down = False
        # Bytes of a client's request for which the disk has no room while this node leads in this
        # term; 0 if there is no such request.
        self.lacking = 0
        # Whether the disk has no room even for this node's first entry as a leader.
        self.without_room = False
        # Whether this node stops: it campaigns no more.
        self.stopping = False
        # Entries whose bodies this disk lost: they are never applied, served or sent.
        self.without_body: set[Index] = set()
        # The term whose record (with its vote) is on this node's disk.
        self.persisted_term = term
        self.refused: Counter[Refusal] = Counter()
        self.out = Output()

    @property
    def electorate(self) -> Electorate:
        """The voters whose majority decides now."""
        return self.memberships.electorate

    @property
    def peers(self) -> tuple[NodeId, ...]:
        """The other nodes that hold the log."""
        return tuple(member for member in self.memberships.members if member != self.node)

    @property
    def eligible(self) -> bool:
        """Whether this node may lead: it votes, or it did before a change that is not known to be
        committed (R11)."""
        return self.node in self.memberships.candidates

    @property
    def is_learner(self) -> bool:
        """Whether this node is a learner, or was one before a change that is not known to be
        committed."""
        return self.node in self.memberships.learners

    def priority(self, node: NodeId) -> int:
        """The priority of ``node`` in the newest membership: 0 if it shall lead only while no other
        voter can."""
        return self.memberships.newest.priority(node)

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Add entries to the log: a membership among them counts at once (R1)."""
        self.log.append(entries)
        self.memberships.take(entries)

    def truncate(self, first: Index) -> None:
        """Drop the entries from ``first`` on: the membership before them counts again (R1)."""
        self.log.truncate(first)
        self.memberships.cut(first)
        self.without_body = {index for index in self.without_body if index < first}
        self.persisted = min(self.persisted, Index(first - 1))

    def send(self, target: NodeId, message: Message) -> None:
        self.out.messages.append((target, message))

    def heartbeat_reply(self, round: int) -> HeartbeatReply:
        unfit = self.stopping or not self.may_lead
        return HeartbeatReply(self.term, round, self.room, self.full, unfit)

    @property
    def full(self) -> bool:
        """Whether the disk has too little room, as peers are told."""
        return self.on_reserve or self.turned_down

    def report(
        self,
        kind: EventKind,
        peer: NodeId | None = None,
        index: Index | None = None,
        detail: str = "",
    ) -> None:
        self.out.events.append(Event(kind, self.term, peer, index, detail))

    def refuse(self, reason: Refusal) -> None:
        self.refused[reason] += 1

    @property
    def lost(self) -> Index | None:
        """The first entry that this disk lost before it was applied; None if there is none."""
        if not self.without_body:
            return None
        return min([index for index in self.without_body if index > self.applied], default=None)

    @property
    def may_lead(self) -> bool:
        """Whether this node may lead and serve. A damaged entry that is applied does not prevent
        it: only a peer that lacks the entry needs its body. Nor does a disk without any room, if a
        leadership can begin without an entry."""
        return self.may_feed and self.lost is None

    @property
    def may_feed(self) -> bool:
        """Whether this node may lead to feed its peers, without serving, if no better node leads:
        the position of each entry is known, even of those that it cannot apply, and so are the
        voters whose majority it needs."""
        can_begin = not self.without_room or self.all_committed
        return self.sure and can_begin and self.memberships.known

    @property
    def all_committed(self) -> bool:
        """Whether the whole log is known to be committed. A leader that knows this need not log an
        entry to find out which entries are committed (Raft § 8): all that ever were are in its log.
        """
        return self.committed == self.log.last_index

    @property
    def hindrance(self) -> str:
        """The reason why this node does not lead, if an operator can remove it; else empty."""
        if not self.without_room or self.all_committed:
            return ""
        return (
            f"; {self.node} has not even room for the first entry of a leader: free some space, or "
            f"raise storage.disk_usage_max"
        )

    def ticks(self, milliseconds: int) -> int:
        return self.config.timing.ticks(milliseconds)

    def follow(self, term: Term, leader: NodeId | None, why: str) -> None:
        """Become a follower in ``term``: of ``leader``, or of a leader that is not known yet."""
        check(term >= self.term, "a term never goes back")
        if term > self.term:
            self._begin_term(term, None)
        elif self.role is Role.FOLLOWER and leader == self.leader:
            return
        if self.role is Role.LEADER:
            self.report(EventKind.STEPS_DOWN, detail=why)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.report(EventKind.FOLLOWS, leader, detail=why)

    def _begin_term(self, term: Term, vote: NodeId | None) -> None:
        """Begin ``term``. An entry or a request that found no room in the term before may never
        come again: it says nothing about the room in this one."""
        self.term = term
        self.vote = vote
        self.vote_changed = True
        self.turned_down = False
        self.lacking = 0

    def lose_leader(self) -> None:
        """Forget the leader of this term, without an event."""
        self.leader = None

    def pre_campaign(self) -> None:
        """Become a pre-candidate: ask for pre-votes without raising the term."""
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self.report(EventKind.PRE_CAMPAIGNS)

    def campaign(self) -> None:
        """Become a candidate in the next term, in which this node was never a candidate before."""
        self._begin_term(Term(self.term + 1), self.node)
        self.role = Role.CANDIDATE
        self.leader = None
        self.report(EventKind.CAMPAIGNS)

    def vote_for(self, candidate: NodeId) -> None:
        check(self.vote is None, "one vote per term")
        self.vote = candidate
        self.vote_changed = True
        self.report(EventKind.VOTES, candidate)

    def lead(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self.report(EventKind.LEADS)

    def commit(self, index: Index) -> None:
        """Note that all entries up to ``index`` are committed. A lower index has no effect."""
        if index > self.committed:
            check(index <= self.log.last_index, "only what is in the log is committed")
            self.committed = index
            self.memberships.settle(index)
