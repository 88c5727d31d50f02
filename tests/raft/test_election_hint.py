"""The closed-link hint and the slow disk: ways out of a leadership that no timeout ends."""

from __future__ import annotations

import pytest

from cluster_rig import append_many, assert_same, happened, led, settle_losing
from core_rig import (
    ELECTION_TICKS,
    CoreRig,
    append,
    chain,
    heartbeat,
    leading,
    only,
    pick,
    pre_vote,
    read_index,
    vote,
)
from quorate.config import Timing
from quorate.raft.messages import PreVote, PreVoteReply, VoteReply
from quorate.raft.output import EventKind
from quorate.replica.engine_io import LinkClosed, LinkRefused
from quorate.types import NodeId, Role

HINT_MIN_TICKS = Timing().ticks(Timing().hint_min_ms)
HINT_MAX_TICKS = Timing().ticks(Timing().hint_max_ms)


def following(seed: int = 0) -> CoreRig:
    """A follower of n2 that heard it just now."""
    rig = CoreRig(term=1, seed=seed)
    rig.hear("n2", heartbeat(1))
    return rig


def close(rig: CoreRig, peer: str = "n2", refused: bool = True) -> None:
    rig.core.link_closed(NodeId(peer))
    if refused:
        rig.core.link_refused(NodeId(peer))


# -- the hint ----------------------------------------------------------------------------------


def test_a_leader_that_is_gone_is_replaced_in_a_fraction_of_a_timeout() -> None:
    waits = set()
    for seed in range(50):
        rig = following(seed)
        close(rig)
        while not pick(rig.tick(), PreVote):
            assert rig.raft.clock <= HINT_MAX_TICKS
        waits.add(rig.raft.clock)
        assert len(rig.happened(EventKind.HINT_ENDED_STICKINESS)) == 1
    assert min(waits) >= HINT_MIN_TICKS
    assert len(waits) > 5  # at random, so that they do not all stand at once


def test_stickiness_ends_with_the_hint_and_not_before() -> None:
    rig = following()
    close(rig)
    rig.tick(HINT_MIN_TICKS - 1)
    assert not only(rig.hear("n3", pre_vote(1)), PreVoteReply).granted
    rig.tick(HINT_MAX_TICKS)
    assert only(rig.hear("n3", pre_vote(1)), PreVoteReply).granted


def test_a_link_that_can_be_had_again_deposes_nobody() -> None:
    rig = following()
    close(rig, refused=False)
    rig.tick(2 * HINT_MAX_TICKS)
    assert (rig.role(), rig.raft.leader) == (Role.FOLLOWER, "n2")
    assert not only(rig.hear("n3", pre_vote(1)), PreVoteReply).granted


def test_a_refusal_before_the_link_closed_says_nothing() -> None:
    rig = following()
    rig.core.link_refused(NodeId("n2"))
    close(rig, refused=False)
    rig.tick(2 * HINT_MAX_TICKS)
    assert rig.raft.leader == "n2"


def test_any_message_of_the_leader_cancels_the_hint() -> None:
    for message in (heartbeat(1), append(1, chain(1))):
        rig = following()
        close(rig)
        rig.tick(HINT_MIN_TICKS - 1)
        rig.hear("n2", message)
        rig.tick(2 * HINT_MAX_TICKS)
        assert rig.raft.leader == "n2"
        assert len(rig.happened(EventKind.HINT_CANCELLED)) == 1


def test_there_is_one_hint_per_term() -> None:
    """A link that flaps for ever deposes a leader once at most."""
    rig = following()
    close(rig, refused=False)
    rig.tick(HINT_MAX_TICKS)
    for _ in range(5):
        close(rig)
        rig.tick(HINT_MAX_TICKS)
    assert rig.raft.leader == "n2"
    assert len(rig.happened(EventKind.HINT_STARTED)) == 1
    rig.hear("n3", heartbeat(2))
    close(rig, "n3")
    rig.tick(HINT_MAX_TICKS)
    assert rig.role() is Role.PRE_CANDIDATE


@pytest.mark.parametrize("peer", ["n3", "n9"])
def test_other_links_mean_nothing(peer: str) -> None:
    rig = following()
    close(rig, peer)
    rig.tick(2 * HINT_MAX_TICKS)
    assert (rig.raft.leader, rig.happened(EventKind.HINT_STARTED)) == ("n2", [])


def test_a_leader_needs_no_link_to_itself() -> None:
    rig = leading()
    for peer in ("n1", "n2", "n3"):
        close(rig, peer)
    rig.tick(HINT_MAX_TICKS)
    assert rig.role() is Role.LEADER


def test_a_refusal_of_another_peer_does_not_settle_the_hint() -> None:
    rig = following()
    close(rig, refused=False)
    rig.core.link_refused(NodeId("n3"))
    rig.tick(2 * HINT_MAX_TICKS)
    assert rig.raft.leader == "n2"


def test_a_refusal_counts_for_one_hint_only() -> None:
    rig = following()
    close(rig)
    rig.hear("n2", heartbeat(1))  # it is there after all
    rig.hear("n3", heartbeat(2))
    close(rig, "n3", refused=False)
    rig.tick(2 * HINT_MAX_TICKS)
    assert rig.raft.leader == "n3"


