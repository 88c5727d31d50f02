"""What a leader decides before it logs anything: take it, know it again, or refuse it.

A judge is shown the state that is ahead: what is applied and all that this leader has logged since.
None means: log it. Whatever else it says rests on that state, which is not committed yet, so the
caller sees to it that nobody hears of it too early: a refusal that is not retriable, and a place in
the log, are answers like a read.

What no state could accept is refused before a judge is asked: operations are checked when they are
made, terms of an append by :func:`check_terms`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import (
    Duplicate,
    Fenced,
    InvalidArgument,
    OffsetMismatch,
    OutOfSequence,
    QuorateError,
    TooManyProducers,
    UnknownProducer,
)
from quorate.state.operations import check_name

if TYPE_CHECKING:
    from quorate.state.operations import OpenProducer, SetFence
    from quorate.state.producers import Producer, Run
    from quorate.state.state import State

__all__ = [
    "PLAIN",
    "AppendTerms",
    "Opened",
    "ProducerStamp",
    "check_terms",
    "is_final",
    "judge_append",
    "judge_fence",
    "judge_open",
]


class ProducerStamp(NamedTuple):
    """Who sends a batch, and where it stands among all that the producer sent."""

    name: str
    # As the opening answered it.
    epoch: int
    # Of the batch's first record; from 1.
    sequence: int


class AppendTerms(NamedTuple):
    """On what terms a batch may be logged. None asks for nothing."""

    producer: ProducerStamp | None = None
    # None: the log must have none either.
    fence: str | None = None
    # Where the log must end.
    expect_offset: int | None = None


# On no terms at all.
PLAIN = AppendTerms()


class Opened(NamedTuple):
    """The answer to an opening: under what epoch to write, and from where on."""

    epoch: int
    last_sequence: int


def check_terms(terms: AppendTerms) -> None:
    """Raise InvalidArgument for terms that no state could accept: answered at once."""
    producer, fence, expect_offset = terms
    if producer is not None:
        check_name("producer name", producer.name)
        if producer.epoch < 1 or producer.sequence < 1:
            raise InvalidArgument(
                f"producer {producer.name!r}: epoch {producer.epoch} and sequence "
                f"{producer.sequence} must be at least 1"
            )
    if fence is not None:
        check_name("fence", fence)
    if expect_offset is not None and expect_offset < 0:
        raise InvalidArgument(f"expected offset is {expect_offset}, which no log ends at")


def is_final(error: QuorateError) -> bool:
    """Whether a judge's refusal must be answered as a read. The caller will not ask again, so what
    it rests on must be committed, and must still be the newest that there is."""
    return not error.retriable


def judge_append(state: State, count: int, terms: AppendTerms) -> Run | QuorateError | None:
    """A run says: it is in the log already, there. The order is part of the contract: what is in
    the log is known again whatever fence or end came after it."""
    stamp, fence, expect_offset = terms
    if stamp is not None:
        verdict = _judge_stamp(state.producers.get(stamp.name), count, stamp)
        if verdict is not None:
            return verdict
    if fence != state.fence:
        return Fenced(f"the log has {_fence(state.fence)}, the append shows {_fence(fence)}")
    if expect_offset is not None and expect_offset != state.end:
        return OffsetMismatch(f"the log ends at offset {state.end}, expected {expect_offset}")
    return None


def _judge_stamp(
    producer: Producer | None, count: int, stamp: ProducerStamp
) -> Run | QuorateError | None:
    name, epoch, sequence = stamp
    if producer is None:
        return UnknownProducer(f"producer {name!r} is not open here, or was idle for too long")
    if epoch < producer.epoch:
        return Fenced(
            f"producer {name!r} was opened again with epoch {producer.epoch}, "
            f"the append shows {epoch}"
        )
    if epoch > producer.epoch:
        return UnknownProducer(
            f"producer {name!r} has epoch {producer.epoch}, the append shows {epoch}"
        )
    expected = producer.last_sequence + 1
    if sequence > expected:
        return OutOfSequence(
            f"producer {name!r} goes on with sequence {expected}, the append shows {sequence}"
        )
    return _judge_repeat(producer, sequence, count) if sequence < expected else None


def _judge_repeat(producer: Producer, sequence: int, count: int) -> Run | QuorateError:
    """A batch of which at least the first record is in the log already."""
    name, last_sequence, runs = producer.name, producer.last_sequence, producer.runs
    place = bisect_left(runs, (sequence,))
    if place < len(runs) and runs[place][:2] == (sequence, count):
        return runs[place]
    last = sequence + count - 1
    kept = runs[0].sequence if runs else 1
    if sequence >= 1 and last < kept:
        return Duplicate(
            f"producer {name!r}: sequences {sequence} to {last} are in the log, their offset is "
            f"known from {kept} on only"
        )
    return InvalidArgument(
        f"producer {name!r}: sequences {sequence} to {last} are not one batch of those that the "
        f"log has up to {last_sequence}: send the same batches again"
    )


def judge_open(
    state: State, operation: OpenProducer, producers_max: int
) -> Opened | QuorateError | None:
    """An opening that is repeated is answered as it was; another one takes the name over."""
    producer = state.producers.get(operation.name)
    if producer is None:
        if len(state.producers) < producers_max:
            return None
        return TooManyProducers(
            f"the log has {len(state.producers)} producers, limit {producers_max}: "
            f"{operation.name!r} must wait until one expires"
        )
    if producer.instance != operation.instance:
        return None
    return Opened(producer.epoch, producer.last_sequence)


def judge_fence(state: State, operation: SetFence) -> QuorateError | None:
    if operation.expect != state.fence:
        return Fenced(f"the log has {_fence(state.fence)}, expected was {_fence(operation.expect)}")
    return None


def _fence(fence: str | None) -> str:
    return "no fence" if fence is None else f"the fence {fence!r}"
