"""The judges: a leader's verdict on a request before it is logged: log, known repeat, or refusal.

A judge reads the state ahead: the applied entries and all entries that this leader has logged
since. The verdict None means: log the request. Any other verdict rests on the state ahead, which is
not committed yet, so the caller must not answer too early: a refusal that is not retriable is
answered like a read, and a place in the log is answered once its entry is applied.

A request that no state could accept is refused before it is judged: operations are checked when
they are made, and the conditions of an append by :func:`check_conditions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import ChunkStaged, ProducerOpened, ProducerStamp, check_name
from quorate.errors import (
    Duplicate,
    Fenced,
    InvalidArgument,
    OffsetMismatch,
    OutOfSequence,
    QuorateError,
    ReplayMismatch,
    StageExpired,
    StageFull,
    TooManyProducers,
    UnknownProducer,
)
from quorate.state.runs import Run

if TYPE_CHECKING:
    from quorate.commands import ChunkLabel, OpenProducer, Part, Publish, SetFence
    from quorate.config import Limits
    from quorate.entry_body import Chunk
    from quorate.state.attempts import Attempt
    from quorate.state.producers import ProducerState
    from quorate.state.state import State

__all__ = [
    "UNCONDITIONAL",
    "AppendConditions",
    "check_conditions",
    "is_final",
    "judge_append",
    "judge_fence",
    "judge_open",
    "judge_publish",
    "judge_stage",
    "rows_of",
]


class AppendConditions(NamedTuple):
    """The conditions under which a batch may be logged."""

    # None: the batch belongs to no producer.
    producer: ProducerStamp | None = None
    # The fence that the log must have; None: the log must have no fence.
    fence: str | None = None
    # The offset at which the log must end; None: any offset.
    expect_offset: int | None = None


# The conditions of a batch without producer, fence and expected offset.
UNCONDITIONAL = AppendConditions()


def check_conditions(conditions: AppendConditions) -> None:
    """Raise InvalidArgument for conditions that no state could meet: they need no judge."""
    producer, fence, expect_offset = conditions
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
    """True if a judge's refusal must be answered as a read. The client will not ask again, so the
    state that the refusal rests on must be committed, and must still be the newest one."""
    return not error.retriable


def judge_append(
    state: State, count: int, conditions: AppendConditions
) -> Run | QuorateError | None:
    """Judge a batch of ``count`` records. The verdict is its run if the log has the batch already.

    The order of the checks is part of the contract: a batch that is in the log is known again even
    if the fence or the end of the log has changed since.
    """
    stamp, fence, expect_offset = conditions
    if stamp is not None:
        verdict = _judge_stamp(state.producers.get(stamp.name), count, stamp)
        if verdict is not None:
            return verdict
    if fence != state.fence:
        return _fenced(state, fence)
    if expect_offset is not None and expect_offset != state.end:
        return OffsetMismatch(f"the log ends at offset {state.end}, expected {expect_offset}")
    return None


def _judge_stamp(
    producer: ProducerState | None, count: int, stamp: ProducerStamp
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


def _judge_repeat(producer: ProducerState, sequence: int, count: int) -> Run | QuorateError:
    """Judge a batch of which at least the first record is in the log already."""
    name, last_sequence, runs = producer.name, producer.last_sequence, producer.runs
    found = runs.find(sequence)
    if found is not None and found.count == count:
        return found
    last = sequence + count - 1
    kept = runs[0].sequence if len(runs) else 1
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
) -> ProducerOpened | QuorateError | None:
    """Judge an opening. A repeat gets the first answer; a new instance takes the name over from an
    instance that it knows."""
    producer = state.producers.get(operation.name)
    if producer is None:
        if len(state.producers) < producers_max:
            return None
        return TooManyProducers(
            f"the log has {len(state.producers)} producers, limit {producers_max}: "
            f"{operation.name!r} must wait until one expires"
        )
    held = producer.instance != operation.instance
    if held and (operation.known is None or producer.epoch <= operation.known):
        return None
    return ProducerOpened(producer.epoch, producer.last_sequence, held)


def judge_fence(state: State, operation: SetFence) -> QuorateError | None:
    if operation.expect != state.fence:
        return Fenced(f"the log has {_fence(state.fence)}, expected was {_fence(operation.expect)}")
    return None


# -- staging -------------------------------------------------------------------------------------


def judge_stage(
    state: State, label: ChunkLabel, records: int, size: int, limits: Limits
) -> ChunkStaged | QuorateError | None:
    """Judge a chunk whose batch has ``size`` bytes. STAGE_FULL is the last check."""
    staging = state.staging
    published = staging.app(label.app)
    if published is not None and label.batch_id <= published.batch_id:
        return ChunkStaged(published.index, published=True)
    known = staging.attempts.get(label.app, label.batch_id, label.partition, label.attempt)
    if known is not None and known.run != label.run:
        return InvalidArgument(f"{_described(label)}: its attempt belongs to another run")
    number = known.chunk_count if known is not None else 0
    if label.number > number:
        return OutOfSequence(f"{_described(label)}: its attempt goes on with chunk {number}")
    if known is not None and label.number < number:
        return _judge_repeated_chunk(known.chunk(label.number), label, records)
    if staging.attempts.bytes + size > limits.staged_bytes:
        return StageFull(
            f"{staging.attempts.bytes} bytes are staged already (limits.staged_bytes = "
            f"{limits.staged_bytes})"
        )
    if staging.attempts.chunks >= limits.staged_chunks:
        return StageFull(
            f"{staging.attempts.chunks} chunks are staged already (limits.staged_chunks)"
        )
    return _refuse_crowd(state, label.app, limits)


def _judge_repeated_chunk(
    chunk: Chunk, label: ChunkLabel, records: int
) -> ChunkStaged | QuorateError:
    if chunk.records == records:
        return ChunkStaged(chunk.index, published=False)
    return InvalidArgument(
        f"{_described(label)}: it was staged with {chunk.records} records, not {records}"
    )


def _refuse_crowd(state: State, app: str, limits: Limits) -> QuorateError | None:
    """Refuse a new app if the log remembers as many apps as ``limits`` allow."""
    staging = state.staging
    if staging.knows(app) or staging.crowd < limits.apps:
        return None
    return StageFull(f"the log has {staging.crowd} apps, limit {limits.apps} (limits.apps)")


def judge_publish(state: State, operation: Publish, limits: Limits) -> Run | QuorateError | None:
    """Judge a publish. The verdict is its run if the log has the publish already: the last publish
    of an app is known again even if the fence has changed since."""
    staging, batch_id = state.staging, operation.batch_id
    app = staging.app(operation.app)
    if app is not None and batch_id < app.batch_id:
        return Duplicate(
            f"app {app.name!r} has published batch {app.batch_id}; where {batch_id} is, is no "
            f"longer known"
        )
    if app is not None and batch_id == app.batch_id:
        if (operation.records, operation.digest) == (app.count, app.digest):
            return Run(0, app.count, app.offset, app.index, app.term)
        return ReplayMismatch(
            f"app {app.name!r} has published batch {batch_id} with {app.count} records and digest "
            f"{app.digest.hex()}; this one has {operation.records} and {operation.digest.hex()}"
        )
    if operation.fence != state.fence:
        return _fenced(state, operation.fence)
    runs = set()
    found = staging.attempts.named(operation.app, batch_id, operation.parts)
    for part, attempt in zip(operation.parts, found, strict=True):
        if attempt is None or attempt.chunk_count < part.chunks:
            return StageExpired(
                f"batch {batch_id} of {operation.app!r}: of the {part.chunks} chunks of partition "
                f"{part.partition} {attempt.chunk_count if attempt is not None else 0} are staged: "
                f"they were dropped, or never came"
            )
        if (attempt.chunk_count, attempt.records) != part[2:]:
            return _other_part(attempt, part)
        runs.add(attempt.run)
    if len(runs) > 1:
        return InvalidArgument(f"batch {batch_id} of {operation.app!r}: its parts are of two runs")
    return _refuse_crowd(state, operation.app, limits)


def rows_of(state: State, operation: Publish) -> bytes:
    """The staged chunks of a publish that its judge let pass, packed, in the order of its parts."""
    found = state.staging.attempts.named(operation.app, operation.batch_id, operation.parts)
    return b"".join(attempt.rows for attempt in found if attempt is not None)


def _other_part(attempt: Attempt, part: Part) -> InvalidArgument:
    return InvalidArgument(
        f"partition {part.partition} has {attempt.chunk_count} chunks with {attempt.records} "
        f"records staged, the publish names {part.chunks} and {part.records}"
    )


def _described(label: ChunkLabel) -> str:
    return (
        f"chunk {label.number} of partition {label.partition}, batch {label.batch_id} of "
        f"{label.app!r}"
    )


def _fenced(state: State, shown: str | None) -> Fenced:
    return Fenced(f"the log has {_fence(state.fence)}, the append shows {_fence(shown)}")


def _fence(fence: str | None) -> str:
    return "no fence" if fence is None else f"the fence {fence!r}"
