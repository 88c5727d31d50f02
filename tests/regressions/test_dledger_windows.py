"""What did not work in DLedger's replication: windows, retries, batches and slow peers.

==========  ==========================================================================
5.3.1       test_dledger_5_3_1_peer_cut_off_for_more_than_a_window_is_fed_again,
            test_dledger_5_3_1_tiny_windows_never_jam,
            test_dledger_5_3_1_a_window_of_one_byte_never_jams,
            test_dledger_5_3_1_a_hung_disk_delays_nobody_else,
            test_dledger_5_3_1_a_hung_disk_stays_bounded,
            test_dledger_5_3_1_a_peer_that_never_answers_delays_nobody_else
5.3.2       test_dledger_5_3_2_entries_of_earlier_terms_are_retried_and_counted
5.3.3       test_dledger_5_3_3_appends_of_one_turn_share_an_entry,
            test_dledger_5_3_3_a_peer_that_catches_up_gets_many_entries_a_message,
            test_dledger_5_3_3_no_step_of_an_append_waits_for_a_timer
5.3.4       comes with filling: there is no snapshot to install yet
5.3.5       comes with filling and trimming: every log begins at index 1
5.3.6       test_dledger_5_3_6_what_is_truncated_can_no_longer_be_read;
            positions within files come with storage
5.3.7       comes with trimming (a follower that begins later) and storage (a full disk)
5.3.8       test_dledger_5_3_8_an_entry_that_cannot_be_applied_stops_the_replica;
            index records come with storage
5.3.9       comes with the client and the command line
==========  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_at_once,
    append_many,
    assert_same,
    elect,
    envelope,
    led,
    log_of,
    progress,
    raft_state,
    receipt,
    run_until,
    settle_losing,
)
from core_rig import RESEND_TICKS, chain, config
from quorate.config import Timing
from quorate.entry import make_entry
from quorate.errors import InvariantBroken
from quorate.raft.log import RaftLog
from quorate.raft.messages import Ack, Append
from quorate.replica.engine_io import Deliver
from quorate.replica.proposals import TURN_REQUESTS
from quorate.types import EntryKind, Index, NodeId, Role, Term

if TYPE_CHECKING:
    from verification.hand import HandCluster

SECOND_TICKS = Timing().ticks(1000)
CUTS = {
    "both ways": [("n1", "n3"), ("n3", "n1")],
    "to the peer": [("n1", "n3")],
    "from the peer": [("n3", "n1")],
}


def assert_fed_again(cluster: HandCluster) -> None:
    """n3 is level with the others within a second of healing, and stays so."""
    cluster.heal()
    last = raft_state(cluster, "n1").log.last_index
    run_until(
        cluster,
        lambda: raft_state(cluster, "n3").committed == progress(cluster, "n3").match == last,
        SECOND_TICKS,
    )
    append_many(cluster, "n1", 1)
    cluster.run(2)
    assert_same(cluster)
    assert cluster.leader() == "n1"


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("appends", [500, 3000])
def test_dledger_5_3_1_peer_cut_off_for_more_than_a_window_is_fed_again(
    appends: int, cut: str
) -> None:
    """DLedger never emptied the window of requests that failed: a peer cut off for 3000 appends
    got nothing any more, until the next election. Here it is level within a second."""
    cluster = led(3, config(window_messages=1000, append_entries=1))
    cluster.cuts.update((NodeId(source), NodeId(target)) for source, target in CUTS[cut])
    append_many(cluster, "n1", appends)
    cluster.run(2)
    assert_fed_again(cluster)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("ticks", [0, 1, RESEND_TICKS + 1, 3 * SECOND_TICKS])
@pytest.mark.parametrize(("window", "appends"), [(1, 1), (1, 30), (2, 30), (7, 6), (7, 7), (7, 8)])
def test_dledger_5_3_1_tiny_windows_never_jam(
    window: int, appends: int, ticks: int, cut: str
) -> None:
    """The same for windows just below, at and above what was sent, cut for any length of time."""
    cluster = led(3, config(window_messages=window, append_entries=1))
    cluster.cuts.update((NodeId(source), NodeId(target)) for source, target in CUTS[cut])
    append_many(cluster, "n1", appends)
    cluster.run(ticks)
    assert len(progress(cluster, "n3").inflight) <= window
    assert_fed_again(cluster)


def test_dledger_5_3_1_a_window_of_one_byte_never_jams() -> None:
    """The byte window lets one message through however large it is, and the next after its ack."""
    cluster = led(3, config(window_bytes=1, append_bytes=1))
    cluster.isolate("n3")
    append_many(cluster, "n1", 30)
    assert len(progress(cluster, "n3").inflight) == 1
    assert_fed_again(cluster)


def test_dledger_5_3_1_a_hung_disk_delays_nobody_else() -> None:
    """A follower that takes everything and never flushes: each append of the others is answered
    before any time passes, and the leader keeps no more for it than a window."""
    cluster = led(3, config(window_messages=5, append_entries=1))
    cluster.auto_flush = False
    for number in range(50):
        token = cluster.propose("n1", b"%d" % number)
        settle_losing(cluster, lambda _: False, hung=("n3",))
        assert receipt(cluster, token).synced == 2
    assert progress(cluster, "n3").match == 1
    assert len(progress(cluster, "n3").inflight) <= 5
    cluster.settle()  # the disk is well again
    assert_fed_again(cluster)


def test_dledger_5_3_1_a_hung_disk_stays_bounded() -> None:
    """However long the disk hangs, neither side piles up messages, and the others go on."""
    cluster = led(3, config(held_messages=16))
    cluster.auto_flush = False
    for _ in range(5 * SECOND_TICKS):
        cluster.tick()
        token = cluster.propose("n1", b"x")
        settle_losing(cluster, lambda _: False, hung=("n3",))
        assert token in cluster.answers
    assert cluster.engine("n3").durability.held <= 16
    assert cluster.leader() == "n1"
    cluster.settle()
    assert_fed_again(cluster)


def test_dledger_5_3_1_a_peer_that_never_answers_delays_nobody_else() -> None:
    """A follower whose answers never arrive: the appends of the others take no time."""
    cluster = led(3)
    cluster.cut("n3", "n1")
    for number in range(50):
        token = cluster.propose("n1", b"%d" % number)
        cluster.settle()
        receipt(cluster, token)
    cluster.run(5 * SECOND_TICKS)
    assert cluster.leader() == "n1"
    assert_fed_again(cluster)


def test_dledger_5_3_2_entries_of_earlier_terms_are_retried_and_counted() -> None:
    """DLedger's watermark ignored entries of earlier terms: they were not retried, and after an
    election on an idle cluster every peer seemed to lack the whole log. Here they are sent again
    like any others, and every peer is known to be level a moment after the election."""
    cluster = led(3)
    append_many(cluster, "n1", 20)
    cluster.isolate("n3")
    append_many(cluster, "n1", 20)
    cluster.crash("n1")
    cluster.heal()
    elect(cluster, "n2", lose=lambda item: isinstance(item.message, Append))
    cluster.restart("n1")
    cluster.run(2 * RESEND_TICKS)
    assert_same(cluster)
    last = raft_state(cluster, "n2").log.last_index
    assert [progress(cluster, peer).match for peer in ("n1", "n3")] == [last, last]


def test_dledger_5_3_3_appends_of_one_turn_share_an_entry() -> None:
    """DLedger's batching never began: each of 5000 appends went alone. Here the appends that one
    turn judges are one entry, one message to each peer and one flush."""
    cluster = led(3)
    tokens = append_at_once(cluster, "n1", [b"x"] * TURN_REQUESTS)
    assert [type(item.message) for item in cluster.table] == [Append, Append]
    cluster.settle()
    assert {receipt(cluster, token).index for token in tokens} == {2}
    assert [receipt(cluster, token).offset for token in tokens] == list(range(TURN_REQUESTS))


def test_dledger_5_3_3_a_peer_that_catches_up_gets_many_entries_a_message() -> None:
    """The same for entries that are already there: a message takes as many as its limit allows."""
    cluster = led(3, config(append_entries=100))
    cluster.isolate("n3")
    append_many(cluster, "n1", 250)
    cluster.run(1)
    cluster.heal()
    sizes = []
    for _ in range(SECOND_TICKS):
        cluster.tick()
        while cluster.table:
            sizes += [
                len(item.message.entries)
                for item in cluster.table
                if isinstance(item.message, Append)
            ]
            cluster.deliver_all()
    assert sizes == [100, 100, 50]
    assert_same(cluster)


def test_dledger_5_3_3_no_step_of_an_append_waits_for_a_timer() -> None:
    """DLedger polled once a millisecond between append, push and count. Here an append is
    answered without a tick, and takes one message each way."""
    cluster = led(3)
    token = cluster.propose("n1", b"x")
    assert [type(item.message) for item in cluster.table] == [Append, Append]
    cluster.deliver_all()
    assert [type(item.message) for item in cluster.table] == [Ack, Ack]
    cluster.deliver_all()
    receipt(cluster, token)


def test_dledger_5_3_6_what_is_truncated_can_no_longer_be_read() -> None:
    """DLedger's memory store removed one key over and over, and the rest stayed readable. Here
    everything from the cut on is gone."""
    log = RaftLog(chain(1, 1, 2, 2, 3))
    log.truncate(Index(3))
    assert log.entries(Index(1), Index(9)) == list(chain(1, 1))
    assert not any(log.holds(entry.position) for entry in chain(1, 1, 2, 2, 3)[2:])
    assert log.last == chain(1, 1)[-1].position


def test_dledger_5_3_8_an_entry_that_cannot_be_applied_stops_the_replica() -> None:
    """DLedger logged a state machine's exception and applied the batch again, some of it twice.
    Here the replica stops before the state differs from anybody's."""
    cluster = led(3)
    before = log_of(cluster, "n2")[-1].position
    time = log_of(cluster, "n2")[-1].append_time
    good = make_entry(before, Term(1), EntryKind.DATA, b"x", count=1, append_time=time)
    bad = make_entry(good.position, Term(1), EntryKind.TRIM, base_offset=1, append_time=time)
    message = Append(Term(1), 1, before, (good, bad), Index(3))
    engine = cluster.engine("n2")
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", message))])
    halted = cluster.nodes[NodeId("n2")].halted
    assert isinstance(halted, InvariantBroken)
    assert "TRIM" in str(halted)
    assert engine.state.end == 1  # once, and nothing after it
    assert engine.role is Role.FOLLOWER
