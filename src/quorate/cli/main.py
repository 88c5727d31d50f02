"""The command ``quorate``: all its commands fail in the same way.

An error is one line on the standard error, ``error: CODE: message``. With ``--json`` it is also the
last line of the standard output, for programs. The exit status is 0 if the command succeeded, 1 if
it failed, 2 if the command line was wrong, 3 if it may have succeeded, and 141 if the reader closed
the standard output.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate import __version__
from quorate.cli.output import (
    USAGE,
    OutputFailed,
    error_label,
    give_help,
    print_json,
    printable,
    tell,
)
from quorate.errors import (
    Busy,
    DiskFailed,
    OutcomeUnknown,
    QuorateError,
    ReplicaHalted,
    WrongDirectory,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

FAILED = 1
UNKNOWN = 3
# The status that a shell gives to a process that wrote into a closed pipe: 128 + SIGPIPE.
UNREAD = 141

# Each command is in the module of its name.
_COMMANDS = (
    *("append", "bench", "demo", "dev", "inspect", "log", "pipeline", "read", "serve", "status"),
    *("verify",),
)


class _Commands(click.Group):
    """Loads only the command that is used: reading a log needs no module of a node."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"quorate.cli.{name}"), name)
        return found


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="quorate", message="%(prog)s %(version)s")
@click.pass_context
def quorate(context: click.Context) -> None:
    """A replicated commit log for Python and Spark."""
    give_help(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    # JSON is asked for even if the rest of the command line cannot be understood.
    as_json = "--json" in given
    try:
        ended = quorate.main(given, prog_name="quorate", standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except click.UsageError as error:
        if error.ctx is not None:
            tell(error.ctx.get_usage())
        # A list of choices has a line for each choice; an error is one line.
        message = " ".join(error.format_message().split())
        return _fail("INVALID_ARGUMENT", message, as_json=as_json, status=USAGE)
    except OutcomeUnknown as error:
        return _fail(error.code, str(error), as_json=as_json, status=UNKNOWN)
    except QuorateError as error:
        return _fail(error.code, str(error), as_json=as_json, retriable=error.retriable)
    except ReplicaHalted as halt:
        return _fail(halt.code, str(halt), as_json=as_json)
    except click.Abort:
        return _fail("INTERRUPTED", "stopped before the end", as_json=as_json)
    except OutputFailed as error:
        return UNREAD if error.excused else _fail(code_of(type(error)), str(error), as_json=False)
    except PermissionError as error:
        message = f"{error.filename} is closed to this user; run as the user that owns it"
        return _fail(code_of(WrongDirectory), message, as_json=as_json)
    except OSError as error:
        # Clients start sooner without it.
        from quorate.storage.disk_errors import PASSING

        message = f"{error.filename or 'the disk'}: {error.strerror}"
        # That says nothing about the disk: it can be tried again.
        kind = Busy if error.errno in PASSING else DiskFailed
        return _fail(code_of(kind), message, as_json=as_json, retriable=kind is Busy)


def _open_missing_streams() -> None:
    """Open the null device in place of each standard stream that is missing.

    Otherwise the next file or socket would take its place: the system gives the lowest free number
    first.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, stream)


def _fail(
    code: str, message: str, *, as_json: bool, retriable: bool = False, status: int = FAILED
) -> int:
    tell(f"{error_label()} {code}: {printable(message)}")
    if as_json:
        error = {"code": code, "message": message, "retriable": retriable}
        # A program that reads no further is told as much by the exit status.
        with suppress(OutputFailed):
            print_json({"error": error})
    return status
