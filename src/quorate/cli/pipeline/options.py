"""Options of every command that runs a Spark job, besides those of a client."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorate.cli.options import client_options
from quorate.cli.output import tell
from quorate.errors import QuorateError
from quorate.pipeline.job_session import opened_session
from quorate.spark.cluster_address import ClusterAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from quorate.cli.options import ClientOptions

__all__ = ["JobOptions", "job_options"]


class JobOptions(NamedTuple):
    """The options of a client, and those that say where Spark runs."""

    client: ClientOptions
    master: str | None
    config: Mapping[str, str]
    verbose: bool

    @property
    def cluster(self) -> ClusterAddress:
        return ClusterAddress(",".join(self.client.endpoints), self.client.timeout)

    @property
    def as_json(self) -> bool:
        return self.client.as_json

    @contextmanager
    def session(self, app: str) -> Iterator[SparkSession]:
        """A Spark session. Its errors leave it in one line; --verbose shows them in full before."""
        if waited := sys.stderr.isatty():
            tell("starting Spark …", end="")
        try:
            with opened_session(
                app, master=self.master, config=self.config, quiet=not self.verbose
            ) as spark:
                if waited:
                    tell("\r\x1b[K", end="")
                yield spark
        except QuorateError as error:
            if self.verbose and error.__cause__ is not None:
                tell("".join(traceback.format_exception(error.__cause__)))
            raise


def _config(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{one!r} is not KEY=VALUE")
        settings[name] = value
    return settings


_OPTIONS = (
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, …. Default: all cores of this "
        "machine, unless Spark is configured otherwise.",
    ),
    click.option(
        "--conf", "config", metavar="KEY=VALUE", multiple=True, callback=_config,
        help="A setting of Spark; may be repeated.",
    ),
    click.option(
        "--verbose", is_flag=True, help="Show the log lines of Spark, and its errors in full."
    ),
)  # fmt: skip


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` these options and those of a client, as its first argument JobOptions."""

    @wraps(command)
    def wrapped(
        client: ClientOptions,
        master: str | None,
        config: Mapping[str, str],
        verbose: bool,
        **rest: Any,
    ) -> Any:
        return command(JobOptions(client, master, config, verbose), **rest)

    taking: Callable[..., Any] = client_options(wrapped)
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking
