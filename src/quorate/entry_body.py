"""The body of an entry: rows that say what is in it, and the batches of records behind them.

The body of a data entry is the runs directory, the stamps and the batches::

    row of a run, 8 bytes       bytes u32, records u32
    row of a stamp, 24 bytes    run u32, reserved u32 = 0, epoch u64, sequence u64

A stage entry has the same shape with one batch, and a label in place of stamps, padded with zeros
to whole rows. Its records take no offset: its count is 0. The entry that publishes it takes their
offsets. It begins with its chunks, and what is published follows, padded to a multiple of 8 bytes::

    label                       version u8, length of app u8, 0 u16, partition u32, batch id u64,
                                number u32, 0 u32, run 16 bytes, attempt 16 bytes, app
    row of a chunk, 16 bytes    index u64, records u32, bytes of the frame u32
    publication                 version u8, length of app u8, flags u16, 0 u32, batch id u64,
                                digest 32 bytes, app

Numbers are little-endian and unsigned.
"""

from __future__ import annotations

import struct
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from quorate.commands import ChunkLabel, check_batch
from quorate.entry import HEADER_BYTES, Header, check_frame
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quorate.entry import Entry
    from quorate.types import Index

__all__ = [
    "CHUNK_BYTES",
    "RUN_BYTES",
    "Chunk",
    "EntryView",
    "Publication",
    "Stamp",
    "chunk_at",
    "chunk_rows",
    "decode_label",
    "decode_publication",
    "encode_publication",
    "encode_stage",
    "join_body",
    "pack_batches",
    "pack_chunks",
    "pack_runs",
    "unpack_batches",
    "unpack_chunks",
    "unpack_counts",
    "unpack_stamps",
    "view_entry",
]

Body = TypeVar("Body", bytes, memoryview)

_RUN = struct.Struct("<II")
# Bytes of a row of the runs directory.
RUN_BYTES = _RUN.size
# The run and the reserved bytes behind it are read as one number: if the reserved bytes are not 0,
# the run is too high.
_STAMP = struct.Struct("<QQQ")
_CHUNK = struct.Struct("<QII")
CHUNK_BYTES = _CHUNK.size

_LABEL = struct.Struct("<BBHIQII16s16s")
_PUBLICATION = struct.Struct("<BBHIQ32s")
# The version of labels and publications.
_VERSION = 1
# The only flag of a publication: its app will never publish another batch.
_ONCE = 1


class Stamp(NamedTuple):
    """The producer of a batch, and the place of its records among all that it sent."""

    # The batch's row of the runs directory.
    run: int
    # The id of the producer: the index of the entry that opened it.
    epoch: int
    # The number of the batch's first record. A producer numbers its records from 1, without gaps.
    sequence: int


def pack_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """Rows of the runs directory: bytes and records of each batch."""
    return b"".join(starmap(_RUN.pack, runs))


def join_body(rows: Sequence[bytes], stamps: Sequence[Stamp], batches: Sequence[bytes]) -> bytes:
    """A body: the runs directory, ``stamps`` in rising order of run, the batches."""
    return b"".join((*rows, *starmap(_STAMP.pack, stamps), *batches))


def pack_batches(batches: Sequence[tuple[bytes, int]], stamps: Sequence[Stamp] = ()) -> bytes:
    """The body of these batches, each with the number of its records."""
    rows = pack_runs((len(batch), count) for batch, count in batches)
    return join_body([rows], stamps, [batch for batch, _ in batches])


def unpack_batches(entry: Entry) -> list[tuple[bytes, int]]:
    """The batches of a data entry, with their record counts."""
    return _batches(entry.body, entry.runs, entry.stamps, entry.index)


def _batches(body: Body, runs: int, stamps: int, index: Index) -> list[tuple[Body, int]]:
    position = _rows_end(len(body), runs, stamps, index)
    batches = []
    for row in range(runs):
        length, count = _RUN.unpack_from(body, row * RUN_BYTES)
        batches.append((body[position : position + length], count))
        position += length
    if position != len(body):
        raise InvalidArgument(
            f"entry {index}: rows and batches take {position} bytes, the body has {len(body)}"
        )
    return batches


def unpack_counts(entry: Entry) -> tuple[int, ...]:
    """The number of records of each batch of a data entry, without a look at the batches."""
    _rows_end(len(entry.body), entry.runs, entry.stamps, entry.index)
    return struct.unpack_from(f"<{2 * entry.runs}I", entry.body)[1::2]


def unpack_stamps(entry: Entry) -> list[Stamp]:
    """The producer stamps of a data entry, in rising order of run."""
    end = _rows_end(len(entry.body), entry.runs, entry.stamps, entry.index)
    rows = memoryview(entry.body)[entry.runs * RUN_BYTES : end]
    stamps = [*map(Stamp._make, _STAMP.iter_unpack(rows))]
    runs = [stamp.run for stamp in stamps]
    if runs != sorted(set(runs)):
        raise InvalidArgument(f"entry {entry.index}: stamps are not in rising order of run")
    if runs and runs[-1] >= entry.runs:
        raise InvalidArgument(f"entry {entry.index}: a stamp names run {runs[-1]} of {entry.runs}")
    return stamps


