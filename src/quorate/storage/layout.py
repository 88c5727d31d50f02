"""What stands where in the files of a log, byte by byte. docs/format-storage.md draws it.

A segment is a header page, then flush blocks, each beginning on a page of its own, then, once all
in it is committed, a footer page. Frames of entries lie in the blocks as the leader made them;
everything here is local to a node and around them. Every structure proves itself by a CRC32C that
starts from the segment's nonce and the position, so that bytes that were copied to another place,
or that a user stored in a record, are never taken for one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.errors import check
from quorate.types import Index, NodeId, Position, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.storage.vfs import Buffer

__all__ = [
    "BLOCK_BYTES",
    "CLEAN",
    "LOST_FOUND",
    "OPENING",
    "PAGE",
    "SPARE",
    "UNFINISHED",
    "VOTE_BYTES",
    "VOTE_COPIES",
    "VOTE_NAME_MAX",
    "Block",
    "CleanMark",
    "Footer",
    "LogId",
    "SegmentHeader",
    "block_seed",
    "decode_vote",
    "decode_votes",
    "encode_vote",
    "index_name",
    "never_opened",
    "newest_vote",
    "pages",
    "segment_name",
    "segment_number",
    "vote_place",
]

# The unit that a disk writes whole or not, as far as anybody promises. No write of ours touches a
# page that holds durable bytes, but for a cut in the middle of one: the vote record guards that.
PAGE = 4096
VERSION = 1
# Of the vote record. The first version did not say which entry stands before a cut.
VOTE_VERSION = 2
BLOCK_BYTES = 64
VOTE_NAME_MAX = 64
# What some file systems put into a directory on which they are mounted.
LOST_FOUND = "lost+found"
# What a count on disk may be: half of what fits, so that there is room to go on counting.
COUNT_MAX = (1 << 63) - 1

# The vote record stands in both: what a disk makes of one copy, the other is whole.
VOTE_COPIES = ("vote-a", "vote-b")
# Each copy has two pages, written in turn: a write that a crash tears spoils the page of the record
# before the one that counts, also while the disk has spoiled the other copy.
VOTE_SLOTS = 2
VOTE_BYTES = VOTE_SLOTS * PAGE
# Left by a clean stop: nothing has changed since.
CLEAN = "clean"
# That mark from when an open begins until the loss that it may prove is written down.
OPENING = "opening"
# The next segment, allocated ahead under a name that no segment has.
SPARE = "spare"
# A file that is being made; whatever has this ending at open was not finished.
UNFINISHED = ".new"

_CRC = struct.Struct("<I")
_SEED = struct.Struct("<QQ")
_SEGMENT = struct.Struct("<4sHHQQQQ16s16sQQIIQQ")
_BLOCK = struct.Struct("<4sHHIIQQQQQI")
_FOOTER = struct.Struct("<4sHHQQQQQIIQQQ")
_CLEAN = struct.Struct("<4sHHQQQQII")
_VOTE = struct.Struct(f"<4sHHQQQQQQQ{VOTE_NAME_MAX}sQQII")

FLAG_VOTED = 1
FLAG_UNSURE = 2


def pages(size: int) -> int:
    """``size`` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def segment_name(number: int) -> str:
    return f"{number:016d}.segment"


def index_name(number: int) -> str:
    return f"{number:016d}.index"


def segment_number(name: str) -> int | None:
    """The number of the segment that ``name`` belongs to; None for any other file."""
    stem, _, kind = name.partition(".")
    if kind != "segment" or len(stem) != 16 or not stem.isdecimal():
        return None
    return int(stem)


class LogId:
    """Whose segments these are: one life of one log on one node's disk."""

    __slots__ = ("incarnation", "storage")

    def __init__(self, incarnation: int, storage: bytes) -> None:
        self.incarnation = incarnation.to_bytes(16, "little")
        self.storage = storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogId) and (self.incarnation, self.storage) == (
            other.incarnation,
            other.storage,
        )

    def __hash__(self) -> int:
        return hash((self.incarnation, self.storage))


def _sealed(fields: bytes, seed: int = 0) -> bytes:
    return fields + _CRC.pack(crc32c(fields, seed))


def _proved(
    data: Buffer, layout: struct.Struct, magic: bytes, seed: int = 0, version: int = VERSION
) -> tuple | None:  # type: ignore[type-arg]  # as struct gives it
    """The fields at the start of ``data``; None unless magic, version and CRC are right."""
    size = layout.size
    if len(data) < size + 4 or bytes(data[:4]) != magic:
        return None
    (proof,) = _CRC.unpack_from(data, size)
    if crc32c(bytes(data[:size]), seed) != proof:
        return None
    fields = layout.unpack_from(data)
    return fields if fields[1] == version else None


def block_seed(nonce: int, position: int) -> int:
    """What the CRC of a block starts from: it belongs to this segment and this place."""
    return crc32c(_SEED.pack(nonce, position))


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first page of a segment."""

    number: int
    # Drawn when the segment is made: nobody outside knows it.
    nonce: int
    log: LogId
    # The entry before the first one in here.
    before: Position
    # The offset of the first record in here, and the append time of the entry before.
    base_offset: int
    append_time: int
    # How far the segment before was durable when this one was begun: all of it.
    previous_end: int
    # Bytes that were allocated: the file is that long until it is sealed.
    capacity: int

    def encode(self) -> bytes:
        fields = _SEGMENT.pack(
            b"QRSG", VERSION, 0, self.number, self.nonce, self.previous_end, self.capacity,
            self.log.incarnation, self.log.storage, *self.before, 0,
            self.base_offset, self.append_time,
        )  # fmt: skip
        return _sealed(fields).ljust(PAGE, b"\0")

    def belongs(self, number: int, record: VoteRecord | None) -> bool:
        """Whether it is the header of segment ``number``. One that names another number was written
        for another file; and the file may have held an earlier segment of this number, whose header
        is back. Which one must be there the vote record says of the newest segment."""
        if self.number != number:
            return False
        return record is None or record.segment != number or record.nonce == self.nonce

    @staticmethod
    def decode(data: Buffer) -> SegmentHeader | None:
        fields = _proved(data, _SEGMENT, b"QRSG")
        if fields is None:
            return None
        _, _, _, number, nonce, previous_end, capacity, incarnation, storage, *rest = fields
        index, term, chain, _, base_offset, append_time = rest
        log = LogId(int.from_bytes(incarnation, "little"), storage)
        before = Position(Index(index), Term(term), chain)
        return SegmentHeader(
            number, nonce, log, before, base_offset, append_time, previous_end, capacity
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The head of a flush block: what was written, and what was durable before it was."""

    # The entry before the first frame in here.
    before: Position
    write_number: int
    # Everything below was synced before this block was written.
    durable_end: int
    committed: Index
    # Bytes of the frames that follow the head.
    length: int

    def encode(self, seed: int) -> bytes:
        index, term, chain = self.before
        fields = _BLOCK.pack(
            b"QRFB", VERSION, 0, self.length, chain, index, term, self.write_number,
            self.durable_end, self.committed, 0,
        )  # fmt: skip
        return _sealed(fields, seed)

    @staticmethod
    def decode(data: Buffer, seed: int) -> Block | None:
        fields = _proved(data, _BLOCK, b"QRFB", seed)
        if fields is None:
            return None
        _, _, _, length, chain, index, term, number, durable_end, committed, _ = fields
        before = Position(Index(index), Term(term), chain)
        return Block(before, number, durable_end, Index(committed), length)

    def end(self, position: int) -> int:
        """Where a block that begins at ``position`` ends."""
        return position + pages(BLOCK_BYTES + self.length)


