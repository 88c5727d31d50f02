"""Replicas that compare their states: who must stop, and what is kept for those who are behind."""

from __future__ import annotations

import pytest

from cluster_rig import append_many, led
from core_rig import ELECTION_TICKS
from engine_rig import EngineRig
from quorate.errors import StateDiverged
from quorate.raft.messages import Append, Envelope, StateHash
from quorate.raft.output import Refusal
from quorate.replica.agreement import COMPARED_EVERY, KEPT, Agreement
from quorate.replica.exchange import Deliver
from quorate.state.producers import Producer
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


def agreement_of(voters: int) -> Agreement:
    return Agreement(N1, voters, PATIENCE)


def test_equal_states_are_no_reason_to_stop() -> None:
    agreement = agreement_of(3)
    for number in range(1, 4):
        agreement.note_own(at(number), HERE + number)
        for peer in (N2, N3):
            agreement.note_peer(peer, says(number, HERE + number))


@pytest.mark.parametrize("own_first", [True, False])
def test_whoever_differs_from_a_majority_stops(own_first: bool) -> None:
    agreement = agreement_of(3)
    if own_first:
        agreement.note_own(at(1), HERE)
    agreement.note_peer(N2, says(1, ELSEWHERE))
    with pytest.raises(StateDiverged) as halt:
        agreement.note_peer(N3, says(1, ELSEWHERE))
        agreement.note_own(at(1), HERE)
    assert str(halt.value) == (
        "n1: the state after entry 256 is 0000000000000001 here and 0000000000000002 on 2 "
        "replicas; this copy must not be used: remove the file checkpoint of this log and "
        "start the node again, which makes its state from the log; report it"
    )


def test_one_that_differs_stops_nobody_else() -> None:
    agreement = agreement_of(3)
    agreement.note_own(at(1), HERE)
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.note_peer(N3, says(1, HERE))


def test_peers_that_differ_from_each_other_are_no_majority() -> None:
    agreement = agreement_of(5)
    agreement.note_own(at(1), HERE)
    for peer, digest in ((N2, ELSEWHERE), (N3, THIRD), (N4, ELSEWHERE)):
        agreement.note_peer(peer, says(1, digest))
    with pytest.raises(StateDiverged):
        agreement.note_peer(N5, says(1, ELSEWHERE))


def test_a_peer_counts_once_for_each_index() -> None:
    """A repeated message is no second witness, and what a peer says last is what it says."""
    agreement = agreement_of(3)
    agreement.note_own(at(1), HERE)
    agreement.note_own(at(2), HERE)
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.note_peer(N3, says(2, ELSEWHERE))
    agreement.note_peer(N2, says(1, HERE))
    agreement.note_peer(N3, says(1, ELSEWHERE))


def test_what_peers_said_is_kept_for_a_replica_that_is_behind() -> None:
    agreement = agreement_of(3)
    for number in range(1, KEPT + 1):
        for peer in (N2, N3):
            agreement.note_peer(peer, says(number, ELSEWHERE))
    with pytest.raises(StateDiverged):
        agreement.note_own(at(1), HERE)


def test_the_oldest_is_forgotten_and_does_not_come_back() -> None:
    agreement = agreement_of(3)
    for number in range(1, KEPT + 2):
        for peer in (N2, N3):
            agreement.note_peer(peer, says(number, ELSEWHERE))
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.note_peer(N3, says(1, ELSEWHERE))
    agreement.note_own(at(1), HERE)
    with pytest.raises(StateDiverged):
        agreement.note_own(at(2), HERE)


def test_an_index_that_nobody_compares_takes_no_place() -> None:
    agreement = agreement_of(3)
    for index in range(1, COMPARED_EVERY):
        for peer in (N2, N3):
            agreement.note_peer(peer, StateHash(Term(1), Index(index), ELSEWHERE))
        agreement.note_own(Index(index), ELSEWHERE)
    agreement = agreement_of(3)
    for peer in (N2, N3):
        agreement.note_peer(peer, says(1, ELSEWHERE))
    for index in range(10 * KEPT):
        agreement.note_peer(N2, StateHash(Term(1), Index(at(9) + 1 + index % 255), ELSEWHERE))
    with pytest.raises(StateDiverged):
        agreement.note_own(at(1), HERE)


# -- without a majority that decides -----------------------------------------------------------


def test_of_two_replicas_that_differ_neither_goes_on() -> None:
    agreement = agreement_of(2)
    agreement.note_own(at(1), HERE)
    with pytest.raises(StateDiverged) as halt:
        agreement.note_peer(N2, says(1, ELSEWHERE))
    assert str(halt.value) == (
        "n1: the state after entry 256 is 0000000000000001 here and 0000000000000002 on n2; no "
        "majority says which is right, so neither copy may be used: start the nodes that are down, "
        "run `quorate verify` on each copy, and remove the file `checkpoint` of this log on the "
        "nodes that differ, so that its state is made again from the log"
    )


