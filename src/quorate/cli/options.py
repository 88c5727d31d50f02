"""What every command that speaks to a cluster takes, after its name."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorate.client.blocking import Client
from quorate.client.routing import parse_endpoints
from quorate.client.session import TIMEOUT_MAX
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ClientOptions", "client_options"]

DEFAULT = "127.0.0.1:7401"


class ClientOptions(NamedTuple):
    endpoints: tuple[str, ...]
    timeout: float
    as_json: bool

    def client(self) -> Client:
        return Client(self.endpoints, timeout=self.timeout)


def _endpoints(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return parse_endpoints(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS = (
    click.option(
        "--endpoints",
        metavar="HOST:PORT,…",
        envvar="QUORATE_ENDPOINTS",
        default=DEFAULT,
        show_default=True,
        show_envvar=True,
        callback=_endpoints,
        help="Nodes to begin with; the others are learnt from them.",
    ),
    click.option(
        "--timeout",
        metavar="S",
        type=click.FloatRange(0, TIMEOUT_MAX, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds until an operation is given up.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` these options, as its first argument."""

    @wraps(command)
    def wrapped(endpoints: tuple[str, ...], timeout: float, as_json: bool, **rest: Any) -> Any:
        return command(ClientOptions(endpoints, timeout, as_json), **rest)

    taking: Callable[..., Any] = wrapped
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking
