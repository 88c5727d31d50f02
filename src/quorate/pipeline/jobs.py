"""Spark jobs as commands run them: a session, a query that is watched until it ends, Ctrl-C.

Ctrl-C, or SIGTERM, is noted, not raised, while a job runs: raised inside a call to Java it would
leave the connection in an unknown state.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import quorate.spark
from quorate.errors import SparkFailed
from quorate.pipeline.failures import plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    Watch = Callable[["Progress"], None]

__all__ = ["Ended", "Progress", "follow", "is_local", "opened_session", "run_batch"]

Result = TypeVar("Result")

# The descriptor of the error output.
STDERR = 2
# Seconds between two looks at a job.
LOOK_S = 0.2
# The seconds that a portion may take to its end after Ctrl-C.
LAST_PORTION_S = 2.0
# The most starts of a query if Spark gave up one of its Python processes after ten seconds, which
# it does at its start on a busy machine. A query does not repeat portions that it has committed.
STARTS = 5
TOO_SLOW = "Python worker failed to connect back"
# The names of the counts of a batch's tasks in a progress.
TASKS, TASKS_DONE = "tasks", "tasks done"


class Progress(NamedTuple):
    """The progress of a job."""

    # The portions of a stream, since it was started; a batch has one.
    portions: int = 0
    # Records that were taken, in all, and per second in the last portion.
    read: int = 0
    rate: float = 0.0
    # The sums of the observations of the query: the fields of every `observe`, by their names. A
    # name that begins with an underscore is not counted.
    counts: Mapping[str, int] = {}
    # The offset after the last record that was taken, by log.
    reached: Mapping[str, int] = {}
    # Records that the logs had beyond that; None if the source is no log.
    lag: int | None = None


class Ended(NamedTuple):
    """The end of a stream that did not fail."""

    progress: Progress
    # Ended by Ctrl-C: the portion that was under way is repeated by the next run.
    interrupted: bool


# -- the session -------------------------------------------------------------------------------


def is_local(master: str) -> bool:
    """True if driver and tasks are on this machine, and see the same files."""
    return master.startswith("local") and not master.startswith("local-cluster")


@contextmanager
def opened_session(
    app: str,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> Iterator[SparkSession]:
    """A session for one command; a session that runs already is used, and left as it is.

    An error that Spark raises inside becomes an error of this package.
    """
    settings = _settings(master) | dict(config or {})
    before = signal.getsignal(signal.SIGINT)
    try:
        with plain_errors(), _java_aside() if quiet else nullcontext():
            spark, ours = _session(app, master, settings)
    except (ImportError, RuntimeError) as error:
        # PySpark or Java is missing: the error says what to install.
        raise SparkFailed(str(error)) from error
    finally:
        # Spark's own handler would cancel jobs in the middle of a call.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
    try:
        with plain_errors():
            # Spark's own search for the format may fail on a busy machine, and is not repeated.
            spark.dataSource.register(quorate.spark.QuorateDataSource)
            if quiet:
                _hush(spark)
            yield spark
    finally:
        if ours:
            # If Java is gone there is no session to stop, and the job's error is told already.
            with suppress(SparkFailed), plain_errors():
                spark.stop()


def _hush(spark: SparkSession) -> None:
    """Silence Spark's own messages: a command tells each error once, and no other message."""
    from pyspark.logger import PySparkLogger

    # These loggers log some errors before Spark raises them.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Java hangs up on this server when a job is cancelled, and the server reports a failure.
    accumulators: Any = spark.sparkContext._accumulatorServer
    tell = accumulators.handle_error

    def handle_error(*request: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            tell(*request)

    accumulators.handle_error = handle_error


@contextmanager
def _java_aside() -> Iterator[None]:
    """Give a Java process that is started inside another error output, for as long as it lives.

    Java writes much that is no error of the job, and an error many times; the command tells an
    error once. If Java does not start, the error includes its output.
    """
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(STDERR)
        os.dup2(aside.fileno(), STDERR)
        try:
            yield
        except RuntimeError as error:
            aside.seek(0)
            said = aside.read().decode(errors="replace").strip()
            raise SparkFailed(f"{error}: {said}" if said else str(error)) from error
        finally:
            os.dup2(kept, STDERR)
            os.close(kept)


def _session(
    app: str, master: str | None, settings: Mapping[str, str]
) -> tuple[SparkSession, bool]:
    """The session, and whether it was started for this command."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        running = None
    else:
        running = SparkSession.getActiveSession()
    if running is None:
        return quorate.spark.session(app, master=master, config=settings), True
    # A session with views and settings of its own.
    fresh = running.newSession()
    for name, value in settings.items():
        if fresh.conf.isModifiable(name):
            fresh.conf.set(name, value)
    return fresh, False


def _settings(master: str | None) -> dict[str, str]:
    # The same rows on every machine: a repeat must not depend on a machine's time zone.
    settings = {"spark.sql.session.timeZone": "UTC"}
    # With a directory of settings, Spark may be set up for more than this machine.
    if is_local(master) if master is not None else "SPARK_CONF_DIR" not in os.environ:
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's default of 200 is for clusters.
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        }
    return settings


# -- waiting -----------------------------------------------------------------------------------


def follow(start: Callable[[], StreamingQuery], watch: Watch) -> Ended:
    """Start a query, wait until it has ended, and tell ``watch`` the progress after each portion.

    Ctrl-C stops the query, after the portion under way if that ends soon: a portion that is cut
    short is not committed, and the next run repeats it. Raises the error that the query failed
    with.
    """
    tally = _Tally()
    with _interrupts() as noted:
        for tries_left in reversed(range(STARTS)):
            query = start()
            while query.isActive and not noted.wait(LOOK_S):
                if tally.add(query):
                    watch(tally.progress)
            if noted.is_set():
                _let_end(query, tally)
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
    if tally.add(query):
        watch(tally.progress)
    return Ended(tally.progress, interrupted)


def _let_end(query: StreamingQuery, tally: _Tally) -> None:
    """Wait up to LAST_PORTION_S seconds for the portion under way: records that are written already
    are better counted than repeated."""
    tally.add(query)
    before, until = tally.progress.portions, time.monotonic() + LAST_PORTION_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        if tally.add(query) and tally.progress.portions > before:
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
            elif (progress := _tasks(spark)).counts[TASKS]:
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


def _tasks(spark: SparkSession) -> Progress:
    """The tasks of the stages that run, and those of them that are done."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    counts = {
        TASKS_DONE: sum(stage.numCompletedTasks for stage in stages if stage is not None),
        TASKS: sum(stage.numTasks for stage in stages if stage is not None),
    }
    return Progress(counts=counts)


