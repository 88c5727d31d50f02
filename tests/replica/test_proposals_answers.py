"""When proposals are answered: receipts when their entry is applied, final refusals when what they
rest on is certain, and everybody when the leadership ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import envelope, led, raft_state, receipt, refused, run_until, settle_losing
from core_rig import ELECTION_TICKS, READ_TICKS, config, heartbeat_reply
from proposal_rig import (
    at_once,
    open_producer,
    opening,
    operate,
    propose,
    stamped,
    stuck,
    unstick,
)
from quorate.commands import SetFence
from quorate.errors import (
    Busy,
    Fenced,
    NotLeader,
    OffsetMismatch,
    OutcomeUnknown,
    StateDiverged,
    UnknownProducer,
)
from quorate.raft.messages import Append, Envelope, HeartbeatReply
from quorate.replica.engine_io import Deliver, Propose
from quorate.replica.state_check import COMPARED_EVERY
from quorate.state.judge import AppendConditions
from quorate.state.producers import ProducerState
from quorate.state.runs import Runs
from quorate.types import NodeId, Role

if TYPE_CHECKING:
    from verification.hand import HandCluster

WRONG_END = AppendConditions(expect_offset=9)


def is_append(message: Envelope) -> bool:
    return isinstance(message.message, Append)


def is_vouch(message: Envelope) -> bool:
    return isinstance(message.message, HeartbeatReply)


def depose(cluster: HandCluster) -> None:
    cluster.turn("n1", [Deliver(envelope(cluster, "n2", "n1", heartbeat_reply(9)))])
    assert cluster.engine("n1").role is Role.FOLLOWER


# -- a final refusal is a read -----------------------------------------------------------------


def test_a_refusal_waits_until_a_majority_vouches_for_the_leader() -> None:
    cluster = led(3)
    token = propose(cluster, WRONG_END)
    assert token not in cluster.answers
    assert cluster.engine("n1").pending_appends == 1
    cluster.settle()
    assert refused(cluster, token, OffsetMismatch) == "the log ends at offset 0, expected 9"
    assert cluster.engine("n1").pending_appends == 0


def test_a_vouch_from_before_the_proposal_does_not_count() -> None:
    """Peers answered the leader's heartbeats before; what they follow now nobody knows."""
    cluster = led(3)
    early = cluster.read("n1")
    cluster.deliver_all()
    vouches = cluster.take(is_vouch)
    token = propose(cluster, WRONG_END)
    for vouch in vouches:
        cluster.deliver(vouch)
    assert early in cluster.answers
    assert token not in cluster.answers


def test_a_replaced_leader_refuses_nothing_for_good() -> None:
    """No time passed for it, so it leads on. Its fence is not the one that its successor has: it
    must not say FENCED."""
    cluster = led(3)
    cluster.isolate("n1")
    while cluster.leader() == "n1":
        cluster.tick("n2")
        cluster.tick("n3")
        cluster.settle()
    leader = cluster.leader()
    assert leader is not None
    operate(cluster, SetFence("f", None), name=leader)
    cluster.settle()
    assert cluster.engine(leader).state.fence == "f"
    assert cluster.engine("n1").role is Role.LEADER
    token = propose(cluster, AppendConditions(fence="f"))
    cluster.settle()
    assert token not in cluster.answers
    cluster.heal()
    cluster.run(2)
    refused(cluster, token, NotLeader)


def test_a_leader_that_is_cut_off_gives_no_final_refusal() -> None:
    cluster = led(3)
    cluster.isolate("n1")
    tokens = [
        propose(cluster, AppendConditions(fence="f")),
        propose(cluster, WRONG_END),
        propose(cluster, stamped(1, 1)),
        operate(cluster, SetFence("f", "g")),
    ]
    assert not set(tokens) & set(cluster.answers)
    run_until(cluster, lambda: cluster.engine("n1").role is not Role.LEADER, 2 * ELECTION_TICKS)
    for token in tokens:
        refused(cluster, token, NotLeader)


def test_nobody_waits_for_a_vouch_for_ever() -> None:
    """Acks keep this leader in office, but nobody answers its rounds."""
    cluster = led(3)
    token = propose(cluster, WRONG_END)
    for _ in range(READ_TICKS + 1):
        propose(cluster)
        cluster.tick()
        settle_losing(cluster, is_vouch)
        if token in cluster.answers:
            break
    assert cluster.engine("n1").role is Role.LEADER
    message = refused(cluster, token, NotLeader)
    assert message == "no majority confirmed this leader in time"


def test_a_refusal_waits_for_what_was_logged_before_it() -> None:
    cluster = led(3)
    first = propose(cluster, AppendConditions(expect_offset=0))
    token = propose(cluster, AppendConditions(expect_offset=0))
    settle_losing(cluster, is_append)
    assert not {first, token} & set(cluster.answers), "vouched for, and still not certain"
    cluster.run(200)
    assert receipt(cluster, first).offset == 0
    refused(cluster, token, OffsetMismatch)


