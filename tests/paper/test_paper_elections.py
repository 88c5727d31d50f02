"""Raft § 5.2 and § 5.4.1: how a leader is found, and who may be one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from cluster_rig import envelope, led, raft_state
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    CoreRig,
    ack,
    append,
    chain,
    compare,
    converse,
    end,
    heartbeat,
    heartbeat_reply,
    leading,
    mismatch,
    only,
    pick,
    pre_vote,
    pre_vote_reply,
    read_index,
    read_index_reply,
    vote,
    vote_reply,
)
from quorate.raft.messages import (
    Compare,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    Vote,
    VoteReply,
)
from quorate.raft.output import EventKind, Refusal
from quorate.replica.engine_io import Deliver
from quorate.types import Position, Role
from verification.disk.inode import LOST
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Callable


def first_timeout(seed: int) -> int:
    rig = CoreRig(seed=seed)
    rig.time_out()
    return rig.raft.clock


def test_timeouts_are_random_between_one_and_two_election_timeouts() -> None:
    """§ 5.2: each node draws its own timeout from a fixed interval, so that they rarely tie."""
    timeouts = [first_timeout(seed) for seed in range(200)]
    assert all(ELECTION_TICKS <= timeout < 2 * ELECTION_TICKS for timeout in timeouts)
    assert len(set(timeouts)) > ELECTION_TICKS // 2


def test_every_round_draws_a_new_timeout() -> None:
    """§ 5.2: a node that failed waits a newly drawn time, else a tie would repeat for ever."""
    rig = CoreRig()
    rounds = [clock for clock in range(20 * ELECTION_TICKS) if pick(rig.tick(), PreVote)]
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert len(set(gaps)) > 5
    assert all(ELECTION_TICKS <= gap < 2 * ELECTION_TICKS for gap in gaps)


def test_nodes_start_as_followers() -> None:
    """§ 5.2: whoever starts follows first, even in a term in which it once stood."""
    rig = CoreRig(term=5, vote="n1", log=chain(5))
    assert (rig.role(), rig.raft.leader) == (Role.FOLLOWER, None)
    assert rig.tick(ELECTION_TICKS - 1) == []


@pytest.mark.parametrize(
    "message", [heartbeat(1), compare(1), append(1, chain(1))], ids=["beat", "compare", "append"]
)
def test_a_leaders_messages_keep_its_followers(message: Message) -> None:
    """§ 5.2: a node stays a follower as long as it hears a valid leader, in whatever words."""
    rig = CoreRig()
    for _ in range(5):
        rig.tick(ELECTION_TICKS - 1)
        rig.hear("n2", message)
    assert (rig.role(), rig.raft.leader) == (Role.FOLLOWER, "n2")
    assert rig.happened(EventKind.PRE_CAMPAIGNS) == []
    assert len(rig.happened(EventKind.FOLLOWS)) == 1


def test_a_leader_beats_at_every_interval() -> None:
    """§ 5.2: an idle leader speaks to every node often enough that none times out."""
    rig = leading(5)
    beats = [bool(pick(rig.tick(), Heartbeat)) for _ in range(ELECTION_TICKS // 2)]
    assert beats.count(True) == len(beats) // HEARTBEAT_TICKS
    (first, second, *_) = (tick for tick, beat in enumerate(beats) if beat)
    assert second - first == HEARTBEAT_TICKS


def test_a_candidate_raises_its_term_votes_for_itself_and_asks_all() -> None:
    """§ 5.2: to stand is a new term, the own vote in it and one request to each other node."""
    rig = CoreRig(5, term=3, log=chain(1, 3))
    sent = rig.campaign()
    assert (rig.raft.term, rig.raft.vote) == (4, "n1")
    assert [(target, message) for target, message in sent] == [
        (peer, vote(4, end(chain(1, 3)))) for peer in rig.peers
    ]


@pytest.mark.parametrize("size", range(2, 8))
def test_a_majority_of_votes_elects(size: int) -> None:
    """§ 5.2: exactly the vote that completes a majority makes a leader, not the one before."""
    rig = CoreRig(size)
    rig.campaign()
    rig.persist()
    for votes, peer in enumerate(rig.peers, start=2):
        assert (rig.role() is Role.LEADER) == (votes - 1 > size // 2)
        if rig.role() is Role.LEADER:
            return
        rig.hear(peer, vote_reply(1))
    assert rig.role() is Role.LEADER


def test_a_group_of_one_elects_itself_once_its_vote_is_on_disk() -> None:
    """§ 5.2: the majority of one is one; its vote counts when it is durable, like any other."""
    rig = CoreRig(1)
    rig.time_out()
    assert rig.role() is Role.CANDIDATE
    rig.persist()
    assert rig.role() is Role.LEADER


def test_a_voter_is_counted_once() -> None:
    """§ 5.2: a repeated answer is one vote."""
    rig = CoreRig(5)
    rig.campaign()
    rig.persist()
    for _ in range(3):
        rig.hear("n2", vote_reply(1))
    assert rig.role() is Role.CANDIDATE


def test_refused_votes_elect_nobody() -> None:
    """§ 5.2: only granted votes count."""
    rig = CoreRig()
    rig.campaign()
    rig.persist()
    rig.hear("n2", vote_reply(1, granted=False))
    rig.hear("n3", vote_reply(1, granted=False))
    assert rig.role() is Role.CANDIDATE


def test_one_vote_per_term_first_come_first_served() -> None:
    """§ 5.2: the first candidate of a term gets the vote, the second does not."""
    rig = CoreRig()
    assert only(rig.hear("n2", vote(1)), VoteReply).granted
    assert not only(rig.hear("n3", vote(1)), VoteReply).granted
    assert rig.raft.vote == "n2"
    assert only(rig.hear("n3", vote(2)), VoteReply).granted


def test_a_vote_is_given_again_to_the_same_candidate() -> None:
    """§ 5.2, § 5.5: its first answer may have been lost."""
    rig = CoreRig()
    assert rig.hear("n2", vote(1)) == rig.hear("n2", vote(1))
    assert len(rig.happened(EventKind.VOTES)) == 1


def test_a_refused_candidate_does_not_use_up_the_vote() -> None:
    """§ 5.2, § 5.4.1: a later candidate of the same term may still get it."""
    rig = CoreRig(log=chain(1), term=1)
    assert not only(rig.hear("n2", vote(2)), VoteReply).granted
    assert rig.raft.vote is None
    assert only(rig.hear("n3", vote(2, end(chain(1)))), VoteReply).granted


def test_a_candidate_gives_its_own_term_to_nobody_else() -> None:
    """§ 5.2: it refuses its rivals in that term, and stays a candidate in it."""
    rig = CoreRig()
    rig.campaign()
    assert not only(rig.hear("n2", vote(1)), VoteReply).granted
    assert (rig.role(), rig.raft.vote) == (Role.CANDIDATE, "n1")


def test_a_vote_is_remembered_over_a_crash() -> None:
    """§ 5.2: the vote is on disk before it is given, so a restart cannot give another."""
    cluster = HandCluster(3)
    cluster.tick("n1")
    cluster.deliver_all()  # pre-votes
    cluster.deliver_all()
    cluster.deliver_all()  # votes
    assert raft_state(cluster, "n2").vote == "n1"
    cluster.crash("n2", lambda: LOST)
    cluster.restart("n2")
    assert (raft_state(cluster, "n2").term, raft_state(cluster, "n2").vote) == (1, "n1")


def test_a_term_is_on_disk_before_it_is_spoken_of() -> None:
    """§ 5.1, § 5.2: the term is durable state, too; no answer in it leaves before it is."""
    cluster = HandCluster(3, auto_flush=False)
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", heartbeat(5)))])
    assert (raft_state(cluster, "n2").term, cluster.table) == (5, [])
    cluster.flush("n2")
    assert [item.message for item in cluster.table] == [heartbeat_reply(5)]
    cluster.crash("n2", lambda: LOST)
    cluster.restart("n2")
    assert raft_state(cluster, "n2").term == 5


def test_a_split_vote_ends_in_a_later_term() -> None:
    """§ 5.2: a term may go without a leader; whoever times out first then wins the next."""
    one, two = CoreRig(2, name="n1"), CoreRig(2, name="n2")
    for rig in (one, two):
        rig.campaign()
        rig.persist()
    assert not only(one.hear("n2", vote(1)), VoteReply).granted
    assert not only(two.hear("n1", vote(1)), VoteReply).granted
    converse(one, two, one.tick(2 * ELECTION_TICKS))
    assert (one.role(), one.raft.term) == (Role.LEADER, 2)
    assert (two.role(), two.raft.leader) == (Role.FOLLOWER, "n1")


def test_a_node_never_stands_twice_in_one_term() -> None:
    """§ 5.2: after a restart a candidate's next term is a new one; old votes are worth nothing."""
    rig = CoreRig(term=4, vote="n1", boot=2)
    rig.campaign()
    assert rig.raft.term == 5
    rig.persist()
    rig.hear("n2", vote_reply(4))
    assert rig.role() is Role.CANDIDATE
    assert rig.refused(Refusal.NOT_ASKED) == 1


