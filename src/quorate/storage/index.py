"""The index file of a sealed segment: the place of each entry, so that an open need not search.

An index file is derived from the frames alone. A missing or bad one is made again. If it
contradicts the frames, the frames count.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.buffered import BufferedFile
from quorate.storage.disk_errors import PASSING, UNREADABLE
from quorate.storage.layout import (
    BLOCK_BYTES,
    PAGE,
    Block,
    block_seed,
    index_name,
    pages,
    segment_name,
)
from quorate.storage.publishing import derive
from quorate.storage.rows import Rows
from quorate.storage.segment_scan import STRETCH_BYTES, Proof, scan
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment
    from quorate.storage.vfs import Vfs
    from quorate.types import Position

__all__ = ["ROWS_KEPT", "LoadedRows", "decode_index", "encode_index", "load_rows", "plan_index"]

VERSION = 2
# Sealed segments of a log whose rows stay in memory after they were read: enough for a few readers
# at different places.
ROWS_KEPT = 8
_HEAD = struct.Struct("<4sHHQQQQI")


def encode_index(segment: Segment) -> bytes:
    """The bytes of the index file of ``segment``: four columns of 8 bytes an entry, then the offset
    rows, then the chains.

    An offset row is an offset and the entry that takes offsets from there on. If that entry is a
    publish, the records lie in the stage entries that it names: no body has to be read to make this
    file.
    """
    rows = segment.rows
    offset_rows = _offset_rows(rows, segment.next_offset)
    columns = (rows.starts, rows.ends, rows.offsets, rows.times, offset_rows, rows.chains)
    body = b"".join(_little_endian(column).tobytes() for column in columns)
    nonce = segment.header.nonce
    head = _HEAD.pack(
        b"QRIX", VERSION, 0, segment.number, rows.first, len(rows.starts), len(offset_rows) // 2,
        crc32c(body, crc32c(nonce.to_bytes(8, "little"))),
    )  # fmt: skip
    return head + crc32c(head).to_bytes(4, "little") + body


def plan_index(log: SegmentLog) -> Iterator[str]:
    """Write the index file of a sealed segment that has none, or a bad one."""
    segment = next(iter(log.unindexed), None)
    if segment is None:
        return
    try:
        made = encode_index(segment)
    except OSError as error:
        if error.errno in PASSING:
            return
        if error.errno not in UNREADABLE:
            raise
        log.give_up(segment, error)
        return
    if segment in log.unindexed:  # encode_index may have found entries that are lost
        if not (yield from _sync_footer(log, segment)):
            return
        segment.indexed = yield from derive(log.vfs, index_name(segment.number), [made])
        if segment.indexed:
            segment.release(log.loaded)


def _sync_footer(log: SegmentLog, segment: Segment) -> Generator[str, None, bool]:
    """Make the footer of ``segment`` durable: an index file implies that it is, and a killed
    process may have left the footer in the page cache only. False if the segment cannot be opened
    now."""
    if segment.synced:
        return True
    name = segment_name(segment.number)
    try:
        file = log.vfs.open(name)
    except OSError as error:
        if error.errno not in PASSING:
            raise
        return False
    footer = segment.footer
    assert footer is not None  # for the type checker
    with closing(file):
        # After a sync that failed the page looks clean, and only a write makes the next sync count.
        try:
            file.write(footer.end, [footer.encode(segment.number, segment.header.nonce)])
        except OSError as error:
            if error.errno not in PASSING:
                raise
            return False
        yield f"write footer of {name} again"
        file.sync()
    yield f"sync {name} again"
    segment.synced = True
    return True


def _offset_rows(rows: Rows, next_offset: int) -> array[int]:
    """(offset, entry index) of every entry that takes offsets."""
    found = array("Q")
    ends = (*rows.offsets[1:], next_offset)
    for row, (offset, after) in enumerate(zip(rows.offsets, ends, strict=False)):
        if after > offset:
            found.extend((offset, rows.first + row))
    return found


class LoadedRows:
    """Loads the rows of one log's sealed segments, and keeps those that were loaded last.

    Threads need no lock: adding to a bounded deque is one operation, which also drops the oldest.
    A caller holds a reference to rows while it uses them. Two threads that miss the same rows both
    load them: that costs time only, because the rows of a sealed segment never change.
    """

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        # The only lasting references to the rows: a segment has a weak one.
        self._recent: deque[Rows] = deque(maxlen=ROWS_KEPT)

    def load(self, segment: Segment) -> Rows:
        """The rows of ``segment`` from its index file, or else from the segment, which takes
        long."""
        return self.load_indexed(segment) or self._kept(walked_rows(segment))

    def load_indexed(self, segment: Segment) -> Rows | None:
        """The rows of ``segment`` from its index file; None if there is no whole one."""
        rows = load_rows(self._vfs, segment)
        if rows is None:
            segment.indexed = False
            return None
        return self._kept(rows)

    def _kept(self, rows: Rows) -> Rows:
        self._recent.append(rows)
        return rows


def load_rows(vfs: Vfs, segment: Segment) -> Rows | None:
    """The rows of a sealed segment from its index file. None if that file is missing or bad, also
    if the disk does not give it back: the entries themselves may be readable."""
    try:
        # Opened without a listing of the directory: a long log has thousands of files, and rows are
        # loaded often.
        with closing(vfs.open(index_name(segment.number))) as file:
            return decode_index(file.read(0, file.size()), segment)
    except OSError as error:
        if error.errno in PASSING:
            raise
        return None


def walked_rows(segment: Segment) -> Rows:
    """The rows of a sealed segment, found by a walk through all of it."""
    rows = _rows_of_blocks(segment)
    if rows is not None:
        return rows
    header = segment.header
    data = BufferedFile(segment.file, segment.end, durable=True)
    proof = Proof(segment.end, segment.last)
    found = scan(data, header.nonce, header.before, proof)
    segment.guessed = bool(data.refused)
    if not segment.guessed:
        segment.without_body |= found.without_body
    segment.note_lost(found.rows)
    return found.rows


def decode_index(data: bytes, segment: Segment) -> Rows | None:
    """The rows in ``data``, an index file; None if it is not whole or not that of ``segment``."""
    size = _HEAD.size + 4
    if len(data) < size or crc32c(data[: size - 4]) != int.from_bytes(
        data[size - 4 : size], "little"
    ):
        return None
    magic, version, _, number, first, count, offset_rows, proof = _HEAD.unpack_from(data)
    if (magic, version, number, first) != (b"QRIX", VERSION, segment.number, segment.first):
        return None
    body = memoryview(data)[size:]
    nonce = segment.header.nonce
    if len(body) != 36 * count + 16 * offset_rows or first + count != segment.last.index + 1:
        return None
    if crc32c(body, crc32c(nonce.to_bytes(8, "little"))) != proof:
        return None
    rows = Rows(Index(first))
    for number, column in enumerate((rows.starts, rows.ends, rows.offsets, rows.times)):
        column.frombytes(body[8 * count * number : 8 * count * (number + 1)])
    rows.chains.frombytes(body[32 * count + 16 * offset_rows :])
    if sys.byteorder == "big":
        for column in (rows.starts, rows.ends, rows.offsets, rows.times, rows.chains):
            column.byteswap()
    return rows


def _rows_of_blocks(segment: Segment) -> Rows | None:
    """The rows of a sealed segment from the heads of its blocks and frames; None unless they make
    one chain from its beginning to its end. If they do, every head is the one that was sealed: a
    page that fell back to an older content breaks the chain."""
    data = BufferedFile(segment.file, segment.end, durable=True)
    rows, last = Rows(segment.first), segment.header.before
    position = PAGE
    while position < segment.end:
        seed = block_seed(segment.header.nonce, position)
        block = Block.decode(data[position : position + BLOCK_BYTES], seed)
        if block is None or block.before != last:
            return None
        position, last = _walk(data, rows, position + BLOCK_BYTES, block)
    return rows if last == segment.last else None


def _walk(data: BufferedFile, rows: Rows, start: int, block: Block) -> tuple[int, Position]:
    """Add the frames of ``block``, which begin at ``start``, to ``rows``. Returns the place of the
    next block and the position of the last frame. Truncated frames of the block are not there any
    more."""
    limit, last = start + block.length, block.before
    stretch, base = memoryview(b""), start
    while start < limit:
        if start + HEADER_BYTES > base + len(stretch):
            stretch, base = data[start : min(limit, start + STRETCH_BYTES)], start
        header = parse_header(stretch, start - base)
        if header is None or not header.follows(last, stretch, start - base):
            break
        stop, last = start + HEADER_BYTES + header.length, header.position
        rows.add(start, stop, header.base_offset, header.append_time, last.chain)
        start = stop
    return pages(start), last


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
