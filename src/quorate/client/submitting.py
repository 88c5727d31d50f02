"""Appends that are not waited for: the short way to the leader, and what happens without one.

A submission leaves at once if it is known who leads and there is a connection that takes more.
Otherwise the first of them finds the way, like any append; the others wait for it, and leave in
their order once it has arrived. One that was refused goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

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

# Of one log, while nobody is known who takes them.
HELD_MAX = 65_536


class Submitter:
    """All submissions of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # By incarnation: those that wait for the one that finds the way.
        self._held: dict[int, deque[Submission]] = {}
        # Further attempts, and the finding of leaders.
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: set[asyncio.Task[None]] = set()
        # The one loop that the session is used on, once it was used.
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, route: Route, batch: bytes) -> Submission:
        """Append a batch; it is sent a second time only if the first one was refused."""
        # To ask for the loop is a system call: more than all else that is done here.
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        submission = Submission(route, batch, loop.time() + self._session.timeout, loop)
        self._send(submission)
        return submission

    def _send(self, submission: Submission) -> None:
        route = submission.route
        held = self._held.get(route.incarnation)
        if held is not None:
            if len(held) >= HELD_MAX:
                problem = f"{HELD_MAX} appends to {route.name} wait for its leader; await some"
                submission.failed(Busy(problem))
            else:
                held.append(submission)
            return
        at = self._leader_at(route)
        if at is None:
            self._held[route.incarnation] = deque()
            way = asyncio.get_running_loop().create_task(self._find_way(submission))
            self._ways.add(way)
            way.add_done_callback(self._ways.discard)
        elif len(submission.batch) > at.welcome.batch_bytes:
            self._begin(submission, self._append(submission))
        else:
            at.submit(submission, self._failed)

    def _leader_at(self, route: Route) -> Requests | None:
        session, leader = self._session, route.leader
        address = session.routing.met.get(leader) if leader is not None else None
        at = session.pool.connected(address) if address is not None else None
        return at if at is not None and at.node == leader else None

    def _failed(self, submission: Submission, at: Requests, error: Exception) -> None:
        """The first attempt brought no receipt."""
        if submission.given_up and isinstance(error, QuorateError):
            submission.failed(error)
        else:
            self._begin(submission, self._go_on(submission, at, error))

    def _begin(
        self, submission: Submission, work: Coroutine[Any, Any, Receipt]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._settle(submission, work))
        submission.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _settle(self, submission: Submission, work: Coroutine[Any, Any, Receipt]) -> None:
        """Let ``submission`` know what becomes of ``work``."""
        try:
            submission.appended(*await work)
        except QuorateError as problem:
            submission.failed(problem)
        except asyncio.CancelledError:
            name = submission.route.name
            submission.failed(OutcomeUnknown(f"append to {name}: it was given up on its way"))
            raise

    async def _find_way(self, first: Submission) -> None:
        """Let one after the other try, until one has found the leader; the others follow it."""
        route = first.route
        held = self._held[route.incarnation]
        try:
            await asyncio.wait([self._begin(first, self._append(first))])
            while held and self._leader_at(route) is None:
                one = held.popleft()
                if not one.given_up:
                    await asyncio.wait([self._begin(one, self._append(one))])
        finally:
            del self._held[route.incarnation]
            now = asyncio.get_running_loop().time()
            for one in held:
                if one.deadline <= now:
                    problem = "its leader was not found in time; nothing was sent"
                    one.failed(Timeout(f"append to {route.name}: {problem}"))
                elif not one.given_up:
                    self._send(one)

    async def _append(self, submission: Submission) -> Receipt:
        left = submission.deadline - asyncio.get_running_loop().time()
        return await self._session.append(submission.route, submission.batch, timeout=left)

    async def _go_on(self, submission: Submission, at: Requests, error: Exception) -> Receipt:
        """Further attempts; ``error`` is what came of the first."""
        session = self._session
        attempts = session.appending(submission.route, Effect.TWICE)
        await asyncio.sleep(await session.failed(attempts, submission.route, at, error))
        return await self._append(submission)

    async def close(self) -> None:
        """What was not sent is refused, what is on its way ends as unknown."""
        closed = InvalidArgument("the client is closed")
        for held in self._held.values():
            while held:
                held.popleft().failed(closed)
        tasks = [*self._tasks, *self._ways]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
