"""Changes of the members: there is one way, by a joint membership (Raft § 6).

::

               new members              caught up                committed
    request ─────────────▶ learners ─────────────▶ joint ─────────────────────▶ final
                  │
                  └─ only learners or priorities change: final at once (R5)

Each arrow is an entry, and each waits for the commit of the entry before it (R3, R4). A change
without its joint entry may be given up, and its learners stay. A joint membership only goes
forward: a leader that finds one committed logs the final one, also if the request was made to
another leader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.errors import (
    Busy,
    CatchingUp,
    DiskFull,
    InvalidArgument,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
)
from quorate.membership import MEMBERS_MAX, encode_membership
from quorate.raft.electorate import Electorate
from quorate.raft.output import MembersChanged
from quorate.raft.progress import ProgressState
from quorate.types import Index

if TYPE_CHECKING:
    from quorate.membership import Membership
    from quorate.raft.leader import Leader
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState

__all__ = ["Changes", "MemberChange"]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A request to change the members."""

    # The membership that is wanted in the end: it has no outgoing voters.
    wanted: Membership
    # The index of the newest membership that the caller saw; None if that does not matter.
    expect: Index | None = None
    # Milliseconds that new voters may take to catch up.
    patience_ms: int = 60_000
    # Whether an even number of voters is taken: two survive the loss of no more nodes than one.
    forced: bool = False


