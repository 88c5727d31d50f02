"""The second looks of a replica at what its disk did not give back, in the threads for reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorate.storage.unread import look_again

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from quorate.storage.log import SegmentLog

__all__ = ["SecondLooks"]

# Interval of the looks: a disk may take seconds to refuse a page.
AGAIN_MS = 2000


class SecondLooks:
    """Looks now and then as long as something is unread, one look at a time."""

    __slots__ = ("_log", "_looked_ms", "_looking", "_pool")

    def __init__(self, log: SegmentLog, pool: Executor, now_ms: int) -> None:
        self._log = log
        self._pool = pool
        # The time at which the last look was under way, or nothing was unread.
        self._looked_ms = now_ms
        # The look under way; None if there is none.
        self._looking: asyncio.Future[None] | None = None

    def tend(self, now_ms: int) -> None:
        """Begin a look if one is due. The replica calls it at every tick."""
        if self._looking is not None:
            if self._looking.done():
                self._looking.result()
                self._looking = None
            self._looked_ms = now_ms
        elif now_ms - self._looked_ms >= AGAIN_MS:
            self._looked_ms = now_ms
            if self._log.refusing:
                loop = asyncio.get_running_loop()
                self._looking = loop.run_in_executor(self._pool, look_again, self._log)

    async def rest(self) -> None:
        """Wait until no thread looks any more."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
