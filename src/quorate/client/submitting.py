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
from quorate.errors import Busy, QuorateError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from quorate.client.requests import Requests
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
        self._tasks: set[asyncio.Task[None]] = set()
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
            self._begin(self._find_way(submission))
        elif len(submission.batch) > at.welcome.batch_bytes:
            self._begin(self._append(submission))
        else:
            at.submit(submission, self._failed)

    def _leader_at(self, route: Route) -> Requests | None:
        session, leader = self._session, route.leader
        address = session.routing.met.get(leader) if leader is not None else None
        at = session.pool.connected(address) if address is not None else None
        return at if at is not None and at.node == leader else None

    def _failed(self, submission: Submission, at: Requests, error: Exception) -> None:
        self._begin(self._go_on(submission, at, error))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find_way(self, submission: Submission) -> None:
        route = submission.route
        held = self._held[route.incarnation]
        try:
            await self._append(submission)
            while held and self._leader_at(route) is None:
                await self._append(held.popleft())
        finally:
            del self._held[route.incarnation]
            for one in held:
                self._send(one)

    async def _append(self, submission: Submission) -> None:
        left = submission.deadline - asyncio.get_running_loop().time()
        try:
            receipt = await self._session.append(submission.route, submission.batch, timeout=left)
        except QuorateError as problem:
            submission.failed(problem)
        else:
            submission.appended(*receipt)

    async def _go_on(self, submission: Submission, at: Requests, error: Exception) -> None:
        """Let it have its further attempts; ``error`` is what came of the first."""
        session = self._session
        attempts = session.appending(submission.route, Effect.TWICE)
        try:
            await asyncio.sleep(await session.failed(attempts, submission.route, at, error))
        except QuorateError as problem:
            submission.failed(problem)
        else:
            await self._append(submission)
