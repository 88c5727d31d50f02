"""The thread of a blocking client: an event loop runs in it, and callers wait for it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorate.client.waiting import note_client_thread
from quorate.errors import Busy, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorate.client.session import Session

__all__ = ["Worker"]

# Seconds between two checks, during a call, that the worker's thread is alive.
LOOK_S = 1.0

Result = TypeVar("Result")


class _Call(Generic[Result]):
    """One call: the loop runs it, and a thread waits for it.

    The thread waits at a queue that is not written in Python. If a signal handler raised within the
    methods of an Event or a Future, their lock could stay taken, and the loop would wait for it.
    """

    def __init__(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> None:
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._ended: SimpleQueue[asyncio.Task[Result]] = SimpleQueue()

    def begin(self, session: Session) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(session))
        self._task.add_done_callback(self._done)

    def cancel(self, _: Session) -> None:
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            # The thread may be gone, and ask no more.
            task.exception()
        self._ended.put(task)

    def wait(self, timeout: float) -> asyncio.Task[Result] | None:
        """The task once it has ended; None if it has not in time."""
        try:
            return self._ended.get(timeout=timeout)
        except Empty:
            return None


class Worker:
    """An event loop in a thread, and the session that runs on it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="quorate-client", daemon=True)
        # Held by the one thread that closes it. A signal handler may close it once more meanwhile.
        self._closing = threading.RLock()
        # The tasks that wind up. They do not wait for each other.
        self._winding: set[asyncio.Task[Any] | None] = set()

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise Busy(f"the client has no thread: {error}") from None

    def _work(self) -> None:
        note_client_thread()
        # A Runner is not used: it would wait for name servers that do not answer.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_end_tasks())
        finally:
            self._loop.close()

    def run(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> Result:
        """Run ``work`` on the loop, and wait for its result. It keeps its own deadline."""
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.begin, self._session)
        except RuntimeError:  # the loop is closed
            raise InvalidArgument("the client is closed") from None
        try:
            # All that is raised here comes from a signal handler.
            while (task := call.wait(LOOK_S)) is None and self._thread.is_alive():
                pass
        except BaseException:
            self.call_soon(call.cancel)
            raise
        task = task or call.wait(0)
        try:
            if task is None:
                raise InvalidArgument("the client is closed")
            return task.result()
        except asyncio.CancelledError:
            raise InvalidArgument("the client is closed") from None
        finally:
            # An error's traceback would keep them, and they keep the error.
            del task, call

    def call_soon(self, callback: Callable[[Session], None]) -> None:
        """Call ``callback`` on the loop, without waiting."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, self._session)

    def close(self) -> None:
        """End the thread. Several threads may call, and a call that was interrupted may be
        repeated."""
        with self._closing:
            with suppress(InvalidArgument):  # an earlier call came to the end
                self.run(self._wind_up)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _wind_up(self, session: Session) -> None:
        """Close the session, and let the calls that wait for an answer end."""
        self._winding.add(asyncio.current_task())
        await session.close()
        others = asyncio.all_tasks() - self._winding
        if others:
            await asyncio.wait(others, timeout=session.retry_limits.close_s)


async def _end_tasks() -> None:
    """Cancel the tasks that are left."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
