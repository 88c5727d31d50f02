"""Sends the batches of a producer: many at once, in order, over one connection at a time.

``window`` decides what to send and how an answer counts; ``accumulator`` decides which records make
a batch. This module carries it out, on the client's event loop, by a task that lives for as long as
there is work.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.client.administration import find_log
from quorate.client.produce.accumulator import Accumulator, BatchLimits
from quorate.client.produce.tickets import anew, known
from quorate.client.produce.window import Window
from quorate.client.retries import Idempotency, Lost, Retries, Unreachable
from quorate.client.stall import StallClock
from quorate.commands import OpenProducer, ProducerOpened, ProducerStamp, Receipt
from quorate.errors import (
    InvalidArgument,
    LogNotFound,
    OutcomeUnknown,
    QuorateError,
    error_for,
)
from quorate.fields import ID_BYTES
from quorate.wire.calls import LogCall
from quorate.wire.requests import AppendRequest
from quorate.wire.shapes import check_name

if TYPE_CHECKING:
    from quorate.client.node_connection import NodeConnection
    from quorate.client.produce.settings import ProducerSettings
    from quorate.client.produce.window import SendAttempt
    from quorate.client.routing import Route
    from quorate.client.session import Session

__all__ = ["Sender", "open_sender"]

# Batches on their way at once, and batches whose offsets the log remembers.
WINDOW = 16
# The log forgets a producer that was idle for this long.
EXPIRY_US = 7 * 24 * 3600 * 1_000_000


async def open_sender(
    session: Session, route: Route, name: str, settings: ProducerSettings, fence: str | None
) -> Sender:
    """Open the producer ``name``, and fence off an earlier instance of it."""
    check_name("producer name", name)
    if fence is not None:
        check_name("fence", fence)
    instance = secrets.token_bytes(ID_BYTES)

    def opening(known: int) -> LogCall[ProducerOpened]:
        return LogCall(route.wire, OpenProducer(name, instance, WINDOW, EXPIRY_US, known))

    asked: list[NodeConnection] = []

    def follow_up(answer: ProducerOpened, at: NodeConnection) -> LogCall[ProducerOpened] | None:
        asked.append(at)
        return opening(answer.epoch) if answer.held else None

    what = f"open producer {name} of {route.name}"
    opened = await session.change(
        route, what, opening(0), Idempotency.IDEMPOTENT, follow_up=follow_up
    )
    if session.closed:
        # The session has told its senders of its end; it would not tell this one.
        raise InvalidArgument("the client is closed")
    # The node that opened it tells the limits: no other request is needed, which could fail.
    at = asked[-1]
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
        settings: ProducerSettings,
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
        # The loop was asked to call :meth:`_on_wake` and has not yet.
        self._wake_requested = False
        # The thread that is about to ask. A signal handler in it does not rely on that: it may wait
        # for its own record before the thread goes on.
        self._waking = 0
        # Runs while records wait or are on their way.
        self._task: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()
        # Each task waits for one answer.
        self._answers: set[asyncio.Task[None]] = set()
        # This round's connection: batches overtake each other on two connections, not on one.
        self._at: NodeConnection | None = None
        # Whether bytes move for the oldest batch on its way.
        self._stall_clock = StallClock(session.retry_limits.answer_s, 0.0)
        # Where this round's batches end in the sent bytes, the oldest first.
        self._marks: dict[SendAttempt, int] = {}
        # Bytes received there when the wait began.
        self._heard = 0
        # No batch is sent before this time.
        self._resume_at = 0.0
        # Failed attempts since the last receipt.
        self._retries: Retries | None = None
        session.senders.add(self)

    # -- for the producers ---------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """Seconds that a batch has once it is in the window, and a record to find room."""
        return self._session.timeout

    def wake(self) -> None:
        """Let the loop look for records. Any thread may call; one call to the loop serves many."""
        here = threading.get_ident()
        if self._wake_requested and self._waking != here:
            return
        try:
            self._waking = here
            self._wake_requested = True
            self._loop.call_soon_threadsafe(self._on_wake)
            self._waking = 0
        except RuntimeError:  # the loop is closed
            self.client_closed()
        except BaseException:
            # A signal handler raised, perhaps before the loop was asked. Another thread may have
            # relied on this call since.
            self._waking = 0
            self._wake_requested = False
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_wake)
            raise

    async def flush(self) -> None:
        """Wait until all records sent before have their outcome. Raises the first error."""
        self.records.end_linger()
        if self.records.due is not None:
            # A caller that was interrupted may not have woken the loop for them.
            self._on_wake()
        for ticket in [*self.window.tickets, *self.records.tickets]:
            await known(ticket)
        if self.window.error is not None:
            raise anew(self.window.error)

    async def close(self) -> None:
        """Take no more records, and flush."""
        closed = InvalidArgument(f"producer {self.window.name} is closed")
        # First of all: a record that another thread sent meanwhile would get no answer.
        self.records.refuse(closed)
        try:
            await self.flush()
        except BaseException:
            # Records that were sent are dropped now: no later call may succeed.
            self.window.refuse(closed)
            raise
        finally:
            self.records.end(closed, closed)
            for task in self._answers:
                task.cancel()
            self._wakeup.set()

    def client_closed(self) -> None:
        """Send no more, even if other threads still add records."""
        self._stop(InvalidArgument("the client is closed"))

    # -- the task ------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        self._wake_requested = False
        if self._task is None or self._task.done():
            self._task = self._session.start_task(self._run())
        else:
            self._wakeup.set()

    async def _run(self) -> None:
        try:
            while self._prepare():
                self._wakeup.clear()
                if self.window.waiting and time.monotonic() >= self._resume_at:
                    await self._send()
                else:
                    await self._wait()
        except asyncio.CancelledError:
            self.client_closed()
            raise
        except BaseException as bug:
            # No caller may wait for ever. A signal handler may raise in here as well, while a batch
            # is in neither list.
            self._stop(InvalidArgument(f"producer {self.window.name} is broken: {bug!r}"))
            raise

    def _prepare(self) -> bool:
        """Take new batches; check deadlines and silence. Returns whether there is more to do."""
        now = time.monotonic()
        window, records = self.window, self.records
        window.expire(now)
        self._check_ended()
        while window.room and (ticket := records.take(now)) is not None:
            window.add(ticket, now + self._session.timeout)
        at = self._at
        if at is not None and window.under_way and self._is_stalled(at, now):
            self._session.pool.stalled(at, self._heard)
            window.begin_again()
            self._failed(at, Lost(f"{at.node} gave no answer"))
        return not window.idle or records.due is not None

    def _is_stalled(self, at: NodeConnection, now: float) -> bool:
        if now < self._stall_clock.due:
            return False
        oldest = next(iter(self._marks.values()), None)
        return now >= self._stall_clock.look(now, at.progress(oldest))

    def _restart_stall_clock(self) -> None:
        """Count silence from now on."""
        self._stall_clock.begin(time.monotonic())
        self._heard = 0 if self._at is None else self._at.received

    async def _wait(self) -> None:
        """Wait until there is work, or its time has come."""
        times = [self.window.deadline]
        if self.window.room:
            times.append(self.records.due)
        if self.window.waiting:
            times.append(self._resume_at)
        elif self.window.under_way:
            times.append(self._stall_clock.due)
        until = min((one for one in times if one is not None), default=None)
        delay = None if until is None else max(0.0, until - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wakeup.wait()

    async def _send(self) -> None:
        """Send all batches that this round has not sent."""
        session, at = self._session, self._at
        now = time.monotonic()
        limit = min((self.window.deadline or 0.0) - now, session.retry_limits.answer_s)
        if self.window.under_way:
            # On a slow line the bytes of earlier batches move during this wait.
            limit = min(limit, self._stall_clock.due - now)
        try:
            async with asyncio.timeout(limit):
                if at is None:
                    addresses = session.routing.addresses(self._route.to_write())
                    at = self._at = await session.pool.reach(addresses)
                await at.room()
        except (TimeoutError, Unreachable) as error:
            if at is not None and self.window.under_way:
                return  # other requests fill the connection; ``_prepare`` finds a silent node
            self.window.begin_again()
            self._failed(at, Unreachable(str(error) or "nothing could be sent in time"))
            return
        except QuorateError as error:
            self._stop(error)
            return
        if not self.window.under_way:
            self._restart_stall_clock()
        # Each batch takes room that the next one, or another producer, does not have any more. The
        # first failure ends the round.
        while self._at is at and not at.clogged and (attempt := self.window.next()) is not None:
            self._send_batch(at, attempt)

    def _send_batch(self, at: NodeConnection, attempt: SendAttempt) -> None:
        ticket, window = attempt.ticket, self.window
        left_ms = max(1, int(1000 * (ticket.deadline - time.monotonic())))
        stamp = ProducerStamp(window.name, window.epoch, ticket.sequence)
        append = AppendRequest(
            0, self._route.incarnation, ticket.data, None, self._fence, stamp, left_ms
        )
        try:
            answer = at.append(append)
        except (Unreachable, QuorateError) as error:
            self._take_result(at, attempt, error)
            return
        self._marks[attempt] = at.queued
        task = self._loop.create_task(self._await_answer(at, attempt, answer))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        # The task may be cancelled before it begins.
        task.add_done_callback(lambda _: answer.cancel())

    async def _await_answer(
        self, at: NodeConnection, attempt: SendAttempt, answer: asyncio.Future[Receipt]
    ) -> None:
        result: Receipt | Exception
        try:
            result = await answer
        except LogNotFound as error:
            result = await self._gone(error)
        except (Lost, Unreachable, QuorateError) as error:
            result = error
        self._take_result(at, attempt, result)

    def _take_result(
        self, at: NodeConnection, attempt: SendAttempt, result: Receipt | Exception
    ) -> None:
        self._marks.pop(attempt, None)
        self._restart_stall_clock()
        if isinstance(result, Receipt):
            self._retries = None
            self._route.leader = at.node
            self._route.saw(result.offset + result.count)
        if self.window.answered(attempt, result) and isinstance(result, Exception):
            self._failed(at, result)
        self._check_ended()
        self._wakeup.set()

    # -- trouble -------------------------------------------------------------------------------

    def _failed(self, at: NodeConnection | None, error: Exception) -> None:
        """Learn from a failure where to send next, and when."""
        self._at = None
        self._marks.clear()
        redirected = at is not None and self._route.learn(at.node, error)
        if self._retries is None:
            what = f"producer {self.window.name} of {self._route.name}"
            retry_limits = self._session.retry_limits
            self._retries = Retries(
                what, Idempotency.IDEMPOTENT, self.timeout, retry_limits, self._draw
            )
        self._resume_at = time.monotonic() + self._retries.failed(error, redirected=redirected)

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
        code = InvalidArgument.code if isinstance(error, OutcomeUnknown) else error.code
        message = f"producer {self.window.name} has ended: {error.code}: {error}; open it again"
        self.records.end(error, error_for(code, message))
