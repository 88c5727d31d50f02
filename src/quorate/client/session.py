"""One client's operations on its cluster, each with its deadline and its retries.

``routing`` decides where to send a request, ``retries`` whether to send it again; this module
carries it out.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from quorate.client.pool import Pool
from quorate.client.retries import Idempotency, Lost, Retries, RetryLimits, Unreachable
from quorate.client.stall import StallTimeout
from quorate.client.submission import Submitter
from quorate.errors import (
    Behind,
    Corrupt,
    Duplicate,
    InvalidArgument,
    LogNotFound,
    QuorateError,
)
from quorate.wire.calls import FindLog, ReadEnds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from quorate.client.node_connection import NodeConnection
    from quorate.client.retries import Errors
    from quorate.client.routing import Route, Routing
    from quorate.wire.calls import Call, Ends
    from quorate.wire.handshake import Welcome

__all__ = ["RETRY_LIMITS", "Session", "checked_timeout", "wire_id"]

RETRY_LIMITS = RetryLimits()
# Seconds; a day. The wire has milliseconds in 32 bits.
TIMEOUT_MAX = 86_400

Result = TypeVar("Result")


def checked_timeout(timeout: object) -> float:
    """Check a timeout in seconds. An infinite one is refused: no call waits for ever."""
    if not isinstance(timeout, int | float) or not 0 < timeout <= TIMEOUT_MAX:
        raise InvalidArgument(
            f"timeout = {timeout!r} is not a number of seconds above 0 and up to {TIMEOUT_MAX}"
        )
    return timeout


def wire_id(incarnation: int) -> bytes:
    """The incarnation on the wire."""
    return incarnation.to_bytes(16, "little")


class EndsWithClient(Protocol):
    """A part of a client with callers that would wait for ever once the client is closed."""

    def client_closed(self) -> None:
        """End all that its callers wait for."""


class Session:
    """Connections and routing of one client, and the timeout of its operations."""

    def __init__(
        self, routing: Routing, timeout: float, retry_limits: RetryLimits = RETRY_LIMITS
    ) -> None:
        self.routing = routing
        self.timeout = checked_timeout(timeout)
        self.retry_limits = retry_limits
        self.pool = Pool(routing, retry_limits)
        self._draw = random.Random()
        # Tasks that end with the session.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.submitter = Submitter(self)
        # The senders of open producers.
        self.senders: WeakSet[EndsWithClient] = WeakSet()
        self.closed = False

    async def close(self) -> None:
        self.closed = True
        for sender in list(self.senders):
            sender.client_closed()
        await self.submitter.close()
        # A task may begin another until it is cancelled.
        while tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self.pool.close()

    def start_task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start ``work`` in a task that ends with the session."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Perhaps no caller comes.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    @staticmethod
    def clock() -> float:
        """The time in seconds, by the clock of the event loop."""
        return asyncio.get_running_loop().time()

    def deadline(self) -> float:
        """The time by which an operation that begins now has to end, with all of its steps."""
        return self.clock() + self.timeout

    # -- operations ----------------------------------------------------------------------------

    # An operation with several steps gives each the same ``deadline``; by default a step is the
    # whole operation.

    async def ask(
        self,
        route: Route,
        what: str,
        call: Call[Result],
        check: Callable[[Result, NodeConnection], None] | None = None,
        *,
        deadline: float | None = None,
    ) -> Result:
        """Ask any node of ``route`` a question; the leader's answer is the newest.

        ``check`` raises if an answer will not do, so that another node is asked.
        """

        async def ask(at: NodeConnection) -> Result:
            result = await at.call(call)
            if check is not None:
                check(result, at)
            return result

        timeout = self._left_s(deadline)
        retries = self._retries(route, what, Idempotency.READ_ONLY, timeout=timeout)
        return await self.carry_out(retries, route, ask)

    async def change(
        self,
        route: Route,
        what: str,
        call: Call[Result],
        idempotency: Idempotency,
        conclusive: Errors = (),
        *,
        batch: bytes = b"",
        deadline: float | None = None,
        follow_up: Callable[[Result, NodeConnection], Call[Result] | None] = lambda *_: None,
    ) -> Result:
        """Make a change, which only the leader of ``route`` does; ``batch`` goes with the call.

        ``follow_up`` makes the next call of the change from an answer, as long as the change needs
        one.
        """

        async def ask(at: NodeConnection) -> Result:
            result = await at.call(call, batch)
            while (following := follow_up(result, at)) is not None:
                result = await at.call(following)
            return result

        timeout = self._left_s(deadline)
        retries = self._retries(route, what, idempotency, conclusive=conclusive, timeout=timeout)
        return await self.carry_out(retries, route, ask)

    async def welcome(self, route: Route) -> Welcome:
        """The WELCOME of a node of ``route``, with its limits. No request is sent."""

        async def look(at: NodeConnection) -> Welcome:
            return at.welcome

        retries = self._retries(route, f"limits of {route.name}", Idempotency.READ_ONLY)
        return await self.carry_out(retries, route, look)

    def appending(self, route: Route, timeout: float | None = None) -> Retries:
        """The attempts of an append without a producer."""
        what = f"append to {route.name}"
        return self._retries(route, what, Idempotency.UNSAFE, conclusive=Duplicate, timeout=timeout)

    def reading(self, route: Route, timeout: float, wait_s: float = 0.0) -> Retries:
        """The attempts of a read, for which a node may wait ``wait_s`` more."""
        what = f"read of {route.name}"
        return self._retries(route, what, Idempotency.READ_ONLY, wait_s=wait_s, timeout=timeout)

    async def ends(self, route: Route, *, barrier: bool, deadline: float | None = None) -> Ends:
        """The log's first offset and end; with ``barrier`` no acknowledged record is left out."""

        def check(ends: Ends, at: NodeConnection) -> None:
            if ends.end < route.session_end:
                raise Behind(f"{at.node} is at {ends.end}, this client saw {route.session_end}")

        call = ReadEnds(route.wire, barrier)
        ends = await self.ask(route, f"ends of {route.name}", call, check, deadline=deadline)
        route.saw(ends.end)
        return ends

    # -- attempts ------------------------------------------------------------------------------

    def _left_s(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline - self.clock()

    def _retries(
        self,
        route: Route,
        what: str,
        idempotency: Idempotency,
        *,
        conclusive: Errors = (),
        wait_s: float = 0.0,
        timeout: float | None = None,
    ) -> Retries:
        return Retries(
            what,
            idempotency,
            max(0.0, (self.timeout if timeout is None else timeout) + wait_s),
            self.retry_limits,
            self._draw,
            conclusive=conclusive,
            copies=len(route.nodes),
            wait_s=wait_s,
        )

    async def carry_out(
        self,
        retries: Retries,
        route: Route,
        ask: Callable[[NodeConnection], Awaitable[Result]],
    ) -> Result:
        """Ask one node after the other until there is an answer, or no time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + retries.timeout
        reads = retries.idempotency is Idempotency.READ_ONLY
        # The connection in use, and the bytes received there before.
        at: NodeConnection | None = None
        heard = 0
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        nodes = route.to_read() if reads else route.to_write()
                        at = await self.pool.reach(self.routing.addresses(nodes))
                        heard = at.received
                        result = await self._answer(retries, route, at, ask)
                        if not reads:
                            route.leader = at.node
                        return result
                    except (Lost, Unreachable, QuorateError) as error:
                        asked, at = at, None
                        pause_s = await self.failed(retries, route, asked, error)
                    await asyncio.sleep(pause_s)
                    if not retries.worthwhile(deadline - clock()):
                        raise retries.expired()
        except TimeoutError:
            if at is not None:
                self._cut_short(retries, route, at, heard)
            raise retries.expired() from None

    async def ask_node(
        self,
        retries: Retries,
        route: Route,
        node: str,
        ask: Callable[[NodeConnection], Awaitable[Result]],
    ) -> Result | None:
        """Ask one node once; None unless it answers. If it is silent, half of the time is left for
        another."""
        retries.answer_s = min(self.retry_limits.answer_s, retries.timeout / 2)
        try:
            async with asyncio.timeout(retries.timeout):
                async with asyncio.timeout(retries.answer_s):
                    at = await self.pool.reach(self.routing.addresses([node]))
                if at.node != node:
                    return None
                return await self._answer(retries, route, at, ask)
        except (Lost, Unreachable, QuorateError, TimeoutError):
            return None

    async def _answer(
        self,
        retries: Retries,
        route: Route,
        at: NodeConnection,
        ask: Callable[[NodeConnection], Awaitable[Result]],
    ) -> Result:
        """Ask one node. A request that still waits for room when the time is up was never sent."""
        heard, stalled_s = at.received, retries.answer_s
        if stalled_s is None:
            # This request must not be sent elsewhere; those after it should be.
            noticed = partial(self.stalled, route, at, heard)
            stall = StallTimeout(at, self.retry_limits.answer_s, noticed)
        else:
            stall = StallTimeout(at, stalled_s)
        try:
            async with stall:
                await at.room()
                retries.sent = True
                stall.asked()
                return await ask(at)
        except TimeoutError:
            self.pool.stalled(at, heard)
            problem = f"{at.node} gave no answer in {stalled_s:g} s"
            raise Lost(problem) if retries.sent else Unreachable(problem) from None

    def stalled(self, route: Route, at: NodeConnection, heard: int) -> None:
        """Begin elsewhere with the next requests: ``at`` has not answered a request that was sent
        when ``heard`` bytes had come from there."""
        route.failed_to_write(at.node)
        self.pool.stalled(at, heard)

    def _cut_short(self, retries: Retries, route: Route, at: NodeConnection, heard: int) -> None:
        """Let the next request avoid ``at``, which had not answered when the time was up."""
        if retries.sent:
            self.stalled(route, at, heard)
        else:
            route.failed_to_write(at.node)
        if retries.idempotency is Idempotency.READ_ONLY:
            route.failed_to_read(at.node)

    async def failed(
        self, retries: Retries, route: Route, at: NodeConnection | None, error: Exception
    ) -> float:
        """Learn from a failure where to ask next. Returns the seconds to wait before."""
        retries.sent = False
        # The caller's error if the time is up before more is known.
        retries.last = error
        redirected = False
        if at is not None:
            redirected = route.learn(at.node, error)
            if isinstance(error, LogNotFound) and route.incarnation:
                error = await self._gone(route, at, error)
            if retries.idempotency is Idempotency.READ_ONLY and not redirected and _passes(error):
                route.failed_to_read(at.node)
        return retries.failed(error, redirected=redirected)

    async def _gone(self, route: Route, at: NodeConnection, error: LogNotFound) -> QuorateError:
        """Why the log of ``route`` is missing, by the node that has just looked for it."""
        try:
            async with asyncio.timeout(self.retry_limits.answer_s):
                found = await at.call(FindLog(route.name))
        except (Lost, Unreachable, QuorateError, TimeoutError):
            return error
        return route.recreated(int.from_bytes(found.incarnation, "little")) or error


def _passes(error: Exception) -> bool:
    """Whether another replica may answer better."""
    return not isinstance(error, QuorateError) or error.retriable or isinstance(error, Corrupt)
