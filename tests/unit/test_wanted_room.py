"""What a node has no room for: it says so until there is room, and others can act on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import append_many, elect, led, progress, read_answer, receipt, standing
from core_rig import ELECTION_TICKS
from quorate.config import Config, Limits
from quorate.raft.messages import Append
from quorate.raft.output import Refusal
from quorate.replica.exchange import Room

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from quorate.testing.hand import HandCluster

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
    assert cluster.engine("n3").allowance.missing > BIG
    assert standing(cluster, "n3").full
    assert progress(cluster, "n3").full
    room(cluster, "n3", 8 * RESERVE)
    cluster.run(100)
    assert cluster.engine("n3").allowance.missing == 0
    assert progress(cluster, "n3").full is False
    assert standing(cluster, "n3").log.last_index == 4


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
    assert standing(cluster, "n3").refused[Refusal.NO_SPACE] == sent > 0
    assert cluster.engine("n3").allowance.missing >= BIG
    cluster.turn("n3", [Room(8 * RESERVE)])
    cluster.run(100)
    assert standing(cluster, "n3").log.last_index == 4


def test_an_append_that_comes_twice_does_not_make_an_entry_without_room_forgotten() -> None:
    cluster = led(3, CONFIG)
    cluster.propose("n1", b"small")
    again = [one for one in cluster.table if to_n3(one)]
    cluster.settle()
    room(cluster, "n3", 2 * RESERVE)
    cluster.propose("n1", bytes(BIG))
    cluster.run(20)
    assert standing(cluster, "n3").full
    for one in again:
        cluster.deliver(one)
    cluster.run(1)
    assert standing(cluster, "n3").full


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
