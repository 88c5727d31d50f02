"""A leader that lost an old entry asks a peer about entries behind it before it blocks the peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import append_many, elect, happened, led, progress, raft_state, settle_losing
from core_rig import ELECTION_TICKS, config
from quorate.raft.messages import Ack
from quorate.raft.output import EventKind
from quorate.storage.layout import PAGE, segment_name
from quorate.types import Index, NodeId

if TYPE_CHECKING:
    from verification.hand import HandCluster

SHARED = 8
# Entries that only n1 has, of the term in which it led.
OWN = 5


def lose(cluster: HandCluster, name: str, index: int) -> None:
    """The page under an entry is zeros."""
    store = cluster.nodes[NodeId(name)].store
    assert store.log is not None
    segment = store.log.segment(Index(index))
    start, _ = segment.rows.frame(Index(index))
    store.disk.spoil(segment_name(segment.number), start - start % PAGE, bytes(PAGE))


def parted() -> tuple[HandCluster, Index, Index]:
    """n1 led, and was cut off with entries of its own. It restarts and knows fewer committed
    entries than it shares with the others. n2 leads and keeps nothing in memory. With the index
    that n1 knows to be committed, and the last index up to which it agrees with n2."""
    cluster = led(3, config(log_memory_bytes=0))
    append_many(cluster, "n1", 4)
    for _ in range(SHARED):
        cluster.propose("n1", b"shared")
        settle_losing(cluster, lambda envelope: isinstance(envelope.message, Ack))
    agreed = raft_state(cluster, "n2").log.last_index
    cluster.isolate("n1")
    append_many(cluster, "n1", OWN)
    cluster.crash("n1")
    elect(cluster, "n2")
    append_many(cluster, "n2", 2 * SHARED)
    cluster.run(3)
    cluster.restart("n1")
    known = raft_state(cluster, "n1").committed
    assert raft_state(cluster, "n1").log.last_index == agreed + OWN
    assert known + 4 < agreed == raft_state(cluster, "n3").log.last_index - 2 * SHARED - 1
    return cluster, known, agreed


def fed(cluster: HandCluster) -> bool:
    return raft_state(cluster, "n1").log.last == raft_state(cluster, "n2").log.last


@pytest.mark.parametrize("also_lost", [(), (1,), (1, 2, 3)], ids=str)
def test_a_peer_that_has_what_its_leader_lost_is_fed_from_where_the_logs_part(
    also_lost: tuple[int, ...],
) -> None:
    """n1 names the last entry that it knows to be committed, and the other two lost that one."""
    cluster, known, _ = parted()
    for name in ("n2", "n3"):
        lose(cluster, name, known)
        for further in also_lost:
            lose(cluster, name, known + further)
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert fed(cluster)
    assert cluster.leader() == "n2"
    assert not happened(cluster, "n2", EventKind.PEER_BLOCKED)


def test_a_peer_that_has_the_body_of_an_entry_that_its_leader_lost_is_not_sent_it() -> None:
    cluster, known, agreed = parted()
    lose(cluster, "n2", known)
    lose(cluster, "n2", agreed - 1)
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert fed(cluster)
    assert not happened(cluster, "n2", EventKind.PEER_BLOCKED)


def test_a_leader_that_lost_the_entry_where_logs_part_blocks_the_peer_after_a_few_questions() -> (
    None
):
    cluster, known, agreed = parted()
    for name in ("n2", "n3"):
        lose(cluster, name, known)
        lose(cluster, name, agreed + 1)
    cluster.heal()
    cluster.run(ELECTION_TICKS // 2)
    (blocked,) = happened(cluster, "n2", EventKind.PEER_BLOCKED)
    assert (blocked.peer, blocked.index) == ("n1", agreed + 1)
    assert progress(cluster, "n1").match == agreed


def test_a_shorter_peer_is_not_asked_about_entries_that_it_lacks() -> None:
    cluster = led(3, config(log_memory_bytes=0))
    cluster.isolate("n3")
    append_many(cluster, "n1", SHARED)
    cluster.run(3)
    lose(cluster, "n1", raft_state(cluster, "n3").log.last_index)
    asked = progress(cluster, "n3").number
    cluster.heal()
    cluster.run(ELECTION_TICKS // 2)
    assert len(happened(cluster, "n1", EventKind.PEER_BLOCKED)) == 1
    assert progress(cluster, "n3").number <= asked + 3
