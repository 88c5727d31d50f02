"""SOFAJRaft's standstills: a group that seems alive and does not move, or moves for no reason.

#1271: test_jraft_1271_replication_that_stands_still_while_heartbeats_succeed_is_noticed and its
neighbours; #135: test_jraft_135_an_idle_group_only_beats; #716: the last two.
The table of all of its bugs is in test_jraft_bugs.py.
"""

from __future__ import annotations

import pytest

from cluster_rig import (
    assert_same,
    happened,
    led,
    raft_state,
    read_answer,
    run_delayed,
    settle_losing,
)
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    READ_TICKS,
    RESEND_TICKS,
    WATCHDOG_TICKS,
)
from quorate.raft.messages import Ack, Heartbeat, HeartbeatReply
from quorate.raft.output import EventKind
from quorate.replica.engine_io import Deliver
from quorate.types import Role
from verification.hand import HandCluster


def test_jraft_1271_replication_that_stands_still_while_heartbeats_succeed_is_noticed() -> None:
    """JRaft stood still for 25 minutes behind healthy heartbeats. Here a watchdog reports a peer
    that answers and does not move, again and again, and starts over with it each time."""
    cluster = led(3)
    cluster.propose("n1", b"x")
    for _ in range(3 * WATCHDOG_TICKS + 1):
        settle_losing(cluster, lambda item: item.source == "n3" and isinstance(item.message, Ack))
        cluster.tick()
    stalls = happened(cluster, "n1", EventKind.PEER_STALLED)
    assert [(event.peer, event.index) for event in stalls] == [("n3", 1)] * 3
    cluster.run(2 * HEARTBEAT_TICKS)
    assert_same(cluster)


@pytest.mark.parametrize("delay", [1, 4, 6, 8, 12, 20])
def test_jraft_1271_replication_goes_on_over_links_of_any_length(delay: int) -> None:
    """The same standstill by another way: an answer takes longer than the leader waits before it
    asks again. It still answers the question, so it must count, and the peer must be fed."""
    cluster = HandCluster(3)
    run_delayed(cluster, 40 * delay + 5 * HEARTBEAT_TICKS, delay)
    assert cluster.leader() == "n1"
    cluster.isolate("n3")
    cluster.propose("n1", b"lost on the way to n3")
    run_delayed(cluster, RESEND_TICKS + 5, delay)
    cluster.heal()
    cluster.propose("n1", b"x")
    run_delayed(cluster, 10 * ELECTION_TICKS, delay)
    assert cluster.leader() == "n1"
    assert [raft_state(cluster, name).committed for name in cluster.voters] == [3, 3, 3]


@pytest.mark.parametrize("delay", [1, 3, 6, 12, 20])
def test_jraft_1271_reads_on_followers_succeed_over_links_of_any_length(delay: int) -> None:
    """And for reads: the answer to a question that was repeated meanwhile is an answer to it."""
    cluster = HandCluster(3)
    run_delayed(cluster, 40 * delay + 5 * HEARTBEAT_TICKS, delay)
    token = cluster.read("n3")
    run_delayed(cluster, READ_TICKS + 1, delay)
    assert read_answer(cluster, token).index >= 1


def test_jraft_135_an_idle_group_only_beats() -> None:
    """JRaft's idle groups cost many messages and threads. Here nothing but one beat and its
    answer for each follower travels in a heartbeat interval."""
    cluster = led(3)
    said = []
    for _ in range(10 * HEARTBEAT_TICKS):
        cluster.tick()
        while cluster.table:
            said += [type(item.message) for item in cluster.table]
            cluster.deliver_all()
    assert sorted(said, key=str) == [Heartbeat] * 20 + [HeartbeatReply] * 20


def test_jraft_716_a_paused_follower_hears_its_leader_before_it_judges() -> None:
    """JRaft's nodes stood for election after a pause of the collector. Here one that was stopped
    takes what waits for it first and then lets one tick pass, however long it was gone."""
    cluster = led(3)
    waiting = []
    for _ in range(5 * ELECTION_TICKS):
        cluster.tick("n1")
        waiting += cluster.take(lambda item: item.target == "n2")
        cluster.settle()
    before = raft_state(cluster, "n2").clock
    cluster.turn("n2", [Deliver(item) for item in waiting])
    assert raft_state(cluster, "n2").clock == before + 1
    assert happened(cluster, "n2", EventKind.PRE_CAMPAIGNS) == []
    cluster.settle()
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", 1)


def test_jraft_716_a_paused_leader_is_not_deposed_by_its_own_pause() -> None:
    """Nor does a leader that was stopped step down because the answers to its last beats are old:
    it beats again and gives its followers a timeout's time."""
    cluster = led(3)
    cluster.tick("n2", ticks=ELECTION_TICKS - 1)
    cluster.tick("n1")
    assert cluster.engine("n1").role is Role.LEADER
    cluster.table.clear()
    for _ in range(HEARTBEAT_TICKS):
        cluster.tick("n1")
        cluster.settle()
    assert happened(cluster, "n1", EventKind.STEPS_DOWN) == []
    assert happened(cluster, "n2", EventKind.PRE_CAMPAIGNS) == []
