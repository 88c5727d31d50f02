"""The walk through a segment file, piece by piece: blocks with their frames, and gaps.

Tools that look at segments and do not change them use it. It reads ahead a little and keeps one
block at a time, however large the segment is. It describes the pieces and does not judge them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.buffered import WINDOW_BYTES, BufferedFile
from quorate.storage.layout import BLOCK_BYTES, PAGE, Block, Footer, block_seed, pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Header
    from quorate.storage.vfs import File
    from quorate.types import Position

__all__ = ["EntryFrame", "FlushedBlock", "Gap", "is_blank", "read_footer", "walk"]

_ZEROS = bytes(WINDOW_BYTES)


class EntryFrame(NamedTuple):
    """A frame whose header is whole and continues the chain."""

    start: int
    stop: int
    header: Header
    # Whether the body has the CRC that the header names.
    whole: bool


class FlushedBlock(NamedTuple):
    """A block whose head is whole."""

    position: int
    block: Block
    # The readable frames at the beginning of the block.
    frames: list[EntryFrame]
    # The end of the last of these frames.
    stop: int
    # Whether the reserved bytes of the head are as they are written.
    exact: bool
    # Whether the rest of the page after ``stop`` is zeros.
    blank: bool


class Gap(NamedTuple):
    """Pages on which no block begins."""

    start: int
    stop: int
    # Whether all of them are zeros.
    blank: bool


def is_blank(data: memoryview) -> bool:
    """Whether ``data``, at most a window of it, is zeros."""
    # Comparing a memoryview itself goes byte by byte.
    return bytes(data) == _ZEROS[: len(data)]


def walk(file: File, nonce: int, limit: int) -> Iterator[FlushedBlock | Gap]:
    """The blocks and gaps between the header page and ``limit``, in order and without a hole."""
    window = BufferedFile(file, limit)
    position = PAGE
    while position < len(window):
        flushed = _flushed(window, nonce, position)
        piece = flushed if flushed is not None else _gap(window, nonce, position)
        yield piece
        position = pages(piece.stop)


def _flushed(window: BufferedFile, nonce: int, position: int) -> FlushedBlock | None:
    """The block that begins at ``position``; None if there is none."""
    seed = block_seed(nonce, position)
    head = window[position : position + BLOCK_BYTES]
    block = Block.decode(head, seed)
    # Invariant: a block stands behind all bytes that it names durable.
    if block is None or block.durable_end > position:
        return None
    exact = bytes(head) == block.encode(seed)
    start = position + BLOCK_BYTES
    data = window[start : start + block.length]
    frames = list(_frames(data, start, block.before))
    stop = frames[-1].stop if frames else start
    blank = is_blank(window[stop : pages(stop)])
    return FlushedBlock(position, block, frames, stop, exact, blank)


def _frames(data: memoryview, base: int, before: Position) -> Iterator[EntryFrame]:
    """The frames at the beginning of ``data``, which stands at ``base``."""
    start = 0
    while start < len(data):
        header = parse_header(data, start)
        if header is None or not header.follows(before, data, start):
            return
        stop = start + HEADER_BYTES + header.length
        if stop > len(data):
            return
        whole = crc32c(data[start + HEADER_BYTES : stop]) == header.body_crc
        yield EntryFrame(base + start, base + stop, header, whole)
        before = header.position
        start = stop


def _gap(window: BufferedFile, nonce: int, start: int) -> Gap:
    """The pages from ``start`` on that are all blank, or all not, and begin no block."""
    blank = is_blank(window[start : start + PAGE])
    stop = start + PAGE
    while blank and is_blank(window[stop : stop + WINDOW_BYTES]) and stop < len(window):
        stop += WINDOW_BYTES
    while stop < len(window):
        page = window[stop : stop + PAGE]
        if is_blank(page) != blank or Block.decode(page, block_seed(nonce, stop)) is not None:
            break
        stop += PAGE
    return Gap(start, min(stop, len(window)), blank)


def read_footer(file: File, nonce: int) -> Footer | None:
    """The footer on the last page of a sealed segment; None if there is no whole one."""
    position = file.size() - PAGE
    if position < PAGE:
        return None
    footer = Footer.decode(file.read(position, PAGE), nonce, position)
    return footer if footer is not None and footer.end == position else None
