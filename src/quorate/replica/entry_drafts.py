"""Drafts of entries for requests that have one to themselves: entry and answer, or only the answer.

This module logs no entry. The caller has the state that is ahead, and logs a draft at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import (
    Abort,
    Aborted,
    ChunkStaged,
    FenceChanged,
    OpenProducer,
    ProducerOpened,
    Publish,
    SetFence,
)
from quorate.entry_body import CHUNK_BYTES, Publication, encode_publication, encode_stage
from quorate.errors import StageFull
from quorate.replica.engine_io import Stage
from quorate.state.judge import judge_fence, judge_open, judge_publish, judge_stage, rows_of
from quorate.state.operations import (
    DropReason,
    DropStaged,
    ExpireProducers,
    ForgetApps,
    encode_operation,
)
from quorate.state.runs import Run
from quorate.state.state import AGE_STEP_US
from quorate.types import EntryKind, Index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.config import Config, Limits, Timing
    from quorate.errors import QuorateError
    from quorate.replica.engine_io import Operate
    from quorate.state.state import State
    from quorate.types import Term

__all__ = ["Draft", "Parts", "Prepared", "draft", "draft_expiries", "draft_room"]

# An answer without the facts that only the commit tells.
Prepared = Run | ProducerOpened | FenceChanged | ChunkStaged | Aborted


class Parts(NamedTuple):
    """The parts of an entry that its proposer chooses."""

    kind: EntryKind
    body: bytes
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which is not called
    runs: int = 0
    stamps: int = 0


class Draft(NamedTuple):
    """The next entry, and the answer to give when it is applied."""

    entry: Parts
    answer: Prepared


def draft(
    item: Stage | Operate, ahead: State, limits: Limits, last: Index, term: Term
) -> Draft | Prepared | QuorateError:
    """The draft for ``item``, or the answer if no entry is needed. ``last`` is the last index of
    the log, ``term`` the term of its leader."""
    index = Index(last + 1)
    if isinstance(item, Stage):
        return _draft_stage(item, ahead, limits, index)
    match item.operation:
        case OpenProducer() as opening:
            return _draft_opening(opening, ahead, limits, index)
        case SetFence() as setting:
            verdict = judge_fence(ahead, setting)
            return verdict or Draft(Parts(*encode_operation(setting)), FenceChanged(index))
        case Publish() as publish:
            return _draft_publish(publish, ahead, limits, index, term)
        case Abort(app, batch_id, attempt):
            dropped = ahead.staging.attempts.of_batch(app, batch_id, attempt)
            if not dropped:
                return Aborted(last, 0)
            return Draft(_drop(DropReason.ABORTED, dropped), Aborted(index, len(dropped)))


def _draft_opening(
    operation: OpenProducer, ahead: State, limits: Limits, index: Index
) -> Draft | ProducerOpened | QuorateError:
    verdict = judge_open(ahead, operation, limits.producers)
    if verdict is not None:
        return verdict
    known = ahead.producers.get(operation.name)
    opened = ProducerOpened(index, known.last_sequence if known is not None else 0)
    return Draft(Parts(*encode_operation(operation)), opened)


def _draft_stage(
    item: Stage, ahead: State, limits: Limits, index: Index
) -> Draft | ChunkStaged | QuorateError:
    verdict = judge_stage(ahead, item.label, item.count, item.size, limits)
    if verdict is not None:
        return verdict
    body, rows = encode_stage(item.label, item.batch, item.count)
    return Draft(
        Parts(EntryKind.STAGE, body, runs=1, stamps=rows), ChunkStaged(index, published=False)
    )


def _draft_publish(
    operation: Publish, ahead: State, limits: Limits, index: Index, term: Term
) -> Draft | Run | QuorateError:
    verdict = judge_publish(ahead, operation, limits)
    if verdict is not None:
        return verdict
    rows = rows_of(ahead, operation)
    said = Publication(
        app=operation.app,
        batch_id=operation.batch_id,
        digest=operation.digest,
        once=operation.once,
    )
    count = operation.records
    body = encode_publication(said, rows)
    entry = Parts(EntryKind.PUBLISH, body, count, stamps=len(rows) // CHUNK_BYTES)
    return Draft(entry, Run(0, count, ahead.end, index, term))


def draft_room(item: Stage, ahead: State, now_us: int, config: Config) -> Iterator[Parts]:
    """Entries that make room for ``item`` if the staged chunks are at their cap. The first drops
    the older runs of the same app. If that is not enough, the second drops idle runs of other apps:
    they may be dead, and a log must not be closed to all for a day because one job was killed.

    The caller logs each entry before it asks for the next.
    """
    label, limits, staging = item.label, config.limits, ahead.staging

    def is_full() -> bool:
        return isinstance(judge_stage(ahead, label, item.count, item.size, limits), StageFull)

    if is_full() and (older := staging.older_runs(label.app, label.run)):
        yield _drop(DropReason.REPLACED, older)
    if is_full():
        idle_us = 1000 * config.timing.staged_idle_ms
        age = ahead.age_at(now_us)
        idle = staging.attempts.idle_others(label.app, label.run, age, idle_us)
        if idle:
            yield _drop(DropReason.IDLE, idle)


def draft_expiries(ahead: State, now_us: int, timing: Timing) -> Iterator[Parts]:
    """Entries that forget the producers, attempts and apps that were idle for too long by
    ``now_us``, the next append time. Before them comes a noop if no entry was added for a whole
    step: it lets the log grow older.

    The caller logs each entry before it asks for the next.
    """
    if ahead.remembers and now_us - ahead.append_time >= AGE_STEP_US:
        yield Parts(EntryKind.NOOP, b"")
    expired = ahead.expired(now_us)
    if expired:
        yield Parts(*encode_operation(ExpireProducers(expired)))
    age = ahead.age_at(now_us)
    attempts = ahead.staging.attempts.expired(age, 1000 * timing.staged_expiry_ms)
    if attempts:
        yield _drop(DropReason.EXPIRED, attempts)
    expiries = 1000 * timing.app_expiry_ms, 1000 * timing.once_expiry_ms
    publishes = ahead.staging.idle_apps(age, *expiries)
    if publishes:
        yield Parts(*encode_operation(ForgetApps(publishes)))


def _drop(reason: DropReason, attempts: tuple[int, ...]) -> Parts:
    return Parts(*encode_operation(DropStaged(reason, attempts)))