@pytest.mark.parametrize("place", [1, 2])
def test_a_refusal_waits_for_the_batches_of_its_own_turn(place: int) -> None:
    cluster = led(3)
    conditions = [AppendConditions(expect_offset=0), AppendConditions()]
    conditions.insert(place, AppendConditions(expect_offset=0))
    tokens = at_once(cluster, conditions)
    settle_losing(cluster, is_append)
    assert not set(tokens) & set(cluster.answers)
    cluster.run(200)
    refused(cluster, tokens[place], OffsetMismatch)


def test_a_refusal_rests_on_nothing_that_came_after_it() -> None:
    """What the turn logs later may wait for its disks: the refusal need not."""
    cluster = led(3)
    tokens = at_once(cluster, [AppendConditions(expect_offset=9), AppendConditions()])
    settle_losing(cluster, is_append)
    refused(cluster, tokens[0], OffsetMismatch)
    assert tokens[1] not in cluster.answers


def test_a_refused_operation_waits_for_the_operation_that_made_it_wrong() -> None:
    cluster = led(3)
    first = operate(cluster, SetFence("f", None))
    second = operate(cluster, SetFence("g", None))
    settle_losing(cluster, is_append)
    assert not {first, second} & set(cluster.answers)
    cluster.run(200)
    refused(cluster, second, Fenced)


def test_refusals_take_the_place_of_reads() -> None:
    cluster = led(3, config(pending_reads=1))
    first, second = propose(cluster, WRONG_END), propose(cluster, WRONG_END)
    assert refused(cluster, second, Busy) == "1 reads wait already (limits.pending_reads)"
    cluster.settle()
    refused(cluster, first, OffsetMismatch)


def test_refusals_that_wait_count_as_pending() -> None:
    cluster = led(3, config(pending_appends=2))
    for _ in range(2):
        propose(cluster, WRONG_END)
    refused(cluster, propose(cluster), Busy)


# -- the leadership ends -----------------------------------------------------------------------


def test_what_is_logged_ends_unknown_and_everything_else_was_not_logged() -> None:
    cluster = led(3)
    epoch = open_producer(cluster, "p").epoch
    logged = propose(cluster, stamped(epoch, 1))
    joined = propose(cluster, stamped(epoch, 1))
    fence = operate(cluster, SetFence("f", None))
    opening_again = operate(cluster, opening("p", 2))
    unconfirmed = propose(cluster, WRONG_END)
    last = raft_state(cluster, "n1").log.last_index
    depose(cluster)
    for token in (logged, joined, fence, opening_again):
        assert "was logged in term 1" in refused(cluster, token, OutcomeUnknown)
    refused(cluster, unconfirmed, NotLeader)
    assert raft_state(cluster, "n1").log.last_index == last
    assert (cluster.engine("n1").pending_appends, cluster.engine("n1").pending_bytes) == (0, 0)


def test_a_confirmed_refusal_that_still_waits_ends_with_the_leadership() -> None:
    cluster = led(3)
    logged = propose(cluster, AppendConditions(expect_offset=0))
    refusal = propose(cluster, AppendConditions(expect_offset=0))
    settle_losing(cluster, is_append)
    depose(cluster)
    refused(cluster, logged, OutcomeUnknown)
    refused(cluster, refusal, NotLeader)


def test_what_comes_with_the_end_of_the_leadership_is_not_judged() -> None:
    cluster = led(3)
    ended = Deliver(envelope(cluster, "n2", "n1", heartbeat_reply(9)))
    cluster.turn("n1", [Propose(1, b"x", 1, None, WRONG_END), ended])
    refused(cluster, 1, NotLeader)


def test_the_next_leadership_judges_by_the_log_alone() -> None:
    """What the one before had logged and lost is forgotten with it."""
    cluster = led(1)
    cluster.auto_flush = False
    lost = propose(cluster, AppendConditions(expect_offset=0))
    cluster.crash("n1", lambda: 0)
    cluster.auto_flush = True
    cluster.restart("n1")
    run_until(cluster, lambda: cluster.engine("n1").role is Role.LEADER, 4 * ELECTION_TICKS)
    cluster.run(1)
    assert lost not in cluster.answers
    assert receipt(cluster, propose(cluster, AppendConditions(expect_offset=0))).offset == 0


# -- what was foreseen -------------------------------------------------------------------------


def test_a_leader_stops_if_applying_gives_another_state_than_it_foresaw() -> None:
    cluster = stuck()
    while raft_state(cluster, "n1").log.last_index < COMPARED_EVERY - 1:
        propose(cluster)
    unstick(cluster)
    assert cluster.engine("n1").applied == COMPARED_EVERY - 1
    propose(cluster)
    state = cluster.engine("n1").state
    state.producers.add(ProducerState("stray", 1, bytes(16), 0, Runs.of(), 1, 1_000_000, 0))
    unstick(cluster)
    halt = cluster.nodes[NodeId("n1")].halted
    assert isinstance(halt, StateDiverged)
    assert str(halt) == "entry 256 led to another state than the leader foresaw"


def test_an_unknown_producer_is_unknown_to_a_majority() -> None:
    """Not only to this leader: it might be one that was replaced before the opening."""
    cluster = led(3)
    token = propose(cluster, stamped(2, 1))
    assert token not in cluster.answers
    cluster.settle()
    refused(cluster, token, UnknownProducer)
