"""Hooks shared by all tests."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from quorate.testing import Cluster

# What a test computes is too little to pay for Java's second compiler.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
NOTE = "note"
"""A property that a test records to have its text printed when the run ends."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell lets what it starts in the background ignore SIGINT, and that is handed down to the
    processes of the tests, which are to be interrupted."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # For every driver that a test starts, here or in a process of its own.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the output of scenario files anew; what they expect must hold all the same",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes of all tests, and the time of each folder.

    The reports of tests that ran in another process are here too.
    """
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    _print_notes(terminalreporter, reports)
    _print_times(terminalreporter, reports)


def _print_notes(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    """A note is no Python warning: those are errors here."""
    notes = [
        str(text)
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == NOTE
    ]
    if notes:
        terminal.section("notes")
        for note in notes:
            terminal.write_line(note)


def _print_times(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    """The seconds of setups, tests and teardowns, summed up over all workers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in reports:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0] or "."
        seconds[folder] += report.duration
        tests[folder] += report.when == "call"
    if len(seconds) > 1:
        terminal.section("time per folder")
        terminal.write_line(f"{'seconds':>9} {'tests':>7}  folder")
        for folder, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            terminal.write_line(f"{spent:9.1f} {tests[folder]:7}  {folder}")
        terminal.write_line(f"{sum(seconds.values()):9.1f} {tests.total():7}  all")


# -- one Spark session and one real cluster, for all tests that need them ------------------------


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import quorate.spark

    place = tmp_path_factory.mktemp("spark")
    session = quorate.spark.session(
        "tests",
        # Two cores; a task may fail once.
        master="local[2,2]",
        config={
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Below what the kernel gives to those who do not ask for a port.
            "spark.driver.port": 19_100,
            "spark.blockManager.port": 19_200,
            "spark.port.maxRetries": 64,
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Cluster]:
    import quorate.testing

    with quorate.testing.cluster(nodes=3, cuttable=False) as running:
        yield running