@dataclass(frozen=True, slots=True)
class Footer:
    """The last page of a sealed segment: nothing in it will ever change."""

    # Where the blocks end and this page begins.
    end: int
    last: Position
    write_number: int
    # The offset after the last record in here, and the append time of the last entry.
    next_offset: int
    append_time: int

    def encode(self, number: int, nonce: int) -> bytes:
        index, term, chain = self.last
        fields = _FOOTER.pack(
            b"QRFT", VERSION, 0, number, self.end, index, term, 0, chain, 0,
            self.write_number, self.next_offset, self.append_time,
        )  # fmt: skip
        return _sealed(fields, block_seed(nonce, self.end)).ljust(PAGE, b"\0")

    @staticmethod
    def decode(data: Buffer, nonce: int, position: int) -> Footer | None:
        fields = _proved(data, _FOOTER, b"QRFT", block_seed(nonce, position))
        if fields is None:
            return None
        _, _, _, _, end, index, term, _, chain, _, write_number, next_offset, append_time = fields
        last = Position(Index(index), Term(term), chain)
        return Footer(end, last, write_number, next_offset, append_time)


@dataclass(frozen=True, slots=True)
class CleanMark:
    """Says that the log was closed in order, and where it ended then."""

    number: int
    end: int
    last: Position

    def encode(self) -> bytes:
        index, term, chain = self.last
        fields = _CLEAN.pack(b"QRCL", VERSION, 0, self.number, self.end, index, term, chain, 0)
        return _sealed(fields)

    @staticmethod
    def decode(data: Buffer) -> CleanMark | None:
        fields = _proved(data, _CLEAN, b"QRCL")
        if fields is None or len(data) != _CLEAN.size + 4:
            return None
        _, _, _, number, end, index, term, chain, _ = fields
        return CleanMark(number, end, Position(Index(index), Term(term), chain))


def vote_place(number: int) -> int:
    """Where the record of this number stands in each copy."""
    return number % VOTE_SLOTS * PAGE


def encode_vote(record: VoteRecord) -> bytes:
    """The page of a vote record."""
    name = (record.vote or "").encode()
    check(len(name) <= VOTE_NAME_MAX, f"a node's name has at most {VOTE_NAME_MAX} bytes")
    flags = FLAG_VOTED * (record.vote is not None) | FLAG_UNSURE * record.unsure
    fields = _VOTE.pack(
        b"QRVT", VOTE_VERSION, flags, record.number, record.term, record.boot, record.first,
        record.segment, record.cutting, record.nonce, name, *record.before, 0,
    )  # fmt: skip
    return _sealed(fields).ljust(PAGE, b"\0")


def decode_vote(data: Buffer) -> VoteRecord | None:
    """The record on one page of a copy; None if it is not whole."""
    fields = _proved(data, _VOTE, b"QRVT", version=VOTE_VERSION)
    if fields is None:
        return None
    _, _, flags, number, term, boot, first, segment, cutting, nonce, name, *before, _ = fields
    if max(number, term, boot, first, segment, cutting, *before[:2]) > COUNT_MAX:
        return None  # nobody counted so far: each rises by one at a time, or is a place in a file
    if 0 < cutting < PAGE:
        return None  # a header is never cut
    try:
        vote = NodeId(name.rstrip(b"\0").decode()) if flags & FLAG_VOTED else None
    except UnicodeDecodeError:
        return None
    unsure = bool(flags & FLAG_UNSURE)
    return VoteRecord(
        number, Term(term), vote, boot, Index(first), segment, unsure, cutting, nonce,
        Position(Index(before[0]), Term(before[1]), before[2]),
    )  # fmt: skip


def decode_votes(copy: Buffer) -> list[VoteRecord | None]:
    """What stands on each page of a copy; None for one that is not whole, or not in its place."""
    found = []
    for place in range(0, VOTE_BYTES, PAGE):
        record = decode_vote(bytes(copy[place : place + PAGE]))
        found.append(record if record is None or vote_place(record.number) == place else None)
    return found


def never_opened(names: Iterable[str], first_copy: Buffer) -> bool:
    """Whether not even the first open of a log came to its end: there is no file but the first copy
    of its vote record, which is made before any other. The first record goes to its second page."""
    return {*names} <= {VOTE_COPIES[0], LOST_FOUND} and not any(first_copy[: vote_place(1)])


def newest_vote(copies: Iterable[Buffer]) -> VoteRecord | None:
    """The record that counts; None if none is whole."""
    found = (record for copy in copies for record in decode_votes(copy) if record is not None)
    return max(found, key=lambda record: record.number, default=None)
