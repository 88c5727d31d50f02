"""The session of a command that runs Spark jobs: quiet, and the same on every machine."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import quorate.spark
from quorate.errors import SparkFailed
from quorate.pipeline.spark_errors import plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["is_local", "opened_session"]

# The descriptor of the error output.
STDERR = 2


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