class _Tally:
    """Sums up the reports of a query about its portions."""

    def __init__(self) -> None:
        self.progress = Progress()
        # The last report that is counted, by portion and time: a query at rest repeats its portion.
        self._seen: tuple[int, str] = (-1, "")

    def add(self, query: StreamingQuery) -> bool:
        """Count the new reports of ``query``; True if there were any."""
        last = query.lastProgress
        if last is None or _mark(last) == self._seen:
            return False
        for report in query.recentProgress:
            if _mark(report) > self._seen:
                self._seen = _mark(report)
                self._count(report)
        return True

    def _count(self, report: StreamingQueryProgress) -> None:
        before = self.progress
        found = {
            name: number
            for row in report.observedMetrics.values()
            for name, number in row.asDict().items()
            if isinstance(number, int) and not name.startswith("_")
        }
        # Spark counts a source twice that is used twice in a query.
        read = found.get("read", report.numInputRows or 0)
        counts = dict(before.counts)
        for name, number in found.items():
            counts[name] = counts.get(name, 0) + number
        reached, lag = _whereabouts(report.sources)
        self.progress = Progress(
            before.portions + ("addBatch" in report.durationMs),
            before.read + read,
            1000 * read / max(1, report.batchDuration),
            counts,
            reached or before.reached,
            before.lag if lag is None else lag,
        )


def _mark(report: StreamingQueryProgress) -> tuple[int, str]:
    return report.batchId, report.timestamp


def _whereabouts(sources: list[SourceProgress]) -> tuple[dict[str, int], int | None]:
    """The offsets that a query has reached in its logs, and the number of records beyond them."""
    reached: dict[str, int] = {}
    ahead: dict[str, int] = {}
    for source in sources:
        reached |= _offsets(source.endOffset)
        ahead |= _offsets(source.latestOffset)
    if not reached or not ahead:
        return reached, None
    return reached, sum(max(0, ahead[log] - at) for log, at in reached.items() if log in ahead)


def _offsets(text: str | None) -> dict[str, int]:
    """The offset of each log in ``text``; none for a source that is not of this package."""
    try:
        found = json.loads(text or "null")
        return {log: int(point["offset"]) for log, point in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
