"""An append past its deadline is not logged, wherever it waited. Time is that of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import led, log_of, receipt, refused
from proposal_rig import open_producer, stamped
from quorate.errors import OutOfSequence, Timeout
from quorate.replica.engine_io import Propose
from quorate.types import EntryKind, NodeId, Role
from verification.hand import HandCluster

if TYPE_CHECKING:
    from quorate.state.judge import AppendConditions

TICK_MS = HandCluster(1).config.timing.tick_ms


def within(
    ms: int, token: int, conditions: AppendConditions | None = None, *, now_ms: int
) -> Propose:
    """A batch of one record whose client waits for so long from now on."""
    proposal = Propose(token, b"x", 1, deadline_ms=now_ms + ms)
    if conditions is not None:
        proposal.conditions = conditions
    return proposal


def waiting_leader() -> HandCluster:
    """n1 just won, and nobody has its noop: what is proposed has to wait."""
    cluster = HandCluster(3)
    cluster.tick("n1")
    while cluster.engine("n1").role is not Role.LEADER:
        cluster.deliver_all()
    return cluster


@pytest.mark.parametrize(("ticks", "logged"), [(2, True), (3, False)])
def test_an_append_that_waits_past_its_deadline_is_not_logged(ticks: int, logged: bool) -> None:
    cluster = waiting_leader()
    now = cluster.now_ms
    cluster.turn("n1", [within(2 * TICK_MS, -1, now_ms=now), Propose(-2, b"y", 1)])
    assert not cluster.answers
    held = cluster.take(lambda _: True)
    cluster.tick("n1", ticks)
    cluster.table += held
    cluster.settle()
    if logged:
        assert receipt(cluster, -1).offset == 0
        assert receipt(cluster, -2).offset == 1
    else:
        assert refused(cluster, -1, Timeout) == (
            f"the append waited until {TICK_MS} ms after its deadline; nothing was logged"
        )
        assert receipt(cluster, -2).offset == 0
    engine = cluster.engine("n1")
    assert engine.state.end == 1 + logged
    assert (engine.pending_appends, engine.pending_bytes) == (0, 0)


def test_a_turn_of_appends_past_their_deadlines_logs_no_entry() -> None:
    cluster = led(1)
    last = len(log_of(cluster, "n1"))
    late = [within(-1, -token, now_ms=cluster.now_ms) for token in range(1, 4)]
    cluster.turn("n1", late)
    for proposal in late:
        refused(cluster, proposal.token, Timeout)
    assert len(log_of(cluster, "n1")) == last
    receipt(cluster, cluster.propose("n1", b"z"))


def test_an_append_without_a_deadline_waits_for_as_long_as_it_takes() -> None:
    cluster = waiting_leader()
    token = cluster.propose("n1", b"x")
    held = cluster.take(lambda _: True)
    cluster.tick("n1", 20)
    cluster.table += held
    cluster.settle()
    assert receipt(cluster, token).offset == 0


def test_a_producer_goes_on_in_order_after_a_batch_that_came_too_late() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    now = cluster.now_ms
    late = within(-1, -1, stamped(epoch, 1), now_ms=now)
    cluster.turn("n1", [late, within(1000, -2, stamped(epoch, 2), now_ms=now)])
    refused(cluster, -1, Timeout)
    refused(cluster, -2, OutOfSequence)
    again = [within(1000, -2 - one, stamped(epoch, one), now_ms=now) for one in (1, 2)]
    cluster.turn("n1", again)
    assert [receipt(cluster, one.token).offset for one in again] == [0, 1]


def test_a_repeat_that_comes_too_late_gets_no_receipt_and_the_next_does() -> None:
    """What is in the log already is told to a client that still waits."""
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    now = cluster.now_ms
    cluster.turn("n1", [within(1000, -1, stamped(epoch, 1), now_ms=now)])
    first = receipt(cluster, -1)
    cluster.turn("n1", [within(-1, -2, stamped(epoch, 1), now_ms=now)])
    refused(cluster, -2, Timeout)
    cluster.turn("n1", [within(1000, -3, stamped(epoch, 1), now_ms=now)])
    assert receipt(cluster, -3) == first
    kinds = [entry.kind for entry in log_of(cluster, "n1")]
    assert kinds.count(EntryKind.DATA) == 1
    assert cluster.nodes[NodeId("n1")].halted is None
