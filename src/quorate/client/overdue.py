"""The watch over submitted appends: it notices a node that does not answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorate.client.silence import Quiet

if TYPE_CHECKING:
    from quorate.client.requests import Requests
    from quorate.client.routing import Route
    from quorate.client.submission import Submission

__all__ = ["Overdue"]

_Noticed = Callable[["Route", "Requests", int], None]


class Overdue:
    """Watches the submissions on one connection, for as long as there are any.

    The oldest stands for all of them. ``noticed`` is called once for it if no byte moved for it for
    ``silent_s`` seconds; its own wait goes on.
    """

    def __init__(
        self,
        at: Requests,
        first: Submission,
        silent_s: float,
        noticed: _Noticed,
        ended: Callable[[Requests], None],
    ) -> None:
        self._at = at
        self._noticed = noticed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._quiet = Quiet(silent_s, 0.0)
        self._begin(first)

    def _begin(self, oldest: Submission) -> None:
        self._oldest = oldest
        # An upper bound of the submission's end in the sent bytes, and the bytes received.
        self._mark = self._at.queued
        self._heard = self._at.received
        self._told = False
        self._quiet.begin(self._loop.time())
        self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_at(self._quiet.due, self._look)

    def _look(self) -> None:
        oldest = self._at.oldest_submitted
        if oldest is None:
            self._ended(self._at)
            return
        if oldest is not self._oldest:
            self._begin(oldest)
            return
        now = self._loop.time()
        if now >= self._quiet.look(now, self._at.moved(self._mark)):
            if not self._told:
                self._told = True
                self._noticed(oldest.route, self._at, self._heard)
            self._quiet.begin(now)
        self._look_later()

    def stop(self) -> None:
        self._timer.cancel()
