"""Hooks shared by all tests."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

NOTE = "note"
"""A property that a test records to have its text printed when the run ends."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell lets what it starts in the background ignore SIGINT, and that is handed down to the
    processes of the tests, which are to be interrupted."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the output of scenario files anew; what they expect must hold all the same",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes of all tests, also of those that ran in another process.

    A note is no Python warning: those are errors here.
    """
    notes = [
        str(text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == NOTE
    ]
    if notes:
        terminalreporter.section("notes")
        for note in notes:
            terminalreporter.write_line(note)
