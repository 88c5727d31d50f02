"""Reading ahead: the next answers are requested while the caller uses the one before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import Self

    from quorate.client.read.reading import Piece, Reader
    from quorate.client.session import Session
    from quorate.wire.requests import Extent

__all__ = ["AsyncItems", "Prefetch"]

Item = TypeVar("Item")


# Answers that are requested and not given to the caller.
AHEAD_MAX = 2


class _PendingAnswer:
    """An answer that was requested. ``start``: the offset asked for; None: where the reader
    begins."""

    __slots__ = ("end", "pieces", "start")

    def __init__(self, start: int | None) -> None:
        self.start = start
        # The end of a long answer, known once its header has arrived.
        self.end: int | None = None
        self.pieces: asyncio.Task[list[Piece] | None]


class Prefetch:
    """A reader that is one answer ahead, however long its caller takes. While a long answer is on
    its way, the one behind it is requested too, so that the replica is not idle.

    All of it happens on the loop of one session. A forked process comes with another session: it
    goes on after the records that its caller was given, and leaves the parent's requests alone.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._session: Session | None = None
        # Answers requested and not yet given to the caller. Each after the first is requested when
        # the header of the answer before it has arrived, and is dropped if that one ends elsewhere.
        self._answers: deque[_PendingAnswer] = deque()
        # The offset after all records given to the caller; None before the first.
        self._given: int | None = None

    async def next(self, session: Session) -> list[Piece] | None:
        """The next pieces; None at the end."""
        if session is not self._session:
            self._session = session
            self._answers.clear()
        if not self._answers:
            self._ask(session, self._given)
        # A caller cancelled while waiting may ask again, and misses nothing.
        task = self._answers[0].pieces
        try:
            pieces = await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            given_up = current is not None and current.cancelling()
            if task.cancelled() and not given_up:
                raise InvalidArgument("the client is closed") from None
            raise
        except BaseException:
            self._forget()
            raise
        if not self._answers:
            return pieces  # the caller stopped meanwhile
        self._answers.popleft()
        if pieces is None:
            return None
        self._given = pieces[-1].stop
        if self._answers and self._answers[0].start != self._given:
            # Another replica gave the answer before, with fewer records.
            self._forget()
        if not self._answers:
            self._ask(session, self._given)
        else:
            self._ask_behind(session)
        return pieces

    def _ask(self, session: Session, start: int | None) -> None:
        answer = _PendingAnswer(start)
        extent: asyncio.Future[Extent] | None = None
        if self._reader.long:
            extent = asyncio.get_running_loop().create_future()
            extent.add_done_callback(partial(self._look_behind, session, answer))
        # The answer comes behind those before it, each with its own timeout.
        timeout = session.timeout * (1 + len(self._answers))
        answer.pieces = session.start_task(self._reader.next(session, start, timeout, extent))
        self._answers.append(answer)

    def _look_behind(
        self, session: Session, answer: _PendingAnswer, extent: asyncio.Future[Extent]
    ) -> None:
        """Request the records behind a long answer while it is still on its way."""
        answer.end = self._reader.expect(extent.result())
        if self._answers and self._answers[-1] is answer:
            self._ask_behind(session)

    def _ask_behind(self, session: Session) -> None:
        """Request the records behind the last answer, if its end is known."""
        end = self._answers[-1].end
        if end is not None and len(self._answers) < AHEAD_MAX:
            self._ask(session, end)

    def _forget(self) -> None:
        for answer in self._answers:
            answer.pieces.cancel()
        self._answers.clear()

    def stop(self, session: Session) -> None:
        """Cancel all requests: the caller stopped."""
        if session is self._session:
            self._forget()


class AsyncItems(AsyncIterator[Item], Generic[Item]):
    """The items of a reader, one by one. Not a generator: a caller cancelled while waiting for the
    next may ask again, and misses nothing."""

    def __init__(
        self, session: Session, reader: Reader, decode: Callable[[list[Piece]], Iterator[Item]]
    ) -> None:
        self._session = session
        self._prefetch = Prefetch(reader)
        self._decode = decode
        # The items of the pieces that came last.
        self._items: Iterator[Item] = iter(())
        self._asked = False
        self._ended = False
        # The loop of the caller, once it is known.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._asked:
            raise InvalidArgument("the next record is waited for already")
        try:
            # Most of the time there is an item.
            for item in self._items:
                return item
            return await self._wait()
        except asyncio.CancelledError:
            raise
        except BaseException:
            # No item follows an error: it could lie behind a gap.
            self._end()
            raise

    async def _wait(self) -> Item:
        self._loop = asyncio.get_running_loop()
        self._asked = True
        try:
            while not self._ended:
                pieces = await self._prefetch.next(self._session)
                if pieces is None:
                    break
                self._items = self._decode(pieces)
                for item in self._items:
                    return item
        finally:
            self._asked = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Request no more records."""
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._items = iter(())
        self._prefetch.stop(self._session)

    def __del__(self) -> None:
        # A caller that leaves its loop early does not close this, and the garbage collector runs in
        # any thread.
        if self._loop is not None and not self._ended:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._prefetch.stop, self._session)
