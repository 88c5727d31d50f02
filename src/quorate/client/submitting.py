"""Submitted appends: the short way to a known leader, and the search for an unknown one.

A submission leaves at once if the leader is known and its connection takes more. Otherwise the
first one looks for the leader, like any append; the others wait for it, and leave in their order
once it has arrived. One that was refused goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from quorate.client.overdue import Overdue
from quorate.client.retries import Effect
from quorate.client.submission import Submission
from quorate.errors import Busy, InvalidArgument, OutcomeUnknown, QuorateError, Timeout

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from quorate.client.requests import Requests
    from quorate.client.results import Receipt
    from quorate.client.routing import Route
    from quorate.client.session import Session

__all__ = ["Submitter"]

# Maximum submissions to one log, and bytes of their batches, while no leader is known.
HELD_MAX = 65_536
HELD_BYTES_MAX = 256 << 20


class _Held:
    """Submissions to one log that wait for the one that looks for the leader."""

    def __init__(self) -> None:
        self._waiting: deque[Submission] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, submission: Submission) -> None:
        self._waiting.append(submission)
        self._bytes += len(submission.batch)

    def refusal(self, submission: Submission) -> Busy | None:
        """The error if there is no room for it."""
        name = submission.route.name
        if len(self._waiting) >= HELD_MAX:
            return Busy(f"{HELD_MAX} appends to {name} wait for its leader; await some")
        if self._waiting and self._bytes + len(submission.batch) > HELD_BYTES_MAX:
            limit = f"at most {HELD_BYTES_MAX} may"
            return Busy(f"{self._bytes} bytes to {name} wait for its leader, {limit}; await some")
        return None

    def take(self) -> Submission:
        """Take the submission that waits longest."""
        submission = self._waiting.popleft()
        self._bytes -= len(submission.batch)
        return submission


class Submitter:
    """Sends the submissions of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # By incarnation: submissions that wait for a leader.
        self._held: dict[int, _Held] = {}
        # Tasks of attempts, and of searches for leaders.
        self._tasks: set[asyncio.Task[Receipt]] = set()
        self._ways: set[asyncio.Task[None]] = set()
        # The watch of each connection with submissions on their way.
        self._watches: dict[Requests, Overdue] = {}
        self._closed = False
        # The one loop of the session, once it was used.
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, route: Route, batch: bytes) -> Submission:
        """Append a batch; it is sent again only after a refusal."""
        # To ask for the loop is a system call: it costs more than the rest.
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        submission = Submission(route, batch, loop.time() + self._session.timeout, loop)
        self._send(submission)
        return submission

    def _send(self, submission: Submission) -> None:
        if self._closed:
            submission.failed(_closed())
            return
        route = submission.route
        held = self._held.get(route.incarnation)
        if held is not None:
            refusal = held.refusal(submission)
            if refusal is not None:
                submission.failed(refusal)
            else:
                held.add(submission)
            return
        at = self._leader_at(route)
        if at is None:
            held = self._held[route.incarnation] = _Held()
            first = self._begin(submission, self._append(submission))
            way = asyncio.get_running_loop().create_task(self._find_way(first, route, held))
            self._ways.add(way)
            way.add_done_callback(partial(self._follow, route))
        elif len(submission.batch) > at.welcome.batch_bytes:
            self._begin(submission, self._append(submission))
        else:
            at.submit(submission, self._failed)
            if at not in self._watches:
                self._watch(at, submission)

    def _watch(self, at: Requests, first: Submission) -> None:
        session = self._session
        silent_s = session.patience.answer_s
        self._watches[at] = Overdue(at, first, silent_s, session.suspect, self._unwatch)

    def _unwatch(self, at: Requests) -> None:
        del self._watches[at]

    def _leader_at(self, route: Route) -> Requests | None:
        session, leader = self._session, route.leader
        address = session.routing.met.get(leader) if leader is not None else None
        at = session.pool.connected(address) if address is not None else None
        return at if at is not None and at.node == leader else None

    def _failed(self, submission: Submission, at: Requests, error: Exception) -> None:
        """Go on after an attempt without a receipt."""
        submission.tried = True
        if submission.given_up and isinstance(error, QuorateError):
            submission.failed(error)
        else:
            self._begin(submission, self._go_on(submission, at, error))

    def _begin(
        self, submission: Submission, work: Coroutine[Any, Any, Receipt]
    ) -> asyncio.Task[Receipt]:
        task = asyncio.get_running_loop().create_task(work)
        submission.task = task
        self._tasks.add(task)
        # Not by the task itself: it may be cancelled before its first step.
        task.add_done_callback(partial(self._settle, submission))
        return task

    def _settle(self, submission: Submission, task: asyncio.Task[Receipt]) -> None:
        """Give ``submission`` the outcome of its task."""
        self._tasks.discard(task)
        error = _given_up(submission) if task.cancelled() else task.exception()
        if error is None:
            submission.appended(*task.result())
        elif isinstance(error, QuorateError):
            submission.failed(error)
        else:
            name = submission.route.name
            submission.failed(OutcomeUnknown(f"append to {name}: the client failed: {error!r}"))
            raise error  # a bug: the loop reports it

    async def _find_way(self, newest: asyncio.Task[Receipt], route: Route, held: _Held) -> None:
        """Let one submission after the other try, until one has reached the leader."""
        patience = self._session.patience
        # A silent node is noticed by then: the next attempt begins with another.
        turn_s = patience.dial_s + patience.answer_s
        await asyncio.wait([newest], timeout=turn_s)
        while held and self._leader_at(route) is None:
            one = held.take()
            left_s = one.deadline - asyncio.get_running_loop().time()
            if one.given_up:
                one.failed(_given_up(one))
            elif not self._session.appending(route, Effect.TWICE).worthwhile(left_s):
                one.failed(_too_late(route, newest))
            else:
                newest = self._begin(one, self._append(one))
                await asyncio.wait([newest], timeout=turn_s)

    def _follow(self, route: Route, way: asyncio.Task[None]) -> None:
        """Send the submissions that waited: the search has ended."""
        self._ways.discard(way)
        now = asyncio.get_running_loop().time()
        held = self._held.pop(route.incarnation)
        while held:
            one = held.take()
            if one.given_up:
                one.failed(_given_up(one))
            elif one.deadline <= now:
                one.failed(_too_late(route))
            else:
                self._send(one)

    async def _append(self, submission: Submission) -> Receipt:
        left = submission.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise _too_late(submission.route)
        submission.tried = True
        return await self._session.append(submission.route, submission.batch, timeout=left)

    async def _go_on(self, submission: Submission, at: Requests, error: Exception) -> Receipt:
        """Make further attempts; ``error`` is the result of the first."""
        session = self._session
        clock = asyncio.get_running_loop().time
        attempts = session.appending(submission.route, Effect.TWICE)
        try:
            async with asyncio.timeout_at(submission.deadline):
                pause_s = await session.failed(attempts, submission.route, at, error)
                await asyncio.sleep(pause_s)
        except TimeoutError:
            raise attempts.expired() from None
        if not attempts.worthwhile(submission.deadline - clock()):
            raise attempts.expired()
        return await self._append(submission)

    async def close(self) -> None:
        """Refuse submissions that were not sent; those on their way end as unknown."""
        # A callback may submit again, to any log.
        self._closed = True
        for watch in self._watches.values():
            watch.stop()
        for held in list(self._held.values()):
            while held:
                held.take().failed(_closed())
        tasks = [*self._tasks, *self._ways]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _closed() -> InvalidArgument:
    return InvalidArgument("the client is closed")


def _too_late(route: Route, before: asyncio.Task[Receipt] | None = None) -> Timeout:
    """The error of a submission that was not sent; ``before`` sought the leader in its place."""
    problem = "its leader was not reached in time; nothing was sent"
    error = None
    if before is not None and before.done() and not before.cancelled():
        error = before.exception()
    if isinstance(error, QuorateError):
        problem += f"; the append before it got {error.code}: {error}"
    return Timeout(f"append to {route.name}: {problem}")


def _given_up(submission: Submission) -> QuorateError:
    """The error of a submission that makes no further attempt."""
    name = submission.route.name
    if submission.tried:
        return OutcomeUnknown(f"append to {name}: it was given up on its way")
    if submission.given_up:
        return Timeout(f"append to {name}: it was given up; nothing was sent")
    return _closed()
