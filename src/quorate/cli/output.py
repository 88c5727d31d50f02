"""How the commands that speak to a cluster show what they found.

Somebody at a terminal gets tables and a counter that moves; a pipe gets plain lines.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["Counter", "count", "print_json", "print_table"]

# Less is over before anybody could read a counter, and nobody reads faster.
PATIENCE_S = 1.0
REFRESH_S = 0.1


def print_json(document: object) -> None:
    """One document, on one line."""
    click.echo(json.dumps(document))


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()
) -> None:
    """Cells may be styled. Under the heads that are ``numbers`` they stand to the right."""
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
        click.echo("  ".join(cells).rstrip())


def _print_rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]
) -> None:
    # Slow to load, and of no use to a pipe.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left")
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    Console().print(table)


class Counter:
    """Shows how far it is to somebody who has to wait, on the standard error.

    ``printing`` means that the command prints all the time: on the same terminal that is enough.
    """

    def __init__(self, what: str, *, printing: bool) -> None:
        self._what = what
        self._watched = sys.stderr.isatty() and not (printing and sys.stdout.isatty())
        self._next = time.monotonic() + PATIENCE_S
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
            click.echo("\r\x1b[K", nl=False, err=True)

    def show(self, number: int) -> None:
        if self._watched and (now := time.monotonic()) >= self._next:
            self._next = now + REFRESH_S
            self._shown = True
            click.echo(f"\r\x1b[K{self._what} {number:,}", nl=False, err=True)
