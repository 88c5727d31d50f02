"""Appends without a producer, each from its first attempt to its outcome.

A submission leaves at once if the leader is known and its connection takes more. Otherwise the
first one looks for the leader, like any append; the others wait for it, and leave in their order
once it has arrived. One that was refused goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from quorate.client.stall import StallWatch
from quorate.commands import Receipt
from quorate.errors import Busy, InvalidArgument, OutcomeUnknown, QuorateError, Timeout
from quorate.wire.requests import AppendRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

    from quorate.client.node_connection import NodeConnection
    from quorate.client.routing import Route
    from quorate.client.session import Session

__all__ = ["ConditionalSubmission", "Submission", "Submitter"]

# Maximum submissions to one log, and bytes of their batches, while no leader is known.
HELD_MAX = 65_536
HELD_BYTES_MAX = 256 << 20


class Submission:
    """The append of one batch. Await it for its receipt, as often as you like.

    It is made for every append, so it has only what an append needs: a future of asyncio is made
    only for a caller that awaits, and a receipt for one that asks.
    """

    __slots__ = (
        "_callbacks", "_loop", "_outcome", "batch", "deadline", "given_up", "route", "task",
        "tried",
    )  # fmt: skip

    # It has no conditions: such submissions to one log are encoded together.
    plain = True

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

    def request(self, number: int, left_s: float) -> AppendRequest:
        """The request of one attempt, for which ``left_s`` is left."""
        return AppendRequest(
            number, self.route.incarnation, self.batch, deadline_ms=max(1, int(1000 * left_s))
        )

    def appended(self, offset: int, count: int, index: int, term: int, synced: int) -> None:
        self._outcome = (offset, count, index, term, synced)
        self.route.saw(offset + count)
        self._call_back()

    def failed(self, error: QuorateError) -> None:
        self._outcome = error
        self._call_back()

    def _call_back(self) -> None:
        self.batch = b""
        callbacks, self._callbacks = self._callbacks, []
        for call in callbacks:
            try:
                call(self)
            except Exception as error:  # noqa: BLE001  # the caller's error, as with a future
                context = {"message": "a callback of an append failed", "exception": error}
                self._loop.call_exception_handler(context)


class ConditionalSubmission(Submission):
    """An append that is refused unless the log ends at ``expect_offset``, or without ``fence``."""

    __slots__ = ("_expect_offset", "_fence")

    plain = False

    def __init__(
        self,
        route: Route,
        batch: bytes,
        deadline: float,
        loop: asyncio.AbstractEventLoop,
        expect_offset: int | None,
        fence: str | None,
    ) -> None:
        super().__init__(route, batch, deadline, loop)
        self._expect_offset = expect_offset
        self._fence = fence

    def request(self, number: int, left_s: float) -> AppendRequest:
        request = super().request(number, left_s)
        return request._replace(expect_offset=self._expect_offset, fence=self._fence)


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
        self._watches: dict[NodeConnection, StallWatch] = {}
        self._closed = False
        # The one loop of the session, once it was used.
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self,
        route: Route,
        batch: bytes,
        expect_offset: int | None = None,
        fence: str | None = None,
    ) -> Submission:
        """Append a batch; it is sent again only after a refusal."""
        # To ask for the loop is a system call: it costs more than the rest.
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        deadline = loop.time() + self._session.timeout
        if expect_offset is None and fence is None:
            submission = Submission(route, batch, deadline, loop)
        else:
            submission = ConditionalSubmission(route, batch, deadline, loop, expect_offset, fence)
        self._send(submission)
        return submission

    async def append(
        self,
        route: Route,
        batch: bytes,
        expect_offset: int | None = None,
        fence: str | None = None,
    ) -> Receipt:
        """Submit a batch, and wait for its receipt."""
        submission = self.submit(route, batch, expect_offset, fence)
        try:
            return await submission
        except asyncio.CancelledError:
            submission.give_up()
            raise

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
            first = self._begin(submission, self._attempt(submission))
            way = asyncio.get_running_loop().create_task(self._find_way(first, route, held))
            self._ways.add(way)
            way.add_done_callback(partial(self._follow, route))
        elif len(submission.batch) > at.welcome.batch_bytes:
            self._begin(submission, self._attempt(submission))
        else:
            try:
                at.submit(submission, self._failed)
            except InvalidArgument as error:  # a condition that cannot be encoded
                submission.failed(error)
                return
            if at not in self._watches:
                self._watch(at, submission)

    def _watch(self, at: NodeConnection, first: Submission) -> None:
        session = self._session
        stalled_s = session.retry_limits.answer_s
        self._watches[at] = StallWatch(at, first, stalled_s, session.stalled, self._unwatch)

    def _unwatch(self, at: NodeConnection) -> None:
        del self._watches[at]

    def _leader_at(self, route: Route) -> NodeConnection | None:
        session, leader = self._session, route.leader
        address = session.routing.met.get(leader) if leader is not None else None
        at = session.pool.connected(address) if address is not None else None
        return at if at is not None and at.node == leader else None

    def _failed(self, submission: Submission, at: NodeConnection, error: Exception) -> None:
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
        task.add_done_callback(partial(self._task_done, submission))
        return task

    def _task_done(self, submission: Submission, task: asyncio.Task[Receipt]) -> None:
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
        retry_limits = self._session.retry_limits
        # A silent node is noticed by then: the next attempt begins with another.
        turn_s = retry_limits.dial_s + retry_limits.answer_s
        await asyncio.wait([newest], timeout=turn_s)
        while held and self._leader_at(route) is None:
            one = held.take()
            left_s = one.deadline - asyncio.get_running_loop().time()
            if one.given_up:
                one.failed(_given_up(one))
            elif not self._session.appending(route).worthwhile(left_s):
                one.failed(_too_late(route, newest))
            else:
                newest = self._begin(one, self._attempt(one))
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

    async def _attempt(self, submission: Submission) -> Receipt:
        session, route = self._session, submission.route
        clock = asyncio.get_running_loop().time
        left_s = submission.deadline - clock()
        if left_s <= 0:
            raise _too_late(route)
        submission.tried = True

        async def ask(at: NodeConnection) -> Receipt:
            return await at.append(submission.request(0, submission.deadline - clock()))

        return await session.carry_out(session.appending(route, left_s), route, ask)

    async def _go_on(self, submission: Submission, at: NodeConnection, error: Exception) -> Receipt:
        """Make further attempts; ``error`` is the result of the first."""
        session = self._session
        clock = asyncio.get_running_loop().time
        retries = session.appending(submission.route)
        try:
            async with asyncio.timeout_at(submission.deadline):
                pause_s = await session.failed(retries, submission.route, at, error)
                await asyncio.sleep(pause_s)
        except TimeoutError:
            raise retries.expired() from None
        if not retries.worthwhile(submission.deadline - clock()):
            raise retries.expired()
        return await self._attempt(submission)

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


def _wake(known: asyncio.Future[None], _: Submission) -> None:
    if not known.done():
        known.set_result(None)