def test_halves_that_differ_do_not_go_on() -> None:
    agreement = agreement_of(4)
    agreement.note_own(at(1), HERE)
    agreement.note_peer(N2, says(1, HERE))
    agreement.note_peer(N3, says(1, ELSEWHERE))
    with pytest.raises(StateDiverged, match="no majority says which is right"):
        agreement.note_peer(N4, says(1, ELSEWHERE))


def test_a_difference_waits_for_those_who_have_not_spoken_and_no_longer() -> None:
    agreement = agreement_of(3)
    agreement.tick(5)
    agreement.note_own(at(1), HERE)
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.tick(5 + PATIENCE - 1)
    with pytest.raises(StateDiverged, match="0000000000000002 on n2; no majority says"):
        agreement.tick(5 + PATIENCE)


def test_a_majority_that_agrees_ends_the_doubt_whenever_it_speaks() -> None:
    agreement = agreement_of(3)
    agreement.note_own(at(1), HERE)
    agreement.note_peer(N2, says(1, ELSEWHERE))
    agreement.tick(PATIENCE - 1)
    agreement.note_own(at(2), HERE)
    agreement.note_peer(N3, says(2, HERE))
    assert agreement.tick(10 * PATIENCE) is None


def test_a_doubt_is_not_forgotten_with_its_index() -> None:
    """Many entries are applied while it lasts, and each comparison differs again."""
    agreement = agreement_of(3)
    for number in range(1, 2 * KEPT):
        agreement.tick(number % (PATIENCE // 2))
        agreement.note_own(at(number), HERE)
        agreement.note_peer(N2, says(number, ELSEWHERE))
    with pytest.raises(StateDiverged, match="after entry 256 is"):
        agreement.tick(PATIENCE + 1)


def test_an_older_state_that_a_majority_agrees_on_does_not_end_a_doubt() -> None:
    """A replica that was away catches up, and dies before it comes to the state in doubt."""
    agreement = agreement_of(3)
    agreement.note_own(at(1), HERE)
    agreement.note_own(at(2), HERE)
    agreement.note_peer(N2, says(2, ELSEWHERE))
    agreement.note_peer(N3, says(1, HERE))
    with pytest.raises(StateDiverged, match="no majority says which is right"):
        agreement.tick(PATIENCE)


def test_a_replica_in_doubt_asks_again_and_only_a_question_is_answered() -> None:
    """The message that would have decided it was lost."""
    doubting = agreement_of(3)
    doubting.note_own(at(1), HERE)
    doubting.note_peer(N3, says(1, ELSEWHERE))
    assert doubting.tick(PATIENCE // 10 - 1) is None
    assert doubting.tick(PATIENCE // 10) == (at(1), HERE)
    assert doubting.tick(PATIENCE // 10 + 1) is None
    assert doubting.note_peer(N3, says(1, ELSEWHERE)) is None
    asked = agreement_of(3)
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
    stray = Producer("stray", 1, bytes(16), 0, Runs.of(), 1, 1_000_000, 0)
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
    stray = Producer("stray", 1, bytes(16), 0, Runs.of(), 1, 1_000_000, 0)
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
    rig.engine._agreement.note_own(at(1), HERE)
    with pytest.raises(StateDiverged):
        rig.hear("n3", says(1, ELSEWHERE))


def test_two_live_replicas_of_three_that_differ_both_stop() -> None:
    cluster = led(3)
    cluster.crash("n2")
    stray = Producer("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
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
    stray = Producer("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
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
    leader, digest = cluster.engine("n1"), cluster.engine("n2")._agreement._said[at(1)][N2]
    message = StateHash(leader.core.standing.term, at(1), digest, asks=True)
    envelope = Envelope(cluster.group, N1, N2, leader.boot, message)
    for _ in range(2):
        cluster.turn("n2", [Deliver(envelope)])
    told = [one.message for one in cluster.table if isinstance(one.message, StateHash)]
    assert [answer.asks for answer in told] == [False, False]
    cluster.deliver_all()
    assert [one for one in cluster.table if isinstance(one.message, StateHash)] == []


def test_a_lost_digest_is_told_again_to_a_replica_in_doubt() -> None:
    """Nothing is appended any more, so no later comparison decides."""
    cluster = led(3)
    stray = Producer("stray", 1, bytes(16), 0, Runs.of(()), 1, 1_000_000, 0)
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
