"""The callbacks of the requests that wait at a replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorate.replica.engine_io import Result

if TYPE_CHECKING:
    from quorate.errors import QuorateError
    from quorate.types import NodeId

__all__ = ["Callback", "Callbacks"]

Callback = Callable[[Result], None]

log = logging.getLogger(__name__)


class Callbacks:
    """The callbacks by the token of their request. Each is called once, and its error is logged:
    it must not stop the replica."""

    __slots__ = ("_appends", "_drained", "_node", "_reads", "_token")

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._token = 0
        # Without an answer the outcome of an append is unknown; a read has no effect.
        self._appends: dict[int, Callback] = {}
        self._reads: dict[int, Callback] = {}
        # Done when no append waits any more; None if no stop waits for that.
        self._drained: asyncio.Future[None] | None = None

    def add_append(self, callback: Callback) -> int:
        """Keep the callback of a request that is to be logged. Returns the token of the request."""
        self._token += 1
        self._appends[self._token] = callback
        return self._token

    def add_read(self, callback: Callback) -> int:
        """Keep the callback of a read. Returns the token of the read."""
        self._token += 1
        self._reads[self._token] = callback
        return self._token

    def answer(self, token: int, result: Result) -> None:
        waiting = self._appends if token in self._appends else self._reads
        callback = waiting.pop(token)
        try:
            callback(result)
        except Exception:
            log.exception("node=%s an answer could not be given", self._node)
        self._note_drained()

    def answer_all(self, append: QuorateError, read: QuorateError) -> None:
        """Answer all appends with the one error, and all reads with the other."""
        for token in [*self._appends]:
            self.answer(token, append)
        for token in [*self._reads]:
            self.answer(token, read)

    def drained(self) -> asyncio.Future[None] | None:
        """A future that is done when no append waits any more; None if none waits now."""
        if self._appends:
            self._drained = asyncio.get_running_loop().create_future()
        return self._drained

    def _note_drained(self) -> None:
        if self._drained is not None and not (self._appends or self._drained.done()):
            self._drained.set_result(None)
