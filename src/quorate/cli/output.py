"""Output of the commands: results to the standard output, messages to the standard error.

A terminal gets tables and a counter that moves; a pipe gets plain lines. A result has to arrive;
other messages are dropped if the standard error is closed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import TracebackType
    from typing import Self

__all__ = [
    "Counter",
    "OutputFailed",
    "StatusLine",
    "count",
    "error_label",
    "give_help",
    "print_bytes",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "span",
    "tell",
]

# Seconds until a counter is shown: a shorter run is over before a user could read it.
PATIENCE_S = 1.0
# Seconds between two updates: no user reads faster.
REFRESH_S = 0.1
# The exit status for a command line that lacks a part.
USAGE = 2


class OutputFailed(Exception):
    """The standard output takes no more: its reader has closed it, or its disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}")
        # The reader has seen enough, and the user asked for output only.
        self.excused = isinstance(error, BrokenPipeError)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The interpreter must not try to write the rest when it ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputFailed(error) from None


def print_line(text: str = "") -> None:
    with _writing():
        click.echo(text)


def print_json(document: object) -> None:
    """Print one document, on one line."""
    print_line(json.dumps(document))


def print_bytes(data: bytes, *, flush: bool = False) -> None:
    """Print bytes as they are. They may wait in a buffer until they are flushed."""
    with _writing():
        sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.buffer.flush()


def tell(text: str, *, end: str = "\n") -> None:
    """Print to the standard error; an error is ignored, so that a closed one stops no command."""
    with suppress(OSError):
        click.echo(text + end, nl=False, err=True)


def error_label() -> str:
    return click.style("error:", fg="red", bold=True)


def give_help(context: click.Context) -> None:
    """End a command that lacks its subcommand with a list of the subcommands."""
    if context.invoked_subcommand is None:
        tell(context.get_help())
        context.exit(USAGE)


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun. It has no separators, so that it can be given to a command."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """``text`` with ``?`` for characters that cannot be printed.

    The name of a file may hold any character, and none may move a cursor or stop the output.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def span(first: int, last: int, one: str = "") -> str:
    """``offset 7`` or ``offsets 7 to 9``; without the noun ``one`` only the numbers."""
    if first == last:
        return f"{one} {first}".lstrip()
    return f"{one and one + 's'} {first} to {last}".lstrip()


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()
) -> None:
    """Print a table. Cells may be styled; those under the heads in ``numbers`` align right."""
    if sys.stdout.isatty():
        _print_rich(heads, rows, numbers)
        return
    plain = [[click.unstyle(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        cells = [
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for cell, width, head in zip(row, widths, heads, strict=True)
        ]
        print_line("  ".join(cells).rstrip())


def _print_rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]
) -> None:
    # The package rich is slow to load, and of no use to a pipe.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left")
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    with _writing():
        Console().print(table)


class StatusLine:
    """A line of the terminal that is written anew, on the standard error, and erased at the end."""

    def __init__(self) -> None:
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            tell("\r\x1b[K", end="")

    def rewrite(self, text: str) -> None:
        self._shown = True
        tell(f"\r\x1b[K{text}", end="")


class Counter(StatusLine):
    """Shows the progress of a command to a user who has to wait.

    ``printing`` means that the command prints all the time: on the same terminal that shows enough.
    """

    def __init__(self, what: str, *, printing: bool) -> None:
        super().__init__()
        self._what = what
        self._watched = sys.stderr.isatty() and not (printing and sys.stdout.isatty())
        self._next = time.monotonic() + PATIENCE_S

    def show(self, number: int) -> None:
        if self._watched and (now := time.monotonic()) >= self._next:
            self._next = now + REFRESH_S
            self.rewrite(f"{self._what} {number}")