def test_a_hint_ends_with_its_term() -> None:
    """It was about the leader of a term that is over: who then gives its vote waits for the
    winner to speak, like any voter."""
    rig = following()
    close(rig)
    rig.hear("n3", read_index(2))  # a later term, without a leader
    assert only(rig.hear("n3", vote(2)), VoteReply).granted
    assert pick(rig.tick(ELECTION_TICKS - 1), PreVote) == []


@pytest.mark.parametrize("size", [3, 5])
def test_a_killed_leader_is_replaced_within_the_longest_hint(size: int) -> None:
    """End to end: whoever is last to lose patience wins. What may come between is a split vote,
    when two lose it in the same tick."""
    replaced = 0
    for seed in range(30):
        cluster = led(size, seed=seed)
        cluster.crash("n1")
        for name in cluster.voters[1:]:
            cluster.turn(name, [LinkClosed(NodeId("n1")), LinkRefused(NodeId("n1"))])
        cluster.run(HINT_MAX_TICKS)
        stood = [name for name in cluster.voters if happened(cluster, name, EventKind.CAMPAIGNS)]
        assert cluster.leader() is not None or len(stood) > 2  # n1 was the first to stand
        replaced += cluster.leader() is not None
    assert replaced >= 18


def test_only_one_survivor_can_win_and_it_need_not_wait_for_a_timeout() -> None:
    """Its hint ends first, so the other still refuses; the other's log ends earlier, so it can
    never win. The first asks again as soon as hints end."""
    for seed in range(30):
        cluster = led(3, seed=seed)
        cluster.isolate("n3")
        append_many(cluster, "n1", 1)
        cluster.heal()
        cluster.crash("n1")
        for name in ("n2", "n3"):
            cluster.turn(name, [LinkClosed(NodeId("n1")), LinkRefused(NodeId("n1"))])
        cluster.run(2 * HINT_MAX_TICKS + 1)
        assert cluster.leader() == "n2", seed


def test_after_a_timeout_of_quick_retries_a_node_is_as_patient_as_ever() -> None:
    rig = following()
    close(rig)
    for _ in range(ELECTION_TICKS // HINT_MAX_TICKS):
        assert pick(rig.tick(HINT_MAX_TICKS), PreVote)
    rig.tick(HINT_MAX_TICKS + HINT_MIN_TICKS)
    asked_at = [rig.raft.clock for _ in range(2 * ELECTION_TICKS) if pick(rig.tick(), PreVote)]
    assert len(asked_at) <= 2  # once a timeout, at most


# -- the slow disk -----------------------------------------------------------------------------


def with_a_stuck_disk(acked_by: tuple[str, ...]) -> CoreRig:
    """A leader that wrote an entry long ago; only these peers have it on disk."""
    rig = leading()
    rig.propose()
    for _ in range(2 * ELECTION_TICKS + 2):
        for peer in rig.peers:
            rig.confirm(peer, 2 if peer in acked_by else 1)
        rig.tick()
        if rig.role() is not Role.LEADER:
            break
    return rig


def test_a_leader_whose_disk_is_slower_than_a_majority_of_others_steps_down() -> None:
    rig = with_a_stuck_disk(("n2", "n3"))
    assert rig.role() is Role.FOLLOWER
    assert [event.index for event in rig.happened(EventKind.SLOW_DISK)] == [1]


def test_it_leaves_leading_to_others_for_two_timeouts() -> None:
    rig = with_a_stuck_disk(("n2", "n3"))
    stepped_down = rig.happened(EventKind.STEPS_DOWN)
    assert len(stepped_down) == 1
    assert pick(rig.tick(2 * ELECTION_TICKS - 2), PreVote) == []
    assert pick(rig.tick(3 * ELECTION_TICKS), PreVote) != []


def test_a_leader_stays_if_the_others_are_no_faster() -> None:
    assert with_a_stuck_disk(("n2",)).role() is Role.LEADER
    assert with_a_stuck_disk(()).role() is Role.LEADER


def test_a_disk_that_moves_is_not_stuck() -> None:
    """However far behind: only the age of the oldest write counts."""
    rig = leading()
    for written in range(2, 30):
        rig.propose()
        for _ in range(ELECTION_TICKS):
            for peer in rig.peers:
                rig.confirm(peer)
            rig.tick()
        rig.persist(written - 1)
    assert rig.role() is Role.LEADER


def test_an_idle_disk_is_not_stuck() -> None:
    rig = leading()
    for _ in range(5 * ELECTION_TICKS):
        for peer in rig.peers:
            rig.confirm(peer)
        rig.tick()
    rig.propose()
    for peer in rig.peers:
        rig.confirm(peer)
    rig.tick()
    assert rig.role() is Role.LEADER


def test_the_group_finds_a_leader_with_a_working_disk() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 3)
    cluster.auto_flush = False
    token = cluster.propose("n1", b"x")
    for _ in range(6 * ELECTION_TICKS):
        settle_losing(cluster, lambda _: False, hung=("n1",))
        cluster.tick()
    assert token in cluster.answers  # two other disks are a majority
    assert cluster.leader() in ("n2", "n3")
    cluster.auto_flush = True
    cluster.settle()
    cluster.run(ELECTION_TICKS)
    assert_same(cluster)
