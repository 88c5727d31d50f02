"""Replicas that compare their states: who must stop, and what is kept for those who are behind."""

from __future__ import annotations

import pytest

from cluster_rig import append_many, led
from core_rig import ELECTION_TICKS
from engine_rig import EngineRig
from quorate.errors import StateDiverged
from quorate.membership import Membership
from quorate.raft.memberships import Memberships
from quorate.raft.messages import Append, Envelope, StateHash
from quorate.raft.output import Refusal
from quorate.replica.engine_io import Deliver
from quorate.replica.state_check import COMPARED_EVERY, KEPT, StateCheck
from quorate.state.producers import ProducerState
from quorate.state.runs import Runs
from quorate.types import BootId, Index, NodeId, Term

N1, N2, N3, N4, N5 = (NodeId(f"n{number}") for number in range(1, 6))
HERE, ELSEWHERE, THIRD = 1, 2, 3
PATIENCE = 100


def at(number: int) -> Index:
    """The index of the ``number``-th comparison."""
    return Index(number * COMPARED_EVERY)


def says(number: int, digest: int) -> StateHash:
    return StateHash(Term(1), at(number), digest)


def state_check_of(voters: int) -> StateCheck:
    nodes = (N1, N2, N3, N4, N5)[:voters]
    return StateCheck(N1, Memberships(Membership(nodes)), PATIENCE)


def test_equal_states_are_no_reason_to_stop() -> None:
    state_check = state_check_of(3)
    for number in range(1, 4):
        state_check.note_own(at(number), HERE + number)
        for peer in (N2, N3):
            state_check.note_peer(peer, says(number, HERE + number))


@pytest.mark.parametrize("own_first", [True, False])
def test_whoever_differs_from_a_majority_stops(own_first: bool) -> None:
    state_check = state_check_of(3)
    if own_first:
        state_check.note_own(at(1), HERE)
    state_check.note_peer(N2, says(1, ELSEWHERE))
    with pytest.raises(StateDiverged) as halt:
        state_check.note_peer(N3, says(1, ELSEWHERE))
        state_check.note_own(at(1), HERE)
    assert str(halt.value) == (
        "n1: the state after entry 256 is 0000000000000001 here and 0000000000000002 on 2 "
        "replicas; this copy must not be used: remove the file checkpoint of this log and "
        "start the node again, which makes its state from the log; report it"
    )


def test_one_that_differs_stops_nobody_else() -> None:
    state_check = state_check_of(3)
    state_check.note_own(at(1), HERE)
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.note_peer(N3, says(1, HERE))


def test_peers_that_differ_from_each_other_are_no_majority() -> None:
    state_check = state_check_of(5)
    state_check.note_own(at(1), HERE)
    for peer, digest in ((N2, ELSEWHERE), (N3, THIRD), (N4, ELSEWHERE)):
        state_check.note_peer(peer, says(1, digest))
    with pytest.raises(StateDiverged):
        state_check.note_peer(N5, says(1, ELSEWHERE))


def test_a_peer_counts_once_for_each_index() -> None:
    """A repeated message is no second witness, and what a peer says last is what it says."""
    state_check = state_check_of(3)
    state_check.note_own(at(1), HERE)
    state_check.note_own(at(2), HERE)
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.note_peer(N3, says(2, ELSEWHERE))
    state_check.note_peer(N2, says(1, HERE))
    state_check.note_peer(N3, says(1, ELSEWHERE))


def test_what_peers_said_is_kept_for_a_replica_that_is_behind() -> None:
    state_check = state_check_of(3)
    for number in range(1, KEPT + 1):
        for peer in (N2, N3):
            state_check.note_peer(peer, says(number, ELSEWHERE))
    with pytest.raises(StateDiverged):
        state_check.note_own(at(1), HERE)


def test_the_oldest_is_forgotten_and_does_not_come_back() -> None:
    state_check = state_check_of(3)
    for number in range(1, KEPT + 2):
        for peer in (N2, N3):
            state_check.note_peer(peer, says(number, ELSEWHERE))
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.note_peer(N3, says(1, ELSEWHERE))
    state_check.note_own(at(1), HERE)
    with pytest.raises(StateDiverged):
        state_check.note_own(at(2), HERE)


def test_an_index_that_nobody_compares_takes_no_place() -> None:
    state_check = state_check_of(3)
    for index in range(1, COMPARED_EVERY):
        for peer in (N2, N3):
            state_check.note_peer(peer, StateHash(Term(1), Index(index), ELSEWHERE))
        state_check.note_own(Index(index), ELSEWHERE)
    state_check = state_check_of(3)
    for peer in (N2, N3):
        state_check.note_peer(peer, says(1, ELSEWHERE))
    for index in range(10 * KEPT):
        state_check.note_peer(N2, StateHash(Term(1), Index(at(9) + 1 + index % 255), ELSEWHERE))
    with pytest.raises(StateDiverged):
        state_check.note_own(at(1), HERE)


