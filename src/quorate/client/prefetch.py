"""Asking for the next answer while the caller works on the one before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from quorate.client.reading import Piece, Reader
    from quorate.client.session import Session

__all__ = ["Prefetch"]


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
