"""The state of this replica's consensus, and the transitions between its roles.

::

                 timeout            pre-votes             votes
    FOLLOWER ──────────▶ PRE_CANDIDATE ────▶ CANDIDATE ────────▶ LEADER
        ▲                     │                  │                  │
        └─────────────────────┴──────────────────┴──────────────────┘
           a leader of this term or a higher term is seen; no quorum

Only this file sets term, vote, role and leader. The other files of the core decide when.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.raft.messages import ROOM_UNBOUNDED
from quorate.raft.output import Event, Happening, Output, Refusal
from quorate.raft.quorum import majority
from quorate.types import Index, NodeId, Role, Term

if TYPE_CHECKING:
    from random import Random

    from quorate.config import Config
    from quorate.raft.log import Log
    from quorate.raft.messages import Message

__all__ = ["Standing"]


class Standing:
    """The mutable consensus state that election, follower, leader and reads of one core share."""

    __slots__ = (
        "applied", "boot", "clock", "committed", "config", "cramped", "election_ticks", "full",
        "hollow", "lacking", "leader", "log", "node", "out", "peers", "persisted",
        "persisted_term", "quorum", "random", "refused", "role", "room", "sure", "term", "vote",
        "vote_changed", "voters", "wall_time",
    )  # fmt: skip

    def __init__(
        self,
        node: NodeId,
        voters: tuple[NodeId, ...],
        config: Config,
        random: Random,
        boot: int,
        term: Term,
        vote: NodeId | None,
        log: Log,
    ) -> None:
        self.node = node
        self.voters = voters
        self.peers = tuple(voter for voter in voters if voter != node)
        self.quorum = majority(len(voters))
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
        # Whether that is too little for clients' appends, or for the entry that the leader sent
        # last.
        self.full = False
        # Bytes of a client's request for which the disk has no room while this node leads; 0 if
        # there is no such request.
        self.lacking = 0
        # Whether the disk has no room even for this node's first entry as a leader.
        self.cramped = False
        # Entries whose bodies this disk lost: they are never applied, served or sent.
        self.hollow: set[Index] = set()
        # The term whose record (with its vote) is on this node's disk.
        self.persisted_term = term
        self.refused: Counter[Refusal] = Counter()
        self.out = Output()

    def send(self, target: NodeId, message: Message) -> None:
        self.out.messages.append((target, message))

    def report(
        self,
        happening: Happening,
        peer: NodeId | None = None,
        index: Index | None = None,
        detail: str = "",
    ) -> None:
        self.out.events.append(Event(happening, self.term, peer, index, detail))

    def refuse(self, reason: Refusal) -> None:
        self.refused[reason] += 1

    @property
    def lost(self) -> Index | None:
        """The first entry that this disk lost before it was applied; None if there is none."""
        ahead = [index for index in self.hollow if index > self.applied] if self.hollow else None
        return min(ahead) if ahead else None

    @property
    def may_lead(self) -> bool:
        """Whether this node may lead and serve. A damaged entry that is applied does not prevent
        it: only a peer that lacks the entry needs its body. Nor does a disk without any room, if a
        leadership can begin without an entry."""
        return self.may_feed and self.lost is None

    @property
    def may_feed(self) -> bool:
        """Whether this node may lead to feed its peers, without serving, if no better node leads:
        the position of each entry is known, even of those that it cannot apply."""
        roomy = not self.cramped or self.all_committed
        return self.sure and roomy

    @property
    def all_committed(self) -> bool:
        """Whether the whole log is known to be committed. A leader that knows this need not log an
        entry to find out which entries are committed (Raft § 8): all that ever were are in its log.
        """
        return self.committed == self.log.last_index

    def ticks(self, milliseconds: int) -> int:
        return self.config.timing.ticks(milliseconds)

    def follow(self, term: Term, leader: NodeId | None, why: str) -> None:
        """Become a follower in ``term``: of ``leader``, or of a leader that is not known yet."""
        check(term >= self.term, "a term never goes back")
        if term > self.term:
            self.term = term
            self.vote = None
            self.vote_changed = True
        elif self.role is Role.FOLLOWER and leader == self.leader:
            return
        if self.role is Role.LEADER:
            self.report(Happening.STEPS_DOWN, detail=why)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.report(Happening.FOLLOWS, leader, detail=why)

    def lose_leader(self) -> None:
        """Forget the leader of this term, without an event."""
        self.leader = None

    def pre_campaign(self) -> None:
        """Become a pre-candidate: ask for pre-votes without raising the term."""
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self.report(Happening.PRE_CAMPAIGNS)

    def campaign(self) -> None:
        """Become a candidate in the next term, in which this node was never a candidate before."""
        self.term = Term(self.term + 1)
        self.vote = self.node
        self.vote_changed = True
        self.role = Role.CANDIDATE
        self.leader = None
        self.report(Happening.CAMPAIGNS)

    def vote_for(self, candidate: NodeId) -> None:
        check(self.vote is None, "one vote per term")
        self.vote = candidate
        self.vote_changed = True
        self.report(Happening.VOTES, candidate)

    def lead(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self.report(Happening.LEADS)

    def commit(self, index: Index) -> None:
        """Note that all entries up to ``index`` are committed. A lower index has no effect."""
        if index > self.committed:
            check(index <= self.log.last_index, "only what is in the log is committed")
            self.committed = index
