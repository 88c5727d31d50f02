"""The election of a leader: pre-vote, vote, stickiness and the closed-link hint.

A node that hears its leader helps no candidate to replace it (stickiness). A node that does not
hear a leader asks first whether it could win (pre-vote) and only then raises its term: a node that
cannot reach a majority, or lacks entries, does not disturb the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import (
    Append,
    Compare,
    Heartbeat,
    PreVote,
    PreVoteReply,
    RequestId,
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.raft.output import EventKind, Refusal
from quorate.raft.patience import Patience
from quorate.types import NodeId, Position, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.raft.messages import Message
    from quorate.raft.state import RaftState

__all__ = ["Election"]

# Election timeouts without a leader before a node that cannot serve campaigns all the same.
LAST_RESORT_ELECTIONS = 6
# Additional election timeouts for a node that stepped down for a damaged entry not long ago.
TURN_ELECTIONS = 3
# Election timeouts without a leader before a node of priority 0 campaigns: no other voter may have
# all that is committed.
PRIORITY_0_ELECTIONS = 3


class Election:
    """The part of the core that answers candidates, and that acts while this node does not lead."""

    __slots__ = (
        "_asked",
        "_barred_until",
        "_deadline",
        "_granted",
        "_heard_at",
        "_hint_at",
        "_hint_refused",
        "_hint_term",
        "_raft",
        "_request",
        "_retry_soon_until",
        "_went_on",
        "damage_patience",
        "patience",
        "told_room",
    )  # fmt: skip

    def __init__(self, raft: RaftState, *, first_to_campaign: bool) -> None:
        self._raft = raft
        # The clock at which this node begins to campaign.
        self._deadline = 0
        # The clock at which a leader was last heard, or this node last led; stickiness counts from
        # here.
        self._heard_at = 0
        # The nodes that granted the current pre-vote or vote; and of those that gave their vote,
        # the room on their disks and whether it is too little.
        self._granted: set[NodeId] = set()
        self.told_room: dict[NodeId, tuple[int, bool]] = {}
        # The newest pre-vote round of this boot.
        self._request = 0
        # After the leader's link closed: the clock at which the hint is settled, and whether a
        # reconnect was refused since.
        self._hint_at: int | None = None
        self._hint_refused = False
        # The last term that had a hint: there is at most one per term.
        self._hint_term = -1
        # The clock until which a failed round is soon repeated: it is certain that no node leads.
        self._retry_soon_until = 0
        # The leader that asked this node to take over in this turn, and its request; and whether it
        # went on since: a later message names an index behind the end of its log then.
        self._asked: tuple[NodeId, Transfer] | None = None
        self._went_on = False
        # The clock before which this node does not campaign: others were found fitter to lead.
        self._barred_until = 0
        # The waits before this node steps down again. If the reason is a damaged entry, the wait
        # holds even if another node led since, because nodes that lack different entries take
        # turns. If it is another one, it holds only if none of the others, which seemed fitter,
        # could lead.
        self.damage_patience = Patience(raft)
        self.patience = Patience(raft)
        self.postpone()
        if first_to_campaign:
            self._deadline = 1
            # The other nodes may still be creating their replicas.
            self._retry_soon_until = raft.election_ticks

    def postpone(self) -> None:
        """Wait one to two election timeouts from now before campaigning; one more after this node
        stepped down for a damaged entry, so that nodes that did not step down come first."""
        clock = self._raft.clock
        timeout = self._raft.election_ticks
        least = 2 * timeout if self.damage_patience.waits else timeout
        self._deadline = clock + least + self._raft.random.randrange(timeout)

    def led(self) -> None:
        """Note that the own leadership has ended."""
        self._heard_at = self._raft.clock
        self.postpone()

    def bar(self, elections: int) -> None:
        """Do not campaign for ``elections`` election timeouts: other nodes shall lead."""
        timeout = self._raft.election_ticks
        self._barred_until = self._raft.clock + elections * timeout

    def leader_heard(self, message: Message) -> None:
        """Note a message of the current leader: it renews the leader and cancels a hint."""
        if self._asked is not None and _shown(message) > self._asked[1].last.index:
            self._went_on = True
        self._heard_at = self._raft.clock
        self.patience.forget()
        if self._hint_at is not None:
            self._hint_at = None
            self._raft.report(EventKind.HINT_CANCELLED, self._raft.leader)
        self.postpone()

    @property
    def leader_alive(self) -> bool:
        """Whether there is a leader that this node must not help to replace."""
        raft = self._raft
        if raft.role is Role.LEADER:
            return True  # check-quorum ends a leadership without a majority
        timeout = raft.election_ticks
        return raft.leader is not None and raft.clock - self._heard_at < timeout

    # -- the closed-link hint ------------------------------------------------------------------

    def link_closed(self, peer: NodeId) -> None:
        """Start a hint if it is the leader's link: the process may be gone, or the link flaps."""
        raft = self._raft
        if peer != raft.leader or self._hint_term == raft.term:
            return
        self._hint_term = raft.term
        self._hint_at = raft.clock + self._hint_wait()
        self._hint_refused = False
        raft.report(EventKind.HINT_STARTED, peer)

    def link_refused(self, peer: NodeId) -> None:
        """Note that no process listens at the peer's address, although the host is up."""
        if self._hint_at is not None and peer == self._raft.leader:
            self._hint_refused = True

    def _hint_wait(self) -> int:
        timing = self._raft.config.timing
        low = self._raft.ticks(timing.hint_min_ms)
        return self._raft.random.randint(low, self._raft.ticks(timing.hint_max_ms))

    def _settle_hint(self) -> None:
        raft = self._raft
        self._hint_at = None
        if raft.role is not Role.FOLLOWER or self._hint_term != raft.term:
            return  # the hint was about a node that leads no more
        if not self._hint_refused:
            return  # a link that can be opened again deposes no leader
        raft.report(EventKind.HINT_ENDED_STICKINESS, raft.leader)
        raft.lose_leader()
        self._deadline = raft.clock
        self._retry_soon_until = raft.clock + raft.election_ticks

    # -- campaigning ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Count a tick of a node that does not lead: settle a hint, or begin a campaign."""
        raft = self._raft
        if self._hint_at is not None and raft.clock >= self._hint_at:
            self._settle_hint()
        if raft.clock >= self._deadline:
            if raft.clock < self._barred_until or not self._may_campaign:
                self.postpone()
                if raft.stopping and raft.role is Role.CANDIDATE:
                    raft.follow(raft.term, None, "this node stops, and no majority voted for it")
            else:
                self._pre_campaign()

    @property
    def _may_campaign(self) -> bool:
        """Whether this node may campaign. A node that cannot serve leads as a last resort, to feed
        peers that lack entries: by then each node that can serve had the time to win. Nodes that
        cannot serve take turns. So does a learner: if its log is longer than those of the voters
        that are alive, none of them gets its vote, and one of them may count it as a voter."""
        raft = self._raft
        alone = raft.clock - self._heard_at
        turn = TURN_ELECTIONS if self.damage_patience.waits else 0
        patient = alone >= (LAST_RESORT_ELECTIONS + turn) * raft.election_ticks
        if raft.stopping or not (raft.eligible or (patient and raft.is_learner)):
            return False
        if not raft.priority(raft.node) and alone < PRIORITY_0_ELECTIONS * raft.election_ticks:
            return False
        # Without peers there is no node to feed.
        return raft.may_lead or (raft.may_feed and patient and bool(raft.peers))

    def _pre_campaign(self) -> None:
        """Begin a pre-vote (Raft thesis § 9.6). A candidate without a majority comes here, too."""
        raft = self._raft
        raft.pre_campaign()
        self._hint_at = None
        self._request += 1
        self._granted = {raft.node}
        if raft.clock < self._retry_soon_until:
            # The others refuse until their own hints are settled: that takes no whole timeout.
            self._deadline = raft.clock + self._hint_wait()
        else:
            self.postpone()
        if raft.electorate.won(self._granted):
            self._campaign()
            return
        request = RequestId(raft.boot, self._request)
        for voter in self._other_voters():
            raft.send(voter, PreVote(raft.term, request, raft.log.last))

    def _campaign(self, *, transfer: bool = False) -> None:
        """Campaign (Raft § 5.2). The engine sends the requests when term and vote are on disk.
        ``transfer``: the leader asked for it."""
        raft = self._raft
        raft.campaign()
        self._granted = set()
        self.told_room = {}
        self.postpone()
        for voter in self._other_voters():
            raft.send(voter, Vote(raft.term, raft.log.last, transfer))

    def _other_voters(self) -> Iterator[NodeId]:
        """The voters to ask, in the order of the membership."""
        raft = self._raft
        voters = raft.electorate.voters
        return (peer for peer in raft.peers if peer in voters)

    def on_transfer(self, leader: NodeId, ask: Transfer) -> None:
        """Note that the leader asks this node to campaign: see :meth:`take_over`."""
        self._asked = (leader, ask)

    def take_over(self) -> None:
        """Campaign if the leader asked for it and this log ends where the leader's does (R16): a
        message that comes late must not depose a leader that went on. Called at the end of a turn:
        a node that was paused, or whose line stood still, takes the messages that waited for it in
        one turn, first the request and then those that the leader sent since."""
        raft = self._raft
        if self._asked is None:
            return
        (leader, ask), self._asked = self._asked, None
        went_on, self._went_on = self._went_on, False
        if raft.leader != leader or raft.term != ask.term:
            return
        barred = raft.stopping or raft.clock < self._barred_until or not raft.eligible
        fit = raft.may_lead and not barred
        if raft.log.last == ask.last and fit and not went_on:
            raft.report(EventKind.TAKES_OVER, leader)
            self._campaign(transfer=True)
            if leader not in raft.electorate.voters:
                # A leader that the members do not include any more leads on until it hears of the
                # next term (R10).
                raft.send(leader, Vote(raft.term, raft.log.last, transfer=True))
        else:
            raft.send(leader, TransferRefused(raft.term, ask.number))

    def vote_persisted(self) -> None:
        """Count the own vote, which counts once it is on disk, like the votes of the others.

        The requests leave only now, so the time to answer them begins now: a slow disk must not
        make every campaign too late.
        """
        raft = self._raft
        if raft.role is Role.CANDIDATE and raft.persisted_term == raft.term:
            if raft.node not in self._granted:
                self.postpone()
            self._count(raft.node)

    def _count(self, voter: NodeId) -> None:
        self._granted.add(voter)
        if self._raft.electorate.won(self._granted):
            self._raft.lead()

    # -- answering -----------------------------------------------------------------------------

    def _up_to_date(self, last: Position) -> bool:
        """Whether the candidate's log ends no earlier than this one (Raft § 5.4.1)."""
        own = self._raft.log.last
        return (last.term, last.index) >= (own.term, own.index)

    def on_pre_vote(self, source: NodeId, ask: PreVote) -> None:
        raft = self._raft
        granted = ask.term >= raft.term and not self.leader_alive and self._up_to_date(ask.last)
        granted = granted and raft.sure
        raft.send(source, PreVoteReply(raft.term, ask.request, granted))

    def on_pre_vote_reply(self, source: NodeId, reply: PreVoteReply) -> None:
        raft = self._raft
        asked = RequestId(raft.boot, self._request)
        if raft.role is not Role.PRE_CANDIDATE or reply.request != asked:
            raft.refuse(Refusal.NOT_ASKED)
            return
        if reply.granted:
            self._granted.add(source)
            if raft.electorate.won(self._granted):
                self._campaign()

    def on_vote(self, source: NodeId, ask: Vote) -> None:
        raft = self._raft
        if ask.term < raft.term:
            raft.refuse(Refusal.STALE_TERM)
            raft.send(source, VoteReply(raft.term, granted=False))
            return
        # R16: the leader of the term before asked this candidate to take over, and logged no entry
        # since. In another term, or with another log, the request came late.
        asked = ask.transfer and ask.term == raft.term + 1 and self._up_to_date(ask.last)
        if self.leader_alive and not asked:
            # Raft thesis § 4.2.3: not even the candidate's term is taken over.
            raft.refuse(Refusal.LEADER_ALIVE)
            return
        if not raft.sure:
            raft.refuse(Refusal.UNSURE)
            return
        if ask.term > raft.term:
            raft.follow(ask.term, None, "a candidate has a higher term")
        granted = raft.vote in (None, source) and self._up_to_date(ask.last)
        if granted and raft.vote is None:
            raft.vote_for(source)
        if granted:
            self.postpone()
        else:
            raft.report(EventKind.REFUSES_VOTE, source)
        raft.send(source, VoteReply(raft.term, granted, raft.room, raft.full))

    def on_vote_reply(self, source: NodeId, reply: VoteReply) -> None:
        raft = self._raft
        if reply.term < raft.term or raft.role is not Role.CANDIDATE:
            raft.refuse(Refusal.NOT_ASKED)
        elif reply.granted:
            self.told_room[source] = (reply.room, reply.full)
            self._count(source)


def _shown(message: Message) -> int:
    """An index of the leader's log that one of its messages shows."""
    match message:
        case Heartbeat():
            return message.committed.index
        case Compare():
            return message.prev.index
        case Append():
            return message.last_index
        case _:
            return 0
