"""Requests that are rare: typed structures in MessagePack behind the request's number.

The tag of a CALL names its kind; its RESULT is of the one type that belongs to that kind. One CALL,
the chunk to be staged, has a batch behind it as its bulk part.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
from msgspec import structs

from quorate.commands import (
    Abort,
    Aborted,
    ChunkLabel,
    ChunkStaged,
    FenceChanged,
    LogCommand,
    OpenProducer,
    ProducerOpened,
    Publish,
    Receipt,
    SetFence,
)
from quorate.errors import InvalidArgument
from quorate.fields import Id, Milliseconds, Name, Number, Short, Time  # noqa: TC001  # msgspec reads them
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.requests import pack_request, take_request
from quorate.wire.shapes import Shape, decode_shape, encode_shape

__all__ = [
    "AwaitCatalog",
    "Call",
    "CatalogReached",
    "CreateLog",
    "DeleteLog",
    "Done",
    "Ends",
    "FindLog",
    "Found",
    "LastFound",
    "LastPublished",
    "LeaderMoved",
    "ListLogs",
    "LogCall",
    "LogFound",
    "LogStatus",
    "Logs",
    "NodeStatus",
    "OffsetAt",
    "OffsetFound",
    "PeerStatus",
    "ReadEnds",
    "SetLog",
    "Status",
    "TransferLog",
    "decode_call",
    "decode_result",
    "encode_call",
    "encode_result",
]

ResultT = TypeVar("ResultT")


class Call(
    Shape, Generic[ResultT], tag_field="call", forbid_unknown_fields=True, omit_defaults=True
):
    """A request. The type parameter is the type of its answer.

    A field that this release does not know is refused: the sender counts on it. So a field that a
    newer release adds has a default, and is sent only by clients that want another value.
    """


class LogCall(Call[ResultT]):
    """A command to one log. On the wire it is one map, in which the fields of the command follow
    the log."""

    log: Id
    command: LogCommand[ResultT]


# -- logs --------------------------------------------------------------------------------------


class LogFound(Shape):
    """A log, and the node that takes its appends: ``leader`` is its id, None if none is known."""

    name: Name
    incarnation: Id
    leader: Name | None
    # node id -> "host:port" for clients; all of them have a replica.
    nodes: dict[str, str]


class Logs(Shape):
    logs: list[LogFound]


class Done(Shape):
    """The call was carried out, now or by an earlier try."""


class FindLog(Call[LogFound], tag="find-log"):
    """Find a log in the local catalog; a name that is not in it is looked for behind a barrier."""

    name: Name


class ListLogs(Call[Logs], tag="list-logs"):
    pass


class CreateLog(Call[LogFound], tag="create-log"):
    """Make a log. The answer comes when a leader serves it. A repeat with the same incarnation is a
    success.

    OFFSET_MISMATCH if the incarnation was drawn before the newest deletion that the catalog does
    not remember: no log was made, and none will be. The error's text ends with the offset at which
    another incarnation may be drawn."""

    name: Name
    incarnation: Id
    timeout_ms: Milliseconds
    # The end of the catalog when the incarnation was drawn, or an earlier one. A repeat has the
    # same number.
    drawn_at: Number = 0


class DeleteLog(Call[Done], tag="delete-log"):
    """Delete a log. The answer comes when a majority of nodes has applied it."""

    name: Name
    incarnation: Id
    timeout_ms: Milliseconds


class SetLog(Call[Done], tag="set-log"):
    """Change the settings of a log. The answer comes when its leader has carried that out."""

    name: Name
    incarnation: Id
    timeout_ms: Milliseconds
    # Priorities to set, by node; those of other nodes stay.
    priorities: dict[Name, Short] = msgspec.field(default_factory=dict)


# -- one log -----------------------------------------------------------------------------------


class Ends(Shape):
    """The first offset of a log, the one after its last committed record, and its last entry."""

    first: Number
    end: Number
    index: Number


class ReadEnds(Call[Ends], tag="read-ends"):
    """Ask for the ends of a log. With ``barrier`` every record acknowledged before the call is
    below the end."""

    log: Id
    barrier: bool = True


class OffsetFound(Shape):
    offset: Number


class OffsetAt(Call[OffsetFound], tag="offset-at"):
    """Ask for the offset of the first record whose append time is at or after ``time_us``; it is
    the end, behind a barrier, if there is none."""

    log: Id
    time_us: Time


class LeaderMoved(Shape):
    """``leader`` leads the log now."""

    leader: Name


class TransferLog(Call[LeaderMoved], tag="transfer-log"):
    """Give the leadership of a log to ``target``, or to the node that the leader finds fittest.
    Only the leader takes it. The answer comes when the target leads."""

    log: Id
    target: Name | None = None


# -- staging -----------------------------------------------------------------------------------


class _ReceiptFields(TypedDict):
    """The fields of a receipt, which is a tuple elsewhere, but a map in a RESULT."""

    offset: Number
    count: Number
    index: Number
    term: Number
    synced: Number


class LastFound(Shape):
    """The last publish of an app; ``batch_id`` is None if none is remembered."""

    batch_id: Number | None = None
    offset: Number = 0
    count: Number = 0
    index: Number = 0
    digest: bytes = b""


class LastPublished(Call[LastFound], tag="last-published"):
    """Ask for the last publish of an app. Every publish that was acknowledged before the call is
    considered."""

    log: Id
    app: Name


# -- the cluster -------------------------------------------------------------------------------


class PeerStatus(Shape):
    """The status of a peer, as the leader knows it."""

    node: Name
    # None until the leader knows where the logs agree.
    match: Number | None
    # compare, append, blocked or down.
    state: str
    # Its disk has no room, by its last report.
    full: bool = False


class LogStatus(Shape):
    """One log as one node sees it."""

    name: Name
    incarnation: Id
    # leader, follower or candidate.
    role: str
    leader: Name | None
    term: Number
    first_offset: Number
    end_offset: Number
    committed: Number
    last: Number
    staged_bytes: Number
    # The replicas that the leader feeds, also those that were removed not long ago; empty unless
    # this node leads.
    peers: list[PeerStatus]
    # This node's disk has no room for appends of clients.
    full: bool = False
    # Why this node's replica stopped; empty if it runs. The numbers above do not count if it
    # stopped.
    halted: str = ""
    # This node lost entries that were durable on its disk, and gives no vote until it has them.
    unsure: bool = False
    # The priorities that were set, by node, as far as they are applied here.
    priorities: dict[Name, Short] = msgspec.field(default_factory=dict)


class NodeStatus(Shape):
    id: Name
    address: str
    # node id -> "host:port" for clients.
    nodes: dict[str, str]
    logs: list[LogStatus]
    # Percent of the node's disk in use, and whether another log would find no room there; nil from
    # a node that does not send them.
    disk_used: Short | None = None
    full: bool | None = None


class Status(Call[NodeStatus], tag="status"):
    pass


class CatalogReached(Shape):
    offset: Number
    # Why another log would find no room on the node that answers; empty if there is room.
    no_room: str = ""


class AwaitCatalog(Call[CatalogReached], tag="await-catalog"):
    """Sent between nodes. The answer comes once this node has applied the catalog up to
    ``offset``."""

    offset: Number
    timeout_ms: Milliseconds


Found = (
    LogFound
    | Logs
    | Done
    | Ends
    | OffsetFound
    | LeaderMoved
    | ProducerOpened
    | FenceChanged
    | ChunkStaged
    | Receipt
    | Aborted
    | LastFound
    | NodeStatus
    | CatalogReached
)

# The type of each answer, by the class of the call, or of the command in a LogCall.
_RESULTS: dict[type[Call[Any] | LogCommand[Any]], type[Any]] = {
    FindLog: LogFound,
    ListLogs: Logs,
    CreateLog: LogFound,
    DeleteLog: Done,
    SetLog: Done,
    ReadEnds: Ends,
    OffsetAt: OffsetFound,
    TransferLog: LeaderMoved,
    OpenProducer: ProducerOpened,
    SetFence: FenceChanged,
    ChunkLabel: ChunkStaged,
    Publish: _ReceiptFields,
    Abort: Aborted,
    LastPublished: LastFound,
    Status: NodeStatus,
    AwaitCatalog: CatalogReached,
}

# The tags of commands, which a LogCall takes over.
_TAGS: dict[type[LogCommand[Any]], str] = {
    OpenProducer: "open-producer",
    SetFence: "set-fence",
    ChunkLabel: "stage",
    Publish: "publish",
    Abort: "abort",
}


class _LogMap(Call[Any]):
    """The base of the map that is a LogCall on the wire."""

    log: Id


def _map_of(command: type[LogCommand[Any]], tag: str) -> type[_LogMap]:
    """The map of a LogCall with a command of this class."""
    # msgspec.NODEFAULT is the default of a field that has none.
    fields = [(field.name, field.type, field.default) for field in structs.fields(command)]
    made: Any = msgspec.defstruct(
        command.__name__, fields, bases=(_LogMap,), tag=tag, module=__name__
    )
    return made  # type: ignore[no-any-return]  # a subclass of its base


_MAPS = {command: _map_of(command, tag) for command, tag in _TAGS.items()}
_COMMANDS = {log_map: command for command, log_map in _MAPS.items()}

_calls: msgspec.msgpack.Decoder[Call[Any]] = msgspec.msgpack.Decoder(
    reduce(or_, [*_MAPS.values(), *(kind for kind in _RESULTS if kind not in _MAPS)])
)
_results = {kind: msgspec.msgpack.Decoder(result) for kind, result in _RESULTS.items()}


def _kind(call: Call[Any]) -> type[Call[Any] | LogCommand[Any]]:
    return type(call.command) if isinstance(call, LogCall) else type(call)


def encode_call(request: int, call: Call[Any], bulk_bytes: int = 0) -> bytes:
    """The frame of a CALL without its batch, which follows as the bulk part."""
    shape = call
    if isinstance(call, LogCall):
        shape = _MAPS[type(call.command)](log=call.log, **structs.asdict(call.command))
    control = pack_request(request) + encode_shape("CALL", shape)
    return encode_frame(FrameKind.CALL, control, bulk_bytes)


def decode_call(frame: Frame) -> tuple[int, Call[Any]]:
    """The number and the CALL of a frame. Raises InvalidArgument if this release does not know the
    CALL."""
    request, body = take_request(frame, FrameKind.CALL)
    call: Call[Any] = decode_shape("CALL", body, _calls)
    if isinstance(call, _LogMap):
        fields = structs.asdict(call)
        call = LogCall(fields.pop("log"), _COMMANDS[type(call)](**fields))
    if bool(frame.bulk) != (_kind(call) is ChunkLabel):
        raise InvalidArgument("CALL: a chunk to be staged has a bulk part, and nothing else has")
    return request, call


def encode_result(request: int, result: Found) -> bytes:
    shape = result._asdict() if isinstance(result, Receipt) else result
    return encode_frame(FrameKind.RESULT, pack_request(request) + encode_shape("RESULT", shape))


def decode_result(frame: Frame, call: Call[ResultT]) -> ResultT:
    """The answer to ``call``, from a RESULT frame."""
    _, body = take_request(frame, FrameKind.RESULT)
    found: Any = decode_shape("RESULT", body, _results[_kind(call)])
    return Receipt(**found) if isinstance(found, dict) else found  # type: ignore[return-value]
