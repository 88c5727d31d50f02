"""Entries on a full disk that the leader replaced: to drop them makes the room for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import (
    append_many,
    assert_same,
    elect,
    envelope,
    happened,
    led,
    log_of,
    raft_state,
)
from core_rig import chain
from quorate.errors import Damaged
from quorate.raft.messages import Ack, Append
from quorate.raft.output import EventKind, Refusal
from quorate.replica.engine_io import Deliver, Room
from quorate.types import Index, NodeId, Term

if TYPE_CHECKING:
    from verification.hand import HandCluster

SHORTAGE = "No space left on device"
# Less than the header of an entry takes.
NO_ROOM = 10


def room(cluster: HandCluster, name: str, size: int) -> None:
    cluster.turn(name, [Room(size, SHORTAGE)])


def replaced(*, shared: int = 0) -> HandCluster:
    """n1 logged three entries that no other node has. Then n2 was elected, with ``shared`` entries
    of n1 that the others have, too. n1 has hardly any room left, and has not heard of n2."""
    cluster = led(3)
    append_many(cluster, "n1", shared)
    cluster.isolate("n1")
    append_many(cluster, "n1", 3)
    elect(cluster, "n2")
    append_many(cluster, "n2", 2)
    room(cluster, "n1", NO_ROOM)
    return cluster


def newest(cluster: HandCluster) -> Append:
    """The append with all that n2 logged in its term."""
    entries = log_of(cluster, "n2")
    term = entries[-1].term
    own = tuple(entry for entry in entries if entry.term == term)
    before = raft_state(cluster, "n2").log.position(Index(own[0].index - 1))
    return Append(term, 1, before, own, Index(own[-1].index))


def test_entries_without_room_replace_those_that_differ_in_two_steps() -> None:
    """They have no room before the others are gone, and the others go only for them."""
    cluster = replaced()
    cluster.heal()
    cluster.run(100)
    assert happened(cluster, "n1", EventKind.TRUNCATES)
    assert raft_state(cluster, "n1").log.last_index == 1
    assert raft_state(cluster, "n1").full
    room(cluster, "n1", 1 << 20)  # as the flush of the cut will tell
    cluster.run(100)
    assert_same(cluster)


def test_what_was_dropped_for_entries_without_room_acknowledges_none_of_them() -> None:
    cluster = replaced(shared=1)
    append = newest(cluster)
    cluster.auto_flush = False
    cluster.table.clear()
    cluster.turn("n1", [Deliver(envelope(cluster, "n2", "n1", append))])
    raft = raft_state(cluster, "n1")
    assert raft.log.last == append.prev
    assert (raft.persisted, raft.committed) == (append.prev.index, append.prev.index)
    assert raft.refused[Refusal.NO_SPACE] == 1
    flush = cluster.nodes[NodeId("n1")].flush
    assert flush is not None
    assert (flush.truncate_from, flush.entries) == (append.prev.index + 1, ())
    cluster.auto_flush = True
    cluster.settle()
    assert not [one for one in cluster.table if type(one.message) is Ack]


def test_entries_that_agree_stay_and_take_no_room_again() -> None:
    """An append repeats entries that the follower has, before the first one that differs."""
    cluster = replaced(shared=2)
    log = log_of(cluster, "n2")
    append = newest(cluster)
    whole = Append(append.term, 1, log[0].position, tuple(log[1:]), append.committed)
    cluster.turn("n1", [Deliver(envelope(cluster, "n2", "n1", whole))])
    raft = raft_state(cluster, "n1")
    assert raft.log.last == append.prev
    told = [one.message for one in cluster.table if type(one.message) is Ack]
    assert told == [Ack(append.term, 1, append.prev.index)]


def test_an_append_without_room_drops_no_entry_that_agrees() -> None:
    cluster = replaced()
    cluster.heal()
    cluster.run(100)
    last = raft_state(cluster, "n1").log.last
    cluster.run(100)
    assert raft_state(cluster, "n1").log.last == last
    assert len(happened(cluster, "n1", EventKind.TRUNCATES)) == 1


def test_no_entry_that_is_committed_is_dropped_for_one_without_room() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 2)
    room(cluster, "n3", NO_ROOM)
    first = log_of(cluster, "n1")[0]
    other = chain(2, after=first.position)
    append = Append(Term(2), 1, first.position, other, first.index)
    cluster.turn("n3", [Deliver(envelope(cluster, "n2", "n3", append))])
    assert isinstance(cluster.nodes[NodeId("n3")].halted, Damaged)
