"""The inputs, answers and effects of an engine's turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import QuorateError
from quorate.state.judge import PLAIN, AppendTerms, Opened, Staged
from quorate.state.labels import Publish

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from quorate.raft.output import Event
    from quorate.state.labels import Abort, Label
    from quorate.state.operations import OpenProducer, SetFence
    from quorate.storage.flusher import Flush
    from quorate.types import Index, NodeId, Term

    # Operations that clients ask for, each with an entry of its own.
    Operation = OpenProducer | SetFence | Publish | Abort

__all__ = [
    "Aborted",
    "Answer",
    "Deliver",
    "Effects",
    "FenceChanged",
    "FlushFailed",
    "Flushed",
    "Input",
    "LinkClosed",
    "LinkRefused",
    "Operate",
    "Propose",
    "Read",
    "ReadAnswer",
    "Receipt",
    "Request",
    "Result",
    "Room",
    "Stage",
]

# Size of a chunk's row in a publish entry.
_CHUNK_BYTES = 16


@dataclass(slots=True)
class Deliver:
    """A message that arrived from a peer."""

    envelope: Envelope


@dataclass(slots=True)
class Propose:
    """A client's batch of ``count`` records. ``token`` comes back with the answer.

    With ``expected_term`` the batch is logged in that very term or not at all. ``terms`` are the
    other conditions of its sender. Batches that came together and have no conditions may be
    proposed together: ``batch`` is all of them, ``rows`` their directory. They share an entry and
    the answer, which tells where the first one went.
    """

    token: int
    batch: bytes
    count: int
    expected_term: Term | None = None
    terms: AppendTerms = PLAIN
    # The directory with which an entry's body begins; empty for a single batch.
    rows: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the proposal that count for the limits and for the room on disk."""
        return len(self.batch) + len(self.rows)


@dataclass(slots=True)
class Stage:
    """A client's batch of ``count`` records that readers see only once it is published."""

    token: int
    label: Label
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
    operation: Operation

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
class LinkClosed:
    peer: NodeId


@dataclass(slots=True)
class LinkRefused:
    peer: NodeId


Input = Deliver | Request | Read | Flushed | Room | FlushFailed | LinkClosed | LinkRefused


class Receipt(NamedTuple):
    """The place of an append in the log, and the number of replicas known to have it on disk."""

    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: Term
    synced: int


class ReadAnswer(NamedTuple):
    """The answer to a read: all appends acknowledged before the read are at or below ``index``."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    end_offset: int


class FenceChanged(NamedTuple):
    """The fence was set by the entry at ``index``."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called


class Aborted(NamedTuple):
    """The answer to an abort: none of its attempts is staged after the entry at ``index``."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    # Number of attempts that were dropped.
    attempts: int


Result = Receipt | ReadAnswer | Opened | FenceChanged | Staged | Aborted | QuorateError


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
