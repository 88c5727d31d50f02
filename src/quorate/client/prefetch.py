"""Asking for the next answers while the caller works on the one before."""

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

    from quorate.client.reading import Piece, Reader
    from quorate.client.session import Session

__all__ = ["AsyncItems", "Prefetch"]

Item = TypeVar("Item")


# Answers that are asked for and not given to the caller.
AHEAD_MAX = 2


class _Asked:
    """An answer that was asked for, from ``start`` on; None is where the reader begins."""

    __slots__ = ("end", "start", "task")

    def __init__(self, start: int | None) -> None:
        self.start = start
        # Known once it begins to come, if it is long.
        self.end: int | None = None
        self.task: asyncio.Task[list[Piece] | None]


class Prefetch:
    """A reader that is one answer ahead, however long its caller takes; while a long one is on its
    way also the one behind it, so that its replica does not stand by.

    All of it happens on the loop of one session. A process that was forked comes with another
    session: it goes on after what its caller was given, and leaves to the parent what the parent
    had asked for.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._session: Session | None = None
        # What was asked for and not yet given to the caller. What stands behind another was asked
        # for when that began to come, and is of use only if that ends where it said.
        self._asked: deque[_Asked] = deque()
        # The offset after all that the caller was given; None before the first.
        self._given: int | None = None

    async def next(self, session: Session) -> list[Piece] | None:
        """The next pieces; None at the end."""
        if session is not self._session:
            self._session = session
            self._asked.clear()
        if not self._asked:
            self._ask(session, self._given)
        # Whoever is cancelled while waiting may ask again, and misses nothing.
        task = self._asked[0].task
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
        if not self._asked:
            return pieces  # the caller left meanwhile
        self._asked.popleft()
        if pieces is None:
            return None
        self._given = pieces[-1].stop
        if self._asked and self._asked[0].start != self._given:
            # Another replica gave the one before, and less of it.
            self._forget()
        if not self._asked:
            self._ask(session, self._given)
        else:
            self._ask_behind(session)
        return pieces

    def _ask(self, session: Session, start: int | None) -> None:
        asked = _Asked(start)
        begun = partial(self._began, session, asked)
        # It comes behind those before it, each of which has its time.
        timeout = session.timeout * (1 + len(self._asked))
        asked.task = session.ahead(self._reader.next(session, start, timeout, begun))
        self._asked.append(asked)

    def _began(self, session: Session, asked: _Asked, end: int) -> None:
        asked.end = end
        if self._asked and self._asked[-1] is asked:
            self._ask_behind(session)

    def _ask_behind(self, session: Session) -> None:
        """Ask for what follows the last, if it is known where that is."""
        end = self._asked[-1].end
        if end is not None and len(self._asked) < AHEAD_MAX:
            self._ask(session, end)

    def _forget(self) -> None:
        for asked in self._asked:
            asked.task.cancel()
        self._asked.clear()

    def stop(self, session: Session) -> None:
        """The caller wants no more."""
        if session is self._session:
            self._forget()


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
