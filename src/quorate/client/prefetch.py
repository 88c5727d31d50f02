"""Asking for the next answer while the caller works on the one before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import Self

    from quorate.client.reading import Piece, Reader
    from quorate.client.session import Session

__all__ = ["AsyncItems", "Prefetch"]

Item = TypeVar("Item")


class Prefetch:
    """A reader that is one answer ahead: never more, however long its caller takes.

    All of it happens on the loop of one session. A process that was forked comes with another
    session: it goes on after what its caller was given, and leaves to the parent what the parent
    had asked for.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._session: Session | None = None
        # What was asked for and not yet given to the caller.
        self._task: asyncio.Task[list[Piece] | None] | None = None
        # The offset after all that the caller was given; None before the first.
        self._given: int | None = None

    async def next(self, session: Session) -> list[Piece] | None:
        """The next pieces; None at the end."""
        if session is not self._session:
            self._session, self._task = session, None
            self._reader.resume(self._given)
        task = self._task or session.ahead(self._reader.next(session))
        # Whoever is cancelled while waiting may ask again, and misses nothing.
        self._task = task
        try:
            pieces = await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            given_up = current is not None and current.cancelling()
            if task.cancelled() and not given_up:
                raise InvalidArgument("the client is closed") from None
            raise
        except BaseException:
            self._task = None
            raise
        self._task = None
        if pieces is not None:
            self._given = pieces[-1].stop
            self._task = session.ahead(self._reader.next(session))
        return pieces

    def stop(self, session: Session) -> None:
        """The caller wants no more."""
        if session is self._session and self._task is not None:
            self._task.cancel()


class AsyncItems(AsyncIterator[Item], Generic[Item]):
    """What a reader brings, one by one. No generator: whoever is cancelled while waiting for the
    next may ask again, and misses nothing."""

    def __init__(
        self, session: Session, reader: Reader, decode: Callable[[list[Piece]], Iterator[Item]]
    ) -> None:
        self._session = session
        self._prefetch = Prefetch(reader)
        self._decode = decode
        # Of the pieces that came last.
        self._items: Iterator[Item] = iter(())
        self._asked = False
        self._ended = False
        # Where it is used, once it was.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._asked:
            raise InvalidArgument("the next record is waited for already")
        try:
            # Most of the time there is one.
            for item in self._items:
                return item
            return await self._wait()
        except asyncio.CancelledError:
            raise
        except BaseException:
            # After an error nothing follows: it could be what comes behind a gap.
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
        """Ask for no more."""
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._items = iter(())
        self._prefetch.stop(self._session)

    def __del__(self) -> None:
        # Who leaves a loop early closes nothing, and the garbage collector runs in any thread.
        if self._loop is not None and not self._ended:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._prefetch.stop, self._session)
