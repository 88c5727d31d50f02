"""The election of a leader: pre-vote, vote, stickiness and the closed-link hint.

A node that hears its leader helps no candidate to replace it (stickiness). A node that does not
hear a leader asks first whether it could win (pre-vote) and only then raises its term: a node that
cannot reach a majority, or lacks entries, does not disturb the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import PreVote, PreVoteReply, RequestId, Vote, VoteReply
from quorate.raft.output import Happening, Refusal
from quorate.raft.patience import Patience
from quorate.types import NodeId, Position, Role

if TYPE_CHECKING:
    from quorate.raft.roles import Standing

__all__ = ["Election"]

# Election timeouts without a leader before a node that cannot serve campaigns all the same.
LAST_RESORT_ELECTIONS = 6
# Additional election timeouts for a node that stepped down for a damaged entry not long ago.
TURN_ELECTIONS = 3


class Election:
    """The part of the core that answers candidates, and that acts while this node does not lead."""

    __slots__ = (
        "_barred_until", "_deadline", "_granted", "_heard_at", "_hint_at", "_hint_refused",
        "_hint_term", "_hurry_until", "_request", "_standing", "damage_patience", "patience",
        "told_room",
    )  # fmt: skip

    def __init__(self, standing: Standing, *, first_to_campaign: bool) -> None:
        self._standing = standing
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
        self._hurry_until = 0
        # The clock before which this node does not campaign: others were found fitter to lead.
        self._barred_until = 0
        # The waits before this node steps down again. If the reason is a damaged entry, the wait
        # holds even if another node led since, because nodes that lack different entries take
        # turns. If it is another one, it holds only if none of the others, which seemed fitter,
        # could lead.
        self.damage_patience = Patience(standing)
        self.patience = Patience(standing)
        self.postpone()
        if first_to_campaign:
            self._deadline = 1
            # The other nodes may still be creating their replicas.
            self._hurry_until = standing.election_ticks

    def postpone(self) -> None:
        """Wait one to two election timeouts from now before campaigning; one more after this node
        stepped down for a damaged entry, so that nodes that did not step down come first."""
        clock = self._standing.clock
        timeout = self._standing.election_ticks
        least = 2 * timeout if self.damage_patience.waits else timeout
        self._deadline = clock + least + self._standing.random.randrange(timeout)

    def led(self) -> None:
        """Note that the own leadership has ended."""
        self._heard_at = self._standing.clock
        self.postpone()

    def bar(self, elections: int) -> None:
        """Do not campaign for ``elections`` election timeouts: other nodes shall lead."""
        timeout = self._standing.election_ticks
        self._barred_until = self._standing.clock + elections * timeout

    def leader_heard(self) -> None:
        """Note a message of the current leader: it renews the leader and cancels a hint."""
        self._heard_at = self._standing.clock
        self.patience.forget()
        if self._hint_at is not None:
            self._hint_at = None
            self._standing.report(Happening.HINT_CANCELLED, self._standing.leader)
        self.postpone()

    @property
    def leader_alive(self) -> bool:
        """Whether there is a leader that this node must not help to replace."""
        standing = self._standing
        if standing.role is Role.LEADER:
            return True  # check-quorum ends a leadership without a majority
        timeout = standing.election_ticks
        return standing.leader is not None and standing.clock - self._heard_at < timeout

    # -- the closed-link hint ------------------------------------------------------------------

    def link_closed(self, peer: NodeId) -> None:
        """Start a hint if it is the leader's link: the process may be gone, or the link flaps."""
        standing = self._standing
        if peer != standing.leader or self._hint_term == standing.term:
            return
        self._hint_term = standing.term
        self._hint_at = standing.clock + self._hint_wait()
        self._hint_refused = False
        standing.report(Happening.HINT_STARTED, peer)

    def link_refused(self, peer: NodeId) -> None:
        """Note that no process listens at the peer's address, although the host is up."""
        if self._hint_at is not None and peer == self._standing.leader:
            self._hint_refused = True

    def _hint_wait(self) -> int:
        timing = self._standing.config.timing
        low = self._standing.ticks(timing.hint_min_ms)
        return self._standing.random.randint(low, self._standing.ticks(timing.hint_max_ms))

    def _settle_hint(self) -> None:
        standing = self._standing
        self._hint_at = None
        if standing.role is not Role.FOLLOWER or self._hint_term != standing.term:
            return  # the hint was about a node that leads no more
        if not self._hint_refused:
            return  # a link that can be opened again deposes no leader
        standing.report(Happening.HINT_ENDED_STICKINESS, standing.leader)
        standing.lose_leader()
        self._deadline = standing.clock
        self._hurry_until = standing.clock + standing.election_ticks

    # -- campaigning ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Count a tick of a node that does not lead: settle a hint, or begin a campaign."""
        standing = self._standing
        if self._hint_at is not None and standing.clock >= self._hint_at:
            self._settle_hint()
        if standing.clock >= self._deadline:
            if standing.clock < self._barred_until or not self._may_campaign:
                self.postpone()
            else:
                self._pre_campaign()

    @property
    def _may_campaign(self) -> bool:
        """Whether this node may campaign. A node that cannot serve leads as a last resort, to feed
        peers that lack entries: by then each node that can serve had the time to win. Nodes that
        cannot serve take turns."""
        standing = self._standing
        turn = TURN_ELECTIONS if self.damage_patience.waits else 0
        patience = (LAST_RESORT_ELECTIONS + turn) * standing.election_ticks
        patient = standing.clock - self._heard_at >= patience
        # Without peers there is no node to feed.
        return standing.may_lead or (standing.may_feed and patient and bool(standing.peers))

    def _pre_campaign(self) -> None:
        """Begin a pre-vote (Raft thesis § 9.6). A candidate without a majority comes here, too."""
        standing = self._standing
        standing.pre_campaign()
        self._hint_at = None
        self._request += 1
        self._granted = {standing.node}
        if standing.clock < self._hurry_until:
            # The others refuse until their own hints are settled: that takes no whole timeout.
            self._deadline = standing.clock + self._hint_wait()
        else:
            self.postpone()
        if len(self._granted) >= standing.quorum:
            self._campaign()
            return
        request = RequestId(standing.boot, self._request)
        for peer in standing.peers:
            standing.send(peer, PreVote(standing.term, request, standing.log.last))

    def _campaign(self) -> None:
        """Campaign (Raft § 5.2). The engine sends the requests when term and vote are on disk."""
        standing = self._standing
        standing.campaign()
        self._granted = set()
        self.told_room = {}
        self.postpone()
        for peer in standing.peers:
            standing.send(peer, Vote(standing.term, standing.log.last))

    def vote_persisted(self) -> None:
        """Count the own vote, which counts once it is on disk, like the votes of the others.

        The requests leave only now, so the time to answer them begins now: a slow disk must not
        make every campaign too late.
        """
        standing = self._standing
        if standing.role is Role.CANDIDATE and standing.persisted_term == standing.term:
            if standing.node not in self._granted:
                self.postpone()
            self._count(standing.node)

    def _count(self, voter: NodeId) -> None:
        self._granted.add(voter)
        if len(self._granted) >= self._standing.quorum:
            self._standing.lead()

    # -- answering -----------------------------------------------------------------------------

    def _up_to_date(self, last: Position) -> bool:
        """Whether the candidate's log ends no earlier than this one (Raft § 5.4.1)."""
        own = self._standing.log.last
        return (last.term, last.index) >= (own.term, own.index)

    def on_pre_vote(self, source: NodeId, ask: PreVote) -> None:
        standing = self._standing
        granted = ask.term >= standing.term and not self.leader_alive and self._up_to_date(ask.last)
        granted = granted and standing.sure
        standing.send(source, PreVoteReply(standing.term, ask.request, granted))

    def on_pre_vote_reply(self, source: NodeId, reply: PreVoteReply) -> None:
        standing = self._standing
        asked = RequestId(standing.boot, self._request)
        if standing.role is not Role.PRE_CANDIDATE or reply.request != asked:
            standing.refuse(Refusal.NOT_ASKED)
            return
        if reply.granted:
            self._granted.add(source)
            if len(self._granted) >= standing.quorum:
                self._campaign()

    def on_vote(self, source: NodeId, ask: Vote) -> None:
        standing = self._standing
        if ask.term < standing.term:
            standing.refuse(Refusal.STALE_TERM)
            standing.send(source, VoteReply(standing.term, granted=False))
            return
        if self.leader_alive:
            # Raft thesis § 4.2.3: not even the candidate's term is taken over.
            standing.refuse(Refusal.LEADER_ALIVE)
            return
        if not standing.sure:
            standing.refuse(Refusal.UNSURE)
            return
        if ask.term > standing.term:
            standing.follow(ask.term, None, "a candidate has a higher term")
        granted = standing.vote in (None, source) and self._up_to_date(ask.last)
        if granted and standing.vote is None:
            standing.vote_for(source)
        if granted:
            self.postpone()
        else:
            standing.report(Happening.REFUSES_VOTE, source)
        standing.send(source, VoteReply(standing.term, granted, standing.room, standing.full))

    def on_vote_reply(self, source: NodeId, reply: VoteReply) -> None:
        standing = self._standing
        if reply.term < standing.term or standing.role is not Role.CANDIDATE:
            standing.refuse(Refusal.NOT_ASKED)
        elif reply.granted:
            self.told_room[source] = (reply.room, reply.full)
            self._count(source)
