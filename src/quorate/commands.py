"""The commands of clients to a log, and their answers: one class each for client, wire and state.

A command checks its fields when it is made, so every command is well-formed; the state may refuse
it all the same. The ranges in the types of the fields are those of the wire, which checks them when
it decodes: they are never narrower than the checks here.
"""

from __future__ import annotations

from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec

from quorate.entry import COUNT_MAX
from quorate.errors import InvalidArgument, TooLarge
from quorate.fields import DIGEST_BYTES, ID_BYTES, Digest, Id, Name, Number, Short

__all__ = [
    "BATCH_ID_MAX",
    "CHUNKS_MAX",
    "EXPIRY_US_MAX",
    "EXPIRY_US_MIN",
    "NAME_BYTES_MAX",
    "PARTS_MAX",
    "WINDOW_MAX",
    "Abort",
    "Aborted",
    "ChunkLabel",
    "ChunkStaged",
    "FenceChanged",
    "LogCommand",
    "OpenProducer",
    "Part",
    "ProducerOpened",
    "ProducerStamp",
    "Publish",
    "Receipt",
    "SetFence",
    "check_batch",
    "check_id",
    "check_name",
    "check_range",
]

ResultT = TypeVar("ResultT")

# Maximum bytes of the name of a producer or an app, and of a fence.
NAME_BYTES_MAX = 255
# Maximum number of runs that a producer may ask the log to keep.
WINDOW_MAX = 1024
EXPIRY_US_MIN = 1_000_000
EXPIRY_US_MAX = 10 * 365 * 24 * 3600 * 1_000_000
BATCH_ID_MAX = 2**63 - 1
# Chunks that one entry publishes: a megabyte of rows.
CHUNKS_MAX = 65_536
# Attempts that one entry publishes: each is looked up when the publish is judged and applied. The
# wire checks the number before it looks at the first part.
PARTS_MAX = 8192
_NUMBER_MAX = 2**32 - 1


