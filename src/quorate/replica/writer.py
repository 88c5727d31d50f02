"""A node's writer: its threads carry out plans, so that no loop ever waits for a disk.

All logs of a node share the threads. Flushes have threads of their own: a vote or an append must
not wait while other logs are opened.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from quorate.storage.disk_errors import WAIT_FOR_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Observe = Callable[[float], None]
    Queue = SimpleQueue[Callable[[], None] | None]

__all__ = ["FILES_S", "THREADS", "Writer"]

Result = TypeVar("Result")


@runtime_checkable
class Closable(Protocol):
    """An object that holds files until it is closed."""

    def close(self) -> None: ...


# More than cores: a thread that syncs only waits, and file systems sync several files at once.
THREADS = 4
# Seconds after which a plan that could not open a file goes on.
FILES_S = 0.02


class Writer:
    """The threads of a node: ``threads`` for flushes, and as many for work that can wait: opening a
    log and chores. The loop calls ``observe`` with the seconds that each flush took.

    The threads take work from queues: a pool would make a future with its lock for every flush,
    which costs more than the rest of the handover.
    """

    def __init__(self, threads: int = THREADS, observe: Observe = lambda _: None) -> None:
        self.observe = observe
        self._flushes: Queue = SimpleQueue()
        self._others: Queue = SimpleQueue()
        self._threads = [
            Thread(target=_take, args=(queue,), name=f"quorate-{name}-{number}", daemon=True)
            for name, queue in (("writer", self._flushes), ("tender", self._others))
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, flush: Callable[..., None], *arguments: object) -> None:
        """Call ``flush`` in a thread. It must not raise, and reports its end by itself."""
        self._flushes.put(partial(flush, *arguments))

    def begin_later(self, work: Callable[[], None]) -> None:
        """Call ``work``, for which no flush waits, as soon as a thread is free."""
        self._others.put(work)

    async def carry_out(self, plan: Generator[str, None, Result]) -> Result:
        """Run all of ``plan`` in a thread, as soon as one is free, and return its result.

        If the caller is cancelled, a plan under way ends after its present step and leaves the disk
        as a kill does. The files that the plan opened are closed.
        """
        done: Future[Result] = Future()
        given_up = Event()
        self.begin_later(partial(self._carry_on, plan, done, given_up))
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            given_up.set()
            done.add_done_callback(_close_untaken)
            raise

    def _carry_on(
        self, plan: Generator[str, None, Result], done: Future[Result], given_up: Event
    ) -> None:
        """Carry ``plan`` out. While it waits for files, other plans come in between."""
        if not (done.running() or done.set_running_or_notify_cancel()):
            plan.close()
            return
        try:
            while not given_up.is_set():
                if next(plan) == WAIT_FOR_FILES and not given_up.wait(FILES_S):
                    return self.begin_later(partial(self._carry_on, plan, done, given_up))
            plan.close()
            done.set_exception(asyncio.CancelledError())
        except StopIteration as end:
            done.set_result(end.value)
        except BaseException as error:  # noqa: BLE001  # it is raised in the caller
            done.set_exception(error)

    def close(self) -> None:
        """End the threads; every log is closed by now."""
        for _ in self._threads[::2]:
            self._flushes.put(None)
            self._others.put(None)
        for thread in self._threads:
            thread.join()
        self._others.put(None)
        _take(self._others)  # the rest: plans that were given up and came behind that end


def _take(queue: Queue) -> None:
    while (work := queue.get()) is not None:
        work()


def _close_untaken(done: Future[Result]) -> None:
    """Close the files that the result of a plan holds if its caller was cancelled."""
    result = None if done.cancelled() or done.exception() is not None else done.result()
    if isinstance(result, Closable):
        result.close()
