"""Linearizable reads at the engine: how many may wait, for how long, and what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import append_many, led, raft_state, read_answer, refused, run_until, settle_losing
from core_rig import (
    READ_TICKS,
    CoreRig,
    append,
    chain,
    config,
    heartbeat_reply,
    leading,
    pick,
    read_index,
    read_index_reply,
)
from quorate.errors import Busy, Corrupt, NoQuorum
from quorate.raft.messages import Append, Envelope, Heartbeat, ReadIndex, ReadIndexReply
from quorate.raft.output import Refusal
from quorate.types import Index, Role

if TYPE_CHECKING:
    from verification.hand import HandCluster


def test_reads_that_wait_are_bounded() -> None:
    cluster = led(3, config(pending_reads=2))
    waiting = [cluster.read("n1") for _ in range(2)]
    message = refused(cluster, cluster.read("n1"), Busy)
    assert message == "2 reads wait already (limits.pending_reads)"
    cluster.settle()
    assert all(token in cluster.answers for token in waiting)
    assert cluster.read("n1") not in cluster.answers


def test_confirmed_reads_that_wait_for_their_index_count_too() -> None:
    cluster = led(3, config(pending_reads=1))
    lagging_read(cluster)
    assert cluster.engine("n3").core.reads_waiting == 1
    refused(cluster, cluster.read("n3"), Busy)


def replies(rig: CoreRig, round: int) -> list[int]:
    """The numbers of the questions that are answered when a majority vouches for ``round``."""
    sent = rig.hear("n3", heartbeat_reply(1, round=round))
    return [message.request.number for message in pick(sent, ReadIndexReply)]


def test_followers_are_not_refused_for_the_leaders_own_reads() -> None:
    rig = leading(config=config(pending_reads=1))
    rig.read(1)
    rig.hear("n2", read_index(1, number=4))
    assert replies(rig, round=2) == [4]


def test_a_question_that_is_repeated_takes_no_second_place() -> None:
    rig = leading()
    for _ in range(5):
        rig.hear("n2", read_index(1, number=4))
    assert rig.leader.round == 1
    assert replies(rig, round=1) == [4]
    rig.hear("n2", read_index(1, number=4))  # the answer was lost
    assert replies(rig, round=2) == [4]


def test_a_newer_question_of_a_follower_is_answered_too() -> None:
    rig = leading(settled=False)
    rig.hear("n2", read_index(1, number=4))
    rig.hear("n2", read_index(1, number=5))
    rig.settle()
    assert 5 in replies(rig, round=1)


def test_a_read_that_nobody_confirms_ends_with_no_quorum() -> None:
    cluster = led(3)
    cluster.isolate("n3")
    token = cluster.read("n3")
    cluster.tick("n3", ticks=READ_TICKS - 1)
    assert token not in cluster.answers
    cluster.tick("n3")
    assert refused(cluster, token, NoQuorum) == "no leader confirmed the read in 2000 ms"


def test_reads_expire_one_by_one() -> None:
    rig = CoreRig(term=1)
    rig.read(1)
    rig.tick(5)
    rig.read(2)
    rig.tick(READ_TICKS - 5)
    assert (rig.reads_refused, rig.core.reads_waiting) == ([1], 1)
    rig.tick(5)
    assert (rig.reads_refused, rig.core.reads_waiting) == ([1, 2], 0)


def test_a_read_that_expires_takes_no_other_with_it() -> None:
    rig = leading(config=config(read_ms=50))
    rig.read(1)
    rig.tick(3)
    rig.read(2)
    rig.tick(2)
    rig.hear("n2", heartbeat_reply(1, round=2))
    assert (rig.reads_refused, rig.confirmed) == ([1], [(2, 1)])


def test_reads_in_a_round_expire_and_the_rest_of_it_stays() -> None:
    rig = leading(config=config(read_ms=50))
    rig.core.read(1)
    rig.hear("n2", read_index(1))
    rig.tick(5)
    assert (rig.reads_refused, rig.core.reads_waiting) == ([1], 0)
    assert replies(rig, round=1) == [1]  # the follower keeps its own time
    assert rig.confirmed == []


def test_a_question_that_is_out_expires_with_its_reads() -> None:
    rig = CoreRig(term=1)
    rig.hear("n2", append(1, chain(1)))
    rig.read(1)
    rig.tick(READ_TICKS)
    rig.hear("n2", read_index_reply(1, 1))
    assert (rig.reads_refused, rig.confirmed) == ([1], [])
    assert rig.refused(Refusal.NOT_ASKED) == 1


def lagging_read(cluster: HandCluster) -> int:
    """A read at n3 that the leader confirmed, at an index that n3 does not have."""

    def entries_for_n3(item: Envelope) -> bool:
        return item.target == "n3" and isinstance(item.message, Append)

    cluster.propose("n1", b"x")
    settle_losing(cluster, entries_for_n3)
    token = cluster.read("n3")
    settle_losing(cluster, entries_for_n3)
    assert token not in cluster.answers
    return token


def test_a_follower_answers_when_it_has_applied_the_index() -> None:
    cluster = led(3)
    token = lagging_read(cluster)
    run_until(cluster, lambda: token in cluster.answers, READ_TICKS)
    assert read_answer(cluster, token).index == 2


def test_a_confirmed_read_that_cannot_be_applied_is_given_up_in_time() -> None:
    """The follower is cut off between the leader's word and the entry: its caller is answered all
    the same, and the read does not count as waiting for ever."""
    cluster = led(3)
    token = lagging_read(cluster)
    cluster.isolate("n3")
    cluster.run(3 * READ_TICKS)
    refused(cluster, token, NoQuorum)
    cluster.heal()
    cluster.run(READ_TICKS)  # the entry comes when nobody waits for it any more
    refused(cluster, token, NoQuorum)
    assert cluster.engine("n3").applied == 2


def test_a_read_that_waits_is_not_answered_from_before_a_loss() -> None:
    """The entry that it has to show turns out to be damaged: what is applied ends before that."""
    cluster = led(3)
    token = lagging_read(cluster)
    raft_state(cluster, "n3").without_body.add(Index(2))
    run_until(cluster, lambda: token in cluster.answers, READ_TICKS)
    assert refused(cluster, token, Corrupt).startswith("entry 2 is damaged on this disk: n3")


def test_a_loss_that_the_state_is_past_stops_no_read() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 3)
    cluster.run(2)
    raft_state(cluster, "n3").without_body.add(Index(2))
    append_many(cluster, "n1", 2)
    token = cluster.read("n3")
    cluster.settle()
    assert read_answer(cluster, token).index == 6


def test_a_follower_whose_leader_stepped_down_does_not_storm_it() -> None:
    """The leader stepped down and this follower does not know yet: its read is refused, and asked
    again when time has passed or another leader is known, not as fast as messages travel."""
    cluster = led(3)
    cluster.cut("n2", "n1")
    cluster.cut("n3", "n1")
    run_until(cluster, lambda: cluster.engine("n1").role is not Role.LEADER, 200)
    assert raft_state(cluster, "n2").leader == "n1"
    cluster.heal()
    cluster.read("n2")
    asked = 0
    for _ in range(20):
        asked += sum(isinstance(item.message, ReadIndex) for item in cluster.table)
        cluster.deliver_all()
    assert asked == 1


def test_many_reads_take_one_round() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 1)
    cluster.run(1)
    tokens = [cluster.read("n2") for _ in range(10)]
    said = 0
    while cluster.table:
        said += sum(isinstance(item.message, Heartbeat) for item in cluster.table)
        cluster.deliver_all()
    assert {read_answer(cluster, token) for token in tokens} == {(2, 1)}
    assert said <= 2 * 2  # the first read's round, and one for the nine that came after it