def encode_stage(label: ChunkLabel, batch: bytes, records: int) -> tuple[bytes, int]:
    """The body of a stage entry, and the number of rows that the label takes."""
    app = label.app.encode()
    head = _LABEL.pack(
        _VERSION, len(app), 0, label.partition, label.batch_id, label.number, 0, label.run,
        label.attempt,
    )  # fmt: skip
    rows = -(-(len(head) + len(app)) // _STAMP.size)
    padding = bytes(rows * _STAMP.size - len(head) - len(app))
    return b"".join((_RUN.pack(len(batch), records), head, app, padding, batch)), rows


def decode_label(entry: Entry) -> ChunkLabel:
    """The label of a stage entry. Raises InvalidArgument for one that :func:`encode_stage` does not
    make."""
    end = _rows_end(len(entry.body), entry.runs, entry.stamps, entry.index)
    data = entry.body[entry.runs * RUN_BYTES : end]
    try:
        version, length, _, partition, batch_id, number, _, run, attempt = _LABEL.unpack_from(data)
        app = data[_LABEL.size :][:length].decode()
    except (struct.error, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"label of entry {entry.index} cannot be read: {odd}") from odd
    label = ChunkLabel(app, run, batch_id, partition, attempt, number)
    body, rows = encode_stage(label, b"", 0)
    if version != _VERSION or rows != entry.stamps or not body.endswith(data):
        raise InvalidArgument(f"label of entry {entry.index} has bytes that no release writes")
    return label


class Chunk(NamedTuple):
    """A staged batch: its entry, its records and its size."""

    # The index of the stage entry that holds the batch.
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    records: int
    # Bytes of that entry's frame.
    size: int


def pack_chunks(chunks: Iterable[Chunk]) -> bytes:
    """The rows of ``chunks``, with which the body of a publish entry begins."""
    return b"".join(starmap(_CHUNK.pack, chunks))


def unpack_chunks(entry: Entry) -> tuple[list[Chunk], bytes]:
    """The chunks that a publish entry gives offsets to, and the rest of its body."""
    rows = chunk_rows(entry)
    return [*map(Chunk._make, _CHUNK.iter_unpack(rows))], entry.body[len(rows) :]


def chunk_rows(entry: Entry) -> memoryview:
    """The rows of all chunks of a publish entry, where they lie."""
    end = entry.stamps * CHUNK_BYTES
    if end > len(entry.body):
        raise InvalidArgument(
            f"entry {entry.index}: {entry.stamps} chunks do not fit into {len(entry.body)} bytes"
        )
    return memoryview(entry.body)[:end]


def chunk_at(rows: memoryview, place: int) -> Chunk:
    """The chunk at ``place`` of these rows, from 0."""
    return Chunk._make(_CHUNK.unpack_from(rows, place * CHUNK_BYTES))


class Publication(NamedTuple):
    """The fields of a publish entry besides its chunks."""

    app: str
    batch_id: int
    digest: bytes
    once: bool = False


def encode_publication(publication: Publication, rows: bytes) -> bytes:
    """The body of the publish entry; ``rows`` are its packed chunks."""
    app = publication.app.encode()
    flags = _ONCE if publication.once else 0
    head = _PUBLICATION.pack(_VERSION, len(app), flags, 0, publication.batch_id, publication.digest)
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
    check_batch(app, batch_id)
    publication = Publication(app, batch_id, digest, once=flags == _ONCE)
    if version != _VERSION or data != encode_publication(publication, b""):
        raise InvalidArgument(
            f"publication in entry {entry.index} has bytes that no release writes"
        )
    return publication, rows


class EntryView(NamedTuple):
    """An entry that is read in place. For readers only: the memory belongs to another object."""

    header: Header
    frame: memoryview
    # The append time of its records. Staged records have that of their publish, which is later than
    # that in the header.
    append_time: int

    def batches(self) -> list[tuple[memoryview, int]]:
        """The batches as :func:`unpack_batches` gives them, without a copy."""
        header = self.header
        body = self.frame[HEADER_BYTES:]
        return _batches(body, header.runs, header.stamps, header.position.index)

    def copied(self) -> list[tuple[bytes, int]]:
        """The same batches as bytes of their own: many small ones are handled faster so."""
        header = self.header
        body = self.frame[HEADER_BYTES:].tobytes()
        return _batches(body, header.runs, header.stamps, header.position.index)


def view_entry(frame: memoryview, append_time: int) -> EntryView:
    """The entry of a whole frame. Raises InvalidArgument unless both its CRCs hold."""
    return EntryView(check_frame(frame, frame[HEADER_BYTES:]), frame, append_time)


def _rows_end(size: int, runs: int, stamps: int, index: Index) -> int:
    """The place where the batches begin, by the header. Rows that do not fit are refused before
    they are read: a header whose CRC holds may still have wrong numbers."""
    end = runs * RUN_BYTES + stamps * _STAMP.size
    if end > size:
        raise InvalidArgument(
            f"entry {index}: {runs} runs and {stamps} stamps do not fit into {size} bytes"
        )
    return end
