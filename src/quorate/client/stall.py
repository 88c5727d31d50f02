"""Stall detection: a long request on a slow line is waited for as long as its bytes move."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from quorate.client.node_connection import NodeConnection
    from quorate.client.routing import Route
    from quorate.client.submission import Submission

__all__ = ["RequestProgress", "StallClock", "StallTimeout", "StallWatch", "unacknowledged"]

# Progress checks within the limit.
LOOKS = 4
# Signs of life bring at most this many bytes between two checks: they are no answer.
SIGN_BYTES = 256
# Checks at which bytes may count although their answer proved to be another request's.
OTHERS_MAX = 8
_KEPT = struct.Struct("i")


class RequestProgress(NamedTuple):
    """The progress of one request on its connection."""

    # Bytes that reached the other side, up to the request's end.
    arrived: int
    # Whole frames received. They answer other requests: the answer to this one ends the wait.
    answers: int
    # Bytes received after them, of an answer that is not whole yet: it may be this one's.
    coming: int


class StallClock:
    """Measures the time without progress of one request. Sans-IO: progress and time are given.

    Bytes that move before the first check do not count: the system of a stopped node still fills
    its buffers. Answers to other requests do not count either, or a node that never answers this
    one would be waited for as long as it answers others; but on a slow line an answer may have to
    wait behind them.
    """

    __slots__ = ("_others", "_seen", "_since", "_stalled_s", "due")

    def __init__(self, stalled_s: float, now: float) -> None:
        self._stalled_s = stalled_s
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin anew: a request was sent, or an answer came."""
        self._since = now
        self._seen: RequestProgress | None = None
        # Checks at which the incoming answer proved to be another request's.
        self._others = 0
        # The time of the next check.
        self.due = now + self._stalled_s / LOOKS

    def look(self, now: float, moved: RequestProgress) -> float:
        """Check progress. Returns until when to wait. ``moved`` is the progress
        now, see :meth:`NodeConnection.progress`."""
        seen = self._seen
        if seen is not None and self._goes_on(seen, moved):
            self._since = now
        # The connection's own bytes are unacknowledged for a moment, too.
        arrived = moved.arrived if seen is None else max(seen.arrived, moved.arrived)
        self._seen = moved._replace(arrived=arrived)
        end = self._since + self._stalled_s
        self.due = min(now + self._stalled_s / LOOKS, end)
        return end

    def _goes_on(self, seen: RequestProgress, moved: RequestProgress) -> bool:
        if moved.arrived > seen.arrived:
            self._others = 0
            return True
        another = moved.answers != seen.answers
        came = moved.coming - (0 if another else seen.coming)
        if came <= SIGN_BYTES:
            return False
        self._others += another
        return not another or self._others <= OTHERS_MAX


class StallTimeout:
    """Raises TimeoutError in an ``async with`` once no byte moved for a request for ``stalled_s``.

    With ``noticed`` the wait goes on: that is called instead, once.
    """

    __slots__ = ("_asked", "_at", "_clock", "_limit", "_loop", "_mark", "_noticed", "_watch")

    def __init__(
        self, at: NodeConnection, stalled_s: float, noticed: Callable[[], None] | None = None
    ) -> None:
        self._at = at
        self._noticed = noticed
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._clock = StallClock(stalled_s, self._loop.time())
        self._watch: asyncio.TimerHandle | None = None
        # Before the request, all bytes that leave make room.
        self._asked = False
        # The request's end in the sent bytes; None before the first check after it was sent.
        self._mark: int | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._watch = self._loop.call_at(self._clock.due, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def asked(self) -> None:
        """Note that the request is queued next."""
        self._asked = True

    def _look(self) -> None:
        if self._asked and self._mark is None:
            self._mark = self._at.queued
        now = self._loop.time()
        if now < self._clock.look(now, self._at.progress(self._mark)):
            self._watch = self._loop.call_at(self._clock.due, self._look)
        elif self._noticed is not None:
            self._noticed()
        else:
            self._limit.reschedule(now)


class StallWatch:
    """Watches the submissions on one connection, for as long as there are any.

    The oldest stands for all of them. ``noticed`` is called once for it if no byte moved for it for
    ``stalled_s`` seconds; its own wait goes on.
    """

    def __init__(
        self,
        at: NodeConnection,
        first: Submission,
        stalled_s: float,
        noticed: Callable[[Route, NodeConnection, int], None],
        ended: Callable[[NodeConnection], None],
    ) -> None:
        self._at = at
        self._noticed = noticed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._clock = StallClock(stalled_s, 0.0)
        self._begin(first)

    def _begin(self, oldest: Submission) -> None:
        self._oldest = oldest
        # An upper bound of the submission's end in the sent bytes, and the bytes received.
        self._mark = self._at.queued
        self._heard = self._at.received
        self._told = False
        self._clock.begin(self._loop.time())
        self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_at(self._clock.due, self._look)

    def _look(self) -> None:
        oldest = self._at.oldest_submitted
        if oldest is None:
            self._ended(self._at)
            return
        if oldest is not self._oldest:
            self._begin(oldest)
            return
        now = self._loop.time()
        if now >= self._clock.look(now, self._at.progress(self._mark)):
            if not self._told:
                self._told = True
                self._noticed(oldest.route, self._at, self._heard)
            self._clock.begin(now)
        self._look_later()

    def stop(self) -> None:
        self._timer.cancel()


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
