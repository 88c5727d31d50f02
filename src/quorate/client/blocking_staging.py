"""Staging and publishing for those who wait: what a task and a driver need of a log.

A task that waited for each chunk would spend its time waiting. So some are on their way at once; a
leader takes them in order, and one that overtook another is sent again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorate.client.staging import abort, last_published, publish, stage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from quorate.client.blocking import Log
    from quorate.client.results import Receipt
    from quorate.client.session import Session
    from quorate.client.staging import Chunk, Part, Publication

__all__ = ["Stager", "abort_staged", "last_publication", "publish_staged"]

# Chunks on their way at once: enough to keep a leader busy, little beside its limits.
DEPTH = 4


class Stager:
    """Stages the chunks of one attempt in one log."""

    def __init__(self, log: Log, first: Chunk) -> None:
        self._log = log
        self._first = first
        # So many were given, whether or not the log had need of them.
        self.chunks = 0
        # The batch, or a later one, is published: what is given from then on is not sent.
        self.published = False
        self._under_way: deque[asyncio.Task[bool]] = deque()

    def send(self, batch: bytes) -> None:
        """Stage ``batch`` as the next chunk. Raises what became of an earlier one."""
        chunk = self._first._replace(number=self.chunks)
        self.chunks += 1
        if not self.published:
            self._log._client._run(lambda session: self._begin(session, chunk, batch))

    def finish(self) -> None:
        """Wait until all are staged."""
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
            # Nobody takes what comes after a chunk that is missing.
            while self._under_way:
                self._under_way.pop().cancel()
            raise
        if not staged:
            self.published = True


def publish_staged(
    log: Log, app: str, batch_id: int, parts: Sequence[Part], digest: bytes, *, once: bool = False
) -> Receipt:
    """As :func:`quorate.client.staging.publish`."""
    return log._client._run(
        lambda session: publish(session, log._route, app, batch_id, parts, digest, once=once)
    )


def abort_staged(log: Log, app: str, batch_id: int, attempt: bytes | None = None) -> int:
    """As :func:`quorate.client.staging.abort`."""
    return log._client._run(lambda session: abort(session, log._route, app, batch_id, attempt))


def last_publication(log: Log, app: str) -> Publication | None:
    """As :func:`quorate.client.staging.last_published`."""
    return log._client._run(lambda session: last_published(session, log._route, app))
