"""The strict check of a segment: every byte of it is compared with the format.

An open looks for entries that can still be used; this check looks for every byte that is not
exactly as it was written. It explains bad blocks and frames by the same scan that an open uses, so
both agree on damaged and torn bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.storage.blocks import Gap, is_blank, walk
from quorate.storage.buffered import WINDOW_BYTES, BufferedFile
from quorate.storage.layout import BLOCK_BYTES, PAGE, pages
from quorate.storage.rows import Rows, last_header
from quorate.storage.segment_scan import Fault, scan
from quorate.types import Index, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.storage.blocks import EntryFrame, FlushedBlock
    from quorate.storage.layout import SegmentHeader
    from quorate.storage.segment_scan import Proof
    from quorate.storage.vfs import File

    Progress = Callable[[int], None]

__all__ = ["Contents", "check_blank", "check_blocks"]


@dataclass(slots=True)
class Contents:
    """The contents of the blocks of a segment, as far as they can be read."""

    rows: Rows
    # Position of the last entry, the offset after its last record, and its append time.
    last: Position
    next_offset: int
    append_time: int
    # The end of the blocks.
    end: int = PAGE
    write_number: int = 0
    # All bytes below were synced before a later write that was found.
    durable_end: int = PAGE
    # The highest index that a block claims to be committed.
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    # Number of entries that can be read.
    entries: int = 0
    # Bad bytes that are proved to have been durable.
    damage: list[Fault] = field(default_factory=list)
    # Bad bytes that a crash may have left.
    torn: list[Fault] = field(default_factory=list)


def check_blocks(
    file: File, header: SegmentHeader, proof: Proof | None, *, newest: bool, progress: Progress
) -> Contents:
    """Check every byte of the blocks. ``proof`` says how they must end; None if there is no proof.

    A crash can have torn bytes only in the newest segment, and only if there is no proof.
    """
    limit = proof.end if proof is not None else file.size()
    reading = _Reading(header)
    for piece in walk(file, header.nonce, limit):
        reading.take(piece)
        progress(pages(piece.stop) - (piece.start if isinstance(piece, Gap) else piece.position))
    reading.conclude(proof)
    if reading.broken:
        return _explain(file, header, reading, proof, limit, newest=newest)
    return _divide(reading.contents, reading.stray, newest=newest and proof is None)


def check_blank(file: File, start: int, progress: Progress) -> list[Fault]:
    """The pages from ``start`` to the end of the file that are not zeros."""
    faults: list[Fault] = []
    size = file.size()
    for position in range(start, size, WINDOW_BYTES):
        data = memoryview(file.read(position, WINDOW_BYTES))
        if not is_blank(data):
            for page in range(0, len(data), PAGE):
                if not is_blank(data[page : page + PAGE]):
                    stop = min(position + page + PAGE, size)
                    faults.append(Fault.of_bytes(position + page, stop, "unused space is not zero"))
        progress(len(data))
    return _joined(faults)


def _joined(faults: list[Fault]) -> list[Fault]:
    """The faults, with neighbours joined into one."""
    joined: list[Fault] = []
    for fault in faults:
        if joined and joined[-1].stop == fault.start:
            joined[-1] = joined[-1]._replace(stop=fault.stop)
        else:
            joined.append(fault)
    return joined


class _Reading:
    """The contents and the faults that one walk over the blocks finds."""

    def __init__(self, header: SegmentHeader) -> None:
        rows = Rows(Index(header.before.index + 1))
        self.contents = Contents(rows, header.before, header.base_offset, header.append_time)
        # Blocks and frames that are missing, bad, or not in their place.
        self.broken: list[Fault] = []
        # Wrong bytes beside blocks and frames that are whole.
        self.stray: list[Fault] = []
        # The end of the readable frames of the newest block, if it had more.
        self._short: int | None = None
        # Whether the newest block continues the entries before it.
        self._continued = True

    def take(self, piece: FlushedBlock | Gap) -> None:
        if not isinstance(piece, Gap):
            self._take_block(piece)
        elif not piece.blank:
            self.broken.append(Fault.of_bytes(piece.start, piece.stop, "no block can be read"))

    def _take_block(self, piece: FlushedBlock) -> None:
        found, block, position = self.contents, piece.block, piece.position
        head = position + BLOCK_BYTES
        self._continued = position == found.end and block.before == found.last
        if not self._continued:
            what = "the block does not continue what stands before it"
            self.broken.append(Fault.of_bytes(found.end, head, what))
        if block.write_number <= found.write_number:
            self.broken.append(
                Fault.of_bytes(position, head, "the block is older than the one before it")
            )
        if not piece.exact:
            self.stray.append(Fault.of_bytes(position, head, "the head holds more than it should"))
        found.last, found.write_number = block.before, block.write_number
        found.durable_end = max(found.durable_end, block.durable_end)
        found.committed = max(found.committed, block.committed)
        for frame in piece.frames:
            self._take_frame(frame)
        if not piece.blank:
            what = "the page is not zero after its last frame"
            self.stray.append(Fault.of_bytes(piece.stop, pages(piece.stop), what))
        self._short = piece.stop if piece.stop < head + block.length else None
        found.end = pages(piece.stop)

    def _take_frame(self, frame: EntryFrame) -> None:
        found, header = self.contents, frame.header
        index = header.position.index
        if not frame.whole:
            self.broken.append(Fault(frame.start, frame.stop, index, index, "the body is bad"))
        if self._continued and header.base_offset != found.next_offset:
            what = f"entry {index} begins at offset {header.base_offset}, not {found.next_offset}"
            self.stray.append(Fault.of_bytes(frame.start, frame.stop, what))
        if self._continued and header.append_time < found.append_time:
            what = f"the append time of entry {index} is before that of the entry before it"
            self.stray.append(Fault.of_bytes(frame.start, frame.stop, what))
        self._continued = True
        place = frame.start, frame.stop
        chain = header.position.chain
        found.rows.add(*place, header.base_offset, header.append_time, chain)
        found.last = header.position
        found.next_offset = header.base_offset + header.count
        found.append_time = header.append_time
        found.entries += frame.whole

    def conclude(self, proof: Proof | None) -> None:
        found = self.contents
        if proof is None:
            if self._short is not None:
                self.broken.append(Fault.of_bytes(self._short, found.end, "cut short"))
        elif (found.end, found.last) != (pages(proof.end), proof.last):
            self.broken.append(
                Fault.of_bytes(found.end, proof.end, "the segment does not end as it did")
            )


def _explain(
    file: File,
    header: SegmentHeader,
    reading: _Reading,
    proof: Proof | None,
    limit: int,
    *,
    newest: bool,
) -> Contents:
    """The contents of a segment with bad blocks or frames. The scan that an open uses says which
    entries are lost."""
    data = BufferedFile(file, limit)
    found = scan(data, header.nonce, header.before, proof)
    contents, stray, damage, torn = reading.contents, reading.stray, found.damage, found.torn
    if torn is not None and newest and proof is None:
        # The contents that the next open will keep.
        kept = _Reading(header)
        for piece in walk(file, header.nonce, torn.start):
            kept.take(piece)
        contents, stray = kept.contents, kept.stray
        contents.torn = [torn]
    elif torn is not None and not _overlaps(torn, damage):
        damage = [*damage, torn]
    contents.damage = damage if damage or contents.torn else reading.broken
    contents.durable_end = max(contents.durable_end, found.durable_end)
    contents.last = found.last
    rows = found.rows
    last = last_header(data, rows)
    if last is not None and last.position == found.last:
        contents.next_offset, contents.append_time = last.base_offset + last.count, rows.times[-1]
    lost = sum(fault.last - fault.first + 1 for fault in damage)
    contents.entries = len(rows.starts) - lost
    explained = [*contents.damage, *contents.torn]
    stray = [fault for fault in stray if not _overlaps(fault, explained)]
    return _divide(contents, stray, newest=newest and proof is None)


def _overlaps(fault: Fault, others: Iterable[Fault]) -> bool:
    return any(fault.start < other.stop and other.start < fault.stop for other in others)


def _divide(contents: Contents, stray: list[Fault], *, newest: bool) -> Contents:
    """Add each fault of ``stray`` to the damage, or to the torn bytes: a crash may have left bytes
    that are not proved durable."""
    for fault in stray:
        proved = not newest or fault.start < contents.durable_end
        (contents.damage if proved else contents.torn).append(fault)
    contents.damage.sort()
    contents.torn.sort()
    return contents
