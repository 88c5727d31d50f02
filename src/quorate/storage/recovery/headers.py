"""Segment files as an open finds them: which headers and footers count, and what they prove.

A file may have held an earlier segment of its name, which was cut off. A page of it that falls back
is whole, so a header counts only if something else confirms it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from quorate.storage.blocks import read_footer
from quorate.storage.buffered import BufferedFile
from quorate.storage.disk_errors import UNREADABLE
from quorate.storage.layout import (
    BLOCK_BYTES,
    PAGE,
    Block,
    SegmentHeader,
    block_seed,
    segment_name,
)
from quorate.storage.segment_scan import Proof, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.storage.layout import Footer, LogId
    from quorate.storage.vfs import File, Vfs
    from quorate.types import VoteRecord

__all__ = [
    "FoundSegment",
    "forget_old_headers",
    "is_written",
    "proof_by_header",
    "proof_of_begun",
]

Result = TypeVar("Result")


class FoundSegment:
    """A segment file with its header and its footer.

    The file is not kept open: a log may have more segments than a process may have open files.
    """

    __slots__ = ("begun", "footer", "header", "log", "number", "size", "written")

    def __init__(self, vfs: Vfs, number: int, record: VoteRecord, identity: LogId) -> None:
        self.number = number
        # The log that the header page names; None if that page is not whole.
        self.log: LogId | None = None
        # Header of the next segment, if that was begun and the record does not name it yet.
        self.begun: SegmentHeader | None = None
        with closing(vfs.open(segment_name(number))) as file:
            self.size = file.size()
            header = _readable(lambda: SegmentHeader.decode(file.read(0, PAGE)))
            if header is not None:
                self.log = header.log
            # A disk may misdirect the header page of another log.
            belongs = (
                header is not None and header.belongs(number, record) and header.log == identity
            )
            self.header = header if belongs else None
            # None unless the segment is sealed.
            self.footer: Footer | None = None
            if belongs and header is not None:
                self.footer = _readable(lambda: read_footer(file, header.nonce))
            # Whether it holds a block although the record does not name it. Behind a cut that does
            # not matter: all of the segment was cut off.
            unnamed = number > record.segment and not record.cutting
            self.written = unnamed and is_written(file, self.header)


def _readable(read: Callable[[], Result | None]) -> Result | None:
    """The result of ``read``; None if the disk does not give back the page: then it counts as
    bad."""
    try:
        return read()
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return None


def is_written(file: File, header: SegmentHeader | None) -> bool:
    """Whether the first block of a segment is there."""
    if header is None:
        return False
    head = file.read(PAGE, BLOCK_BYTES)
    return Block.decode(head, block_seed(header.nonce, PAGE)) is not None


def forget_old_headers(vfs: Vfs, found: list[FoundSegment], record: VoteRecord) -> None:
    """Forget each header that nothing confirms: a file may have held an earlier segment of its
    name, and the header of that one may be back.

    The vote record confirms the header of the newest segment, and a footer that of a sealed one.
    From the newest segment on backwards, the others are confirmed by what stands behind them.
    """
    for place in range(len(found) - 1, 0, -1):
        before, one = found[place - 1], found[place]
        following = found[place + 1] if place + 1 < len(found) else None
        if one.header is None or one.footer is not None or one.number == record.segment:
            continue
        with closing(vfs.open(segment_name(one.number))) as file:
            if not _is_confirmed(file, one.header, before, following):
                one.header = None


def _is_confirmed(
    file: File, header: SegmentHeader, before: FoundSegment, following: FoundSegment | None
) -> bool:
    """Whether ``header``, of a segment that is neither sealed nor the newest one, is not that of an
    earlier segment of its name."""
    follows = before.footer is not None and header.before == before.footer.last
    if follows and _readable(lambda: is_written(file, header)):
        return True
    proof = proof_by_header(following)
    if proof is not None and proof.end <= PAGE:
        # No block was ever left in here: all of it was cut off, or the first entry did not fit.
        return header.before == proof.last
    limit = proof.end if proof is not None else file.size()
    found = scan(BufferedFile(file, limit, durable=True), header.nonce, header.before, proof)
    if not found.write_number:
        # Frames alone confirm no header: an earlier segment may have begun behind the same entry.
        return False
    if found.committed > header.before.index:
        return True  # an entry was committed in here, and such a segment is never cut off
    # The entry is there with which the next segment says that this one ends.
    return proof is None or (found.last == proof.last and not found.ends_with_loss)


def proof_by_header(following: FoundSegment | None) -> Proof | None:
    """The proof of a segment's end by the header of the next segment."""
    header = following.header if following is not None else None
    return Proof(header.previous_end, header.before) if header is not None else None


def proof_of_begun(
    data: BufferedFile, header: SegmentHeader, begun: SegmentHeader
) -> tuple[Proof | None, bool]:
    """The proof of the newest segment's end by ``begun``, the header of a segment behind it that
    the vote record does not name yet; and whether an entry may be lost that no proof names.

    All of the newest segment was durable before that header was written. But the header may be that
    of an earlier segment of the same number, back on disk. So it counts only if the newest segment
    ends exactly as it says, or lacks entries and ends no later than it says; and it is never a
    reason to drop entries that are there.

    If the two contradict each other and only that header could prove the last block, that block may
    be an old content of its pages: the entry that ``begun`` names may have been acknowledged.
    """
    found = scan(data, header.nonce, header.before, None)
    proof = Proof(begun.previous_end, begun.before, newest=True, drops=False)
    exact = (found.end, found.last) == (proof.end, proof.last)
    lacks = found.last.index < proof.last.index and found.end <= proof.end
    if exact or lacks:
        return proof, False
    other = found.last != proof.last  # else only pages behind the last entry differ
    return None, other and (found.unproven or found.torn is not None)