HIGHER: dict[str, Message] = {
    "vote reply": vote_reply(9, granted=False),
    "pre-vote reply": pre_vote_reply(9, granted=False),
    "compare": compare(9),
    "append": append(9, chain(9)),
    "ack": ack(9, 0),
    "mismatch": mismatch(9, 1, 1),
    "heartbeat": heartbeat(9),
    "heartbeat reply": heartbeat_reply(9),
    "read index": read_index(9),
    "read index reply": read_index_reply(9, None),
}


def as_follower() -> CoreRig:
    return CoreRig(term=1)


def as_pre_candidate() -> CoreRig:
    rig = CoreRig(term=1)
    rig.time_out()
    return rig


def as_candidate() -> CoreRig:
    rig = CoreRig(term=1)
    rig.campaign()
    return rig


def as_leader() -> CoreRig:
    return leading(term=1, settled=False)


@pytest.mark.parametrize("make", [as_follower, as_pre_candidate, as_candidate, as_leader])
@pytest.mark.parametrize("kind", HIGHER)
def test_a_higher_term_is_taken_over(make: Callable[[], CoreRig], kind: str) -> None:
    """§ 5.1: whatever brings a higher term, its receiver follows in it with a free vote."""
    rig = make()
    # A log that is empty, so that no message is about entries that differ.
    rig.hear("n2", HIGHER[kind])
    assert (rig.raft.term, rig.raft.vote) == (9, None)
    assert rig.role() is Role.FOLLOWER
    from_leader = kind in ("compare", "append", "heartbeat")
    assert rig.raft.leader == ("n2" if from_leader else None)


