"""The layout of a log's files, byte by byte. docs/format-storage.md draws it.

A segment is a header page, then flush blocks, each beginning on a page of its own, then, once all
of its entries are committed, a footer page. Frames of entries lie in the blocks as the leader made
them; the structures of this module surround the frames and are local to a node. Blocks and footers
prove themselves by a CRC32C that starts from the segment's nonce and the position, so that bytes
that were copied to another place, or that a user stored in a record, are never taken for one. The
CRC32C of the vote record and of the mark of a clean stop starts from the log's id, so that those of
another log are never taken for this one's. Only the header of a segment, which names its log, has a
plain CRC32C.
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
    "BOOT_SHIFT",
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

# The unit that a disk is assumed to write whole or not at all. Invariant: no write touches a page
# that holds durable bytes, except a cut in the middle of one, which the vote record guards.
PAGE = 4096
VERSION = 1
# Version of the vote record. Up to version 2 the CRC said nothing of the log.
VOTE_VERSION = 3
# Version of the mark of a clean stop. Version 1 named neither the boot nor the log.
CLEAN_VERSION = 2
BLOCK_BYTES = 64
# The upper half of a block's write number is the boot of the log that wrote it.
BOOT_SHIFT = 32
VOTE_NAME_MAX = 64
# The directory that some file systems make at the place where they are mounted.
LOST_FOUND = "lost+found"
# The highest count that is accepted from disk: half of the range, so that counting can go on.
COUNT_MAX = (1 << 63) - 1

# The highest distance that a block or a segment names.
DISTANCE_MAX = (1 << 32) - 1

# The two copies of the vote record: if the disk spoils one, the other is whole.
VOTE_COPIES = ("vote-a", "vote-b")
# Each copy has two pages, written in turn: a write that a crash tears spoils the page of the record
# before the one that counts, also while the disk has spoiled the other copy.
VOTE_SLOTS = 2
VOTE_BYTES = VOTE_SLOTS * PAGE
# The mark of a clean stop: the log has not changed since.
CLEAN = "clean"
# The name of that mark from the beginning of an open until the loss that it may prove is recorded.
OPENING = "opening"
# The next segment, allocated ahead under a name that no segment has.
SPARE = "spare"
# The ending of a file that is being made: a file that has it at an open was not finished.
UNFINISHED = ".new"

_CRC = struct.Struct("<I")
_SEED = struct.Struct("<QQ")
_SEGMENT = struct.Struct("<4sHHQQQQ16s16sQQIIQQ")
_BLOCK = struct.Struct("<4sHHIIQQQQQI")
_FOOTER = struct.Struct("<4sHHQQQQQIIQQQ")
_CLEAN = struct.Struct("<4sHHQQQQQII")
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
    """The id that every segment carries: one incarnation of one log on one node's disk."""

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

    @property
    def seed(self) -> int:
        """The start value of the CRC of each file that belongs to the log as a whole: a page of
        another log reads as a bad one."""
        return crc32c(self.incarnation + self.storage)


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
    """The start value of a block's CRC, which binds the block to its segment and its place."""
    return crc32c(_SEED.pack(nonce, position))


def _distance(before: Index, membership: Index) -> int:
    """How many entries ago the newest membership was set: 1 for entry ``before`` itself, 0 if none
    was. More entries than the field holds are as good as none: so old a membership is applied."""
    distance = before + 1 - membership if membership else 0
    return distance if distance <= DISTANCE_MAX else 0