def check_name(what: str, name: str) -> None:
    """Refuse a name that is too short, too long or not text. Error texts call it ``what``."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as odd:
        raise InvalidArgument(f"{what} cannot be written as UTF-8: {odd.reason}") from odd
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidArgument(f"{what} has {size} bytes, not 1 to {NAME_BYTES_MAX}")


def check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}, not {low} to {high}")


def check_batch(app: str, batch_id: int) -> None:
    check_name("app", app)
    check_range("batch id", batch_id, 0, BATCH_ID_MAX)


def check_id(what: str, data: bytes, size: int = ID_BYTES) -> None:
    if len(data) != size:
        raise InvalidArgument(f"{what} has {len(data)} bytes, not {size}")


class Receipt(NamedTuple):
    """The place of an append or a publish in the log, and the number of replicas that were known
    to have it on disk."""

    # The offset of the first record; the others follow without a gap.
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    # The entry that holds the records, and the term of the leader that made it.
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: int
    synced: int


class LogCommand(msgspec.Struct, Generic[ResultT], frozen=True):
    """A command to one log. The type parameter is the type of its answer."""


# -- appends, producers and the fence -------------------------------------------------------------


class ProducerStamp(NamedTuple):
    """The producer of a batch, and the place of the batch among all that the producer sent."""

    name: str
    # The epoch that the answer to the opening gave.
    epoch: int
    # The sequence of the batch's first record; sequences begin with 1.
    sequence: int


class ProducerOpened(msgspec.Struct, frozen=True):
    """The answer to an opening: the epoch to write under, and the last sequence in the log."""

    epoch: Number
    last_sequence: Number
    # Another instance has the name with this epoch, which is above the one that the opening knew:
    # nothing was opened.
    held: bool = False


class OpenProducer(LogCommand[ProducerOpened], frozen=True):
    """Open the producer ``name``; the instance that had the name before is fenced off, unless its
    epoch is above ``known``."""

    name: Name
    # Random, drawn by the client that opens: a repeat of the same opening is recognised by it.
    instance: Id
    # The number of newest runs that are kept to answer a repeated batch with its offset.
    window: Number
    # The producer is forgotten after this time without a batch, in microseconds of log age.
    expiry_us: Number
    # The highest epoch of the name that the client has heard of since it began to open; 0 if none.
    # So a copy that comes late fences off no instance that opened the name after the client was
    # done. None: any instance is fenced off.
    known: Number | None = None

    def __post_init__(self) -> None:
        check_name("producer name", self.name)
        check_id("producer instance", self.instance)
        check_range("producer window", self.window, 1, WINDOW_MAX)
        check_range("producer expiry in µs", self.expiry_us, EXPIRY_US_MIN, EXPIRY_US_MAX)


class FenceChanged(msgspec.Struct, frozen=True):
    """The fence was set by the entry at ``index``."""

    index: Number


class SetFence(LogCommand[FenceChanged], frozen=True):
    """Replace the fence ``expect`` by ``fence``; None is no fence."""

    fence: Name | None
    expect: Name | None

    def __post_init__(self) -> None:
        for what, fence in (("fence", self.fence), ("expected fence", self.expect)):
            if fence is not None:
                check_name(what, fence)


# -- staging -------------------------------------------------------------------------------------


class ChunkStaged(msgspec.Struct, frozen=True):
    """The answer to a chunk: the entry that holds it, or the last publish of its app."""

    index: Number
    # The batch, or a later one, is published already: the chunk was not staged.
    published: bool


class ChunkLabel(LogCommand[ChunkStaged], frozen=True):
    """The name of a chunk: its app, run, batch, partition, attempt and number. As a command it
    stages the batch that comes with it, hidden from readers; a repeat gets the first answer."""

    # The name of the writer, which stays the same after a restart. Each app has its own batch ids.
    app: Name
    # The id of one run of the app, from its start to its end. Older runs are dropped first.
    run: Id
    batch_id: Number
    partition: Short
    # Random, drawn for each try to write the partition: two tries share no chunks.
    attempt: Id
    # The number of the chunk within its attempt, from 0 and without gaps, in the order that readers
    # will see.
    number: Short

    def __post_init__(self) -> None:
        check_batch(self.app, self.batch_id)
        check_id("run", self.run)
        check_id("attempt", self.attempt)
        check_range("partition", self.partition, 0, _NUMBER_MAX)
        check_range("number of the chunk", self.number, 0, _NUMBER_MAX)


class Part(NamedTuple):
    """The chunks that one attempt staged for its partition. On the wire it is a list, without the
    names of the fields, because a publish may have thousands of parts."""

    partition: Short
    attempt: Id
    chunks: Short
    records: Number


class Publish(LogCommand[Receipt], frozen=True):
    """Make all of ``parts`` visible, in this order, or none. A repeat of the batch gets the first
    receipt."""

    app: Name
    batch_id: Number
    # One part for each partition that has records.
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=PARTS_MAX)]
    # A digest of the records in any order, by which a replay with other records is recognised.
    digest: Digest
    # The fence that the log must have; None: the log must have no fence.
    fence: Name | None = None
    # No chunk will ever be staged for the app again: it is remembered only while this publish
    # may be repeated.
    once: bool = False

    def __post_init__(self) -> None:
        check_batch(self.app, self.batch_id)
        check_id("digest", self.digest, DIGEST_BYTES)
        if self.fence is not None:
            check_name("fence", self.fence)
        for partition, attempt, chunks, records in self.parts:
            if len(attempt) != ID_BYTES or not 0 <= partition <= _NUMBER_MAX:
                check_id("attempt", attempt)
                check_range("partition", partition, 0, _NUMBER_MAX)
            if chunks < 1 or records < 1:
                raise InvalidArgument(
                    f"partition {partition} has {chunks} chunks and {records} "
                    f"records: leave out a partition without them"
                )
        if len({part.partition for part in self.parts}) < len(self.parts):
            raise InvalidArgument("the publish names a partition twice")
        for what, size, limit in (
            ("parts", len(self.parts), PARTS_MAX),
            ("chunks", self.chunks, CHUNKS_MAX),
            ("records", self.records, COUNT_MAX),
        ):
            if size > limit:
                raise TooLarge(f"a publish of {size} {what}, limit {limit}")

    @property
    def chunks(self) -> int:
        return sum(part.chunks for part in self.parts)

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)


class Aborted(msgspec.Struct, frozen=True):
    """The answer to an abort: none of its attempts is staged after the entry at ``index``."""

    index: Number
    # The number of attempts that were dropped.
    attempts: Number


class Abort(LogCommand[Aborted], frozen=True):
    """Drop the chunks that one attempt, or all, staged for a batch. It never undoes a publish."""

    app: Name
    batch_id: Number
    # None: all attempts.
    attempt: Id | None = None

    def __post_init__(self) -> None:
        check_batch(self.app, self.batch_id)
        if self.attempt is not None:
            check_id("attempt", self.attempt)
