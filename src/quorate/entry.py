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

The body enters the chain by its CRC, so (index, chain) stands for every byte up to there. The
chain leaves itself and the header CRC out: a CRC run over its own value is no proof.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from quorate.errors import InvalidArgument
from quorate.types import EntryKind, Index, Position, Term

__all__ = [
    "CHAINED_BYTES",
    "COUNT_MAX",
    "HEADER_BYTES",
    "RUNS_MAX",
    "Entry",
    "Header",
    "chain_holds",
    "check_frame",
    "decode_entry",
    "entry_without_body",
    "is_frame",
    "make_entry",
    "parse_header",
]

Buffer = bytes | bytearray | memoryview

MAGIC = b"QREN"
VERSION = 1
HEADER_BYTES = 64
CHAINED_BYTES = 56
RUNS_MAX = 0xFFFF
COUNT_MAX = 0xFFFF_FFFF

_CHAINED = struct.Struct("<4sBBHQQIIQQII")
_PROOF = struct.Struct("<II")
_HEADER = struct.Struct(_CHAINED.format + "II")
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


def decode_entry(frame: bytes | memoryview) -> Entry:
    """The entry of a whole frame, with bytes of its own; the bytes of a view are copied once.

    Raises InvalidArgument as :func:`check_frame` does.
    """
    body = bytes(frame[HEADER_BYTES:])
    header = check_frame(frame, body)
    position = header.position
    return Entry(
        position.index, position.term, _kind(header), header.base_offset, header.count,
        header.append_time, header.runs, header.stamps, position, len(frame),
        bytes(frame[:HEADER_BYTES]), body,
    )  # fmt: skip


def check_frame(frame: bytes | memoryview, body: bytes | memoryview) -> Header:
    """The header of a whole frame, whose bytes behind the header are ``body``. Raises
    InvalidArgument unless its kind is known and both its CRCs hold."""
    header = parse_header(frame)
    if header is None:
        raise InvalidArgument(_why_not(bytes(frame[:HEADER_BYTES])))
    _kind(header)
    if header.length != len(body) or crc32c(body) != header.body_crc:
        raise InvalidArgument(
            f"entry body at index {header.position.index} does not match its header"
        )
    return header


def _kind(header: Header) -> EntryKind:
    if header.kind not in _KINDS:
        raise InvalidArgument(f"entry kind {header.kind} is not known to this release")
    return _KINDS[header.kind]


def entry_without_body(header_bytes: bytes, header: Header) -> Entry:
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
