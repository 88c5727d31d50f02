"""What goes into an engine's turn and what comes out of it."""

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

    # What clients ask for, each with an entry of its own.
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

# Of a chunk's row in a publish entry.
_CHUNK_BYTES = 16


@dataclass(slots=True)
class Deliver:
    """A message arrived."""

    envelope: Envelope


@dataclass(slots=True)
class Propose:
    """A client's batch of ``count`` records. ``token`` comes back with the answer.

    With ``expected_term`` the batch is logged in that very term or not at all. ``terms`` are what
    else its sender insists on. Batches that came together and have no terms may be proposed
    together: ``batch`` is all of them, ``rows`` their directory. They share an entry and the
    answer, which is where the first one went.
    """

    token: int
    batch: bytes
    count: int
    expected_term: Term | None = None
    terms: AppendTerms = PLAIN
    # As an entry's body begins with; empty for a single batch.
    rows: bytes = b""

    @property
    def size(self) -> int:
        """Bytes that it holds of the limits, and takes on disk."""
        return len(self.batch) + len(self.rows)


@dataclass(slots=True)
class Stage:
    """A client's batch of ``count`` records that nobody is to see yet."""

    token: int
    label: Label
    batch: bytes
    count: int

    @property
    def size(self) -> int:
        return len(self.batch)


@dataclass(slots=True)
class Operate:
    """Something else that a client wants logged: a producer opened, a fence set, what is staged
    published or dropped."""

    token: int
    operation: Operation

    @property
    def size(self) -> int:
        """Most are small; the rows of a publish may be a megabyte."""
        operation = self.operation
        return _CHUNK_BYTES * operation.chunks if isinstance(operation, Publish) else 0


# What a client wants logged.
Request = Propose | Stage | Operate


@dataclass(slots=True)
class Read:
    """A linearizable barrier: answered when what was acknowledged before it is applied here."""

    token: int


@dataclass(slots=True)
class Flushed:
    """The plan of flush ``number`` was carried out to its end.

    ``room`` is what is left for entries after it; None if nothing bounds it.
    """

    number: int
    room: int | None = None


@dataclass(slots=True)
class Room:
    """Bytes of entries that are sure to find a place on disk, besides what is under way."""

    room: int | None
    # Why there is not more of it; empty if there is enough.
    shortage: str = ""


@dataclass(slots=True)
class FlushFailed:
    """A step of flush ``number`` failed. There is no second try."""

    number: int
    error: str
    # Nothing is wrong with writing: the flush met an entry of this log that the disk spoiled.
    damaged: bool = False


@dataclass(slots=True)
class LinkClosed:
    peer: NodeId


@dataclass(slots=True)
class LinkRefused:
    peer: NodeId


Input = Deliver | Request | Read | Flushed | Room | FlushFailed | LinkClosed | LinkRefused


class Receipt(NamedTuple):
    """Where an append went, and how many replicas were known to have it on disk."""

    offset: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    term: Term
    synced: int


class ReadAnswer(NamedTuple):
    """Everything acknowledged before the read was asked for is at or below ``index``."""

    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    end_offset: int


class FenceChanged(NamedTuple):
    """The fence was set by the entry at ``index``."""

    index: Index  # type: ignore[assignment]  # nobody calls tuple's own


class Aborted(NamedTuple):
    """Nothing of it is staged after the entry at ``index``."""

    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    # How many attempts were dropped.
    attempts: int


Result = Receipt | ReadAnswer | Opened | FenceChanged | Staged | Aborted | QuorateError


class Answer(NamedTuple):
    """The one answer to a proposal, operation or read."""

    token: int
    result: Result


@dataclass(slots=True)
class Effects:
    """All of this may be done at once and in any order: whatever had to wait is not in it."""

    sends: list[Envelope] = field(default_factory=list)
    # To be made durable; then comes :class:`Flushed` with its number.
    flush: Flush | None = None
    answers: list[Answer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    # Something was left for another turn, which is to come at once.
    more: bool = False
    # Producers and attempts that were looked at one by one, or changed.
    work: int = 0
    # Entries that were read from disk for peers.
    fetched: int = 0
