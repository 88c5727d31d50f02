"""The options of a write, checked before a request is sent to the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.errors import InvalidArgument
from quorate.spark.cluster_address import CLUSTER_NAMES, parse_cluster
from quorate.spark.option_names import check_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.spark.cluster_address import ClusterAddress

__all__ = ["Transaction", "WriteOptions", "parse_write_options"]

TRANSACTION = ("txnAppId", "txnVersion")
MISMATCH = "replayMismatch"
NAMES = (*CLUSTER_NAMES, "log", "path", *TRANSACTION, MISMATCH)
# Options of Spark itself, which it passes on to the format.
STREAM_NAMES = ("checkpointLocation", "queryName")

_MISMATCHES: dict[str, Literal["fail", "keepFirst"]] = {"fail": "fail", "keepFirst": "keepFirst"}


class Transaction(NamedTuple):
    """The id of a write. A log recognises it: the same version, or a lower one, is not written."""

    app: str
    version: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The cluster and log that rows are written to, and the effect of a repeated write."""

    cluster: ClusterAddress
    # None: every row names its log, in its column log.
    log: str | None
    transaction: Transaction | None = None
    # The effect of a micro-batch that is repeated with other rows than were published.
    mismatch: Literal["fail", "keepFirst"] = "fail"


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write. Raises InvalidArgument for an unknown, missing or invalid option."""
    check_names(given, (*NAMES, *STREAM_NAMES) if streaming else NAMES)
    lowered = {name.lower(): value.strip() for name, value in given.items()}
    options = {name: lowered[name.lower()] for name in NAMES if name.lower() in lowered}
    cluster = parse_cluster(options)
    if streaming and any(name in options for name in TRANSACTION):
        raise InvalidArgument(
            f"{' and '.join(TRANSACTION)} are for batches: a stream is known again by its "
            f"checkpoint"
        )
    if not streaming and MISMATCH in options:
        raise InvalidArgument(
            f"{MISMATCH} is for streams: a batch is known again only by "
            f"{' and '.join(TRANSACTION)}, and then it is not written"
        )
    return WriteOptions(cluster, _log(options), _transaction(options), _mismatch(options))


def _log(options: Mapping[str, str]) -> str | None:
    """The log that is written to; ``.save("orders")`` names it by the path. None: a column does."""
    log, path = options.get("log"), options.get("path")
    if log and path:
        raise InvalidArgument(f"log = {log!r} and path = {path!r}: one of them is enough")
    return log or path or None


def _transaction(options: Mapping[str, str]) -> Transaction | None:
    app, version = (options.get(name) for name in TRANSACTION)
    if app is None and version is None:
        return None
    if not app or version is None:
        raise InvalidArgument(f"{' and '.join(TRANSACTION)} are given together, or neither is")
    if not (version.isascii() and version.isdecimal()):
        raise InvalidArgument(f"txnVersion = {version!r} is not a whole number from 0 on")
    return Transaction(app, int(version))


def _mismatch(options: Mapping[str, str]) -> Literal["fail", "keepFirst"]:
    text = options.get(MISMATCH, "fail")
    if text not in _MISMATCHES:
        raise InvalidArgument(f"{MISMATCH} = {text!r} is none of {', '.join(_MISMATCHES)}")
    return _MISMATCHES[text]
