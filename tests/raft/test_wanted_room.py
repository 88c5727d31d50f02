"""What a node has no room for: it says so until there is room, and others can act on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_many,
    assert_same,
    elect,
    envelope,
    led,
    progress,
    raft_state,
    read_answer,
    receipt,
    refused,
)
from core_rig import ELECTION_TICKS, leading
from proposal_rig import opening, operate
from quorate.commands import Receipt
from quorate.config import Config, Limits
from quorate.errors import Busy, DiskFull, OutcomeUnknown
from quorate.raft.messages import (
    ROOM_UNBOUNDED,
    Append,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    Vote,
)
from quorate.raft.output import Refusal
from quorate.replica.engine_io import Deliver, Room
from quorate.types import ORIGIN, Role, Term

if TYPE_CHECKING:
    from core_rig import CoreRig
    from quorate.raft.messages import Envelope
    from verification.hand import HandCluster

RESERVE = 64 * 1024
SHORTAGE = "95 % of the disk are in use"
# More than an append message takes, so that what follows it comes by itself.
BIG = 3 * RESERVE
CONFIG = Config(limits=Limits(append_bytes=RESERVE))


def room(cluster: HandCluster, name: str, size: int) -> None:
    cluster.turn(name, [Room(size, SHORTAGE)])


def to_n3(envelope: Envelope) -> bool:
    return envelope.target == "n3" and type(envelope.message) is Append


# -- a follower --------------------------------------------------------------------------------


def missed_a_big_entry(behind: int = 2) -> HandCluster:
    """n3 was away while a big entry and small ones behind it were committed."""
    cluster = led(3, CONFIG)
    cluster.isolate("n3")
    receipts = [cluster.propose("n1", bytes(BIG))]
    cluster.settle()
    receipts += append_many(cluster, "n1", behind)
    for token in receipts:
        receipt(cluster, token)
    return cluster


def test_what_follows_an_entry_without_room_does_not_make_it_forgotten() -> None:
    cluster = missed_a_big_entry()
    room(cluster, "n3", 2 * RESERVE)
    cluster.heal()
    cluster.run(100)
    assert cluster.engine("n3").disk_space.missing > BIG
    assert raft_state(cluster, "n3").full
    assert progress(cluster, "n3").full
    room(cluster, "n3", 8 * RESERVE)
    cluster.run(100)
    assert cluster.engine("n3").disk_space.missing == 0
    assert progress(cluster, "n3").full is False
    assert raft_state(cluster, "n3").log.last_index == 4


def test_without_room_for_an_entry_what_follows_is_not_asked_for_again_at_once() -> None:
    """The leader would send both at once again, as fast as the network takes it."""
    cluster = missed_a_big_entry()
    cluster.turn("n3", [Room(2 * RESERVE)])  # a larger spare is about to be allocated
    cluster.heal()
    sent = 0
    for _ in range(100):
        cluster.tick()
        while cluster.table:
            sent += sum(map(to_n3, cluster.table))
            assert sent < 50
            cluster.deliver_all()
    assert raft_state(cluster, "n3").refused[Refusal.NO_SPACE] == sent > 0
    assert cluster.engine("n3").disk_space.missing >= BIG
    cluster.turn("n3", [Room(8 * RESERVE)])
    cluster.run(100)
    assert raft_state(cluster, "n3").log.last_index == 4


def test_an_append_that_comes_twice_does_not_make_an_entry_without_room_forgotten() -> None:
    cluster = led(3, CONFIG)
    cluster.propose("n1", b"small")
    again = [one for one in cluster.table if to_n3(one)]
    cluster.settle()
    room(cluster, "n3", 2 * RESERVE)
    cluster.propose("n1", bytes(BIG))
    cluster.run(20)
    assert raft_state(cluster, "n3").full
    for one in again:
        cluster.deliver(one)
    cluster.run(1)
    assert raft_state(cluster, "n3").full


def test_a_leader_behind_an_entry_that_goes_by_itself_leaves_leading_to_others_too() -> None:
    """The noop of its term goes in a message of its own, which the others cannot take either."""
    cluster = led(3, CONFIG)
    for name in ("n2", "n3"):
        room(cluster, name, 2 * RESERVE)
    cluster.propose("n1", bytes(BIG))  # the leader has not heard yet that they have less
    cluster.run(5)
    cluster.crash("n1")
    cluster.restart("n1")
    elect(cluster, "n1")
    cluster.run(12 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader in ("n2", "n3")
    read = cluster.read(leader)
    cluster.run(5)
    read_answer(cluster, read)


def test_a_leader_that_is_ready_leaves_such_an_entry_too_and_what_fits_is_taken() -> None:
    cluster = led(3)
    receipt_before = cluster.propose("n1", b"small")
    cluster.settle()
    receipt(cluster, receipt_before)
    for name in ("n2", "n3"):
        room(cluster, name, 8 * RESERVE)
    stuck = cluster.propose("n1", bytes(9 * RESERVE))  # the leader has not heard yet
    cluster.run(50)
    assert cluster.leader() == "n1"
    refused(cluster, cluster.propose("n1", b"small"), DiskFull)
    cluster.run(6 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader in ("n2", "n3")
    refused(cluster, stuck, OutcomeUnknown)
    for size in (5, 2 * RESERVE, 5):
        token = cluster.propose(leader, bytes(size))
        cluster.run(5)
        receipt(cluster, token)
    assert_same(cluster)
    assert (cluster.leader(), raft_state(cluster, "n1").term) == (leader, 2)


def full_peers(rig: CoreRig) -> None:
    """Three peers of four say that they have no room, the fourth that it has."""
    for peer in rig.peers:
        full = peer in ("n2", "n3", "n4")
        rig.hear(peer, HeartbeatReply(rig.raft.term, 0, room=RESERVE, full=full))


@pytest.mark.parametrize("committed", [True, False], ids=["commits", "stuck"])
def test_a_leader_stays_while_something_is_committed_now_and_then(committed: bool) -> None:
    """Peers that lag may be without room while others take all that is logged."""
    rig = leading(5)
    rig.propose()
    for tick in range(5 * ELECTION_TICKS):
        if committed and tick % ELECTION_TICKS == 0:
            last = rig.raft.log.last_index
            rig.propose()  # so that there always is one that is not committed
            rig.persist()
            for peer in ("n4", "n5"):
                rig.confirm(peer, last)
            assert rig.raft.committed == last
        full_peers(rig)
        rig.tick()
        assert not rig.raft.all_committed
    assert (rig.role() is Role.LEADER) is committed


# -- a new leader ------------------------------------------------------------------------------


def test_a_new_leader_logs_no_batch_for_which_a_majority_has_not_told_its_room() -> None:
    cluster = led(3)
    for name in ("n2", "n3"):
        room(cluster, name, 8 * RESERVE)
    cluster.run(20)
    refused(cluster, cluster.propose("n1", bytes(9 * RESERVE)), DiskFull)
    cluster.crash("n1")
    cluster.restart("n1")
    elect(cluster, "n1", lose=lambda one: type(one.message) is HeartbeatReply)
    assert (told(cluster, "n2"), told(cluster, "n3")) == (True, False)
    refused(cluster, cluster.propose("n1", bytes(9 * RESERVE)), Busy)
    small = cluster.propose("n1", b"small")
    cluster.settle()
    receipt(cluster, small)
    cluster.run(20)
    assert told(cluster, "n3")
    refused(cluster, cluster.propose("n1", bytes(9 * RESERVE)), DiskFull)


def told(cluster: HandCluster, peer: str) -> bool:
    return progress(cluster, peer).full is not None


# -- a leader ----------------------------------------------------------------------------------


def with_rooms(*rooms: int | None) -> HandCluster:
    """n1 leads; of each node what its disk takes besides the reserve, None if that is no matter."""
    cluster = led(len(rooms))
    for name, size in zip(cluster.voters, rooms, strict=True):
        if size is not None:
            room(cluster, name, RESERVE + size)
    cluster.run(20)
    return cluster


def ask(cluster: HandCluster, size: int, ticks: int) -> list[type]:
    """Ask whichever node leads to append so many bytes, again and again; the answers."""
    answers = []
    for _ in range(ticks // 10):
        leader = cluster.leader()
        token = cluster.propose(leader, bytes(size)) if leader is not None else 0
        cluster.run(10)
        answers.append(type(cluster.answers.get(token)))
    return answers


def test_a_leader_without_room_for_a_request_leaves_leading_to_those_who_have_it() -> None:
    cluster = with_rooms(100_000, None, None)
    ask(cluster, 200_000, 6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")
    term = raft_state(cluster, "n2").term
    assert {*ask(cluster, 200_000, 10 * ELECTION_TICKS)} == {Receipt}
    assert raft_state(cluster, "n2").term == term


def test_a_leader_takes_what_fits_until_it_leaves_leading_to_others() -> None:
    cluster = with_rooms(100_000, None, None)
    for _ in range(ELECTION_TICKS // 20):
        refused(cluster, cluster.propose("n1", bytes(200_000)), DiskFull)
        token = cluster.propose("n1", b"small")
        cluster.run(10)
        receipt(cluster, token)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


@pytest.mark.parametrize("rooms", [(150_000, 150_000), (150_000, None), (None, 150_000)])
def test_a_leader_stays_if_no_majority_of_others_has_room_for_a_request(
    rooms: tuple[int | None, int | None],
) -> None:
    cluster = with_rooms(100_000, *rooms)
    assert {*ask(cluster, 200_000, 10 * ELECTION_TICKS)} == {DiskFull}
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", 1)


@pytest.mark.parametrize("sizes", [(200_000, 900_000), (900_000, 200_000)])
def test_a_request_that_no_node_takes_does_not_stand_in_the_way_of_a_smaller_one(
    sizes: tuple[int, int],
) -> None:
    cluster = with_rooms(100_000, 300_000, 300_000)
    for size in sizes:
        refused(cluster, cluster.propose("n1", bytes(size)), DiskFull)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


def test_a_leader_stays_if_there_is_room_for_a_request_in_time() -> None:
    cluster = with_rooms(100_000, None, None)
    refused(cluster, cluster.propose("n1", bytes(200_000)), DiskFull)
    cluster.run(ELECTION_TICKS // 2)
    room(cluster, "n1", RESERVE + 300_000)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    # Only a request that is too large for that counts now.
    refused(cluster, cluster.propose("n1", bytes(400_000)), DiskFull)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


def test_a_new_leadership_does_not_end_for_a_request_to_the_one_before() -> None:
    cluster = with_rooms(100_000, 150_000, 150_000)
    refused(cluster, cluster.propose("n1", bytes(200_000)), DiskFull)
    cluster.isolate("n1")
    cluster.run(3 * ELECTION_TICKS)
    cluster.heal()
    elect(cluster, "n1", lose=lambda one: one.source != "n1" and type(one.message) is Heartbeat)
    for name in ("n2", "n3"):
        room(cluster, name, 8 * RESERVE)
    term = raft_state(cluster, "n1").term
    cluster.run(6 * ELECTION_TICKS)
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", term)


def test_a_full_leader_leaves_to_those_who_are_not_whatever_it_was_asked_for() -> None:
    cluster = with_rooms(100_000, 150_000, 150_000)
    refused(cluster, cluster.propose("n1", bytes(200_000)), DiskFull)
    room(cluster, "n1", RESERVE)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


# -- what expired ------------------------------------------------------------------------------

# What it takes to forget 256 producers, and less than it takes to forget 600.
PART_BYTES = 3500


def with_producers(count: int) -> HandCluster:
    """n1 leads; that many producers were opened and will be idle for longer than they may."""
    cluster = led(3)
    for number in range(count):
        operate(cluster, opening(f"p{number}"))
    cluster.run(2)
    assert len(cluster.engine("n1").state.producers) == count
    return cluster


def test_what_expired_is_forgotten_a_part_at_a_time_if_there_is_room_for_no_more() -> None:
    cluster = with_producers(600)
    for name in cluster.voters:
        room(cluster, name, RESERVE + PART_BYTES)
    cluster.run(40 * ELECTION_TICKS)
    assert {len(cluster.engine(name).state.producers) for name in cluster.voters} == {0}


def test_nothing_is_forgotten_by_an_entry_that_no_majority_can_take() -> None:
    cluster = with_producers(600)
    for name in ("n2", "n3"):
        room(cluster, name, RESERVE + PART_BYTES // 2)
    cluster.run(40 * ELECTION_TICKS)
    last = raft_state(cluster, "n1").log.last_index
    assert (last, raft_state(cluster, "n1").committed) == (601, 601)
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", 1)


def test_a_disk_that_can_grow_has_no_bound() -> None:
    """The room that is allocated already is no bound: the next segment can be had."""
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    assert raft_state(cluster, "n3").room == 2 * RESERVE
    cluster.turn("n3", [Room(2 * RESERVE)])
    assert raft_state(cluster, "n3").room == ROOM_UNBOUNDED


# -- another term ------------------------------------------------------------------------------


def turned_down() -> HandCluster:
    """The big entry of n1 found no room at n3, and n1 is gone."""
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    cluster.propose("n1", bytes(BIG))
    cluster.run(5)
    assert raft_state(cluster, "n3").full
    cluster.crash("n1")
    return cluster


def test_a_vote_forgets_an_entry_of_an_earlier_term_that_found_no_room() -> None:
    cluster = turned_down()
    elect(cluster, "n2", lose=lambda one: isinstance(one.message, HeartbeatReply))
    told = progress(cluster, "n3")
    assert (told.room, told.full) == (2 * RESERVE, False)


def test_a_refused_vote_and_an_answer_to_a_new_leader_forget_it_too() -> None:
    """They raise the term of the node that answers, in the very turn of the answer."""
    for ask in (Vote(Term(9), ORIGIN), Heartbeat(Term(9), 0, ORIGIN)):
        cluster = turned_down()
        cluster.tick("n3", 2 * ELECTION_TICKS)
        assert raft_state(cluster, "n3").full
        cluster.table.clear()
        cluster.turn("n3", [Deliver(envelope(cluster, "n2", "n3", ask))])
        cluster.flush("n3")
        answers = [one.message for one in cluster.table if one.source == "n3"]
        assert [one.full for one in answers] == [False], ask  # type: ignore[union-attr]


def test_a_candidate_forgets_an_entry_of_an_earlier_term_that_found_no_room() -> None:
    cluster = turned_down()
    raft = raft_state(cluster, "n3")
    while raft.role is not Role.CANDIDATE:
        assert raft.full
        cluster.tick("n3")
        asked = [one.message for one in cluster.table if isinstance(one.message, PreVote)]
        cluster.table.clear()
        for ask in asked:
            reply = PreVoteReply(ask.term, ask.request, granted=True)
            cluster.turn("n3", [Deliver(envelope(cluster, "n2", "n3", reply))])
    assert not raft.full


def test_a_disk_that_had_room_in_an_earlier_term_is_full_in_the_turn_in_which_it_is_not() -> None:
    """The heartbeat comes in the same frame as the entry that finds no room."""
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    cluster.crash("n1")
    elect(cluster, "n2")
    cluster.restart("n1")
    cluster.run(20)
    assert progress(cluster, "n3").full is False
    cluster.propose("n2", bytes(BIG))
    cluster.tick("n2", 20)
    both = cluster.take(lambda one: type(one.message) in (Append, Heartbeat))
    cluster.turn("n3", [Deliver(one) for one in both if one.target == "n3"])
    answers = [one.message for one in cluster.table if type(one.message) is HeartbeatReply]
    assert answers
    assert all(answer.full for answer in answers)
