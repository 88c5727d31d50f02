"""A submitted append: it is sent without waiting, and its outcome is taken later."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quorate.client.results import Receipt
from quorate.errors import InvalidArgument, QuorateError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from typing import Any

    from quorate.client.routing import Route

__all__ = ["Submission"]


class Submission:
    """The append of one batch. Await it for its receipt, as often as you like.

    It is made for every append, so it has only what an append needs: a future of asyncio is made
    only for a caller that awaits, and a receipt for one that asks.
    """

    __slots__ = (
        "_callbacks", "_loop", "_outcome", "batch", "deadline", "given_up", "route", "task",
        "tried",
    )  # fmt: skip

    def __init__(
        self, route: Route, batch: bytes, deadline: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.route = route
        # Kept until the outcome is known: it may have to be sent to another node.
        self.batch = batch
        # A time by the clock of the event loop.
        self.deadline = deadline
        # The receipt's fields, or the error; None while the outcome is not known.
        self._outcome: tuple[int, int, int, int, int] | QuorateError | None = None
        self._callbacks: list[Callable[[Submission], object]] = []
        self._loop = loop
        # The task of its attempts, unless a connection makes the only one.
        self.task: asyncio.Task[Receipt] | None = None
        # Whether an attempt known to its task may have reached a node.
        self.tried = False
        # The caller gave up: if it was not sent, it must not be.
        self.given_up = False

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    def result(self) -> Receipt:
        """The receipt; raises the error if there is none."""
        outcome = self._outcome
        if outcome is None:
            raise InvalidArgument("the append has no answer yet: await it")
        if isinstance(outcome, QuorateError):
            raise outcome
        return Receipt(*outcome)

    def add_done_callback(self, call: Callable[[Submission], object]) -> None:
        """Call ``call`` with this object, on the event loop, once the outcome is known."""
        if self._outcome is None:
            self._callbacks.append(call)
        else:
            self._loop.call_soon(call, self)

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._outcome is None:
            known = self._loop.create_future()
            self._callbacks.append(partial(_wake, known))
            yield from known
        return self.result()

    def give_up(self) -> None:
        """Make no further attempt. One that was sent may still be carried out."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()

    # -- for the connection and the submitter --------------------------------------------------

    def appended(self, offset: int, count: int, index: int, term: int, synced: int) -> None:
        self._outcome = (offset, count, index, term, synced)
        self.route.saw(offset + count)
        self._settled()

    def failed(self, error: QuorateError) -> None:
        self._outcome = error
        self._settled()

    def _settled(self) -> None:
        self.batch = b""
        callbacks, self._callbacks = self._callbacks, []
        for call in callbacks:
            try:
                call(self)
            except Exception as error:  # noqa: BLE001  # the caller's error, as with a future
                context = {"message": "a callback of an append failed", "exception": error}
                self._loop.call_exception_handler(context)


def _wake(known: asyncio.Future[None], _: Submission) -> None:
    if not known.done():
        known.set_result(None)
