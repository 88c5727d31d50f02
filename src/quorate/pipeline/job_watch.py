"""Spark jobs that are watched until they end: a query, or a batch; and their end by Ctrl-C.

Ctrl-C, or SIGTERM, is noted, not raised, while a job runs: raised inside a call to Java it would
leave the connection in an unknown state.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quorate.pipeline.job_progress import TASKS, ProgressSum, task_progress
from quorate.pipeline.spark_errors import plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from quorate.pipeline.job_progress import JobProgress

    Watch = Callable[[JobProgress], None]

__all__ = ["Ended", "follow", "run_batch"]

Result = TypeVar("Result")

# Seconds between two looks at a job.
LOOK_S = 0.2
# The seconds that a micro-batch may take to its end after Ctrl-C.
LAST_MICRO_BATCH_S = 2.0
# The most starts of a query if Spark gave up one of its Python processes after ten seconds, which
# it does at its start on a busy machine. A query does not repeat micro-batches that it has
# committed.
STARTS = 5
TOO_SLOW = "Python worker failed to connect back"


class Ended(NamedTuple):
    """The end of a stream that did not fail."""

    progress: JobProgress
    # Ended by Ctrl-C: the micro-batch that was under way is repeated by the next run.
    interrupted: bool


def follow(start: Callable[[], StreamingQuery], watch: Watch) -> Ended:
    """Start a query, wait until it has ended, and tell ``watch`` the progress after each
    micro-batch.

    Ctrl-C stops the query, after the micro-batch under way if that ends soon: a micro-batch that is
    cut short is not committed, and the next run repeats it. Raises the error that the query failed
    with.
    """
    total = ProgressSum()
    with _interrupts() as noted:
        for tries_left in reversed(range(STARTS)):
            query = start()
            while query.isActive and not noted.wait(LOOK_S):
                if total.add(query):
                    watch(total.progress)
            if noted.is_set():
                _let_end(query, total)
            failure = query.exception()
            # A terminal sends Ctrl-C to workers, too, and the query may fail by that.
            interrupted = noted.is_set() and (query.isActive or failure is not None)
            if interrupted or failure is None:
                break
            if not tries_left or TOO_SLOW not in str(failure):
                with plain_errors():
                    raise failure
        if interrupted:
            query.stop()
    if total.add(query):
        watch(total.progress)
    return Ended(total.progress, interrupted)


def _let_end(query: StreamingQuery, total: ProgressSum) -> None:
    """Wait up to LAST_MICRO_BATCH_S seconds for the micro-batch under way: records that are written
    already are better counted than repeated."""
    total.add(query)
    before, until = total.progress.micro_batches, time.monotonic() + LAST_MICRO_BATCH_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        if total.add(query) and total.progress.micro_batches > before:
            return
        time.sleep(LOOK_S / 4)


def run_batch(spark: SparkSession, action: Callable[[], Result], watch: Watch) -> Result:
    """The result of ``action``, which runs jobs. Ctrl-C cancels the jobs, and raises
    KeyboardInterrupt."""
    from pyspark.sql import SparkSession

    given: list[Result] = []
    raised: list[BaseException] = []

    def act() -> None:
        try:
            # A write asks the session of its thread for formats, and a new thread has no session.
            sessions: Any = SparkSession._get_j_spark_session_class(spark._jvm)
            sessions.setActiveSession(spark._jsparkSession)
            given.append(action())
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=act, name="batch", daemon=True)
    with _interrupts() as noted:
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_S)
            if noted.is_set():
                # The next job may begin after this one was cancelled.
                spark.sparkContext.cancelAllJobs()
            elif (progress := task_progress(spark)).counts[TASKS]:
                watch(progress)
    if noted.is_set() and not given:
        raise KeyboardInterrupt
    if raised:
        raise raised[0]
    return given[0]


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C, and by SIGTERM, with which service managers end a service."""
    noted = threading.Event()
    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    # A shell lets background jobs ignore Ctrl-C; and None is a handler that is not Python's.
    before = {one: known for one, known in before.items() if known not in (signal.SIG_IGN, None)}
    for one in before:
        signal.signal(one, lambda *_: noted.set())
    try:
        yield noted
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
