"""``quorate demo``: kills nodes and Spark drivers under load, then counts every record."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate.cli.options import WholeNumber
from quorate.cli.output import error_label, print_json, print_line, print_table, tell
from quorate.demo.findings import NAIVE, QUORATE, DemoFailed
from quorate.demo.report import render
from quorate.demo.run import DemoRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

    from quorate.demo.findings import DemoFindings, Step

__all__ = ["demo"]

EVENTS = 2_000_000
# With fewer orders there is no Spark job left to kill: both would be done.
EVENTS_MIN = 10_000
REPORT = Path("quorate-demo-report.html")
# Seconds between two lines of progress in a file or pipe: its reader wants few of them.
QUIET_S = 5.0
FAILED = 1
NODES = 3


@click.command()
@click.option(
    "--events", metavar="N", type=WholeNumber(EVENTS_MIN), default=EVENTS, show_default=True,
    help="Number of orders.",
)  # fmt: skip
@click.option(
    "--report", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), default=REPORT,
    show_default=True, help="File for the HTML report.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the directory with data and logs, and name it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end, for programs.")
def demo(events: int, report: Path, keep: bool, as_json: bool) -> int:
    """Kill a leader and Spark drivers under load, and count what is left.

    Three real nodes take two million orders. A Spark pipeline copies those that were paid to
    another log, and beside it a hand-written sink does the same. The leader is killed, and both
    Spark drivers are killed inside a batch and started again. Then all records are counted, summed
    up, archived to Parquet and compared.

    The command fails if any number differs from its expected value. No process is left running.
    """
    try:
        with _directory(keep) as place, _Screen(beside=as_json) as screen:
            findings = DemoRun(place, events, screen).carry_out()
    except (DemoFailed, TimeoutError, subprocess.TimeoutExpired) as failure:
        return _failed("DEMO_FAILED", str(failure), as_json=as_json)
    report.write_text(render(findings.document()), encoding="utf-8")
    if as_json:
        document = findings.document()
        # The samples are only for the report: there are hundreds of them.
        del document["samples"]
        print_json({**document, "report": str(report)})
    else:
        _show(findings)
        print_line(f"report: {report.absolute()}")
    if differences := findings.differences():
        return _failed("MISMATCH", "; ".join(differences), as_json=as_json)
    return 0


@contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    # SIGTERM ends the demo as Ctrl-C does: with all its processes.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Path(tempfile.mkdtemp(prefix="quorate-demo-"))
    try:
        yield place
    finally:
        if keep:
            tell(f"kept: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _failed(code: str, message: str, *, as_json: bool) -> int:
    tell(f"{error_label()} {code}: {message}")
    if as_json:
        print_json({"error": {"code": code, "message": message, "retriable": False}})
    return FAILED


# -- while it runs -----------------------------------------------------------------------------


class _Screen:
    """Prints a line for each step, and at a terminal a status line that moves."""

    def __init__(self, *, beside: bool) -> None:
        """``beside``: print on the standard error, because the standard output is for a program."""
        self._beside = beside
        self._status: Status | None = None
        self._next = 0.0

    def __enter__(self) -> _Screen:
        if (sys.stderr if self._beside else sys.stdout).isatty():
            from rich.console import Console

            self._status = Console(stderr=self._beside, highlight=False).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def live(self, text: str) -> None:
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
        elif (now := time.monotonic()) >= self._next:
            self._next = now + QUIET_S
            self._line(f"  … {text}")

    def done(self, step: Step) -> None:
        # The first progress of the next step is printed at once.
        self._next = 0.0
        if self._status is not None:
            from rich.markup import escape

            line = f"[green]✓[/] [bold]{escape(step.title)}[/] [dim]{step.seconds:.1f} s[/]"
            self._status.console.print(line)
            self._status.console.print(f"  [dim]{escape(step.detail)}[/]")
        else:
            self._line(f"{step.title} ({step.seconds:.1f} s)")
            self._line(f"  {step.detail}")

    def _line(self, text: str) -> None:
        if self._beside:
            tell(text)
        else:
            print_line(text)


# -- at the end --------------------------------------------------------------------------------


def _show(findings: DemoFindings) -> None:
    naive, ours = findings.tallies[NAIVE], findings.tallies[QUORATE]
    paid = ours.records - ours.strangers - ours.duplicates + ours.lost
    print_line()
    print_table(
        ("AFTER THE SAME KILLS", "NAIVE SINK", "QUORATE"),
        [
            ("orders to be written", f"{paid:,}", f"{paid:,}"),
            ("records in the log", f"{naive.records:,}", f"{ours.records:,}"),
            ("lost", _judged(naive.lost), _judged(ours.lost)),
            ("duplicates", _judged(naive.duplicates), _judged(ours.duplicates)),
        ],
        numbers=("NAIVE SINK", "QUORATE"),
    )
    print_line()
    kept = sum(check.kept for check in findings.checks)
    print_table(
        ("ALL IN ALL", ""),
        [
            ("orders read", f"{findings.orders:,}"),
            ("leader killed, until the next append", f"{findings.failover_ms} ms"),
            ("dead letters, each with its reason", f"{findings.letters:,}"),
            ("archived to Parquet, digest as of the log", f"{findings.archived:,}"),
            ("replicas that are the same", f"{findings.replicas} of {NODES}"),
            ("checks that hold", f"{kept} of {len(findings.checks)}"),
            ("the whole demo", f"{findings.seconds:.0f} s"),
        ],
        numbers=("",),
    )
    print_line()


def _judged(number: int) -> str:
    return click.style(f"{number:,}", fg="red" if number else "green", bold=True)
