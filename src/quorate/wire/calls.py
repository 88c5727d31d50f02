"""Requests that are rare: typed structures in MessagePack behind the request's number.

A CALL names what it asks for by its tag; its RESULT is of the one type that belongs to it. One of
them, the chunk to be staged, has a batch behind it as its bulk part.
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
# Of one publish. Looked at before the first of them is: each costs something.
PARTS_MAX = 8192
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Call(
    Shape, Generic[ResultT], tag_field="call", forbid_unknown_fields=True, omit_defaults=True
):
    """Something that is asked for. The parameter is the type of its answer.

    A field that this release does not know is refused: whoever sent it counts on it. So a field
    that a newer release adds has a default and is sent only by those who want something else.
    """


# -- logs --------------------------------------------------------------------------------------


class LogFound(Shape):
    """A log, and where to go with appends: ``leader`` is a node's id, None if none is known."""

    name: Name
    incarnation: Id
    leader: Name | None
    # node id -> "host:port" for clients; all of them have a replica.
    nodes: dict[str, str]


class Logs(Shape):
    logs: list[LogFound]


class Done(Shape):
    """It is done, or had been done by an earlier try of the same call."""


class FindLog(Call[LogFound], tag="find-log"):
    """From the local catalog; a name that is not in it is looked for behind a barrier."""

    name: Name


class ListLogs(Call[Logs], tag="list-logs"):
    pass


class CreateLog(Call[LogFound], tag="create-log"):
    """Answered when a leader serves it. A repeat with the same incarnation is a success.

    OFFSET_MISMATCH if the incarnation was drawn before the newest deletion that the catalog does
    not remember: nothing was made, and nothing will be. Its text ends with the offset at which
    another one may be drawn."""

    name: Name
    incarnation: Id
    timeout_ms: Milliseconds
    # Where the catalog ended when the incarnation was drawn, or earlier. A repeat says the same.
    drawn_at: Number = 0


class DeleteLog(Call[Done], tag="delete-log"):
    """Answered when a majority of nodes has applied it."""

    name: Name
    incarnation: Id
    timeout_ms: Milliseconds


# -- one log -----------------------------------------------------------------------------------


class Ends(Shape):
    """The first offset, the one after the last committed record, and the entry that ends it."""

    first: Number
    end: Number
    index: Number


class ReadEnds(Call[Ends], tag="read-ends"):
    """With ``barrier`` everything acknowledged before the call is below the end."""

    log: Id
    barrier: bool = True


class OffsetFound(Shape):
    offset: Number


class OffsetAt(Call[OffsetFound], tag="offset-at"):
    """The first record whose append time is at or after ``time_us``; the end, behind a barrier, if
    there is none."""

    log: Id
    time_us: Time


class ProducerOpened(Shape):
    epoch: Number
    last_sequence: Number


class OpenProducer(Call[ProducerOpened], tag="open-producer"):
    log: Id
    name: Name
    # Drawn by the client: a repeat with the same one gets the same answer.
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
    """With ``published`` nothing was staged: the batch, or a later one, is visible."""

    index: Number
    published: bool


class StageChunk(Call[ChunkStaged], tag="stage"):
    """A batch that nobody is to see yet: the bulk part. Answered as the first time if repeated."""

    log: Id
    app: Name
    run: Id
    batch_id: Number
    partition: Short
    attempt: Id
    # From 0; the next one of its attempt.
    number: Short


class PublishPart(Shape, array_like=True, forbid_unknown_fields=True):
    """What one attempt staged for its partition. A list, because there may be thousands."""

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
    """Everything in ``parts`` becomes visible, in this order, or nothing does. The same batch again
    gets the first receipt."""

    log: Id
    app: Name
    batch_id: Number
    parts: Annotated[list[PublishPart], msgspec.Meta(max_length=PARTS_MAX)]
    digest: Digest
    fence: Name | None = None
    once: bool = False


class Aborted(Shape):
    """How many attempts were dropped, and after which entry nothing is left of them."""

    index: Number
    attempts: Number


class AbortStaged(Call[Aborted], tag="abort"):
    """Drop what is staged for a batch, by one attempt or by all. Never undoes a publish."""

    log: Id
    app: Name
    batch_id: Number
    attempt: Id | None = None


class LastFound(Shape):
    """What an app published last; ``batch_id`` is None if nothing that is remembered."""

    batch_id: Number | None = None
    offset: Number = 0
    count: Number = 0
    index: Number = 0
    digest: bytes = b""


class LastPublished(Call[LastFound], tag="last-published"):
    """Everything that was acknowledged before the call is in the answer."""

    log: Id
    app: Name


# -- the cluster -------------------------------------------------------------------------------


class ReplicaStatus(Shape):
    """A replica as the leader sees it; ``match`` is None if it cannot know."""

    node: Name
    match: Number | None
    # compare, append, blocked, fill, repairing or down.
    state: str
    # Its disk has no room, by what it said last.
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
    # Of the other replicas; only a leader knows them.
    peers: list[ReplicaStatus]
    # This node's disk has no room for what clients append.
    full: bool = False
    # Why this node's replica stopped; empty if it runs. Then the numbers above say nothing.
    halted: str = ""
    # This node lost entries that were durable on its disk, and gives no vote until it has them.
    unsure: bool = False


class NodeStatus(Shape):
    id: Name
    address: str
    # node id -> "host:port" for clients.
    nodes: dict[str, str]
    logs: list[LogStatus]
    # Percent of its disk, and whether another log would find no room there; nil if it is not told.
    disk_used: Short | None = None
    full: bool | None = None


class Status(Call[NodeStatus], tag="status"):
    pass


class CatalogReached(Shape):
    offset: Number
    # Why another log would find no room on the node that answers; empty if it would.
    no_room: str = ""


class AwaitCatalog(Call[CatalogReached], tag="await-catalog"):
    """Between nodes: answered once the catalog was carried out here up to ``offset``."""

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
    """Everything but a batch, which follows as the bulk part."""
    control = pack_request(request) + encode_shape("CALL", call)
    return encode_frame(FrameKind.CALL, control, bulk_bytes)


def decode_call(frame: Frame) -> tuple[int, Call[Any]]:
    """Raises InvalidArgument if it is none that this release knows."""
    request, body = take_request(frame, FrameKind.CALL)
    call: Call[Any] = decode_shape("CALL", body, _calls)
    if bool(frame.bulk) != isinstance(call, StageChunk):
        raise InvalidArgument("CALL: a chunk to be staged has a bulk part, and nothing else has")
    return request, call


def encode_result(request: int, result: Found) -> bytes:
    return encode_frame(FrameKind.RESULT, pack_request(request) + encode_shape("RESULT", result))


def decode_result(frame: Frame, call: Call[ResultT]) -> ResultT:
    """The answer to ``call``."""
    _, body = take_request(frame, FrameKind.RESULT)
    found: ResultT = decode_shape("RESULT", body, _results[type(call)])
    return found
