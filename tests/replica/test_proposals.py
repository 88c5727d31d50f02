"""What a leader logs: judged in order, against everything that it logged before; a repeat is known
again, and joins what it repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cluster_rig import assert_same, elect, led, log_of, receipt, refused, run_until
from core_rig import config
from proposal_rig import (
    SECOND_US,
    at_once,
    open_producer,
    opened,
    opening,
    operate,
    propose,
    stamped,
    stuck,
    unstick,
)
from quorate.commands import FenceChanged, OpenProducer, ProducerOpened, SetFence
from quorate.entry_body import unpack_stamps
from quorate.errors import (
    Duplicate,
    Fenced,
    InvalidArgument,
    OffsetMismatch,
    OutOfSequence,
    TooManyProducers,
    UnknownProducer,
)
from quorate.replica.engine_io import Operate, Propose
from quorate.state.judge import AppendConditions
from quorate.state.operations import EPOCHS_MAX
from quorate.types import EntryKind

if TYPE_CHECKING:
    from verification.hand import HandCluster


def kinds(cluster: HandCluster, name: str = "n1") -> list[EntryKind]:
    """What stands after the first noop."""
    return [entry.kind for entry in log_of(cluster, name)[1:]]


# -- in order ----------------------------------------------------------------------------------


def test_each_is_judged_by_all_that_came_before_it_in_the_turn() -> None:
    cluster = led(1)
    tokens = at_once(
        cluster,
        [
            AppendConditions(expect_offset=0),
            AppendConditions(expect_offset=0),
            AppendConditions(expect_offset=1),
        ],
    )
    cluster.settle()
    assert receipt(cluster, tokens[0]).offset == 0
    message = refused(cluster, tokens[1], OffsetMismatch)
    assert message == "the log ends at offset 1, expected 0"
    assert receipt(cluster, tokens[2]).offset == 1
    assert receipt(cluster, tokens[2]).index == 2, "what was refused in between divides no entry"


def test_each_is_judged_by_all_that_is_logged_and_not_committed() -> None:
    cluster = stuck()
    first = propose(cluster, AppendConditions(expect_offset=0))
    second = propose(cluster, AppendConditions(expect_offset=1))
    third = propose(cluster, AppendConditions(expect_offset=1))
    assert kinds(cluster) == [EntryKind.DATA, EntryKind.DATA]
    unstick(cluster)
    assert [receipt(cluster, token).offset for token in (first, second)] == [0, 1]
    refused(cluster, third, OffsetMismatch)


def test_an_operation_stands_between_the_batches_around_it() -> None:
    cluster = led(1)
    cluster.turn(
        "n1",
        [
            Propose(-1, b"a", 1),
            Operate(-2, SetFence("f", None)),
            Propose(-3, b"b", 1),
            Propose(-4, b"c", 1, None, AppendConditions(fence="f")),
            Operate(-5, SetFence(None, "g")),
        ],
    )
    cluster.settle()
    assert kinds(cluster) == [EntryKind.DATA, EntryKind.FENCE, EntryKind.DATA]
    assert receipt(cluster, -1).offset == 0
    assert cluster.answers[-2] == FenceChanged(3)
    message = refused(cluster, -3, Fenced)
    assert message == "the log has the fence 'f', the append shows no fence"
    assert receipt(cluster, -4).offset == 1
    assert refused(cluster, -5, Fenced) == "the log has the fence 'f', expected was the fence 'g'"


def test_what_is_in_the_log_is_known_again_whatever_fence_or_end_came_after_it() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    conditions = stamped(epoch, 1)._replace(expect_offset=0)
    first = receipt(cluster, propose(cluster, conditions))
    operate(cluster, SetFence("f", None))
    propose(cluster, AppendConditions(fence="f"))
    assert receipt(cluster, propose(cluster, conditions)) == first


def test_a_fence_is_asked_for_before_the_end() -> None:
    cluster = led(1)
    operate(cluster, SetFence("f", None))
    refused(cluster, propose(cluster, AppendConditions(fence="g", expect_offset=9)), Fenced)


# -- producers ---------------------------------------------------------------------------------


def test_batches_of_one_turn_carry_their_stamps_into_one_entry() -> None:
    cluster = led(3)
    one = open_producer(cluster, "p").epoch
    other = open_producer(cluster, "q").epoch
    conditions = [stamped(one, 1), AppendConditions(), stamped(other, 1, name="q"), stamped(one, 2)]
    tokens = at_once(cluster, conditions)
    cluster.run(2)
    assert [receipt(cluster, token).offset for token in tokens] == [0, 1, 2, 3]
    stamps = unpack_stamps(log_of(cluster, "n1")[-1])
    assert stamps == [(0, one, 1), (2, other, 1), (3, one, 2)]
    assert_same(cluster)


def test_only_the_next_sequence_is_taken() -> None:
    """OUT_OF_SEQUENCE passes by itself, so it is said at once."""
    cluster = stuck()
    epoch = 2
    operate(cluster, opening("p"))
    unstick(cluster)
    propose(cluster, stamped(epoch, 1), count=2)
    message = refused(cluster, propose(cluster, stamped(epoch, 4)), OutOfSequence)
    assert message == "producer 'p' goes on with sequence 3, the append shows 4"
    assert propose(cluster, stamped(epoch, 3)) not in cluster.answers


def test_whoever_is_not_open_or_shows_an_epoch_to_come_is_unknown() -> None:
    cluster = led(1)
    refused(cluster, propose(cluster, stamped(1, 1)), UnknownProducer)
    epoch = open_producer(cluster, "p").epoch
    refused(cluster, propose(cluster, stamped(epoch + 1, 1)), UnknownProducer)


def test_the_next_instance_goes_on_where_the_one_before_ended_and_fences_it_off() -> None:
    cluster = led(1)
    first = open_producer(cluster, "p", 1)
    receipt(cluster, propose(cluster, stamped(first.epoch, 1), count=3))
    second = open_producer(cluster, "p", 2)
    assert second == ProducerOpened(first.epoch + 2, 3)
    message = refused(cluster, propose(cluster, stamped(first.epoch, 4)), Fenced)
    assert message == (
        f"producer 'p' was opened again with epoch {second.epoch}, the append shows {first.epoch}"
    )
    assert receipt(cluster, propose(cluster, stamped(second.epoch, 4))).offset == 3


def test_a_log_has_so_many_producers_and_a_name_that_is_open_needs_no_room() -> None:
    cluster = led(1, config(producers=2))
    for name in ("p", "q"):
        open_producer(cluster, name)
    message = refused(cluster, operate(cluster, opening("r")), TooManyProducers)
    assert message == "the log has 2 producers, limit 2: 'r' must wait until one expires"
    open_producer(cluster, "q", 2)


def test_a_repeat_that_is_not_the_same_batch_is_a_mistake() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    propose(cluster, stamped(epoch, 1), count=2)
    refused(cluster, propose(cluster, stamped(epoch, 1), count=3), InvalidArgument)
    refused(cluster, propose(cluster, stamped(epoch, 2), count=1), InvalidArgument)


def test_a_repeat_beyond_the_window_is_known_without_its_place() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p", window=2).epoch
    receipts = [receipt(cluster, propose(cluster, stamped(epoch, n))) for n in (1, 2, 3)]
    refused(cluster, propose(cluster, stamped(epoch, 1)), Duplicate)
    again = [receipt(cluster, propose(cluster, stamped(epoch, n))) for n in (2, 3)]
    assert again == receipts[1:]


def test_a_producer_that_was_idle_for_its_expiry_is_forgotten_by_an_entry() -> None:
    cluster = led(3)
    epoch = open_producer(cluster, "p").epoch
    assert opening("p").expiry_us == SECOND_US
    cluster.run(2000)  # ten seconds are between two looks
    assert EntryKind.PRODUCER in kinds(cluster)[1:]
    assert len(cluster.engine("n1").state.producers) == 0
    token = propose(cluster, stamped(epoch, 1))
    cluster.settle()
    refused(cluster, token, UnknownProducer)
    assert_same(cluster)


def test_a_look_that_forgets_some_producers_is_followed_by_another_soon() -> None:
    """One look forgets a bounded number: at one look in ten seconds, clients that open a producer
    for each piece of work would meet TOO_MANY_PRODUCERS."""
    cluster = led(1)
    for number in range(3 * EPOCHS_MAX):
        operate(cluster, opening(f"p{number}"))
    cluster.run(1)
    producers = cluster.engine("n1").state.producers
    assert len(producers) == 3 * EPOCHS_MAX
    run_until(cluster, lambda: len(producers) < 3 * EPOCHS_MAX, 2500)
    cluster.run(60)
    assert len(producers) == 0


def test_a_producer_that_writes_is_not_forgotten() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    for sequence in range(1, 31):
        receipt(cluster, propose(cluster, stamped(epoch, sequence)))
        cluster.run(90)
    assert len(cluster.engine("n1").state.producers) == 1


# -- joining what is logged already ------------------------------------------------------------


def test_a_repeat_of_a_pending_batch_waits_for_it_and_gets_its_receipt() -> None:
    cluster = stuck()
    operate(cluster, opening("p"))
    unstick(cluster)
    first = propose(cluster, stamped(2, 1))
    again = propose(cluster, stamped(2, 1))
    both = at_once(cluster, [stamped(2, 1), stamped(2, 2)])
    assert not {first, again, *both} & set(cluster.answers)
    assert cluster.engine("n1").pending_appends == 4
    unstick(cluster)
    assert receipt(cluster, first) == receipt(cluster, again) == receipt(cluster, both[0])
    assert receipt(cluster, both[1]).offset == 1
    assert cluster.engine("n1").state.end == 2
    assert cluster.engine("n1").pending_appends == 0


def test_a_repeat_within_one_turn_joins_the_entry_that_is_being_made() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    tokens = at_once(cluster, [stamped(epoch, 1), stamped(epoch, 1), stamped(epoch, 2)])
    cluster.settle()
    answers = [receipt(cluster, token) for token in tokens]
    assert answers[0] == answers[1]
    assert [answer.offset for answer in answers] == [0, 0, 1]


def test_a_repeated_opening_opens_once() -> None:
    cluster = stuck()
    first, again = operate(cluster, opening("p")), operate(cluster, opening("p"))
    assert not {first, again} & set(cluster.answers)
    unstick(cluster)
    assert opened(cluster, first) == opened(cluster, again) == ProducerOpened(2, 0)
    assert kinds(cluster) == [EntryKind.PRODUCER]


def test_a_late_copy_of_an_opening_fences_off_no_successor() -> None:
    """The first client sent its opening twice, and the first copy stays on the network until a
    second client has opened the name."""
    cluster = led(3)
    late = again = replace(opening("p", 1), known=0)
    first = answer_to(cluster, again)
    assert not first.held
    asked = replace(opening("p", 2), known=0)
    held = answer_to(cluster, asked)
    assert held == ProducerOpened(first.epoch, 0, held=True)
    second = answer_to(cluster, replace(asked, known=held.epoch))
    assert not second.held
    assert answer_to(cluster, late) == ProducerOpened(second.epoch, 0, held=True)
    token = propose(cluster, stamped(second.epoch, 1))
    cluster.run(1)
    assert receipt(cluster, token).offset == 0


def answer_to(cluster: HandCluster, operation: OpenProducer) -> ProducerOpened:
    token = operate(cluster, operation)
    cluster.run(1)
    return opened(cluster, token)


def test_that_a_name_is_held_is_told_once_that_is_committed() -> None:
    cluster = stuck()
    first = operate(cluster, opening("p", 1))
    second = operate(cluster, replace(opening("p", 2), known=0))
    assert not {first, second} & set(cluster.answers)
    unstick(cluster)
    assert opened(cluster, second) == replace(opened(cluster, first), held=True)


@pytest.mark.parametrize("known", [True, False])
def test_what_an_earlier_leader_logged_is_known_to_the_next(known: bool) -> None:
    cluster = led(3)
    epoch = open_producer(cluster, "p").epoch
    token = propose(cluster, stamped(epoch, 1))
    if known:
        cluster.run(1)
        assert receipt(cluster, token).index == 3
    else:
        cluster.deliver_all()  # on all disks, and the leader does not know
        cluster.table.clear()
    cluster.crash("n1")
    elect(cluster, "n2")
    again = propose(cluster, stamped(epoch, 1), name="n2")
    cluster.run(1)
    assert receipt(cluster, again)[:4] == (0, 1, 3, 1)
    assert cluster.engine("n2").state.end == 1
