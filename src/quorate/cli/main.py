"""The command ``quorate``: what its commands share is how they fail.

An error is one line on the standard error, ``error: CODE: message``. With ``--json`` it is also the
last line of the standard output, for programs. The exit status is 0 if it was done, 1 if it failed,
2 if the command line was wrong and 3 if it may have been done.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

import click

from quorate import __version__
from quorate.cli.append import append
from quorate.cli.bench import bench
from quorate.cli.dev import dev
from quorate.cli.documents import printable
from quorate.cli.inspect import inspect
from quorate.cli.log import log
from quorate.cli.read import read
from quorate.cli.serve import serve
from quorate.cli.status import status
from quorate.cli.verify import verify
from quorate.errors import DiskFailed, OutcomeUnknown, QuorateError, ReplicaHalted, WrongDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

FAILED = 1
USAGE = 2
UNKNOWN = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, prog_name="quorate", message="%(prog)s %(version)s")
def quorate() -> None:
    """A replicated commit log for Python and Spark."""


quorate.add_command(append)
quorate.add_command(bench)
quorate.add_command(dev)
quorate.add_command(inspect)
quorate.add_command(log)
quorate.add_command(read)
quorate.add_command(serve)
quorate.add_command(status)
quorate.add_command(verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Asked for even if the rest of the line cannot be understood.
    as_json = "--json" in given
    try:
        ended = quorate.main(given, prog_name="quorate", standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except click.UsageError as error:
        if error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        return _fail("INVALID_ARGUMENT", error.format_message(), as_json=as_json, status=USAGE)
    except OutcomeUnknown as error:
        return _fail(error.code, str(error), as_json=as_json, status=UNKNOWN)
    except QuorateError as error:
        return _fail(error.code, str(error), as_json=as_json, retriable=error.retriable)
    except ReplicaHalted as halt:
        return _fail(_code(type(halt)), str(halt), as_json=as_json)
    except click.Abort:
        return _fail("INTERRUPTED", "stopped before the end", as_json=as_json)
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except PermissionError as error:
        message = f"{error.filename} is closed to this user; run as the user that owns it"
        return _fail(_code(WrongDirectory), message, as_json=as_json)
    except OSError as error:
        message = f"{error.filename or 'the disk'}: {error.strerror}"
        return _fail(_code(DiskFailed), message, as_json=as_json)


def _code(kind: type[Exception]) -> str:
    """A halt has no code: it is the name of its class, as an error's is."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


def _fail(
    code: str, message: str, *, as_json: bool, retriable: bool = False, status: int = FAILED
) -> int:
    label = click.style("error:", fg="red", bold=True)
    click.echo(f"{label} {code}: {printable(message)}", err=True)
    if as_json:
        error = {"code": code, "message": message, "retriable": retriable}
        click.echo(json.dumps({"error": error}))
    return status
