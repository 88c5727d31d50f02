"""Answers that have not left: a buffer for each connection, and the memory of all together.

All answers of one pass of the event loop leave in one write. A client that does not read leaves its
answers in memory: its reads wait until earlier answers have left, and at the limits of all
connections it gets BUSY, or its connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from quorate.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.config import NetworkLimits, Server
    from quorate.net.connection import Connection

    Buffer = bytes | bytearray | memoryview

__all__ = ["AnswerBuffer", "UnsentAnswers"]

FoundT = TypeVar("FoundT")

log = logging.getLogger(__name__)


class UnsentAnswers:
    """The answers of all connections that have not left, bounded together."""

    def __init__(self, limits: Server, network: NetworkLimits) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        # Maximum unread bytes of one connection. Far below the size at which a connection ends
        # because its client does not read, and not below the size at which it is clogged: otherwise
        # a read would wait for a connection that is clear.
        unread = min(limits.unread_bytes, network.write_buffer_bytes // 2)
        self.unread_bytes = max(unread, network.write_pause_bytes)
        # The buffer of each connected client.
        self.buffers: set[AnswerBuffer] = set()
        # Upper bound of the bytes of answers that have not left: the bytes at the last count, and
        # all answers since.
        self.most_bytes = 0

    def flush(self) -> None:
        """Write all answers now: the node stops."""
        for buffer in self.buffers:
            buffer.flush()

    def check(self, buffer: AnswerBuffer) -> None:
        """Raises the error that refuses a long answer before it goes into ``buffer``. Closes the
        connections of the slowest readers if too much memory is in use."""
        limit = self.limits.unsent_busy_bytes
        if self.most_bytes <= limit:
            return
        self.most_bytes = sum(one.unsent for one in self.buffers)
        if self.most_bytes <= limit:
            return
        if buffer.unsent * len(self.buffers) > limit:
            raise Busy(
                f"{self.most_bytes} bytes wait for clients that read slowly, {buffer.unsent} of "
                f"them for this one"
            )
        # Clients that read their answers must not wait for those that do not.
        while self.most_bytes > self.limits.unsent_close_bytes:
            self._close(max(self.buffers, key=lambda one: one.unsent))

    def _close(self, buffer: AnswerBuffer) -> None:
        connection, unsent = buffer.connection, buffer.unsent
        log.warning("client reads too slowly address=%s bytes=%d", connection.address, unsent)
        self.most_bytes -= unsent
        self.buffers.discard(buffer)
        connection.abort(Busy(f"{connection.address} reads too slowly: {unsent} bytes wait for it"))


class AnswerBuffer:
    """The answers of one connection that have not left."""

    __slots__ = ("_all", "_answers", "_bytes", "_left", "_turn", "clogged", "connection")

    def __init__(self, unsent: UnsentAnswers, connection: Connection) -> None:
        self.connection = connection
        # True while so many bytes are unsent that no more frames are handled.
        self.clogged = False
        self._all = unsent
        # Answers for the next write, and their bytes.
        self._answers: list[Buffer] = []
        self._bytes = 0
        # The lock is held by the one read that waits until earlier answers have left; the future is
        # done when some have.
        self._turn = asyncio.Lock()
        self._left: asyncio.Future[None] | None = None
        unsent.buffers.add(self)

    @property
    def unsent(self) -> int:
        """Bytes of answers that have not left."""
        return self._bytes + self.connection.buffered

    def add(self, *buffers: Buffer) -> None:
        """Send an answer: all answers of this pass of the loop leave in one write."""
        if not self._answers:
            self._all.loop.call_soon(self.flush)
        size = sum(map(len, buffers))
        self._answers += buffers
        self._bytes += size
        self._all.most_bytes += size

    def flush(self) -> None:
        """Write all answers since the last flush."""
        if self._answers:
            buffers, self._answers, self._bytes = self._answers, [], 0
            self.connection.send(buffers)
            self._wake()

    def writable(self, yes: bool) -> None:
        """Note whether the connection takes more bytes."""
        self.clogged = not yes
        if yes:
            self._wake()

    def close(self) -> None:
        """Count the answers no more: the connection ended."""
        self._all.buffers.discard(self)

    # -- long answers --------------------------------------------------------------------------

    def check(self) -> None:
        """Raises the error that refuses a long answer before it is sent."""
        self._all.check(self)

    def fits(self, size: int) -> bool:
        """True if a read of ``size`` bytes fits into the unread bytes of this connection, or no
        other answer is unsent. A read must not overtake those that wait for their turn."""
        unsent = self.unsent
        fits = not unsent or unsent + size <= self._all.unread_bytes
        return fits and not self._turn.locked()

    async def read_in_turn(self, read: Callable[[], Awaitable[FoundT]]) -> FoundT:
        """Read once almost all earlier answers have left; such reads go one after the other."""
        wait_s = self._all.limits.room_wait_ms / 1000
        try:
            async with asyncio.timeout(wait_s), self._turn:
                while self._answers or self.clogged:
                    self._left = asyncio.get_running_loop().create_future()
                    await self._left
                return await read()
        except TimeoutError:
            raise Busy(
                f"a read waited {wait_s:g} s for those before it on its connection, of which "
                f"{self.unsent} bytes have not left: repeat it, or read over more connections"
            ) from None

    def _wake(self) -> None:
        """Let the read whose turn it is look again."""
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
