"""An entry of the log: its header as bytes, and the chain that ties it to all entries before it.

The header is encoded once, by the leader that makes the entry; disks, peers and readers carry the
same bytes. No field is local to a node, so replicas hold identical frames::

    offset  size  field
         0     4  magic           "QREN"
         4     1  version         1
         5     1  kind            EntryKind
         6     2  runs            rows of the runs directory at the body's start
         8     8  index
        16     8  term
        24     4  length          bytes of the body
        28     4  count           records in the body: each takes one offset
        32     8  base offset     of the first record; of the next one if there is none
        40     8  append time     microseconds, the leader's clock, never decreasing
        48     4  body CRC        CRC32C of the body
        52     4  stamps          rows after the runs directory: producer stamps, in a stage entry
                                  the label, in a publish entry the chunks
        56     4  chain           CRC32C(chain of the entry before, bytes 0..56)
        60     4  header CRC      CRC32C of bytes 0..60

The body of a data entry is the runs directory, the stamps and the batches::

    row of a run, 8 bytes       bytes u32, records u32
    row of a stamp, 24 bytes    run u32, reserved u32 = 0, epoch u64, sequence u64

A stage entry has the same shape with one batch, and a label in place of stamps. Its records take no
offset: its count is 0. The entry that publishes it takes their offsets and begins with its chunks::

    row of a chunk, 16 bytes    index u64, records u32, bytes of the frame u32

The body enters the chain by its CRC, so (index, chain) stands for every byte up to there. The
chain leaves itself and the header CRC out: a CRC run over its own value is no proof.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from crc32c import crc32c

from quorate.errors import InvalidArgument
from quorate.types import EntryKind, Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "CHAINED_BYTES",
    "CHUNK_BYTES",
    "COUNT_MAX",
    "HEADER_BYTES",
    "RUNS_MAX",
    "RUN_BYTES",
    "Chunk",
    "Entry",
    "EntryView",
    "Header",
    "Stamp",
    "chain_holds",
    "chunk_at",
    "chunk_rows",
    "decode_entry",
    "hollow_entry",
    "is_frame",
    "join_body",
    "make_entry",
    "pack_batches",
    "pack_chunks",
    "pack_runs",
    "pack_staged",
    "parse_header",
    "unpack_batches",
    "unpack_chunks",
    "unpack_counts",
    "unpack_label",
    "unpack_stamps",
    "view_entry",
]

Buffer = bytes | bytearray | memoryview
Body = TypeVar("Body", bytes, memoryview)

MAGIC = b"QREN"
VERSION = 1
HEADER_BYTES = 64
CHAINED_BYTES = 56
# Bytes of a row of the runs directory.
RUN_BYTES = 8
RUNS_MAX = 0xFFFF
COUNT_MAX = 0xFFFF_FFFF

_CHAINED = struct.Struct("<4sBBHQQIIQQII")
_PROOF = struct.Struct("<II")
_HEADER = struct.Struct(_CHAINED.format + "II")
_RUN = struct.Struct("<II")
# The run and the reserved bytes behind it are read as one number: if the reserved bytes are not 0,
# the run is too high.
_STAMP = struct.Struct("<QQQ")
_CHUNK = struct.Struct("<QII")
CHUNK_BYTES = _CHUNK.size
_KINDS = {int(kind): kind for kind in EntryKind}


@dataclass(slots=True)
class Entry:
    """One log item, never changed once made.

    ``header`` holds the same facts as bytes, as disk and peers see them.
    """

    index: Index
    term: Term
    kind: EntryKind
    base_offset: int
    count: int
    append_time: int
    runs: int
    stamps: int
    # The position of a log that ends with this entry.
    position: Position
    # Bytes of the frame.
    size: int
    header: bytes
    body: bytes

    @property
    def whole(self) -> bool:
        """True if the body is here. A body that a disk spoiled is not: such an entry is known by
        its header, counts for votes and acks, and is never sent, applied or served."""
        return self.size == HEADER_BYTES + len(self.body)


def make_entry(
    before: Position,
    term: Term,
    kind: EntryKind,
    body: bytes = b"",
    *,
    base_offset: int = 0,
    count: int = 0,
    append_time: int = 0,
    runs: int = 0,
    stamps: int = 0,
) -> Entry:
    """The entry that follows ``before``, encoded and chained to it."""
    index = Index(before.index + 1)
    chained = _CHAINED.pack(
        MAGIC, VERSION, kind, runs, index, term, len(body), count, base_offset, append_time,
        crc32c(body), stamps,
    )  # fmt: skip
    chain = crc32c(chained, before.chain)
    tail = chain.to_bytes(4, "little")
    header = chained + tail + crc32c(tail, crc32c(chained)).to_bytes(4, "little")
    return Entry(
        index, term, kind, base_offset, count, append_time, runs, stamps,
        Position(index, term, chain), HEADER_BYTES + len(body), header, body,
    )  # fmt: skip


class Header(NamedTuple):
    """The fields of a header whose CRC holds."""

    kind: int
    runs: int
    stamps: int
    position: Position
    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    base_offset: int
    append_time: int
    body_crc: int

    def follows(self, before: Position, frame: Buffer, start: int = 0) -> bool:
        """True if this is the header at ``start`` of ``frame`` and comes right after ``before``."""
        position = self.position
        return (
            position.index == before.index + 1
            and position.term >= before.term
            and crc32c(frame[start : start + CHAINED_BYTES], before.chain) == position.chain
        )


def parse_header(data: Buffer, start: int = 0) -> Header | None:
    """The header that stands at ``start``; None if no whole header does."""
    if len(data) - start < HEADER_BYTES:
        return None
    (
        magic, version, kind, runs, index, term, length, count, base_offset, append_time, body_crc,
        stamps,
    ) = _CHAINED.unpack_from(data, start)  # fmt: skip
    chain, header_crc = _PROOF.unpack_from(data, start + CHAINED_BYTES)
    if magic != MAGIC or version != VERSION:
        return None
    if crc32c(data[start : start + HEADER_BYTES - 4]) != header_crc:
        return None
    position = Position(Index(index), Term(term), chain)
    return Header(kind, runs, stamps, position, length, count, base_offset, append_time, body_crc)


def is_frame(frame: Buffer, index: int, chain: int) -> bool:
    """True if ``frame`` is the whole frame of entry ``index``, as it was made: the one with
    ``chain``, and not another that stood in its place before."""
    if len(frame) < HEADER_BYTES:
        return False
    (
        magic, version, _, _, found, _, length, _, _, _, body_crc, _, found_chain, header_crc,
    ) = _HEADER.unpack_from(frame)  # fmt: skip
    return bool(
        magic == MAGIC
        and version == VERSION
        and found == index
        and found_chain == chain
        and length == len(frame) - HEADER_BYTES
        and crc32c(frame[: HEADER_BYTES - 4]) == header_crc
        and crc32c(frame[HEADER_BYTES:]) == body_crc
    )


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
    header = _checked_header(frame)
    _kind(header)
    _check_body(header, frame[HEADER_BYTES:])
    return EntryView(header, frame, append_time)


def decode_entry(frame: bytes | memoryview) -> Entry:
    """The same as an entry with bytes of its own; the bytes of a view are copied once."""
    header = _checked_header(frame)
    kind = _kind(header)
    body = bytes(frame[HEADER_BYTES:])
    _check_body(header, body)
    position = header.position
    return Entry(
        position.index, position.term, kind, header.base_offset, header.count,
        header.append_time, header.runs, header.stamps, position, len(frame),
        bytes(frame[:HEADER_BYTES]), body,
    )  # fmt: skip


def _checked_header(frame: bytes | memoryview) -> Header:
    header = parse_header(frame)
    if header is None:
        raise InvalidArgument(_why_not(bytes(frame[:HEADER_BYTES])))
    return header


def _check_body(header: Header, body: bytes | memoryview) -> None:
    if header.length != len(body) or crc32c(body) != header.body_crc:
        raise InvalidArgument(
            f"entry body at index {header.position.index} does not match its header"
        )


def _kind(header: Header) -> EntryKind:
    if header.kind not in _KINDS:
        raise InvalidArgument(f"entry kind {header.kind} is not known to this release")
    return _KINDS[header.kind]


def hollow_entry(header_bytes: bytes, header: Header) -> Entry:
    """The entry of a header whose body cannot be read."""
    position = header.position
    return Entry(
        position.index, position.term, _kind(header), header.base_offset, header.count,
        header.append_time, header.runs, header.stamps, position, HEADER_BYTES + header.length,
        header_bytes, b"",
    )  # fmt: skip


def _why_not(frame: bytes) -> str:
    """The error in a frame that has no whole header."""
    if len(frame) < HEADER_BYTES:
        return f"a frame of {len(frame)} bytes is too short for an entry header"
    if crc32c(frame[: HEADER_BYTES - 4]).to_bytes(4, "little") != frame[HEADER_BYTES - 4 :][:4]:
        return "entry header CRC does not match"
    return f"not an entry of version {VERSION}: {frame[:4]!r} version {frame[4]}"


def chain_holds(before: Position, entries: tuple[Entry, ...]) -> bool:
    """True if ``entries`` follow ``before`` without a gap, in order of term, link by link."""
    index, term, chain = before
    for entry in entries:
        index = Index(index + 1)
        if entry.index != index or entry.term < term:
            return False
        chain = crc32c(entry.header[:CHAINED_BYTES], chain)
        if chain != entry.position.chain:
            return False
        term = entry.term
    return True


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
        length, count = _RUN.unpack_from(body, row * _RUN.size)
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
    rows = memoryview(entry.body)[entry.runs * _RUN.size : end]
    stamps = [*map(Stamp._make, _STAMP.iter_unpack(rows))]
    runs = [stamp.run for stamp in stamps]
    if runs != sorted(set(runs)):
        raise InvalidArgument(f"entry {entry.index}: stamps are not in rising order of run")
    if runs and runs[-1] >= entry.runs:
        raise InvalidArgument(f"entry {entry.index}: a stamp names run {runs[-1]} of {entry.runs}")
    return stamps


def pack_staged(batch: bytes, records: int, label: bytes) -> tuple[bytes, int]:
    """The body of a stage entry, and the number of rows that its label takes."""
    rows = -(-len(label) // _STAMP.size)
    padding = bytes(rows * _STAMP.size - len(label))
    return b"".join((_RUN.pack(len(batch), records), label, padding, batch)), rows


def unpack_label(entry: Entry) -> bytes:
    """The label of a stage entry, with its padding."""
    end = _rows_end(len(entry.body), entry.runs, entry.stamps, entry.index)
    return entry.body[entry.runs * _RUN.size : end]


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
    end = entry.stamps * _CHUNK.size
    if end > len(entry.body):
        raise InvalidArgument(
            f"entry {entry.index}: {entry.stamps} chunks do not fit into {len(entry.body)} bytes"
        )
    return memoryview(entry.body)[:end]


def chunk_at(rows: memoryview, place: int) -> Chunk:
    """The chunk at ``place`` of these rows, from 0."""
    return Chunk._make(_CHUNK.unpack_from(rows, place * _CHUNK.size))


def _rows_end(size: int, runs: int, stamps: int, index: Index) -> int:
    """The place where the batches begin, by the header. Rows that do not fit are refused before
    they are read: a header whose CRC holds may still have wrong numbers."""
    end = runs * _RUN.size + stamps * _STAMP.size
    if end > size:
        raise InvalidArgument(
            f"entry {index}: {runs} runs and {stamps} stamps do not fit into {size} bytes"
        )
    return end
