"""The inputs, answers and effects of an engine's turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from quorate.commands import (
    Abort,
    Aborted,
    ChunkStaged,
    FenceChanged,
    OpenProducer,
    ProducerOpened,
    Publish,
    Receipt,
    SetFence,
)
from quorate.errors import QuorateError, Timeout
from quorate.raft.output import MembersChanged, Transferred
from quorate.state.judge import UNCONDITIONAL, AppendConditions
from quorate.storage.damage import DiskFinding

if TYPE_CHECKING:
    from quorate.commands import ChunkLabel
    from quorate.raft.changes import MemberChange
    from quorate.raft.messages import Envelope
    from quorate.raft.output import Event
    from quorate.storage.flusher import Flush
    from quorate.types import Index, NodeId, Term

__all__ = [
    "Answer",
    "ChangeMembers",
    "ClientOperation",
    "Deliver",
    "DiskReport",
    "Effects",
    "FilesAwaited",
    "FlushFailed",
    "Flushed",
    "Input",
    "LinkClosed",
    "LinkRefused",
    "Operate",
    "Operated",
    "Propose",
    "Read",
    "ReadAnswer",
    "Request",
    "Result",
    "Room",
    "Stage",
    "Stopping",
    "TransferLeadership",
]

# Operations that clients ask for, each with an entry of its own.
ClientOperation = OpenProducer | SetFence | Publish | Abort

# Size of a chunk's row in a publish entry.
_CHUNK_BYTES = 16


@dataclass(slots=True)
class Deliver:
    """A message that arrived from a peer."""

    envelope: Envelope


@dataclass(slots=True)
class Propose:
    """A client's batch of ``count`` records. ``token`` comes back with the answer.

    With ``expected_term`` the batch is logged in that very term or not at all; no request on the
    wire has it yet, so only the clients of the simulator set it. ``conditions`` are those that the
    state of the log must meet. Batches that came together and have no conditions may be proposed
    together: ``batch`` is all of them, ``rows`` their directory. They share an entry and the
    answer, which tells where the first one went.
    """

    token: int
    batch: bytes
    count: int
    expected_term: Term | None = None
    conditions: AppendConditions = UNCONDITIONAL
    # The directory with which an entry's body begins; empty for a single batch.
    rows: bytes = b""
    # On the engine's clock: later than that the batch is not logged. None: there is no deadline.
    deadline_ms: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the proposal that count for the limits and for the room on disk."""
        return len(self.batch) + len(self.rows)

    def too_late(self, now_ms: int) -> Timeout | None:
        """The error that refuses the batch if its deadline has passed; else None."""
        if self.deadline_ms is None or now_ms <= self.deadline_ms:
            return None
        late_ms = now_ms - self.deadline_ms
        return Timeout(
            f"the append waited until {late_ms} ms after its deadline; nothing was logged"
        )


@dataclass(slots=True)
class Stage:
    """A client's batch of ``count`` records that readers see only once it is published."""

    token: int
    label: ChunkLabel
    batch: bytes
    count: int

    @property
    def size(self) -> int:
        return len(self.batch)


@dataclass(slots=True)
class Operate:
    """An operation that a client wants logged: it opens a producer, sets a fence, or publishes or
    drops staged chunks."""

    token: int
    operation: ClientOperation

    @property
    def size(self) -> int:
        """Bytes of the rows of a publish, maybe a megabyte; 0 for the others, which are small."""
        operation = self.operation
        return _CHUNK_BYTES * operation.chunks if isinstance(operation, Publish) else 0


# A client's request that is to be logged.
Request = Propose | Stage | Operate


@dataclass(slots=True)
class Read:
    """A linearizable barrier: answered once all appends acknowledged before it are applied here."""

    token: int


@dataclass(slots=True)
class TransferLeadership:
    """Give the leadership to ``target``, or to the fittest voter."""

    token: int
    target: NodeId | None


@dataclass(slots=True)
class ChangeMembers:
    """Change the members of the log."""

    token: int
    change: MemberChange


@dataclass(slots=True)
class Stopping:
    """This node stops soon: it must not become a leader any more."""


@dataclass(slots=True)
class Flushed:
    """The plan of flush ``number`` was carried out to its end.

    ``room`` is the number of bytes left for entries after it; None if there is no bound.
    """

    number: int
    room: int | None = None


@dataclass(slots=True)
class Room:
    """Bytes of entries for which the disk is sure to have room."""

    room: int | None
    # The reason why there is not more room; empty if there is enough.
    shortage: str = ""


@dataclass(slots=True)
class FlushFailed:
    """A step of flush ``number`` failed. The flush is not tried again."""

    number: int
    error: str
    # True if no write failed, but the flush met an entry of this log that the disk damaged.
    damaged: bool = False


@dataclass(slots=True)
class FilesAwaited:
    """The work on disk waits until a file can be opened; given once for each wait."""

    advice: ClassVar[str] = (
        "a write waits until a file can be opened: raise ulimit -n of this node, or close some of "
        "its clients' connections"
    )


@dataclass(slots=True)
class LinkClosed:
    peer: NodeId


@dataclass(slots=True)
class LinkRefused:
    peer: NodeId


# What the threads at a log's disk tell its engine.
DiskReport = Flushed | Room | FlushFailed | FilesAwaited | DiskFinding

Input = (
    Deliver
    | Request
    | Read
    | TransferLeadership
    | ChangeMembers
    | Stopping
    | DiskReport
    | LinkClosed
    | LinkRefused
)


class ReadAnswer(NamedTuple):
    """The answer to a read: all appends acknowledged before the read are at or below ``index``."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    end_offset: int


# The result of an operation that succeeded.
Operated = Receipt | ProducerOpened | FenceChanged | Aborted


Result = Operated | ReadAnswer | ChunkStaged | Transferred | MembersChanged | QuorateError


class Answer(NamedTuple):
    """The one answer to a proposal, operation or read."""

    token: int
    result: Result


@dataclass(slots=True)
class Effects:
    """The effects of a turn. They may be carried out at once and in any order: messages and answers
    that must wait are not among them."""

    sends: list[Envelope] = field(default_factory=list)
    # The flush to make durable; :class:`Flushed` with its number reports that it is done.
    flush: Flush | None = None
    answers: list[Answer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    # True if work was left for another turn, which is to come at once.
    more: bool = False
    # Number of producers and attempts that were looked at one by one, or changed.
    work: int = 0
    # Number of entries that were read from disk for peers.
    fetched: int = 0