@pytest.mark.parametrize("make", [as_follower, as_pre_candidate, as_candidate])
def test_a_candidates_higher_term_is_taken_over(make: Callable[[], CoreRig]) -> None:
    """§ 5.1: also when its vote is refused because its log lacks entries."""
    rig = make()
    last = Position(rig.raft.log.last_index, rig.raft.log.last.term, 0)
    reply = only(rig.hear("n2", vote(9, last)), VoteReply)
    assert rig.raft.term == reply.term == 9
    assert rig.role() is Role.FOLLOWER


@pytest.mark.parametrize(
    "message", [compare(3), append(3, chain(3)), heartbeat(3)], ids=["compare", "append", "beat"]
)
def test_an_old_leader_learns_the_newer_term(message: Message) -> None:
    """§ 5.1: a request of an earlier term is refused, and the answer names the newer one."""
    rig = CoreRig(term=4)
    assert only(rig.hear("n2", message), HeartbeatReply) == heartbeat_reply(4)
    assert rig.refused(Refusal.STALE_TERM) == 1
    assert (rig.raft.leader, rig.raft.log.last_index) == (None, 0)


def test_an_old_candidate_learns_the_newer_term() -> None:
    """§ 5.1: the refused vote carries the newer term."""
    rig = CoreRig(term=4)
    assert only(rig.hear("n2", vote(3)), VoteReply) == vote_reply(4, granted=False)
    assert rig.raft.vote is None


