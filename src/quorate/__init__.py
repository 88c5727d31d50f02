"""A replicated commit log for Python and Spark, with Raft underneath."""

from importlib import import_module
from typing import TYPE_CHECKING

from quorate.errors import (
    Behind,
    Busy,
    Corrupt,
    DiskFull,
    Duplicate,
    EmptyBatch,
    Fenced,
    InvalidArgument,
    LogExists,
    LogNotFound,
    LogRecreated,
    NoQuorum,
    NotLeader,
    OffsetMismatch,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    ReplayMismatch,
    StageExpired,
    StageFull,
    Timeout,
    TooLarge,
    TooManyProducers,
    Transferring,
    Trimmed,
    Unauthorized,
    UnknownProducer,
    VersionMismatch,
    WrongCluster,
)

if TYPE_CHECKING:
    from quorate.client.asynchronous import AsyncClient, AsyncLog, AsyncProducer
    from quorate.client.blocking import Client, Log, Producer
    from quorate.client.results import ClusterStatus, Receipt, Record

__version__ = "0.1.0.dev0"

__all__ = [
    "AsyncClient",
    "AsyncLog",
    "AsyncProducer",
    "Behind",
    "Busy",
    "Client",
    "ClusterStatus",
    "Corrupt",
    "DiskFull",
    "Duplicate",
    "EmptyBatch",
    "Fenced",
    "InvalidArgument",
    "Log",
    "LogExists",
    "LogNotFound",
    "LogRecreated",
    "NoQuorum",
    "NotLeader",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "OutOfSequence",
    "OutcomeUnknown",
    "Producer",
    "QuorateError",
    "Receipt",
    "Record",
    "ReplayMismatch",
    "StageExpired",
    "StageFull",
    "Timeout",
    "TooLarge",
    "TooManyProducers",
    "Transferring",
    "Trimmed",
    "Unauthorized",
    "UnknownProducer",
    "VersionMismatch",
    "WrongCluster",
    "__version__",
]

# Loaded when they are first asked for: whoever needs only a part of the package, such as a tool
# that looks at files, needs no sockets for it.
_CLIENT = {
    **dict.fromkeys(("AsyncClient", "AsyncLog", "AsyncProducer"), "asynchronous"),
    **dict.fromkeys(("Client", "Log", "Producer"), "blocking"),
    **dict.fromkeys(("ClusterStatus", "Receipt", "Record"), "results"),
}


def __getattr__(name: str) -> object:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"quorate.client.{_CLIENT[name]}"), name)
    return found
