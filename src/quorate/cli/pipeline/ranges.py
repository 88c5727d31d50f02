"""Options that several commands of ``quorate pipeline`` share, and the log and range that they
mean."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from quorate.errors import InvalidArgument, LogNotFound, OffsetOutOfRange, Trimmed
from quorate.spark.read.cluster_logs import ClusterLog
from quorate.spark.read.options import parse_read_options
from quorate.spark.read.planning import pin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.client.blocking import Client, Log
    from quorate.spark.cluster_address import ClusterAddress
    from quorate.spark.read.options import ReadOptions
    from quorate.spark.read.planning import Span

__all__ = ["existing_log", "interval", "pinned", "range_end", "range_options", "size"]

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def interval(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """An interval, in seconds."""
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]+)(ms|s|m|h)", given)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{given!r} is not a time such as 500ms, 1s, 5m or 1h")
    return int(found[1]) * _UNITS_S[found[2]]


def size(_: click.Context, __: click.Parameter, given: str) -> int:
    """A size, in bytes."""
    found = re.fullmatch(r"([0-9]+)\s*(|kb|mb|gb)", given.lower())
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{given!r} is not a size such as 64MB or 1GB")
    return int(found[1]) * _UNITS_BYTES[found[2]]


def range_end(side: str, words: tuple[str, ...] = ("earliest", "latest")) -> Any:
    """A parser for an end of a range: it gives the option of the Spark source. ``side`` is starting
    or ending."""

    def parsed(_: click.Context, __: click.Parameter, given: str | None) -> dict[str, str]:
        if given is None:
            return {}
        if given.startswith("@"):
            _check_time(given)
            return {f"{side}Timestamp": given[1:]}
        if given not in words and not (given.isascii() and given.isdecimal()):
            raise click.BadParameter(f"{given!r} is not {'|'.join(['OFFSET', *words, '@ISO8601'])}")
        return {f"{side}Offsets": given}

    return parsed


def _check_time(given: str) -> None:
    text = given[1:]
    if text.isascii() and text.isdecimal():
        return
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{given!r} is not a time such as @2026-01-31T12:00, or @ with milliseconds since 1970"
        ) from None


def range_options(cluster: ClusterAddress, log: str, ends: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read with the ends that :func:`range_end` gave."""
    return parse_read_options({**cluster.options, "log": log, **ends}, streaming=False)


def pinned(log: Log, chosen: ReadOptions) -> Span:
    """The range as it is now. An error in it names the options of the command line."""
    try:
        return pin(ClusterLog(log), chosen)
    except (InvalidArgument, OffsetOutOfRange) as error:
        told = str(error).replace("startingOffsets", "--from").replace("endingOffsets", "--to")
        raise type(error)(told) from None
    except Trimmed as error:
        told = str(error).partition("; ")[0]
        raise Trimmed(f"{told}; --from earliest begins with the first that is left") from None


def existing_log(client: Client, name: str) -> Log:
    """The log of this name, which has to exist: no job makes a log."""
    try:
        return client.log(name)
    except LogNotFound:
        raise LogNotFound(
            f"log {name} does not exist, and pipelines make none: run `quorate log create {name}`"
        ) from None
