"""Options of every command that connects to a cluster, given after the name of the command."""

from __future__ import annotations

import math
import sys
import threading
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorate.cli.output import tell
from quorate.client.blocking import Client
from quorate.client.routing import parse_endpoints
from quorate.client.session import TIMEOUT_MAX
from quorate.errors import InvalidArgument, Timeout
from quorate.wire.shapes import check_log_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ClientOptions", "Number", "WholeNumber", "client_options", "log_name"]

DEFAULT = "127.0.0.1:7401"
# Seconds without an answer until a user at a terminal is told which nodes are waited for.
PATIENCE_S = 1.0


class Number(click.FloatRange):
    """A number within a range; messages call it a number, not a float."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        # NaN is in every range, because it is neither below nor above any number.
        return self.fail(f"{value!r} is not a valid number.") if math.isnan(number) else number


class WholeNumber(click.IntRange):
    name = "whole number"


class ClientOptions(NamedTuple):
    endpoints: tuple[str, ...]
    timeout: float
    as_json: bool

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client, which tells a user at a terminal which nodes it waits for."""
        client = Client(self.endpoints, timeout=self.timeout)
        timer = threading.Timer(PATIENCE_S, self._tell_waiting, [client])
        timer.daemon = True
        if sys.stderr.isatty():
            timer.start()
        try:
            with client:
                yield client
        finally:
            timer.cancel()

    def _tell_waiting(self, client: Client) -> None:
        # The cluster is known as soon as any node has answered.
        if client._routing.cluster is None:
            tell(f"waiting for {', '.join(self.endpoints)} …")


def _endpoints(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return parse_endpoints(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None


def log_name(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """Check the name of a log on the command line, before any node is asked."""
    if given is not None:
        try:
            check_log_name(given)
        except InvalidArgument as error:
            raise click.BadParameter(str(error)) from None
    return given


_OPTIONS = (
    click.option(
        "--endpoints",
        metavar="HOST:PORT,…",
        envvar="QUORATE_ENDPOINTS",
        default=DEFAULT,
        show_default=True,
        show_envvar=True,
        callback=_endpoints,
        help="Nodes to connect to first; they name the others.",
    ),
    click.option(
        "--timeout",
        metavar="S",
        type=Number(0, TIMEOUT_MAX, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds that one operation may take.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
)


_NOBODY = "start a cluster with `quorate dev`, or say with --endpoints where one is"


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` these options, as a ClientOptions that is its first argument."""

    @wraps(command)
    def wrapped(endpoints: tuple[str, ...], timeout: float, as_json: bool, **rest: Any) -> Any:
        try:
            return command(ClientOptions(endpoints, timeout, as_json), **rest)
        except Timeout as error:
            if endpoints == (DEFAULT,) and "Connection refused" in str(error):
                raise Timeout(f"{error}; {_NOBODY}") from None
            raise

    taking: Callable[..., Any] = wrapped
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking
