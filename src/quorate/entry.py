"""An entry of the log: its header as bytes, and the chain that ties it to all entries before it.

The header is encoded once, by the leader that makes the entry; disks, peers and readers carry the
same bytes. Nothing in it is local to a node, so replicas hold identical frames::

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
        52     4  chain           CRC32C(chain of the entry before, bytes 0..52)
        56     4  header CRC      CRC32C of bytes 0..56

The body enters the chain by its CRC, so (index, chain) stands for every byte up to there. The
chain leaves itself and the header CRC out: a CRC run over its own value proves nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from quorate.errors import InvalidArgument
from quorate.types import EntryKind, Index, Position, Term

__all__ = [
    "CHAINED_BYTES",
    "COUNT_MAX",
    "HEADER_BYTES",
    "RUNS_MAX",
    "Entry",
    "chain_holds",
    "decode_header",
    "make_entry",
    "pack_batches",
    "unpack_batches",
]

MAGIC = b"QREN"
VERSION = 1
HEADER_BYTES = 60
CHAINED_BYTES = 52
RUNS_MAX = 0xFFFF
COUNT_MAX = 0xFFFF_FFFF

_CHAINED = struct.Struct("<4sBBHQQIIQQI")
_PROOF = struct.Struct("<II")
_RUN = struct.Struct("<II")
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
    # Where a log stands that ends with this entry.
    position: Position
    # Bytes of the frame.
    size: int
    header: bytes
    body: bytes


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
) -> Entry:
    """The entry that follows ``before``, encoded and chained to it."""
    index = Index(before.index + 1)
    chained = _CHAINED.pack(
        MAGIC, VERSION, kind, runs, index, term, len(body), count, base_offset, append_time,
        crc32c(body),
    )  # fmt: skip
    chain = crc32c(chained, before.chain)
    tail = chain.to_bytes(4, "little")
    header = chained + tail + crc32c(tail, crc32c(chained)).to_bytes(4, "little")
    return Entry(
        index, term, kind, base_offset, count, append_time, runs,
        Position(index, term, chain), HEADER_BYTES + len(body), header, body,
    )  # fmt: skip


def decode_header(header: bytes, body: bytes) -> Entry:
    """The entry of a header and its body. Raises InvalidArgument unless both CRCs hold."""
    if len(header) != HEADER_BYTES:
        raise InvalidArgument(f"entry header has {len(header)} bytes, not {HEADER_BYTES}")
    magic, version, kind, runs, index, term, length, count, base_offset, append_time, body_crc = (
        _CHAINED.unpack_from(header)
    )
    chain, header_crc = _PROOF.unpack_from(header, CHAINED_BYTES)
    if crc32c(header[:-4]) != header_crc:
        raise InvalidArgument("entry header CRC does not match")
    if magic != MAGIC or version != VERSION:
        raise InvalidArgument(f"not an entry of version {VERSION}: {magic!r} version {version}")
    if kind not in _KINDS:
        raise InvalidArgument(f"entry kind {kind} is not known to this release")
    if length != len(body) or crc32c(body) != body_crc:
        raise InvalidArgument(f"entry body at index {index} does not match its header")
    position = Position(Index(index), Term(term), chain)
    return Entry(
        position.index, position.term, _KINDS[kind], base_offset, count, append_time, runs,
        position, HEADER_BYTES + len(body), header, body,
    )  # fmt: skip


def chain_holds(before: Position, entries: tuple[Entry, ...]) -> bool:
    """Whether ``entries`` follow ``before`` without a gap, in order of term, link by link."""
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


def pack_batches(batches: list[tuple[bytes, int]]) -> bytes:
    """A body: the runs directory, one (bytes, records) row per batch, then the batches."""
    directory = b"".join(_RUN.pack(len(batch), count) for batch, count in batches)
    return directory + b"".join(batch for batch, _ in batches)


def unpack_batches(entry: Entry) -> list[tuple[bytes, int]]:
    """The batches of a data entry, with their record counts."""
    position = entry.runs * _RUN.size
    batches = []
    for row in range(entry.runs):
        length, count = _RUN.unpack_from(entry.body, row * _RUN.size)
        batches.append((entry.body[position : position + length], count))
        position += length
    return batches
