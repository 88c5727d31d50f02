"""The simulator's own account of the state: it notices every broken rule, and explains exactly the
answers that were right."""

from __future__ import annotations

import pytest

from quorate.commands import OpenProducer, ProducerOpened, ProducerStamp, SetFence
from quorate.entry import make_entry
from quorate.entry_body import Stamp, pack_batches
from quorate.errors import Duplicate, Fenced, InvalidArgument, OffsetMismatch, UnknownProducer
from quorate.state.judge import UNCONDITIONAL, AppendConditions
from quorate.state.operations import ExpireProducers, encode_operation
from quorate.types import ORIGIN, EntryKind, Index, Position, Term
from verification.sim.ledger import PAYLOAD_MARK, Ledger, Sent
from verification.sim.violation import Violation

SECOND_US = 1_000_000


class Scribe:
    """Makes entries one after the other, right or wrong, and shows them to a ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.time = 0
        self._last: Position = ORIGIN

    @property
    def index(self) -> int:
        return self._last.index

    def batch(
        self,
        payload: int,
        conditions: AppendConditions = UNCONDITIONAL,
        *,
        count: int = 1,
        base: int | None = None,
        stamp: tuple[int, int] | None = None,
    ) -> None:
        """Send a batch and log it, stamped as it was sent unless told otherwise."""
        self.ledger.send(payload, Sent(count, conditions))
        self.log(payload, conditions, count=count, base=base, stamp=stamp)

    def log(
        self,
        payload: int,
        conditions: AppendConditions = UNCONDITIONAL,
        *,
        count: int = 1,
        base: int | None = None,
        stamp: tuple[int, int] | None = None,
    ) -> None:
        if stamp is None and conditions.producer is not None:
            stamp = conditions.producer.epoch, conditions.producer.sequence
        stamps = [Stamp(0, *stamp)] if stamp is not None else []
        body = pack_batches([(str(payload).encode() + PAYLOAD_MARK, count)], stamps)
        base = self.ledger.ends[-1] if base is None else base
        self._apply(EntryKind.DATA, body, base, count, 1, len(stamps))

    def operate(self, operation: OpenProducer | ExpireProducers | SetFence) -> int:
        kind, body = encode_operation(operation)
        self._apply(kind, body, self.ledger.ends[-1])
        return self.index

    def _apply(
        self,
        kind: EntryKind,
        body: bytes,
        base: int,
        count: int = 0,
        runs: int = 0,
        stamps: int = 0,
    ) -> None:
        entry = make_entry(
            self._last, Term(1), kind, body, base_offset=base, count=count,
            append_time=self.time, runs=runs, stamps=stamps,
        )  # fmt: skip
        self._last = entry.position
        self.ledger.apply(entry)


def opening(name: str = "p", number: int = 1, window: int = 2) -> OpenProducer:
    return OpenProducer(name, number.to_bytes(16, "little"), window, SECOND_US)


def stamped(epoch: int, sequence: int, fence: str | None = None) -> AppendConditions:
    return AppendConditions(ProducerStamp("p", epoch, sequence), fence)


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


def broken(rule: str) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, check=lambda violation: violation.rule == rule)


# -- entries -----------------------------------------------------------------------------------


def test_what_is_right_is_placed(scribe: Scribe) -> None:
    scribe.batch(1, count=3)
    epoch = scribe.operate(opening())
    scribe.batch(2, stamped(epoch, 1), count=2)
    scribe.operate(SetFence("f", None))
    scribe.batch(3, stamped(epoch, 3, "f"))
    assert scribe.ledger.placed == {1: (1, 0), 2: (3, 3), 3: (5, 5)}
    assert scribe.ledger.ends == [0, 3, 3, 5, 5, 6]
    assert scribe.ledger.fences == [None, None, None, None, "f", "f"]


def test_a_batch_that_nobody_sent(scribe: Scribe) -> None:
    with broken("C2"):
        scribe.log(1)


def test_a_batch_that_stands_twice(scribe: Scribe) -> None:
    scribe.batch(1)
    with broken("C3"):
        scribe.log(1)


def test_a_batch_that_was_refused(scribe: Scribe) -> None:
    scribe.ledger.refused.add(1)
    with broken("C5"):
        scribe.batch(1)


def test_an_offset_that_was_given_already(scribe: Scribe) -> None:
    scribe.batch(1)
    with broken("dense-offsets"):
        scribe.batch(2, base=0)


def test_an_append_time_that_went_back(scribe: Scribe) -> None:
    scribe.time = 2
    scribe.batch(1)
    scribe.time = 1
    with broken("append-time"):
        scribe.batch(2)


@pytest.mark.parametrize("sequence", [1, 3])
def test_a_sequence_that_does_not_follow(scribe: Scribe, sequence: int) -> None:
    epoch = scribe.operate(opening())
    scribe.batch(1, stamped(epoch, 1))
    with broken("C4"):
        scribe.batch(2, stamped(epoch, sequence))


def test_a_stamp_that_is_not_the_one_that_was_sent(scribe: Scribe) -> None:
    epoch = scribe.operate(opening())
    with broken("C4"):
        scribe.batch(1, stamped(epoch, 1), stamp=(epoch, 2))
    with broken("C3"):
        scribe.batch(2, stamp=(epoch, 1))


def test_a_zombie_that_writes(scribe: Scribe) -> None:
    first = scribe.operate(opening())
    scribe.operate(opening(number=2))
    with broken("C3"):
        scribe.batch(1, stamped(first, 1))


def test_an_opening_that_stands_twice(scribe: Scribe) -> None:
    scribe.operate(opening())
    with broken("C3"):
        scribe.operate(opening())


def test_a_batch_that_shows_another_fence(scribe: Scribe) -> None:
    scribe.operate(SetFence("f", None))
    with broken("fence"):
        scribe.batch(1)


def test_a_fence_that_replaces_another_than_was_expected(scribe: Scribe) -> None:
    with broken("fence"):
        scribe.operate(SetFence("f", "e"))


def test_a_batch_where_it_did_not_expect_the_end(scribe: Scribe) -> None:
    scribe.batch(1, AppendConditions(expect_offset=0))
    with broken("expect"):
        scribe.batch(2, AppendConditions(expect_offset=0))


def test_a_producer_that_is_forgotten_too_early(scribe: Scribe) -> None:
    epoch = scribe.operate(opening())
    scribe.time = SECOND_US
    scribe.batch(1, stamped(epoch, 1))
    scribe.time = 2 * SECOND_US - 1
    with broken("expiry"):
        scribe.operate(ExpireProducers((epoch,)))
    scribe.time = 2 * SECOND_US
    scribe.operate(ExpireProducers((epoch,)))
    assert scribe.ledger.expired == 1
    free = scribe.operate(opening())
    assert scribe.ledger.replaced("p", free) == 0
    assert scribe.ledger.replaced("p", scribe.operate(opening(number=2))) == free


# -- answers -----------------------------------------------------------------------------------


def test_an_end_explains_a_mismatch_only_while_it_was_the_end(scribe: Scribe) -> None:
    scribe.batch(1)
    scribe.ledger.send(2, Sent(1, AppendConditions(expect_offset=1)))
    mismatch = OffsetMismatch("")
    assert scribe.ledger.explains(mismatch, 2, since=0)
    assert not scribe.ledger.explains(mismatch, 2, since=1), "what was before the question is over"
    scribe.batch(3)
    assert scribe.ledger.explains(mismatch, 2, since=1)


def test_a_fence_or_a_later_epoch_explains_fenced(scribe: Scribe) -> None:
    epoch = scribe.operate(opening())
    scribe.ledger.send(1, Sent(1, stamped(epoch, 1)))
    assert not scribe.ledger.explains(Fenced(""), 1, since=scribe.index)
    assert not scribe.ledger.explains(UnknownProducer(""), 1, since=scribe.index)
    scribe.operate(opening(number=2))
    assert scribe.ledger.explains(Fenced(""), 1, since=scribe.index)
    scribe.ledger.send(2, Sent(1, UNCONDITIONAL))
    assert not scribe.ledger.explains(Fenced(""), 2, since=0)
    scribe.operate(SetFence("f", None))
    assert scribe.ledger.explains(Fenced(""), 2, since=0)
    assert scribe.ledger.explains_fence(SetFence("g", None), since=scribe.index)
    assert not scribe.ledger.explains_fence(SetFence("g", "f"), since=scribe.index)


def test_a_duplicate_is_in_the_log_and_its_place_no_longer_kept(scribe: Scribe) -> None:
    epoch = scribe.operate(opening(window=2))
    for sequence in (1, 2, 3):
        scribe.batch(sequence, stamped(epoch, sequence))
    scribe.ledger.send(4, Sent(1, stamped(epoch, 4)))
    explained = [scribe.ledger.explains(Duplicate(""), payload, 0) for payload in (1, 2, 3, 4)]
    assert explained == [True, False, False, False]


def test_nothing_explains_what_no_state_leads_to(scribe: Scribe) -> None:
    scribe.batch(1)
    assert not scribe.ledger.explains(InvalidArgument(""), 1, since=0)


def test_an_opening_is_explained_by_its_entry(scribe: Scribe) -> None:
    first = scribe.operate(opening())
    scribe.batch(1, stamped(first, 1), count=4)
    ledger = scribe.ledger
    assert ledger.explains_opening(opening(), ProducerOpened(first, 0))
    assert ledger.explains_opening(opening(), ProducerOpened(first, 4)), (
        "asked for again after the batch"
    )
    assert not ledger.explains_opening(opening(), ProducerOpened(first, 5))
    assert not ledger.explains_opening(opening(), ProducerOpened(first + 1, 0))
    assert not ledger.explains_opening(opening(number=2), ProducerOpened(first, 0))
    assert not ledger.explains_opening(opening("q"), ProducerOpened(first, 0))
    second = scribe.operate(opening(number=2))
    assert ledger.explains_opening(opening(number=2), ProducerOpened(second, 4))
    assert not ledger.explains_opening(opening(number=2), ProducerOpened(second, 0))


def test_too_many_are_as_many_as_were_open_at_once(scribe: Scribe) -> None:
    first = scribe.operate(opening("p"))
    scribe.operate(opening("q"))
    assert scribe.ledger.explains_crowd(2, since=0)
    assert not scribe.ledger.explains_crowd(3, since=0)
    scribe.time = 2 * SECOND_US
    scribe.operate(ExpireProducers((first,)))
    assert not scribe.ledger.explains_crowd(2, since=Index(3))
    assert scribe.ledger.explains_crowd(2, since=Index(2))