# -- without a majority that decides -----------------------------------------------------------


def test_of_two_replicas_that_differ_neither_goes_on() -> None:
    state_check = state_check_of(2)
    state_check.note_own(at(1), HERE)
    with pytest.raises(StateDiverged) as halt:
        state_check.note_peer(N2, says(1, ELSEWHERE))
    assert str(halt.value) == (
        "n1: the state after entry 256 is 0000000000000001 here and 0000000000000002 on n2; no "
        "majority says which is right, so neither copy may be used: start the nodes that are down, "
        "run `quorate verify` on each copy, and remove the file `checkpoint` of this log on the "
        "nodes that differ, so that its state is made again from the log"
    )


def test_halves_that_differ_do_not_go_on() -> None:
    state_check = state_check_of(4)
    state_check.note_own(at(1), HERE)
    state_check.note_peer(N2, says(1, HERE))
    state_check.note_peer(N3, says(1, ELSEWHERE))
    with pytest.raises(StateDiverged, match="no majority says which is right"):
        state_check.note_peer(N4, says(1, ELSEWHERE))


def test_a_difference_waits_for_those_who_have_not_spoken_and_no_longer() -> None:
    state_check = state_check_of(3)
    state_check.tick(5)
    state_check.note_own(at(1), HERE)
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.tick(5 + PATIENCE - 1)
    with pytest.raises(StateDiverged, match="0000000000000002 on n2; no majority says"):
        state_check.tick(5 + PATIENCE)


def test_a_majority_that_agrees_ends_the_disagreement_whenever_it_speaks() -> None:
    state_check = state_check_of(3)
    state_check.note_own(at(1), HERE)
    state_check.note_peer(N2, says(1, ELSEWHERE))
    state_check.tick(PATIENCE - 1)
    state_check.note_own(at(2), HERE)
    state_check.note_peer(N3, says(2, HERE))
    assert state_check.tick(10 * PATIENCE) is None


