"""Deliveries: the outcome of a record that was sent, which is that of its batch.

One ticket is made for each batch, one delivery for each record, a receipt when a caller asks.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from copy import copy
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from quorate.client.waiting import check_may_wait
from quorate.commands import Receipt
from quorate.errors import InvalidArgument, QuorateError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

__all__ = ["WHOLE", "AsyncDelivery", "Delivery", "Ticket", "anew", "known"]

# In place of a record's place: the batch as a whole.
WHOLE = -1


class Ticket:
    """One batch, from its first record until its outcome is known."""

    __slots__ = (
        "_waiting",
        "attempts",
        "count",
        "data",
        "deadline",
        "outcome",
        "process",
        "sequence",
        "unknown",
    )

    def __init__(self) -> None:
        # The bytes that every attempt sends, from when the batch is complete until its outcome is
        # known.
        self.data = b""
        self.count = 0
        # The sequence of its first record; 0 until the batch is in the window, then fixed.
        self.sequence = 0
        # A time by the clock given to the window.
        self.deadline = 0.0
        # Attempts on their way.
        self.attempts = 0
        # Why an attempt that ended may have been carried out; None if none may have.
        self.unknown: Exception | None = None
        # Set once. DUPLICATE says that the batch is in the log, at an offset no longer known.
        self.outcome: Receipt | QuorateError | None = None
        # A process forked from this one does not learn the outcome.
        self.process = os.getpid()
        self._waiting: list[Callable[[], None]] = []

    def resolve(self, outcome: Receipt | QuorateError) -> None:
        self.outcome = outcome
        self.data = b""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_known(self, call: Callable[[], None]) -> None:
        """Call ``call`` when there is an outcome: in the thread that brings it, or now in this one.

        Another thread may bring it at this moment: then both call.
        """
        self._waiting.append(call)
        if self.outcome is not None:
            call()

    def wait(self, timeout: float | None) -> bool:
        """Wait in a thread. Returns whether there is an outcome."""
        # Not an Event: if a signal handler raised within its methods, its lock could stay taken,
        # and the thread that brings the outcome would wait for it.
        known: SimpleQueue[None] = SimpleQueue()
        call = partial(known.put, None)
        self.when_known(call)
        try:
            known.get(timeout=timeout)
        except Empty:
            # However often threads ask, few calls wait. The other thread may just have taken it.
            with suppress(ValueError):
                self._waiting.remove(call)
        return self.outcome is not None

    def receipt(self, place: int) -> Receipt:
        """The receipt of the record at ``place``, or of all. Raises if it was not delivered."""
        outcome = self.outcome
        if outcome is None:
            raise InvalidArgument("the outcome is not known yet")
        if not isinstance(outcome, Receipt):
            raise anew(outcome)
        if place == WHOLE:
            return outcome
        offset, _, index, term, synced = outcome
        return Receipt(offset + place, 1, index, term, synced)


def anew(error: QuorateError) -> QuorateError:
    """A copy of the error for one more caller: each has a traceback of its own."""
    return copy(error)


class Delivery:
    """The outcome of a record, or of a batch that was sent as a whole."""

    __slots__ = ("_place", "_ticket")

    def __init__(self, ticket: Ticket, place: int) -> None:
        self._ticket = ticket
        self._place = place

    def done(self) -> bool:
        """Whether :meth:`result` returns at once."""
        return self._ticket.outcome is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt; raises the error that came instead.

        After ``timeout`` seconds it raises Python's own TimeoutError: the wait is over, the record
        is still on its way.
        """
        ticket = self._ticket
        if ticket.outcome is None:
            if os.getpid() != ticket.process:
                raise InvalidArgument("the batch was sent before the fork: only the parent is told")
            check_may_wait()
            if not ticket.wait(timeout):
                raise TimeoutError(f"no outcome in {timeout:g} s; the batch is still on its way")
        return ticket.receipt(self._place)


class AsyncDelivery:
    """The outcome of a record, or of a batch that was sent as a whole: await it."""

    __slots__ = ("_place", "_ticket")

    def __init__(self, ticket: Ticket, place: int) -> None:
        self._ticket = ticket
        self._place = place

    def done(self) -> bool:
        """Whether an await ends at once."""
        return self._ticket.outcome is not None

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from known(self._ticket).__await__()
        return self._ticket.receipt(self._place)


async def known(ticket: Ticket) -> None:
    """Wait for the outcome, on the loop that brings it."""
    if ticket.outcome is None:
        brought = asyncio.Event()
        ticket.when_known(brought.set)
        await brought.wait()
