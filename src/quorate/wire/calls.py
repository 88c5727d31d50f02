"""Requests that are rare: typed structures in MessagePack behind the request's number.

The tag of a CALL names its kind; its RESULT is of the one type that belongs to that kind. One CALL,
the chunk to be staged, has a batch behind it as its bulk part.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec

from quorate.errors import InvalidArgument
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.requests import pack_request, take_request
from quorate.wire.shapes import (
    Id,
    Milliseconds,
    Name,
    Number,
    Shape,
    Short,
    Time,
    decode_shape,
    encode_shape,
)

__all__ = [
    "PARTS_MAX",
    "AbortStaged",
    "Aborted",
    "AwaitCatalog",
    "Call",
    "CatalogReached",
    "ChunkStaged",
    "CreateLog",
    "DeleteLog",
    "Done",
    "Ends",
    "FenceSet",
    "FindLog",
    "Found",
    "LastFound",
    "LastPublished",
    "ListLogs",
    "LogFound",
    "LogStatus",
    "Logs",
    "NodeStatus",
    "OffsetAt",
    "OffsetFound",
    "OpenProducer",
    "ProducerOpened",
    "Publish",
    "PublishPart",
    "Published",
    "ReadEnds",
    "ReplicaStatus",
    "SetFence",
    "StageChunk",
    "Status",
    "decode_call",
    "decode_result",
    "encode_call",
    "encode_result",
]

ResultT = TypeVar("ResultT")
# Maximum parts of one publish. The number is checked before the first part is looked at: each costs
# work.
PARTS_MAX = 8192
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Call(
    Shape, Generic[ResultT], tag_field="call", forbid_unknown_fields=True, omit_defaults=True
):
    """A request. The type parameter is the type of its answer.

    A field that this release does not know is refused: the sender counts on it. So a field that a
    newer release adds has a default, and is sent only by clients that want another value.
    """


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


class ProducerOpened(Shape):
    epoch: Number
    last_sequence: Number


class OpenProducer(Call[ProducerOpened], tag="open-producer"):
    log: Id
    name: Name
    # Drawn by the client: a repeat with the same instance gets the same answer.
    instance: Id
    window: Number
    expiry_us: Number


class FenceSet(Shape):
    index: Number


class SetFence(Call[FenceSet], tag="set-fence"):
    log: Id
    fence: Name | None
    expect: Name | None


# -- staging -----------------------------------------------------------------------------------


class ChunkStaged(Shape):
    """The answer to a chunk. With ``published`` it was not staged: the batch, or a later one, is
    visible."""

    index: Number
    published: bool


class StageChunk(Call[ChunkStaged], tag="stage"):
    """Stage a batch, the bulk part, hidden from readers. A repeat gets the first answer."""

    log: Id
    app: Name
    run: Id
    batch_id: Number
    partition: Short
    attempt: Id
    # The chunks of an attempt are numbered from 0, without gaps.
    number: Short


class PublishPart(Shape, array_like=True, forbid_unknown_fields=True):
    """The chunks that one attempt staged for its partition. Encoded as a list, without the names of
    the fields, because there may be thousands of parts."""

    partition: Short
    attempt: Id
    chunks: Short
    records: Number


class Published(Shape):
    """The receipt of a publish."""

    offset: Number
    count: Number
    index: Number
    term: Number
    synced: Number


class Publish(Call[Published], tag="publish"):
    """Make all of ``parts`` visible, in this order, or none. A repeat of the batch gets the first
    receipt."""

    log: Id
    app: Name
    batch_id: Number
    parts: Annotated[list[PublishPart], msgspec.Meta(max_length=PARTS_MAX)]
    digest: Digest
    fence: Name | None = None
    once: bool = False


class Aborted(Shape):
    """The number of attempts that were dropped, and the entry after which none of them is left."""

    index: Number
    attempts: Number


class AbortStaged(Call[Aborted], tag="abort"):
    """Drop the chunks that one attempt, or all, staged for a batch. Never undoes a publish."""

    log: Id
    app: Name
    batch_id: Number
    attempt: Id | None = None


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


class ReplicaStatus(Shape):
    """A replica as the leader sees it; ``match`` is None if the leader cannot know."""

    node: Name
    match: Number | None
    # compare, append, blocked, fill, repairing or down.
    state: str
    # Its disk has no room, as it reported last.
    full: bool = False


class LogStatus(Shape):
    """One log as one node sees it."""

    name: Name
    incarnation: Id
    # leader, follower, candidate or learner.
    role: str
    leader: Name | None
    term: Number
    first_offset: Number
    end_offset: Number
    committed: Number
    last: Number
    staged_bytes: Number
    # The other replicas; only a leader knows them.
    peers: list[ReplicaStatus]
    # This node's disk has no room for appends of clients.
    full: bool = False
    # Why this node's replica stopped; empty if it runs. The numbers above do not count if it
    # stopped.
    halted: str = ""
    # This node lost entries that were durable on its disk, and gives no vote until it has them.
    unsure: bool = False


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
    | ProducerOpened
    | FenceSet
    | ChunkStaged
    | Published
    | Aborted
    | LastFound
    | NodeStatus
    | CatalogReached
)

_CALLS = (
    FindLog
    | ListLogs
    | CreateLog
    | DeleteLog
    | ReadEnds
    | OffsetAt
    | OpenProducer
    | SetFence
    | StageChunk
    | Publish
    | AbortStaged
    | LastPublished
    | Status
    | AwaitCatalog
)
_RESULTS: dict[type[Call[Any]], type[Any]] = {
    FindLog: LogFound,
    ListLogs: Logs,
    CreateLog: LogFound,
    DeleteLog: Done,
    ReadEnds: Ends,
    OffsetAt: OffsetFound,
    OpenProducer: ProducerOpened,
    SetFence: FenceSet,
    StageChunk: ChunkStaged,
    Publish: Published,
    AbortStaged: Aborted,
    LastPublished: LastFound,
    Status: NodeStatus,
    AwaitCatalog: CatalogReached,
}

_calls = msgspec.msgpack.Decoder(_CALLS)
_results = {call: msgspec.msgpack.Decoder(result) for call, result in _RESULTS.items()}


def encode_call(request: int, call: Call[Any], bulk_bytes: int = 0) -> bytes:
    """The frame of a CALL without its batch, which follows as the bulk part."""
    control = pack_request(request) + encode_shape("CALL", call)
    return encode_frame(FrameKind.CALL, control, bulk_bytes)


def decode_call(frame: Frame) -> tuple[int, Call[Any]]:
    """The number and the CALL of a frame. Raises InvalidArgument if this release does not know the
    CALL."""
    request, body = take_request(frame, FrameKind.CALL)
    call: Call[Any] = decode_shape("CALL", body, _calls)
    if bool(frame.bulk) != isinstance(call, StageChunk):
        raise InvalidArgument("CALL: a chunk to be staged has a bulk part, and nothing else has")
    return request, call


def encode_result(request: int, result: Found) -> bytes:
    return encode_frame(FrameKind.RESULT, pack_request(request) + encode_shape("RESULT", result))


def decode_result(frame: Frame, call: Call[ResultT]) -> ResultT:
    """The answer to ``call``, from a RESULT frame."""
    _, body = take_request(frame, FrameKind.RESULT)
    found: ResultT = decode_shape("RESULT", body, _results[type(call)])
    return found