def test_a_disagreement_is_not_forgotten_with_its_index() -> None:
    """Many entries are applied while it lasts, and each comparison differs again."""
    state_check = state_check_of(3)
    for number in range(1, 2 * KEPT):
        state_check.tick(number % (PATIENCE // 2))
        state_check.note_own(at(number), HERE)
        state_check.note_peer(N2, says(number, ELSEWHERE))
    with pytest.raises(StateDiverged, match="after entry 256 is"):
        state_check.tick(PATIENCE + 1)


def test_an_older_state_that_a_majority_agrees_on_ends_no_disagreement() -> None:
    """A replica that was away catches up, and dies before it comes to the state that differs."""
    state_check = state_check_of(3)
    state_check.note_own(at(1), HERE)
    state_check.note_own(at(2), HERE)
    state_check.note_peer(N2, says(2, ELSEWHERE))
    state_check.note_peer(N3, says(1, HERE))
    with pytest.raises(StateDiverged, match="no majority says which is right"):
        state_check.tick(PATIENCE)


def test_a_replica_without_a_majority_asks_again_and_only_a_question_is_answered() -> None:
    """The message that would have decided it was lost."""
    asking = state_check_of(3)
    asking.note_own(at(1), HERE)
    asking.note_peer(N3, says(1, ELSEWHERE))
    assert asking.tick(PATIENCE // 10 - 1) is None
    assert asking.tick(PATIENCE // 10) == (at(1), HERE)
    assert asking.tick(PATIENCE // 10 + 1) is None
    assert asking.note_peer(N3, says(1, ELSEWHERE)) is None
    asked = state_check_of(3)
    question = StateHash(Term(1), at(1), HERE, asks=True)
    assert asked.note_peer(N2, question) is None  # it has not come that far itself
    asked.note_own(at(1), HERE)
    assert asked.note_peer(N2, question) == HERE
    assert asked.note_peer(N2, says(1, HERE)) is None


# -- in the engine -----------------------------------------------------------------------------


def test_every_replica_tells_every_other_after_so_many_entries() -> None:
    cluster = led(3)
    heard = set()
    append_many(cluster, "n1", COMPARED_EVERY - 2)
    cluster.propose("n1", b"x")
    for _ in range(20):
        for envelope in cluster.table:
            if isinstance(envelope.message, StateHash):
                assert envelope.message.index == COMPARED_EVERY
                heard.add((envelope.source, envelope.target))
        cluster.deliver_all()
        cluster.tick()
    assert len(heard) == 6
    digests = {cluster.engine(name).state.digest() for name in cluster.voters}
    assert len(digests) == 1


def test_a_replica_whose_state_strayed_stops_and_the_others_go_on() -> None:
    cluster = led(3)
    stray = ProducerState("stray", 1, bytes(16), 0, Runs.of(), 1, 1_000_000, 0)
    cluster.engine("n3").state.producers.add(stray)
    append_many(cluster, "n1", COMPARED_EVERY)
    cluster.run(2)
    assert isinstance(cluster.nodes[N3].halted, StateDiverged)
    assert cluster.nodes[N1].halted is None
    assert cluster.nodes[N2].halted is None
    token = cluster.propose("n1", b"x")
    cluster.run(1)
    assert token in cluster.answers


def test_a_leader_whose_state_strayed_stops_too() -> None:
    cluster = led(3)
    stray = ProducerState("stray", 1, bytes(16), 0, Runs.of(), 1, 1_000_000, 0)
    cluster.engine("n1").state.producers.add(stray)
    append_many(cluster, "n1", COMPARED_EVERY - 2)
    cluster.take(lambda envelope: isinstance(envelope.message, Append))
    cluster.propose("n1", b"x")
    cluster.run(50)
    assert isinstance(cluster.nodes[N1].halted, StateDiverged)


def test_only_voters_in_their_newest_boot_are_listened_to() -> None:
    rig = EngineRig()
    rig.hear("n2", says(1, ELSEWHERE))
    rig.hear("n9", says(1, ELSEWHERE))
    rig.hear("n3", says(2, ELSEWHERE))
    rig.hear("n3", says(1, ELSEWHERE), boot=BootId(4, 0))
    assert rig.refused() == {Refusal.UNKNOWN_PEER: 1, Refusal.EARLIER_BOOT: 1}
    rig.engine._state_check.note_own(at(1), HERE)
    with pytest.raises(StateDiverged):
        rig.hear("n3", says(1, ELSEWHERE))


def test_two_live_replicas_of_three_that_differ_both_stop() -> None:
    cluster = led(3)
    cluster.crash("n2")
    stray = ProducerState("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
    cluster.engine("n3").state.producers.add(stray)
    append_many(cluster, "n1", COMPARED_EVERY)
    cluster.run(11 * ELECTION_TICKS)
    for node in (N1, N3):
        halt = cluster.nodes[node].halted
        assert isinstance(halt, StateDiverged)
        assert "no majority says which is right" in str(halt)


def test_the_third_replica_decides_if_it_comes_in_time() -> None:
    cluster = led(3)
    cluster.isolate("n2")
    stray = ProducerState("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
    cluster.engine("n3").state.producers.add(stray)
    append_many(cluster, "n1", COMPARED_EVERY)
    cluster.run(3 * ELECTION_TICKS)
    cluster.heal()
    cluster.run(20 * ELECTION_TICKS)
    assert isinstance(cluster.nodes[N3].halted, StateDiverged)
    assert cluster.nodes[N1].halted is None
    assert cluster.nodes[N2].halted is None


def test_a_digest_that_arrives_twice_is_not_answered_for_ever() -> None:
    cluster = led(3)
    append_many(cluster, "n1", COMPARED_EVERY)
    cluster.run(5)
    leader, digest = cluster.engine("n1"), cluster.engine("n2")._state_check._said[at(1)][N2]
    message = StateHash(leader.core.raft.term, at(1), digest, asks=True)
    envelope = Envelope(cluster.group, N1, N2, leader.boot, message)
    for _ in range(2):
        cluster.turn("n2", [Deliver(envelope)])
    told = [one.message for one in cluster.table if isinstance(one.message, StateHash)]
    assert [answer.asks for answer in told] == [False, False]
    cluster.deliver_all()
    assert [one for one in cluster.table if isinstance(one.message, StateHash)] == []


def test_a_lost_digest_is_told_again_to_a_replica_that_asks() -> None:
    """Nothing is appended any more, so no later comparison decides."""
    cluster = led(3)
    stray = ProducerState("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
    cluster.engine("n3").state.producers.add(stray)
    append_many(cluster, "n1", COMPARED_EVERY - 2)
    cluster.propose("n1", b"x")
    for _ in range(20):
        cluster.take(
            lambda one: isinstance(one.message, StateHash) and one.source == N2 and one.target == N1
        )
        cluster.deliver_all()
        cluster.tick()
    assert isinstance(cluster.nodes[N3].halted, StateDiverged)
    cluster.run(20 * ELECTION_TICKS)
    assert cluster.nodes[N1].halted is None
    assert cluster.nodes[N2].halted is None
