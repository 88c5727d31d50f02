"""Who this replica is in its group right now, and the transitions between roles.

::

                 timeout            pre-votes             votes
    FOLLOWER ──────────▶ PRE_CANDIDATE ────▶ CANDIDATE ────────▶ LEADER
        ▲                     │                  │                  │
        └─────────────────────┴──────────────────┴──────────────────┘
           a leader of this term or a higher term is seen; no quorum

Only this file sets term, vote, role and leader. It does not decide when.
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
    """Shared by the parts of one core; each part says which of it it changes."""

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
        # Microseconds, for append times only: nothing is decided by it.
        self.wall_time = 0
        # Never goes back, not even over a crash; at least the term of the last entry.
        self.term = term
        # Set at most once per term; None until then.
        self.vote = vote
        # Term or vote changed since the engine last took them to its disk.
        self.vote_changed = False
        self.role = Role.FOLLOWER
        # The one leader of this term, once it is known.
        self.leader: NodeId | None = None
        self.log = log
        # What is known to be on a majority for ever. Never goes back within a boot.
        self.committed = Index(0)
        # Everything up to here is in the state. Never goes back; at most committed.
        self.applied = Index(0)
        # What of the log is on this node's disk. Falls only by truncation.
        self.persisted = log.last_index
        # Whether the log has all that this node ever acknowledged. Without that its vote could
        # elect somebody who lacks a committed entry.
        self.sure = True
        # Bytes of entries that this node's disk takes at most.
        self.room = ROOM_UNBOUNDED
        # Whether that is too little for what clients append, or for what the leader sent last.
        self.full = False
        # Bytes of a client's request for which it has no room while this node leads; 0 if none.
        self.lacking = 0
        # Whether it has not even room for an entry of its own.
        self.cramped = False
        # Entries whose bodies this disk lost: never applied, served or sent.
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
        """The first entry that this disk lost before the state had it."""
        ahead = [index for index in self.hollow if index > self.applied] if self.hollow else None
        return min(ahead) if ahead else None

    @property
    def may_lead(self) -> bool:
        """A damaged entry that is applied bars nobody: only a peer that lacks it needs its body.
        Nor does a disk without any room, if a leadership can begin without an entry."""
        return self.may_feed and self.lost is None

    @property
    def may_feed(self) -> bool:
        """Whether this node may lead for others, without serving, if no better node leads: where
        its log stands is known entry by entry, whatever it cannot apply."""
        roomy = not self.cramped or self.all_committed
        return self.sure and roomy

    @property
    def all_committed(self) -> bool:
        """Whether the whole log is known to be committed. A leader that knows this need not log
        an entry to find out what is (Raft § 8): everything that ever was committed is in its log.
        """
        return self.committed == self.log.last_index

    def ticks(self, milliseconds: int) -> int:
        return self.config.timing.ticks(milliseconds)

    def follow(self, term: Term, leader: NodeId | None, why: str) -> None:
        """Be a follower in ``term``: of ``leader``, or of whoever turns up."""
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
        """Follow nobody in this term any more, and say so to nobody."""
        self.leader = None

    def pre_campaign(self) -> None:
        """Ask around without raising the term."""
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self.report(Happening.PRE_CAMPAIGNS)

    def campaign(self) -> None:
        """Stand for election in the next term, which this node has never stood in before."""
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
        """Everything up to ``index`` is committed, as far as this node knew less."""
        if index > self.committed:
            check(index <= self.log.last_index, "only what is in the log is committed")
            self.committed = index
