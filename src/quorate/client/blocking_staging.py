"""Blocking calls to stage and publish a batch, for a task and a driver.

A task that waited for each chunk would spend its time waiting. So some chunks are on their way at
once; a leader takes them in order, and one that overtook another is sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.client.staging import (
    abort,
    chunk_bytes_max,
    last_published,
    publish,
    record_bytes_max,
    stage,
)
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.blocking import Log
    from quorate.client.results import Receipt
    from quorate.client.session import Session
    from quorate.client.staging import Chunk, Part, Publication

__all__ = [
    "Stager",
    "abandon_all",
    "abort_staged",
    "largest_chunk",
    "largest_record",
    "last_publication",
    "last_publications",
    "publish_staged",
]

# Chunks on their way at once: enough to keep a leader busy, few beside its limits.
DEPTH = 4
# Seconds to drop the chunks of a failed write: its error is to be raised soon.
ABANDON_S = 10.0


class Stager:
    """Stages the chunks of one attempt in one log."""

    def __init__(self, log: Log, first: Chunk) -> None:
        self._log = log
        self._first = first
        # Chunks given, whether or not the log needed them.
        self.chunks = 0
        # The batch, or a later one, is published: chunks given from then on are not sent.
        self.published = False
        # The log took at least one chunk.
        self.accepted = False
        self._under_way: deque[asyncio.Task[bool]] = deque()

    def send(self, batch: bytes) -> None:
        """Stage ``batch`` as the next chunk. Raises the error of an earlier chunk."""
        chunk = self._first._replace(number=self.chunks)
        self.chunks += 1
        if not self.published:
            self._log._client._run(lambda session: self._begin(session, chunk, batch))

    def finish(self) -> None:
        """Wait until all chunks are staged."""
        self._log._client._run(self._settle_all)

    async def _begin(self, session: Session, chunk: Chunk, batch: bytes) -> None:
        if len(self._under_way) >= DEPTH:
            await self._settle()
        self._under_way.append(session.ahead(stage(session, self._log._route, chunk, batch)))

    async def _settle_all(self, _: Session) -> None:
        while self._under_way:
            await self._settle()

    async def _settle(self) -> None:
        try:
            staged = await self._under_way.popleft()
        except BaseException:
            # A leader takes no chunk after one that is missing.
            while self._under_way:
                self._under_way.pop().cancel()
            raise
        if staged:
            self.accepted = True
        else:
            self.published = True

    async def _abandon(self, session: Session) -> None:
        """Abort this attempt after its chunks under way: one behind the abort would stay."""
        with suppress(QuorateError):
            await self._settle_all(session)
        first = self._first
        await abort(session, self._log._route, first.app, first.batch_id, first.attempt)


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
    """Blocking form of :func:`quorate.client.staging.chunk_bytes_max`."""
    return log._client._run(lambda session: chunk_bytes_max(session, log._route))


def largest_record(log: Log) -> int:
    """Blocking form of :func:`quorate.client.staging.record_bytes_max`."""
    return log._client._run(lambda session: record_bytes_max(session, log._route))


def publish_staged(
    log: Log, app: str, batch_id: int, parts: Sequence[Part], digest: bytes, *, once: bool = False
) -> Receipt:
    """Blocking form of :func:`quorate.client.staging.publish`."""
    return log._client._run(
        lambda session: publish(session, log._route, app, batch_id, parts, digest, once=once)
    )


def abort_staged(log: Log, app: str, batch_id: int, attempt: bytes | None = None) -> int:
    """Blocking form of :func:`quorate.client.staging.abort`."""
    return log._client._run(lambda session: abort(session, log._route, app, batch_id, attempt))


def last_publication(log: Log, app: str) -> Publication | None:
    """Blocking form of :func:`quorate.client.staging.last_published`."""
    return log._client._run(lambda session: last_published(session, log._route, app))


def last_publications(logs: Sequence[Log], app: str) -> list[Publication | None]:
    """The last publish of ``app`` in several logs of one client, all asked at once."""

    async def ask(session: Session) -> list[Publication | None]:
        return await asyncio.gather(*(last_published(session, log._route, app) for log in logs))

    return logs[0]._client._run(ask) if logs else []
