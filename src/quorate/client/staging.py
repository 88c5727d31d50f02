"""Writing a batch that becomes visible at once: many writers stage chunks, one publishes them.

Stagers and publisher need not be the same process: they share only names. A retry of either call
gets the first answer, so both are sent again until there is an answer.

A writer that waited for each chunk would spend its time waiting. So some chunks are on their way at
once; a leader takes them in order, and one that overtook another is sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from quorate.client.retries import Idempotency
from quorate.commands import PARTS_MAX, Abort, Part, Publish
from quorate.errors import Duplicate, QuorateError, ReplayMismatch, StageExpired, TooLarge
from quorate.wire.calls import LastPublished, LogCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.blocking import Log
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.commands import ChunkLabel, ChunkStaged, Receipt
    from quorate.wire.handshake import Welcome

__all__ = [
    "LastPublish",
    "Stager",
    "abandon_all",
    "abort_staged",
    "largest_chunk",
    "largest_record",
    "last_publication",
    "last_publications",
    "publish_staged",
]

# Bytes of a chunk besides its records: a head, offsets, padding.
CHUNK_ROOM = 1024
# Chunks on their way at once: enough to keep a leader busy, far below its limits.
DEPTH = 4
# Seconds to drop the chunks of a failed write: its error is to be raised soon.
ABANDON_S = 10.0
# After a lost answer these errors are as good as one: the batch was published by this or another
# writer, or cannot be published with the chunks staged for it.
_CONCLUSIVE = (Duplicate, ReplayMismatch, StageExpired)


class LastPublish(NamedTuple):
    """The last publish of an app."""

    batch_id: int
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    digest: bytes


class Stager:
    """Stages the chunks of one attempt in one log, hidden from readers."""

    def __init__(self, log: Log, first: ChunkLabel) -> None:
        self._log = log
        self._first = first
        # Chunks given, whether or not the log needed them.
        self.chunks = 0
        # The batch, or a later one, is published: chunks given from then on are not sent.
        self.published = False
        # The log took at least one chunk.
        self.accepted = False
        self._under_way: deque[asyncio.Task[ChunkStaged]] = deque()

    def send(self, batch: bytes) -> None:
        """Stage ``batch`` as the next chunk. Raises the error of an earlier chunk."""
        label = replace(self._first, number=self.chunks)
        self.chunks += 1
        if not self.published:
            self._log._client._run(lambda session: self._begin(session, label, batch))

    def finish(self) -> None:
        """Wait until all chunks are staged."""
        self._log._client._run(self._await_all)

    async def _begin(self, session: Session, label: ChunkLabel, batch: bytes) -> None:
        if len(self._under_way) >= DEPTH:
            await self._await_oldest()
        route = self._log._route
        what = f"stage for batch {label.batch_id} of {label.app} to {route.name}"
        call = LogCall(route.wire, label)
        work = session.change(route, what, call, Idempotency.IDEMPOTENT, batch=batch)
        self._under_way.append(session.start_task(work))

    async def _await_all(self, _: Session) -> None:
        while self._under_way:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        try:
            staged = await self._under_way.popleft()
        except BaseException:
            # A leader takes no chunk after one that is missing.
            while self._under_way:
                self._under_way.pop().cancel()
            raise
        if staged.published:
            self.published = True
        else:
            self.accepted = True

    async def _abandon(self, session: Session) -> None:
        """Abort this attempt after its chunks under way: one behind the abort would stay."""
        with suppress(QuorateError):
            await self._await_all(session)
        first = self._first
        await _abort(session, self._log._route, first.app, first.batch_id, first.attempt)


def abandon_all(stagers: Sequence[Stager]) -> None:
    """Drop the chunks of these stagers, of one client, as far as possible. Chunks expire in any
    case, so no error is raised: it would hide why they are dropped."""

    async def abandon(session: Session) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ABANDON_S):
                work = (stager._abandon(session) for stager in stagers)
                await asyncio.gather(*work, return_exceptions=True)

    with suppress(QuorateError):
        if stagers:
            stagers[0]._log._client._run(abandon)


def largest_chunk(log: Log) -> int:
    """The most bytes of a chunk: limits.batch_bytes, which is the same on all nodes."""
    return _welcome(log).batch_bytes


def largest_record(log: Log) -> int:
    """The most bytes of a record alone in its chunk, by the limits of the node asked."""
    welcome = _welcome(log)
    return min(welcome.record_bytes, welcome.batch_bytes - CHUNK_ROOM)


def _welcome(log: Log) -> Welcome:
    return log._client._run(lambda session: session.welcome(log._route))


def publish_staged(
    log: Log,
    app: str,
    batch_id: int,
    parts: Sequence[Part],
    digest: bytes,
    fence: str | None = None,
    *,
    once: bool = False,
) -> Receipt:
    """Make the chunks of ``parts`` visible, in this order and with consecutive offsets.

    A batch that is published already gets its first receipt, if it had as many records and the same
    ``digest`` of 32 bytes; otherwise it raises ReplayMismatch. Raises StageExpired if a chunk is
    not staged any more, and no record is visible then. ``once`` says that ``app`` will stage no
    more: the log then remembers it for about an hour, not for months.
    """
    if len(parts) > PARTS_MAX:
        raise TooLarge(
            f"batch {batch_id} of {app} has rows in {len(parts)} partitions, limit {PARTS_MAX}: "
            f"gather them before they are staged, in Spark with coalesce"
        )
    command = Publish(
        app=app, batch_id=batch_id, parts=tuple(parts), digest=digest, fence=fence, once=once
    )
    route = log._route
    what = f"publish of batch {batch_id} of {app} to {route.name}"
    call = LogCall(route.wire, command)

    async def publish(session: Session) -> Receipt:
        receipt = await session.change(route, what, call, Idempotency.IDEMPOTENT, _CONCLUSIVE)
        route.saw(receipt.offset + receipt.count)
        return receipt

    return log._client._run(publish)


def abort_staged(log: Log, app: str, batch_id: int, attempt: bytes | None = None) -> int:
    """Drop the chunks staged for a batch, by one attempt or by all: how many attempts were dropped.

    Never undoes a publish.
    """
    return log._client._run(lambda session: _abort(session, log._route, app, batch_id, attempt))


async def _abort(
    session: Session, route: Route, app: str, batch_id: int, attempt: bytes | None
) -> int:
    call = LogCall(route.wire, Abort(app=app, batch_id=batch_id, attempt=attempt))
    what = f"abort of batch {batch_id} of {app} in {route.name}"
    aborted = await session.change(route, what, call, Idempotency.IDEMPOTENT)
    return aborted.attempts


def last_publication(log: Log, app: str) -> LastPublish | None:
    """The last publish of ``app``, of all acknowledged before the call; None if the log remembers
    none."""
    [last] = last_publications([log], app)
    return last


def last_publications(logs: Sequence[Log], app: str) -> list[LastPublish | None]:
    """The last publish of ``app`` in several logs of one client, all asked at once."""

    async def ask(session: Session) -> list[LastPublish | None]:
        return await asyncio.gather(*(_last(session, log._route, app) for log in logs))

    return logs[0]._client._run(ask) if logs else []


async def _last(session: Session, route: Route, app: str) -> LastPublish | None:
    call = LastPublished(route.wire, app)
    found = await session.ask(route, f"last publish of {app} to {route.name}", call)
    if found.batch_id is None:
        return None
    return LastPublish(
        batch_id=found.batch_id,
        offset=found.offset,
        count=found.count,
        index=found.index,
        digest=found.digest,
    )