@pytest.mark.parametrize("kind", [Heartbeat, Compare])
def test_a_candidate_concedes_to_a_leader_of_its_term(kind: type) -> None:
    """§ 5.2: whoever leads this term has won it; the candidate follows at once."""
    rig = CoreRig()
    rig.campaign()
    rig.hear("n3", heartbeat(1) if kind is Heartbeat else compare(1))
    assert (rig.role(), rig.raft.leader) == (Role.FOLLOWER, "n3")
    assert rig.raft.vote == "n1"
    rig.persist()
    rig.hear("n2", vote_reply(1))
    assert rig.role() is Role.FOLLOWER


def test_a_candidate_ignores_a_leader_of_an_earlier_term() -> None:
    """§ 5.2: a leader of an earlier term is none; the candidate goes on."""
    rig = CoreRig(term=4)
    rig.campaign()
    rig.hear("n3", heartbeat(4))
    assert (rig.role(), rig.raft.term) == (Role.CANDIDATE, 5)


UP_TO_DATE = [
    # own terms, candidate's last (term, index), whether the vote is granted
    ([], (0, 0), True),
    ([1], (0, 0), False),
    ([1], (1, 1), True),
    ([1, 1], (1, 1), False),
    ([1, 1], (1, 3), True),
    ([1, 1, 1], (2, 1), True),
    ([2], (1, 9), False),
    ([1, 2, 2], (2, 2), False),
    ([1, 2, 2], (3, 1), True),
]


@pytest.mark.parametrize(("own", "last", "granted"), UP_TO_DATE)
def test_votes_go_only_to_logs_that_are_up_to_date(
    own: list[int], last: tuple[int, int], granted: bool
) -> None:
    """§ 5.4.1: the later last term wins; with equal last terms the longer log does."""
    position = end(chain(*[last[0]] * last[1]))
    rig = CoreRig(log=chain(*own), term=3)
    assert only(rig.hear("n2", vote(4, position)), VoteReply).granted is granted
    other = CoreRig(log=chain(*own), term=3)
    (reply,) = other.hear("n2", pre_vote(3, position))
    assert reply[1] == pre_vote_reply(3, granted=granted)


def test_terms_without_requests_do_not_rise() -> None:
    """§ 5.2: a stable leader is not replaced: no term changes without a cause."""
    cluster = led(5)
    cluster.run(10 * ELECTION_TICKS)
    assert {raft_state(cluster, name).term for name in cluster.voters} == {1}


def test_a_vote_postpones_the_voters_own_campaign() -> None:
    """§ 5.2: who grants a vote waits a whole timeout for the winner to speak."""
    rig = CoreRig(seed=1)
    rig.tick(ELECTION_TICKS - 1)
    rig.hear("n2", vote(1))
    assert pick(rig.tick(ELECTION_TICKS - 1), PreVote) == []
    assert pick(rig.tick(ELECTION_TICKS + 1), PreVote) != []


def test_a_candidate_has_a_whole_timeout_to_win() -> None:
    """§ 5.2: it begins with the campaign, however long the pre-vote took."""
    rig = CoreRig()
    rig.time_out()
    rig.tick(ELECTION_TICKS - 1)
    rig.hear("n2", pre_vote_reply(0))
    assert rig.role() is Role.CANDIDATE
    rig.tick(ELECTION_TICKS - 1)
    assert rig.role() is Role.CANDIDATE


def test_asking_for_votes_stops_when_the_term_is_over() -> None:
    """§ 5.2: a candidate whose votes do not come asks again whether it could win."""
    rig = CoreRig()
    rig.campaign()
    rig.persist()
    sent = rig.tick(2 * ELECTION_TICKS)
    assert pick(sent, Vote) == []
    assert len(pick(sent, PreVote)) == len(rig.peers)
    assert (rig.role(), rig.raft.term) == (Role.PRE_CANDIDATE, 1)
