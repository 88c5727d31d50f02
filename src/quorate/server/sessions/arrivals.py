"""The time at which a request arrived at this node, as far as the node can know it.

A request may have waited in its socket: while the process was stopped, while the event loop was
busy, or while its connection was not read. Such a wait counts as if the request had come at its
beginning; a wait of up to ``STILL_MS`` is not noticed.
"""

from __future__ import annotations

import asyncio

from quorate.replica.replica import now_ms

__all__ = ["Arrivals", "LoopWatch"]

# Interval at which the watch looks.
LOOK_MS = 100
# The longest time without reading that does not count as a wait.
STILL_MS = 250
# Bytes that waited in a socket are read piece by piece, all of them in this time.
DRAIN_MS = 1000


class _Gaps:
    """Times without reading, the oldest first. Each holds for as long as bytes that came in it may
    be read."""

    __slots__ = ("_gaps",)

    def __init__(self) -> None:
        # When each began, and until when it holds. They are few: a gap is longer than ``STILL_MS``.
        self._gaps: list[tuple[int, int]] = []

    def note(self, began_ms: int, ended_ms: int) -> None:
        if ended_ms - began_ms > STILL_MS:
            if self._gaps and self._gaps[-1][0] == began_ms:
                self._gaps.pop()  # it went on
            self._gaps.append((began_ms, ended_ms + DRAIN_MS))

    def arrival(self, read_ms: int) -> int:
        """The earliest time at which bytes that are read at ``read_ms`` may have come."""
        while self._gaps and read_ms >= self._gaps[0][1]:
            del self._gaps[0]
        return self._gaps[0][0] if self._gaps else read_ms


class LoopWatch:
    """Notices that the event loop stood still, and since when."""

    __slots__ = ("_gaps", "_looked_ms")

    def __init__(self) -> None:
        self._looked_ms = now_ms()
        self._gaps = _Gaps()

    async def run(self) -> None:
        """Look from now on. No client was admitted before."""
        self._looked_ms = now_ms()
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            self.look(now_ms())

    def look(self, at_ms: int) -> None:
        self._gaps.note(self._looked_ms, at_ms)
        self._looked_ms = at_ms

    def arrival(self, read_ms: int) -> int:
        """The earliest time at which bytes that are read at ``read_ms`` may have come."""
        # After a stop of the process, sockets may be read before the next look.
        self._gaps.note(self._looked_ms, read_ms)
        return self._gaps.arrival(read_ms)


class Arrivals:
    """Tells when the requests of one connection arrived."""

    __slots__ = ("_gaps", "_paused_ms", "_watch")

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch
        self._gaps = _Gaps()
        # Since when the connection is not read; None while it is read.
        self._paused_ms: int | None = None

    def pause(self, *, paused: bool) -> None:
        """Note whether the connection is read from now on."""
        if paused and self._paused_ms is None:
            self._paused_ms = now_ms()
        elif not paused and self._paused_ms is not None:
            self._gaps.note(self._paused_ms, now_ms())
            self._paused_ms = None

    def newest(self) -> int:
        """The earliest time at which a request that is read now may have arrived."""
        read_ms = now_ms()
        return min(self._watch.arrival(read_ms), self._gaps.arrival(read_ms))
