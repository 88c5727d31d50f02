"""One client's operations on its cluster, each with its deadline and its retries.

``routing`` decides where to send a request, ``retries`` whether to send it again; this module
carries it out.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from quorate.client.pool import Pool
from quorate.client.retries import Attempts, Effect, Lost, Patience, Unreachable
from quorate.client.silence import Silence
from quorate.client.submitting import Submitter
from quorate.errors import (
    Behind,
    Corrupt,
    Duplicate,
    InvalidArgument,
    LogNotFound,
    QuorateError,
)
from quorate.wire.calls import FindLog, ReadEnds
from quorate.wire.requests import Append, Fetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from quorate.client.requests import Begun, Requests
    from quorate.client.results import Receipt
    from quorate.client.retries import Settling
    from quorate.client.routing import Route, Routing
    from quorate.client.sender import Sender
    from quorate.wire.calls import Call, Ends
    from quorate.wire.requests import Records, Stamp

__all__ = ["FIRST_BYTES", "GROWTH", "PATIENCE", "Session", "checked_timeout", "wire_id"]

PATIENCE = Patience()
# Bytes of a short answer to a read, and the factor by which answers grow and shrink.
FIRST_BYTES = 64 << 10
GROWTH = 8
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


class Session:
    """Connections and routing of one client, and the timeout of its operations."""

    def __init__(self, routing: Routing, timeout: float, patience: Patience = PATIENCE) -> None:
        self.routing = routing
        self.timeout = checked_timeout(timeout)
        self.patience = patience
        self.pool = Pool(routing, patience)
        self._draw = random.Random()
        # Tasks begun before their results are needed.
        self._ahead: set[asyncio.Task[Any]] = set()
        self.submitter = Submitter(self)
        # Open producers: told of the end, so that no caller waits for ever.
        self.senders: WeakSet[Sender] = WeakSet()

    async def close(self) -> None:
        for sender in list(self.senders):
            sender.client_closed()
        await self.submitter.close()
        # A task may begin another until it is cancelled.
        while ahead := [task for task in self._ahead if not task.done()]:
            for task in ahead:
                task.cancel()
            await asyncio.wait(ahead)
        await self.pool.close()

    def ahead(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start ``work`` for a later caller; it ends with the session."""
        task = asyncio.get_running_loop().create_task(work)
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)
        # Perhaps no caller comes.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    @staticmethod
    def clock() -> float:
        """The time in seconds, by the clock of the event loop."""
        return asyncio.get_running_loop().time()

    # -- operations ----------------------------------------------------------------------------

    async def ask(
        self,
        route: Route,
        what: str,
        call: Call[Result],
        check: Callable[[Result, Requests], None] | None = None,
    ) -> Result:
        """Ask any node of ``route`` a question; the leader's answer is the newest.

        ``check`` raises if an answer will not do, so that another node is asked.
        """

        async def ask(at: Requests) -> Result:
            result = await at.call(call)
            if check is not None:
                check(result, at)
            return result

        attempts = self._attempts(route, what, Effect.NONE)
        return await self._carry_out(attempts, route, ask)

    async def change(
        self,
        route: Route,
        what: str,
        call: Call[Result],
        effect: Effect,
        settling: Settling = (),
        *,
        batch: bytes = b"",
    ) -> Result:
        """Make a change, which only the leader of ``route`` does; ``batch`` goes with the call."""
        result, _ = await self.change_at(route, what, call, effect, settling, batch=batch)
        return result

    async def change_at(
        self,
        route: Route,
        what: str,
        call: Call[Result],
        effect: Effect,
        settling: Settling = (),
        *,
        batch: bytes = b"",
    ) -> tuple[Result, Requests]:
        """Make a change, and return the connection that answered, too."""

        async def ask(at: Requests) -> tuple[Result, Requests]:
            return await at.call(call, batch), at

        attempts = self._attempts(route, what, effect, settling=settling)
        return await self._carry_out(attempts, route, ask)

    def appending(self, route: Route, effect: Effect, timeout: float | None = None) -> Attempts:
        what = f"append to {route.name}"
        return self._attempts(route, what, effect, settling=Duplicate, timeout=timeout)

    async def append(
        self,
        route: Route,
        batch: bytes,
        expect_offset: int | None = None,
        fence: str | None = None,
        stamp: Stamp | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # kept by the attempts
    ) -> Receipt:
        """Append a batch. Without a stamp it is sent again only after a refusal."""
        effect = Effect.TWICE if stamp is None else Effect.ONCE
        attempts = self.appending(route, effect, timeout)
        clock = asyncio.get_running_loop().time
        deadline = clock() + attempts.timeout

        def send(at: Requests) -> Awaitable[Receipt]:
            left_ms = max(1, int(1000 * (deadline - clock())))
            return at.append(
                Append(0, route.incarnation, batch, expect_offset, fence, stamp, left_ms)
            )

        receipt = await self._carry_out(attempts, route, send)
        route.saw(receipt.offset + receipt.count)
        return receipt

    async def ends(self, route: Route, *, barrier: bool) -> Ends:
        """The log's first offset and end; with ``barrier`` no acknowledged record is left out."""

        def check(ends: Ends, at: Requests) -> None:
            if ends.end < route.session_end:
                raise Behind(f"{at.node} is at {ends.end}, this client saw {route.session_end}")

        call = ReadEnds(route.wire, barrier)
        ends = await self.ask(route, f"ends of {route.name}", call, check)
        route.saw(ends.end)
        return ends

    async def fetch(
        self,
        route: Route,
        offset: int,
        bytes_max: int,
        wait_s: float = 0.0,
        *,
        begun: Begun | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # kept by the attempts
    ) -> Records:
        """Stored entries from ``offset`` on, up to ``bytes_max`` bytes, and at least one unless the
        log ends there.

        At the end of the log a replica waits for ``wait_s`` before it answers. ``begun`` may be
        called with the extent of the answer, for each node asked.
        """
        ask = _fetch(route, offset, bytes_max, int(1000 * wait_s), route.session_end, begun)
        what = f"read of {route.name}"
        attempts = self._attempts(route, what, Effect.NONE, wait_s=wait_s, timeout=timeout)
        records = await self._carry_out(attempts, route, ask)
        route.saw(records.end_offset)
        return records

    async def fetch_from(
        self,
        node: str,
        route: Route,
        offset: int,
        bytes_max: int,
        *,
        begun: Begun | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the client's unless it is given
    ) -> Records | None:
        """Fetch from one replica, which may lag; None unless it answers with the record at
        ``offset``, undamaged. If it is silent, half of the time is left for another."""
        attempts = self._attempts(route, f"read of {route.name}", Effect.NONE)
        timeout = self.timeout if timeout is None else timeout
        attempts.answer_s = min(self.patience.answer_s, timeout / 2)
        try:
            async with asyncio.timeout(timeout):
                async with asyncio.timeout(attempts.answer_s):
                    at = await self.pool.reach(self.routing.addresses([node]))
                if at.node != node:
                    return None
                ask = _fetch(route, offset, bytes_max, 0, offset + 1, begun)
                records = await self._answer(attempts, route, at, ask)
        except (Lost, Unreachable, QuorateError, TimeoutError):
            return None
        route.saw(records.end_offset)
        return records

    # -- attempts ------------------------------------------------------------------------------

    def _attempts(
        self,
        route: Route,
        what: str,
        effect: Effect,
        *,
        settling: Settling = (),
        wait_s: float = 0.0,
        timeout: float | None = None,
    ) -> Attempts:
        return Attempts(
            what,
            effect,
            max(0.0, (self.timeout if timeout is None else timeout) + wait_s),
            self.patience,
            self._draw,
            settling=settling,
            copies=len(route.nodes),
            wait_s=wait_s,
        )

    async def _carry_out(
        self,
        attempts: Attempts,
        route: Route,
        ask: Callable[[Requests], Awaitable[Result]],
    ) -> Result:
        """Ask one node after the other until there is an answer, or no time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + attempts.timeout
        reads = attempts.effect is Effect.NONE
        # The connection in use, and the bytes received there before.
        at: Requests | None = None
        heard = 0
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        nodes = route.to_read() if reads else route.to_write()
                        at = await self.pool.reach(self.routing.addresses(nodes))
                        heard = at.received
                        result = await self._answer(attempts, route, at, ask)
                        if not reads:
                            route.leader = at.node
                        return result
                    except (Lost, Unreachable, QuorateError) as error:
                        asked, at = at, None
                        pause_s = await self.failed(attempts, route, asked, error)
                    await asyncio.sleep(pause_s)
                    if not attempts.worthwhile(deadline - clock()):
                        raise attempts.expired()
        except TimeoutError:
            if at is not None:
                self._cut_short(attempts, route, at, heard)
            raise attempts.expired() from None

    async def _answer(
        self,
        attempts: Attempts,
        route: Route,
        at: Requests,
        ask: Callable[[Requests], Awaitable[Result]],
    ) -> Result:
        """Ask one node. A request that still waits for room when the time is up was never sent."""
        heard, silent_s = at.received, attempts.answer_s
        if silent_s is None:
            # This request must not be sent elsewhere; those after it should be.
            noticed = partial(self.suspect, route, at, heard)
            silence = Silence(at, self.patience.answer_s, noticed)
        else:
            silence = Silence(at, silent_s)
        try:
            async with silence:
                await at.room()
                attempts.sent = True
                silence.asked()
                return await ask(at)
        except TimeoutError:
            self.pool.was_silent(at, heard)
            problem = f"{at.node} gave no answer in {silent_s:g} s"
            raise Lost(problem) if attempts.sent else Unreachable(problem) from None

    def suspect(self, route: Route, at: Requests, heard: int) -> None:
        """Begin elsewhere with the next requests: ``at`` has not answered a request that was sent
        when ``heard`` bytes had come from there."""
        route.failed_to_write(at.node)
        self.pool.was_silent(at, heard)

    def _cut_short(self, attempts: Attempts, route: Route, at: Requests, heard: int) -> None:
        """Let the next request avoid ``at``, which had not answered when the time was up."""
        if attempts.sent:
            self.suspect(route, at, heard)
        else:
            route.failed_to_write(at.node)
        if attempts.effect is Effect.NONE:
            route.failed_to_read(at.node)

    async def failed(
        self, attempts: Attempts, route: Route, at: Requests | None, error: Exception
    ) -> float:
        """Learn from a failure where to ask next. Returns the seconds to wait before."""
        attempts.sent = False
        # The caller's error if the time is up before more is known.
        attempts.last = error
        redirected = False
        if at is not None:
            redirected = route.learn(at.node, error)
            if isinstance(error, LogNotFound) and route.incarnation:
                error = await self._gone(route, at, error)
            if attempts.effect is Effect.NONE and not redirected and _passes(error):
                route.failed_to_read(at.node)
        return attempts.failed(error, redirected=redirected)

    async def _gone(self, route: Route, at: Requests, error: LogNotFound) -> QuorateError:
        """Why the log of ``route`` is missing, by the node that has just looked for it."""
        try:
            async with asyncio.timeout(self.patience.answer_s):
                found = await at.call(FindLog(route.name))
        except (Lost, Unreachable, QuorateError, TimeoutError):
            return error
        return route.recreated(int.from_bytes(found.incarnation, "little")) or error


def _fetch(
    route: Route,
    offset: int,
    bytes_max: int,
    wait_ms: int,
    session_end: int,
    begun: Begun | None,
) -> Callable[[Requests], Awaitable[Records]]:
    size = bytes_max

    async def ask(at: Requests) -> Records:
        nonlocal size
        fetch = Fetch(0, route.incarnation, offset, size, wait_ms, session_end)
        # If there is a retry, the answer may have been too long for its time.
        size = max(size // GROWTH, FIRST_BYTES)
        records = await at.fetch(fetch, begun)
        if not _dense(records, offset):
            raise Corrupt(f"{at.node}: its records from offset {offset} on have a gap")
        return records

    return ask


def _passes(error: Exception) -> bool:
    """Whether another replica may answer better."""
    return not isinstance(error, QuorateError) or error.retriable or isinstance(error, Corrupt)


def _dense(records: Records, offset: int) -> bool:
    """Whether the record at ``offset`` and all behind it are there, or ``offset`` is the end."""
    if not records.rows:
        return offset >= records.end_offset
    first, count, _ = records.rows[0]
    ends = [start + count for start, count, _ in records.rows]
    starts = [start for start, _, _ in records.rows]
    return first <= offset < first + count and ends[:-1] == starts[1:]
