"""A replicated commit log for Python and Spark, with Raft underneath."""

from importlib import import_module
from typing import TYPE_CHECKING

from quorate.errors import (
    Behind,
    Busy,
    CatchingUp,
    CheckFailed,
    Corrupt,
    DecodeFailed,
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
    SparkFailed,
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
    from quorate import spark as spark
    from quorate import testing as testing
    from quorate.client.asynchronous import AsyncClient, AsyncLog
    from quorate.client.blocking import Client, Log
    from quorate.client.produce.producer import AsyncProducer, Producer
    from quorate.client.produce.tickets import AsyncDelivery, Delivery
    from quorate.client.results import ClusterStatus, Record
    from quorate.commands import Receipt

__version__ = "0.1.0.dev0"

__all__ = [
    "AsyncClient",
    "AsyncDelivery",
    "AsyncLog",
    "AsyncProducer",
    "Behind",
    "Busy",
    "CatchingUp",
    "CheckFailed",
    "Client",
    "ClusterStatus",
    "Corrupt",
    "DecodeFailed",
    "Delivery",
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
    "SparkFailed",
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

# These names are loaded at their first use: a program that needs only a part of the package, such
# as a tool that looks at files, needs no sockets for it.
_MODULES = {
    **dict.fromkeys(("AsyncClient", "AsyncLog"), "client.asynchronous"),
    **dict.fromkeys(("AsyncDelivery", "Delivery"), "client.produce.tickets"),
    **dict.fromkeys(("AsyncProducer", "Producer"), "client.produce.producer"),
    **dict.fromkeys(("Client", "Log"), "client.blocking"),
    **dict.fromkeys(("ClusterStatus", "Record"), "client.results"),
    "Receipt": "commands",
}


def __getattr__(name: str) -> object:
    if name in ("spark", "testing"):
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