class Changes:
    """The change under way, of which there is at most one, and the requests that wait for it."""

    __slots__ = (
        "_deadline", "_given_up", "_logged", "_raft", "_sample", "_sample_at", "_tokens", "_wanted",
    )  # fmt: skip

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft
        # The membership that is wanted; None while no change was asked for.
        self._wanted: Membership | None = None
        self._tokens: list[int] = []
        # The reason why the change is given up as soon as its last entry is committed; else None.
        self._given_up: QuorateError | None = None
        # The clock at which a change without a joint entry is given up.
        self._deadline = 0
        # Whether the change has an entry in the log, so that its outcome is open.
        self._logged = False
        # The last index at a clock not longer ago than an election timeout: a new voter must have
        # passed it.
        self._sample = Index(0)
        self._sample_at = 0

    @property
    def joint(self) -> bool:
        """Whether a change is past the point from which it only goes forward."""
        return self._raft.memberships.newest.joint

    @property
    def under_way(self) -> bool:
        """Whether a change was asked for, or has only its final membership left to log."""
        return self._wanted is not None or self.joint

    # -- requests ------------------------------------------------------------------------------

    def request(self, token: int, change: MemberChange, leader: Leader | None) -> None:
        """Begin ``change``. The output gets ``token`` with the index of the last entry of the
        change, or with an error."""
        problem = self._problem(change, leader)
        if problem is not None:
            self._end_one(token, problem)
            return
        if self._wanted is None:
            # A request that is made again after its time was over may have its entry in the log.
            again = self._raft.memberships.newest == change.wanted
            self._wanted, self._logged = change.wanted, again
            self._deadline = self._raft.clock + self._raft.ticks(change.patience_ms)
            self._take_sample()
        self._tokens.append(token)

    def _problem(self, change: MemberChange, leader: Leader | None) -> QuorateError | None:
        raft, wanted = self._raft, change.wanted
        newest, index = raft.memberships.newest, raft.memberships.index
        if leader is None:
            return NotLeader(f"{raft.node} does not lead", leader=raft.leader)
        if self._wanted is not None:
            same = self._wanted == wanted
            return None if same else Busy(f"a change to {self._wanted} is under way")
        if newest.joint:
            return Busy(f"a change to {replace(newest, outgoing=())} is under way")
        if not leader.has_room():
            return DiskFull("no majority of disks has room for more than the reserve")
        if change.expect not in (None, index):
            return Busy(f"entry {index} set the members, not entry {change.expect}: look again")
        if wanted.intent < newest.intent:
            return InvalidArgument(f"request {wanted.intent} is older than request {newest.intent}")
        if wanted.joint:
            return InvalidArgument("a change names the voters that are wanted, no outgoing ones")
        members = len({*newest.members, *wanted.members})
        if members > MEMBERS_MAX:
            return InvalidArgument(
                f"the members before and after the change are {members}, limit {MEMBERS_MAX}: "
                f"remove some of them first"
            )
        if len(wanted.voters) % 2 == 0 and wanted.voters != newest.voters and not change.forced:
            count = len(wanted.voters)
            return InvalidArgument(
                f"{count} voters survive no more losses than {count - 1}: take an odd number"
            )
        return None

    def give_up(self, problem: QuorateError) -> None:
        """Give up the change under way, which has no joint entry yet: its learners stay. While its
        last entry is not committed the outcome is not known: the change ends when it is."""
        if self._wanted is None:
            return
        if self._open:
            self._given_up = problem
        else:
            self._end(problem)

    @property
    def _open(self) -> bool:
        """Whether the change must not be called failed: its last entry may still be committed, or
        is the one that was wanted."""
        memberships = self._raft.memberships
        pending = memberships.index > self._raft.committed or memberships.newest == self._wanted
        return self._logged and pending

    # -- progress ------------------------------------------------------------------------------

    def due(self, leader: Leader) -> Membership | None:
        """The membership that is to be logged now; None if there is none, or not yet."""
        raft = self._raft
        if not self.under_way:
            return None  # as in most turns
        # R3: the members before must be certain, and all that earlier leaders committed. And the
        # leader must be able to apply what it logs.
        if raft.memberships.index > raft.committed or raft.applied < leader.start:
            return None
        following = self._following(leader)
        if following is None:
            return None
        return following if self._fits(following, leader) else None

    def _fits(self, membership: Membership, leader: Leader) -> bool:
        """Whether the disks have room for the entry of ``membership``: without it, the entry would
        block all entries after it. The final membership may take the reserve of full disks, because
        the log depends on two majorities until it is committed."""
        raft, size = self._raft, HEADER_BYTES + len(encode_membership(membership))
        beside = size + leader.uncommitted_bytes
        if self.joint:
            return size <= raft.free and leader.reserve_takes(beside)
        kept = raft.config.storage.reserve_bytes
        return size + kept <= raft.free and leader.has_room(beside)

    def _following(self, leader: Leader) -> Membership | None:
        """The membership that follows the newest one; None if there is none, or not yet."""
        wanted, newest = self._wanted, self._raft.memberships.newest
        if newest.joint:
            return replace(newest, outgoing=())
        if wanted is None or wanted == newest or self._given_up is not None:
            return None
        if wanted.voters == newest.voters:
            return wanted
        added = [node for node in wanted.members if node not in newest.members]
        if added:
            return replace(newest, learners=(*newest.learners, *added), intent=wanted.intent)
        if self._obstacle(wanted, leader) is not None:
            return None
        return replace(wanted, outgoing=newest.voters)

    def logged(self) -> None:
        """Note that the membership that was due is in the log."""
        self._logged = True

    def proceed(self, leader: Leader | None) -> None:
        """End the change if it is done: called once at the end of a turn."""
        wanted, raft = self._wanted, self._raft
        if wanted is None:
            return
        if leader is None:
            if self._logged:
                self._end(OutcomeUnknown("leadership ended before the change of the members"))
            else:
                self._end(NotLeader("leadership ended before the change", leader=raft.leader))
        elif raft.memberships.newest == wanted and raft.applied >= raft.memberships.index:
            self._end(MembersChanged(raft.memberships.index))
        elif self._given_up is not None and not self._open and raft.memberships.newest != wanted:
            self._end(self._given_up)

    def tick(self, leader: Leader | None) -> None:
        """Count a tick: give the change up if its new voters did not catch up in time."""
        raft, wanted = self._raft, self._wanted
        if wanted is None or leader is None:
            return
        if raft.clock >= self._sample_at:
            self._take_sample()
        if raft.clock >= self._deadline and not self.joint:
            late = CatchingUp("the entry that sets the members was not committed in time")
            problem = self._obstacle(wanted, leader) or late
            index = raft.memberships.index
            if self._open:
                open_ = f"entry {index} of the change is not committed and applied"
                problem = OutcomeUnknown(f"{open_}: {problem}")
            self._end(problem)

    def _take_sample(self) -> None:
        raft = self._raft
        self._sample = raft.log.last_index
        self._sample_at = raft.clock + raft.election_ticks

    # -- new voters ----------------------------------------------------------------------------

    def _obstacle(self, wanted: Membership, leader: Leader) -> QuorateError | None:
        """The reason why the voters that are wanted cannot decide yet (R6); None if they can. A
        joint membership without a majority of them would stop the log."""
        raft = self._raft
        peers = leader.progress.values()
        able = [peer.node for peer in peers if self._answers(peer, leader) and not peer.unfit]
        if not Electorate(wanted).won([raft.node, *able]):
            others = sorted(set(wanted.voters) - {raft.node, *able})
            return NoQuorum(
                f"no majority of the new voters can vote: {', '.join(others)} do not answer, stop, "
                f"or are not sure of their entries"
            )
        for node in wanted.voters:
            if node in raft.electorate.voters or node == raft.node:
                continue
            reason = self._unfit(leader.progress.get(node), leader)
            if reason is not None:
                return CatchingUp(f"{node} cannot vote yet: it {reason}")
        return None

    @staticmethod
    def _answers(peer: Progress, leader: Leader) -> bool:
        """Whether ``peer`` was heard not long ago, in this leadership: a new leader takes every
        peer for alive until an election timeout has passed."""
        return leader.hears(peer) and peer.full is not None

    def _unfit(self, peer: Progress | None, leader: Leader) -> str | None:
        """The reason why ``peer`` must not become a voter yet; None if it may."""
        if peer is None:
            return "is no member yet"
        if not self._answers(peer, leader):
            return "does not answer"
        if peer.unfit:
            return "stops, cannot serve, or is not sure of its entries"
        if peer.full:
            return "has no room on its disk"
        if peer.state is not ProgressState.APPEND or peer.match < self._sample:
            return f"lacks {self._raft.log.last_index - peer.match} entries"
        return None

    def _end_one(self, token: int, result: MembersChanged | QuorateError) -> None:
        self._raft.out.ended.append((token, result))

    def _end(self, result: MembersChanged | QuorateError) -> None:
        tokens, self._tokens, self._wanted = self._tokens, [], None
        self._given_up = None
        for token in tokens:
            self._end_one(token, result)
