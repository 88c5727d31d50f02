"""Sends the batches of a producer: many at once, in order, over one connection at a time.

``window`` decides what to send and how an answer counts; ``accumulator`` decides which records make
a batch. This module carries it out, on the client's event loop, by a task that lives for as long as
there is work.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.client.accumulator import Accumulator, BatchLimits
from quorate.client.administration import find_log
from quorate.client.results import Receipt
from quorate.client.retries import Attempts, Effect, Lost, Unreachable
from quorate.client.silence import Quiet
from quorate.client.tickets import anew, known
from quorate.client.window import Window
from quorate.errors import InvalidArgument, LogNotFound, OutcomeUnknown, QuorateError
from quorate.wire.calls import OpenProducer
from quorate.wire.requests import Append, Stamp
from quorate.wire.shapes import check_name

if TYPE_CHECKING:
    from quorate.client.accumulator import Settings
    from quorate.client.requests import Requests
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.client.window import Attempt

__all__ = ["Sender", "open_sender"]

INSTANCE_BYTES = 16
# Batches on their way at once, and batches whose offsets the log remembers.
WINDOW = 16
# The log forgets a producer that was idle for this long.
EXPIRY_US = 7 * 24 * 3600 * 1_000_000


async def open_sender(
    session: Session, route: Route, name: str, settings: Settings, fence: str | None
) -> Sender:
    """Open the producer ``name``, and fence off an earlier instance of it."""
    check_name("producer name", name)
    if fence is not None:
        check_name("fence", fence)
    instance = secrets.token_bytes(INSTANCE_BYTES)
    call = OpenProducer(route.wire, name, instance, WINDOW, EXPIRY_US)
    what = f"open producer {name} of {route.name}"
    # The node that opened it tells the limits: no other request is needed, which could fail.
    opened, at = await session.change_at(route, what, call, Effect.ONCE)
    limits = BatchLimits(at.node, at.welcome.record_bytes, at.welcome.batch_bytes)
    window = Window(name, opened.epoch, opened.last_sequence, WINDOW)
    return Sender(session, route, window, settings, limits, fence)


class Sender:
    """One open producer at work. All but :meth:`wake` belongs to the event loop."""

    def __init__(
        self,
        session: Session,
        route: Route,
        window: Window,
        settings: Settings,
        limits: BatchLimits,
        fence: str | None,
    ) -> None:
        # Any thread adds records.
        self.records = Accumulator(settings, limits, time.monotonic, self.wake)
        self.window = window
        self._session = session
        self._route = route
        self._fence = fence
        self._loop = asyncio.get_running_loop()
        self._draw = random.Random()
        # The loop was asked to call :meth:`_woken` and has not yet.
        self._called = False
        # Runs while records wait or are on their way.
        self._task: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        # Each task waits for one answer.
        self._answers: set[asyncio.Task[None]] = set()
        # This round's connection: batches overtake each other on two connections, not on one.
        self._at: Requests | None = None
        # Whether bytes move for the oldest batch on its way.
        self._quiet = Quiet(session.patience.answer_s, 0.0)
        # Where this round's batches end in the sent bytes, the oldest first.
        self._marks: dict[Attempt, int] = {}
        # Bytes received there when the wait began.
        self._heard = 0
        # No batch is sent before this time.
        self._resume = 0.0
        # Failed attempts since the last receipt.
        self._troubles: Attempts | None = None
        session.senders.add(self)

    # -- for the producers ---------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """Seconds that a batch has once it is in the window, and a record to find room."""
        return self._session.timeout

    def wake(self) -> None:
        """Let the loop look for records. Any thread may call; one call to the loop serves many."""
        if self._called:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the loop is closed
            self.client_closed()

    async def flush(self) -> None:
        """Wait until all records sent before have their outcome. Raises the first error."""
        self.records.hurry()
        for ticket in [*self.window.tickets, *self.records.tickets]:
            await known(ticket)
        if self.window.error is not None:
            raise anew(self.window.error)

    async def close(self) -> None:
        """Flush, and take no more records."""
        closed = InvalidArgument(f"producer {self.window.name} is closed")
        try:
            await self.flush()
        finally:
            self.records.end(closed, closed)
            if not self.window.idle:  # the flush was cancelled
                self.window.refuse(closed)
            for task in self._answers:
                task.cancel()
            self._stirred.set()

    def client_closed(self) -> None:
        """Send no more, even if other threads still add records."""
        self._stop(InvalidArgument("the client is closed"))

    # -- the task ------------------------------------------------------------------------------

    def _woken(self) -> None:
        self._called = False
        if self._task is None or self._task.done():
            self._task = self._session.ahead(self._work())
        else:
            self._stirred.set()

    async def _work(self) -> None:
        try:
            while self._look():
                self._stirred.clear()
                if self.window.waiting and time.monotonic() >= self._resume:
                    await self._send()
                else:
                    await self._rest()
        except asyncio.CancelledError:
            self.client_closed()
            raise
        except Exception as bug:
            # No caller may wait for ever.
            self._stop(InvalidArgument(f"producer {self.window.name} is broken: {bug!r}"))
            raise

    def _look(self) -> bool:
        """Take new batches; check deadlines and silence. Returns whether there is more to do."""
        now = time.monotonic()
        window, records = self.window, self.records
        window.expire(now)
        self._check_ended()
        while window.room and (ticket := records.take(now)) is not None:
            window.add(ticket, now + self._session.timeout)
        at = self._at
        if at is not None and window.under_way and self._is_silent(at, now):
            self._session.pool.was_silent(at, self._heard)
            window.begin_again()
            self._failed(at, Lost(f"{at.node} gave no answer"))
        return not window.idle or records.due is not None

    def _is_silent(self, at: Requests, now: float) -> bool:
        if now < self._quiet.due:
            return False
        oldest = next(iter(self._marks.values()), None)
        return now >= self._quiet.look(now, at.moved(oldest))

    def _listen(self) -> None:
        """Count silence from now on."""
        self._quiet.begin(time.monotonic())
        self._heard = 0 if self._at is None else self._at.received

    async def _rest(self) -> None:
        """Wait until there is work, or its time has come."""
        times = [self.window.deadline]
        if self.window.room:
            times.append(self.records.due)
        if self.window.waiting:
            times.append(self._resume)
        elif self.window.under_way:
            times.append(self._quiet.due)
        until = min((one for one in times if one is not None), default=None)
        delay = None if until is None else max(0.0, until - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stirred.wait()

    async def _send(self) -> None:
        """Send all batches that this round has not sent."""
        session, at = self._session, self._at
        now = time.monotonic()
        limit = min((self.window.deadline or 0.0) - now, session.patience.answer_s)
        if self.window.under_way:
            # On a slow line the bytes of earlier batches move during this wait.
            limit = min(limit, self._quiet.due - now)
        try:
            async with asyncio.timeout(limit):
                if at is None:
                    addresses = session.routing.addresses(self._route.to_write())
                    at = self._at = await session.pool.reach(addresses)
                await at.room()
        except (TimeoutError, Unreachable) as error:
            if at is not None and self.window.under_way:
                return  # other requests fill the connection; ``_look`` finds a silent node
            self.window.begin_again()
            self._failed(at, Unreachable(str(error) or "nothing could be sent in time"))
            return
        except QuorateError as error:
            self._stop(error)
            return
        if not self.window.under_way:
            self._listen()
        # Each batch takes room that the next one, or another producer, does not have any more. The
        # first failure ends the round.
        while self._at is at and not at.clogged and (attempt := self.window.next()) is not None:
            self._begin(at, attempt)

    def _begin(self, at: Requests, attempt: Attempt) -> None:
        ticket, window = attempt.ticket, self.window
        left_ms = max(1, int(1000 * (ticket.deadline - time.monotonic())))
        stamp = Stamp(window.name, window.epoch, ticket.sequence)
        append = Append(0, self._route.incarnation, ticket.data, None, self._fence, stamp, left_ms)
        try:
            answer = at.begin_append(append)
        except (Unreachable, QuorateError) as error:
            self._settle(at, attempt, error)
            return
        self._marks[attempt] = at.queued
        task = self._loop.create_task(self._await(at, attempt, answer))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        # The task may be cancelled before it begins.
        task.add_done_callback(lambda _: answer.cancel())

    async def _await(self, at: Requests, attempt: Attempt, answer: asyncio.Future[Receipt]) -> None:
        result: Receipt | Exception
        try:
            result = await answer
        except LogNotFound as error:
            result = await self._gone(error)
        except (Lost, Unreachable, QuorateError) as error:
            result = error
        self._settle(at, attempt, result)

    def _settle(self, at: Requests, attempt: Attempt, result: Receipt | Exception) -> None:
        self._marks.pop(attempt, None)
        self._listen()
        if isinstance(result, Receipt):
            self._troubles = None
            self._route.leader = at.node
            self._route.saw(result.offset + result.count)
        if self.window.answered(attempt, result) and isinstance(result, Exception):
            self._failed(at, result)
        self._check_ended()
        self._stirred.set()

    # -- trouble -------------------------------------------------------------------------------

    def _failed(self, at: Requests | None, error: Exception) -> None:
        """Learn from a failure where to send next, and when."""
        self._at = None
        self._marks.clear()
        redirected = at is not None and self._route.learn(at.node, error)
        if self._troubles is None:
            what = f"producer {self.window.name} of {self._route.name}"
            patience = self._session.patience
            self._troubles = Attempts(what, Effect.ONCE, self.timeout, patience, self._draw)
        self._resume = time.monotonic() + self._troubles.failed(error, redirected=redirected)

    async def _gone(self, error: LogNotFound) -> QuorateError:
        """Why the log is missing: it may have been made again."""
        route = self._route
        try:
            found = await find_log(self._session, route.name)
        except QuorateError:
            return error
        return route.recreated(found.incarnation) or error

    def _stop(self, error: QuorateError) -> None:
        """End with ``error``: no batch is sent any more."""
        self.window.refuse(error)
        self._check_ended()

    def _check_ended(self) -> None:
        """End waiting records like those on their way; refuse later ones as surely not sent."""
        error = self.window.error
        if error is None:
            return
        kind = InvalidArgument if isinstance(error, OutcomeUnknown) else type(error)
        message = f"producer {self.window.name} has ended: {error.code}: {error}; open it again"
        self.records.end(error, kind(message))