def _membership(before: int, distance: int) -> Index:
    return Index(max(0, before + 1 - distance)) if distance else Index(0)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first page of a segment."""

    number: int
    # Random number, drawn when the segment is made; unknown outside of this node.
    nonce: int
    log: LogId
    # Position of the entry before the first one of this segment.
    before: Position
    # Offset of the first record of this segment, and append time of the entry before it.
    base_offset: int
    append_time: int
    # End of the segment before. Invariant: all of it was durable when this segment was begun.
    previous_end: int
    # Bytes that were allocated: the length of the file until it is sealed.
    capacity: int
    # The newest membership entry before this segment; 0 if there is none.
    membership: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself

    def encode(self) -> bytes:
        fields = _SEGMENT.pack(
            b"QRSG", VERSION, 0, self.number, self.nonce, self.previous_end, self.capacity,
            self.log.incarnation, self.log.storage, *self.before,
            _distance(self.before.index, self.membership), self.base_offset, self.append_time,
        )  # fmt: skip
        return _sealed(fields).ljust(PAGE, b"\0")

    def belongs(self, number: int, record: VoteRecord | None) -> bool:
        """Whether this is the header of segment ``number``. A header that names another number was
        written for another file. A header with this number may be that of an earlier segment, back
        on disk: for the newest segment the vote record names the nonce of the right one."""
        if self.number != number:
            return False
        return record is None or record.segment != number or record.nonce == self.nonce

    @staticmethod
    def decode(data: Buffer) -> SegmentHeader | None:
        fields = _proved(data, _SEGMENT, b"QRSG")
        if fields is None:
            return None
        _, _, _, number, nonce, previous_end, capacity, incarnation, storage, *rest = fields
        index, term, chain, distance, base_offset, append_time = rest
        log = LogId(int.from_bytes(incarnation, "little"), storage)
        before = Position(Index(index), Term(term), chain)
        return SegmentHeader(
            number, nonce, log, before, base_offset, append_time, previous_end, capacity,
            _membership(index, distance),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """The head of a flush block: the entries of one flush, and the end of the bytes that were
    durable before it."""

    # Position of the entry before the first frame of this block.
    before: Position
    # Number of this write; it rises from block to block.
    write_number: int
    # Invariant: all bytes below were synced before this block was written.
    durable_end: int
    # The commit index as it was known when the block was written, at most its last entry.
    committed: Index
    # Bytes of the frames that follow the head.
    length: int
    # The newest membership entry before this block; 0 if there is none. So the newest membership is
    # known even if the disk lost its entry: a node that takes an older one counts wrong voters.
    membership: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself

    def encode(self, seed: int) -> bytes:
        index, term, chain = self.before
        fields = _BLOCK.pack(
            b"QRFB", VERSION, 0, self.length, chain, index, term, self.write_number,
            self.durable_end, self.committed, _distance(index, self.membership),
        )  # fmt: skip
        return _sealed(fields, seed)

    @staticmethod
    def decode(data: Buffer, seed: int) -> Block | None:
        fields = _proved(data, _BLOCK, b"QRFB", seed)
        if fields is None:
            return None
        _, _, _, length, chain, index, term, number, durable_end, committed, distance = fields
        before = Position(Index(index), Term(term), chain)
        membership = _membership(index, distance)
        return Block(before, number, durable_end, Index(committed), length, membership)

    def end(self, position: int) -> int:
        """The end of this block if it begins at ``position``."""
        return position + pages(BLOCK_BYTES + self.length)


@dataclass(frozen=True, slots=True)
class Footer:
    """The last page of a sealed segment. Invariant: a sealed segment never changes."""

    # End of the blocks, which is the place of this page.
    end: int
    # Position of the last entry.
    last: Position
    write_number: int
    # Offset after the last record of this segment, and append time of its last entry.
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
    """The mark of a clean stop: the log was closed in order, and ended here."""

    # Boot of the process that closed the log. The vote record has the boot of the process that
    # opened the log last: a mark with another boot is of an earlier stop.
    boot: int
    # Number of the newest segment, and the end of its blocks.
    number: int
    end: int
    last: Position

    def encode(self, log: LogId) -> bytes:
        index, term, chain = self.last
        fields = _CLEAN.pack(
            b"QRCL", CLEAN_VERSION, 0, self.boot, self.number, self.end, index, term, chain, 0
        )
        return _sealed(fields, log.seed)

    @staticmethod
    def decode(data: Buffer, log: LogId) -> CleanMark | None:
        fields = _proved(data, _CLEAN, b"QRCL", log.seed, CLEAN_VERSION)
        if fields is None or len(data) != _CLEAN.size + 4:
            return None
        _, _, _, boot, number, end, index, term, chain, _ = fields
        return CleanMark(boot, number, end, Position(Index(index), Term(term), chain))


def vote_place(number: int) -> int:
    """The place of the vote record with this number in each copy."""
    return number % VOTE_SLOTS * PAGE


def encode_vote(record: VoteRecord, log: LogId) -> bytes:
    """The page of a vote record of ``log``."""
    name = (record.vote or "").encode()
    check(len(name) <= VOTE_NAME_MAX, f"a node's name has at most {VOTE_NAME_MAX} bytes")
    check(not 0 < record.cutting < PAGE, "a header is never cut")
    flags = FLAG_VOTED * (record.vote is not None) | FLAG_UNSURE * record.unsure
    fields = _VOTE.pack(
        b"QRVT", VOTE_VERSION, flags, record.number, record.term, record.boot, record.first,
        record.segment, record.cutting, record.nonce, name, *record.before, 0,
    )  # fmt: skip
    return _sealed(fields, log.seed).ljust(PAGE, b"\0")


def decode_vote(data: Buffer, log: LogId) -> VoteRecord | None:
    """The record on one page of a copy; None if it is not whole, or not of ``log``."""
    fields = _proved(data, _VOTE, b"QRVT", log.seed, VOTE_VERSION)
    if fields is None:
        return None
    _, _, flags, number, term, boot, first, segment, cutting, nonce, name, *before, _ = fields
    if max(number, term, boot, first, segment, cutting, *before[:2]) > COUNT_MAX:
        return None  # out of reach: each rises by one at a time, or is a place in a file
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


def decode_votes(copy: Buffer, log: LogId) -> list[VoteRecord | None]:
    """The record on each page of a copy; None if it is not whole, or not on its own page."""
    found = []
    for place in range(0, VOTE_BYTES, PAGE):
        record = decode_vote(bytes(copy[place : place + PAGE]), log)
        found.append(record if record is None or vote_place(record.number) == place else None)
    return found


def never_opened(names: Iterable[str], first_copy: Buffer) -> bool:
    """Whether the first open of a log did not come to its end: there is no file but the first copy
    of the vote record, which is made before any other, and its first page is zeros. The first
    record goes to the second page."""
    return {*names} <= {VOTE_COPIES[0], LOST_FOUND} and not any(first_copy[: vote_place(1)])


def newest_vote(copies: Iterable[Buffer], log: LogId) -> VoteRecord | None:
    """The whole record of ``log`` with the highest number; None if no record is whole.

    Two copies may hold different records of one number: the copy that an open could not read may
    have had that number already. The record of the later boot counts.
    """
    found = (record for copy in copies for record in decode_votes(copy, log) if record is not None)
    return max(found, key=lambda record: (record.number, record.boot), default=None)
