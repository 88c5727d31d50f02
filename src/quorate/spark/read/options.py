"""The options of a read, checked before a request is sent to the cluster."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.client.read.ranges import ANY
from quorate.errors import InvalidArgument
from quorate.spark.cluster_address import CLUSTER_NAMES, ClusterAddress, parse_cluster
from quorate.spark.option_names import check_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Moment", "ReadOptions", "Word", "parse_read_options"]

Word = Literal["earliest", "latest"]

# Options of a batch only: a stream has no end.
ENDINGS = ("endingOffsets", "endingTimestamp")
# Options of a stream only: a batch takes all records at once.
PACES = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
NAMES = (
    *CLUSTER_NAMES,
    "path",
    "log",
    "startingOffsets",
    "startingTimestamp",
    *ENDINGS,
    *PACES,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "readFrom",
)

_WORDS: dict[str, Word] = {"earliest": "earliest", "latest": "latest"}
_TRUTHS = {"true": True, "false": False}
# The digits of a day without hyphens, which ISO 8601 allows. As milliseconds, all such days would
# lie in the first day of 1970.
DAY_DIGITS = 8


class Moment(NamedTuple):
    """A time of append, in microseconds since 1970."""

    us: int


# A place for all logs, or one for each log that is named.
Place = int | Word | Moment
Places = Place | dict[str, int | Word]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The logs of a read, the cluster or directory they are in, the range, and the
    micro-batches."""

    # Names or patterns, at least one.
    logs: tuple[str, ...]
    # A cluster, or the data directory of a node: exactly one of them.
    cluster: ClusterAddress | None = None
    path: str | None = None
    # None: the default, which differs between a batch and a stream.
    starting: Places | None = None
    ending: Places | None = None
    offsets_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    records_max: int | None = None
    fail_on_data_loss: bool = True
    # "any", "leader", or the id of a node.
    read_from: str = ANY


def is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def parse_read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options of a read. Raises InvalidArgument for an unknown, missing or invalid option.

    ``streaming`` is None as long as it is not known: then options pass that only a batch, or only a
    stream, takes.
    """
    check_names(given, NAMES)
    lowered = {name.lower(): value.strip() for name, value in given.items()}
    options = {name: lowered[name.lower()] for name in NAMES if name.lower() in lowered}
    cluster, path, logs = _cluster_or_path(options)
    if path is not None:
        _refuse(options, ["timeout"], "a data directory is read in place, without a cluster")
        _refuse(options, ["readFrom"], "a data directory is one replica and has no others")
    if streaming is True:
        if path is not None:
            raise InvalidArgument("path: a data directory is read as a batch, with spark.read")
        _refuse(options, ENDINGS, "a stream has no end; .trigger(availableNow=True) stops it")
    if streaming is False:
        _refuse(options, PACES, "it is for streams; a batch reads the whole range")
    return ReadOptions(
        logs,
        cluster,
        path,
        starting=_places(options, "starting", logs),
        ending=_places(options, "ending", logs),
        offsets_max=_count(options, "maxOffsetsPerTrigger"),
        bytes_max=_count(options, "maxBytesPerTrigger"),
        partitions_min=_count(options, "minPartitions") or 1,
        records_max=_count(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        read_from=options.get("readFrom", ANY),
    )


def _cluster_or_path(
    options: Mapping[str, str],
) -> tuple[ClusterAddress | None, str | None, tuple[str, ...]]:
    """The cluster or the path, and the names of the logs. ``.load("orders")`` sets the path."""
    path, log = options.get("path"), options.get("log")
    cluster = None
    if path is None or "endpoints" in options:
        if path is not None and log is not None:
            raise InvalidArgument(
                f"endpoints and path = {path!r}: a cluster is read or a data directory; "
                f"leave one of them out"
            )
        log, path = log or path, None
        cluster = parse_cluster(options)
    elif log is None:
        raise InvalidArgument(
            f'load({path!r}) does not say where: write .option("endpoints", "host:port,…")'
            f'.option("log", {path!r}).load(); or, for the data directory of a node, '
            f'.option("path", {path!r}).option("log", NAME).load()'
        )
    names = tuple(name.strip() for name in (log or "").split(",") if name.strip())
    if not names:
        raise InvalidArgument('log is missing: write .option("log", NAME), a list or a pattern')
    return cluster, path, names


def _refuse(options: Mapping[str, str], names: Iterable[str], why: str) -> None:
    for name in names:
        if name in options:
            raise InvalidArgument(f"{name}: {why}")


def _places(options: Mapping[str, str], side: str, logs: tuple[str, ...]) -> Places | None:
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    if offsets in options and timestamp in options:
        raise InvalidArgument(f"{offsets} and {timestamp}: give one of them")
    if timestamp in options:
        return Moment(_microseconds(timestamp, options[timestamp]))
    if offsets not in options:
        return None
    text = options[offsets]
    if text.startswith("{"):
        return _named_places(offsets, text, logs)
    return _place(offsets, text)


def _named_places(name: str, text: str, logs: tuple[str, ...]) -> dict[str, int | Word]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{name} = {text!r} is not JSON: {error}") from None
    patterns = any(map(is_pattern, logs))
    for log in found:
        if log not in logs and not patterns:
            raise InvalidArgument(
                f"{name} names {log}, which is not read; log has {', '.join(logs)}"
            )
    return {log: _place(f"{name} of {log}", str(place)) for log, place in found.items()}


def _place(name: str, text: str) -> int | Word:
    if text.isascii() and text.isdecimal():
        return int(text)
    if text in _WORDS:
        return _WORDS[text]
    raise InvalidArgument(
        f'{name} = {text!r} is none of earliest, latest, an offset, or {{"log": offset}}'
    )


def _microseconds(name: str, text: str) -> int:
    """The microseconds since 1970 that ``text`` stands for: milliseconds since 1970, or ISO 8601.

    A time without a zone is UTC: the same on every machine.
    """
    if text.isascii() and text.isdecimal() and len(text) == DAY_DIGITS:
        raise InvalidArgument(
            f"{name} = {text!r} may be a day or milliseconds: write "
            f"{text[:4]}-{text[4:6]}-{text[6:]}, or 0{text} for so soon after 1970 began"
        )
    if text.isascii() and text.isdecimal():
        return int(text) * 1000
    with suppress(ValueError):
        when = datetime.fromisoformat(text)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    raise InvalidArgument(f"{name} = {text!r} is neither ISO 8601 nor milliseconds since 1970")


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise InvalidArgument(f"{name} = {text!r} is not a number above 0")
    return int(text)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in _TRUTHS:
        raise InvalidArgument(f"{name} = {text!r} is neither true nor false")
    return _TRUTHS[text]
