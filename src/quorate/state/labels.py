"""The labels of chunks, the requests to publish and to abort, and their encoding in entries.

Labels and requests are checked when they are made. Numbers are little-endian and unsigned::

    label           version u8, length of app u8, 0 u16, partition u32, batch id u64, number u32,
                    0 u32, run 16 bytes, attempt 16 bytes, app
    publication     version u8, length of app u8, flags u16, 0 u32, batch id u64, digest 32 bytes,
                    app

A label is padded with zeros to whole rows of its stage entry, a publication, which follows the
chunks of its publish entry, to a multiple of 8 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import COUNT_MAX, chunk_rows, pack_staged, unpack_label
from quorate.errors import InvalidArgument, TooLarge
from quorate.state.operations import check_name, check_range

if TYPE_CHECKING:
    from quorate.entry import Entry

__all__ = [
    "BATCH_ID_MAX",
    "CHUNKS_MAX",
    "DIGEST_BYTES",
    "ID_BYTES",
    "PARTS_MAX",
    "Abort",
    "Label",
    "Part",
    "Publication",
    "Publish",
    "decode_label",
    "decode_publication",
    "encode_publication",
    "encode_stage",
]

VERSION = 1
# Bytes of the id of a run, and of an attempt.
ID_BYTES = 16
DIGEST_BYTES = 32
BATCH_ID_MAX = 2**63 - 1
# Chunks that one entry publishes: a megabyte of rows.
CHUNKS_MAX = 65_536
# Attempts that one entry publishes: each is looked up when the publish is judged and applied.
PARTS_MAX = 8192
_NUMBER_MAX = 2**32 - 1

# The only flag of a publication: its app will never publish another batch.
_ONCE = 1

_LABEL = struct.Struct("<BBHIQII16s16s")
_PUBLICATION = struct.Struct("<BBHIQ32s")


def _check_id(what: str, data: bytes, size: int = ID_BYTES) -> None:
    if len(data) != size:
        raise InvalidArgument(f"{what} has {len(data)} bytes, not {size}")


def _check_batch(app: str, batch_id: int) -> None:
    check_name("app", app)
    check_range("batch id", batch_id, 0, BATCH_ID_MAX)


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a chunk: its app, run, batch, partition, attempt and number."""

    # The name of the writer, which stays the same after a restart. Each app has its own batch ids.
    app: str
    # The id of one run of the app, from its start to its end. Older runs are dropped first.
    run: bytes
    batch_id: int
    partition: int
    # Random, drawn for each try to write the partition: two tries share no chunks.
    attempt: bytes
    # The number of the chunk within its attempt, from 0, in the order that readers will see.
    number: int

    def __post_init__(self) -> None:
        _check_batch(self.app, self.batch_id)
        _check_id("run", self.run)
        _check_id("attempt", self.attempt)
        check_range("partition", self.partition, 0, _NUMBER_MAX)
        check_range("number of the chunk", self.number, 0, _NUMBER_MAX)


class Part(NamedTuple):
    """The chunks that one attempt staged for its partition."""

    partition: int
    attempt: bytes
    chunks: int
    records: int


@dataclass(frozen=True, slots=True)
class Publish:
    """The request to make all of ``parts`` visible, in this order, or none."""

    app: str
    batch_id: int
    # One part for each partition that has records.
    parts: tuple[Part, ...]
    # A digest of the records in any order, by which a replay with other records is recognised.
    digest: bytes
    # The fence that the log must have; None: the log must have no fence.
    fence: str | None = None
    # No chunk will ever be staged for the app again: it is remembered only while this publish
    # may be repeated.
    once: bool = False

    def __post_init__(self) -> None:
        _check_batch(self.app, self.batch_id)
        _check_id("digest", self.digest, DIGEST_BYTES)
        if self.fence is not None:
            check_name("fence", self.fence)
        for partition, attempt, chunks, records in self.parts:
            if len(attempt) != ID_BYTES or not 0 <= partition <= _NUMBER_MAX:
                _check_id("attempt", attempt)
                check_range("partition", partition, 0, _NUMBER_MAX)
            if chunks < 1 or records < 1:
                raise InvalidArgument(
                    f"partition {partition} has {chunks} chunks and {records} "
                    f"records: leave out what has none"
                )
        if len({part.partition for part in self.parts}) < len(self.parts):
            raise InvalidArgument("a partition stands in the publish twice")
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


@dataclass(frozen=True, slots=True)
class Abort:
    """The request to drop the chunks that one attempt, or all, staged for a batch. It never undoes
    a publish."""

    app: str
    batch_id: int
    # None: all attempts.
    attempt: bytes | None = None

    def __post_init__(self) -> None:
        _check_batch(self.app, self.batch_id)
        if self.attempt is not None:
            _check_id("attempt", self.attempt)


class Publication(NamedTuple):
    """The fields of a publish entry besides its chunks."""

    app: str
    batch_id: int
    digest: bytes
    once: bool = False


# -- in entries ----------------------------------------------------------------------------------


def encode_stage(label: Label, batch: bytes, records: int) -> tuple[bytes, int]:
    """The body of the stage entry, and the number of rows that the label takes."""
    app = label.app.encode()
    head = _LABEL.pack(
        VERSION, len(app), 0, label.partition, label.batch_id, label.number, 0, label.run,
        label.attempt,
    )  # fmt: skip
    return pack_staged(batch, records, head + app)


def decode_label(entry: Entry) -> Label:
    """The label of a stage entry. Raises InvalidArgument for one that :func:`encode_stage` does not
    make."""
    data = unpack_label(entry)
    try:
        version, length, _, partition, batch_id, number, _, run, attempt = _LABEL.unpack_from(data)
        app = data[_LABEL.size :][:length].decode()
    except (struct.error, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"label of entry {entry.index} cannot be read: {odd}") from odd
    label = Label(app, run, batch_id, partition, attempt, number)
    body, rows = encode_stage(label, b"", 0)
    if version != VERSION or rows != entry.stamps or not body.endswith(data):
        raise InvalidArgument(f"label of entry {entry.index} has bytes that nobody writes")
    return label


def encode_publication(publication: Publication, rows: bytes) -> bytes:
    """The body of the publish entry; ``rows`` are its packed chunks."""
    app = publication.app.encode()
    flags = _ONCE if publication.once else 0
    head = _PUBLICATION.pack(VERSION, len(app), flags, 0, publication.batch_id, publication.digest)
    return b"".join((rows, head, app, bytes(-len(app) % 8)))


def decode_publication(entry: Entry) -> tuple[Publication, bytes]:
    """The publication and the packed chunks of a publish entry. Raises InvalidArgument for a body
    that :func:`encode_publication` does not make."""
    rows = bytes(chunk_rows(entry))
    data = entry.body[len(rows) :]
    try:
        version, length, flags, _, batch_id, digest = _PUBLICATION.unpack_from(data)
        app = data[_PUBLICATION.size :][:length].decode()
    except (struct.error, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"publication in entry {entry.index} cannot be read: {odd}") from odd
    _check_batch(app, batch_id)
    publication = Publication(app, batch_id, digest, once=flags == _ONCE)
    if version != VERSION or data != encode_publication(publication, b""):
        raise InvalidArgument(f"publication in entry {entry.index} has bytes that nobody writes")
    return publication, rows
