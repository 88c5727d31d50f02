"""A limit on silence: a long request on a slow line is waited for as long as its bytes move."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from quorate.client.requests import Requests

__all__ = ["Quiet", "Silence", "unacknowledged"]

# So often within the limit it is looked whether anything moved.
LOOKS = 4
_KEPT = struct.Struct("i")


class Quiet:
    """Since when nothing has moved on a connection. Sans-IO: it is told what moved, and when.

    What moves before the first look does not count: the system of a node that is stopped still
    takes what its buffers hold.
    """

    __slots__ = ("_moved", "_silent_s", "_since", "due")

    def __init__(self, silent_s: float, now: float) -> None:
        self._silent_s = silent_s
        self.begin(now)

    def begin(self, now: float) -> None:
        """Something was sent, or an answer came."""
        self._since = now
        self._moved: int | None = None
        # When to look next.
        self.due = now + self._silent_s / LOOKS

    def look(self, now: float, moved: int) -> float:
        """Until when it is waited for more; ``moved`` is :attr:`Requests.moved` at this moment."""
        if self._moved is not None and moved != self._moved:
            self._since = now
        self._moved = moved
        end = self._since + self._silent_s
        self.due = min(now + self._silent_s / LOOKS, end)
        return end


class Silence:
    """``async with`` it: TimeoutError once nothing moved on a connection for so many seconds."""

    __slots__ = ("_at", "_limit", "_loop", "_quiet", "_watch")

    def __init__(self, at: Requests, silent_s: float | None) -> None:
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(silent_s)
        # None: no silence is too long.
        self._quiet = None if silent_s is None else Quiet(silent_s, self._loop.time())
        self._watch: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        if self._quiet is not None:
            self._watch = self._loop.call_at(self._quiet.due, self._look, self._quiet)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self, quiet: Quiet) -> None:
        if not self._limit.expired():
            self._limit.reschedule(quiet.look(self._loop.time(), self._at.moved))
            self._watch = self._loop.call_at(quiet.due, self._look, quiet)


def unacknowledged(descriptor: int) -> int:
    """Bytes that this system keeps for a socket because they have not arrived; 0 if it does not
    say."""
    if descriptor < 0:
        return 0
    try:
        kept = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_KEPT.size))
    except OSError:
        return 0
    return int(_KEPT.unpack(kept)[0])
