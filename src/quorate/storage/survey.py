"""The survey of a log's files before an open changes them: segments, damage, torn bytes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quorate.errors import Damaged, WrongDirectory
from quorate.storage.damage import WHOLE_ADVICE, Damage
from quorate.storage.index import LoadedRows
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    OPENING,
    PAGE,
    UNFINISHED,
    Block,
    CleanMark,
    SegmentHeader,
    block_seed,
    index_name,
    segment_name,
    segment_number,
)
from quorate.storage.rows import last_header
from quorate.storage.scan import Proof, scan
from quorate.storage.segment import Segment
from quorate.storage.steps import read_small
from quorate.storage.vfs import ReopenedFile
from quorate.storage.walk import read_footer
from quorate.storage.window import Window
from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from quorate.storage.layout import Footer, LogId
    from quorate.storage.scan import Scan
    from quorate.storage.vfs import File, Vfs
    from quorate.types import VoteRecord

__all__ = ["OLD_RECORD", "Survey", "is_written", "proof_of_begun", "read_mark", "survey"]

# The fault of a segment behind the one that the newest vote record names. A record names a segment
# before its first block is written, so a newer record is lost, and votes with it.
OLD_RECORD = "holds entries, and no readable vote record names it: the newest one is lost"


@dataclass(slots=True)
class Survey:
    """The result of a survey, from which an open starts."""

    # Loads the rows of the sealed segments.
    loaded: LoadedRows
    # In order; a gap between two of them is noted as damage.
    segments: list[Segment] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    # Files that an open log must not have: begun and not finished, or cut off.
    leftovers: list[str] = field(default_factory=list)
    # Segments whose seal was begun: the bytes behind their last block are to be cut off.
    untidy: list[Segment] = field(default_factory=list)
    # The byte at which the newest segment has to be cut; None if it need not be.
    cut_at: int | None = None
    # All bytes of the newest segment below this one are proved to be durable.
    durable_end: int = PAGE
    # The newest block holds entries, and no later write proves them durable.
    unproven: bool = False
    # Entries after the end of the log were durable here, and it is not known which.
    lost_tail: bool = False


def read_mark(vfs: Vfs) -> CleanMark | None:
    """The mark of a clean stop, under either name; None if there is no whole one. An open removes
    it before its first cut."""
    names = vfs.names()
    for name in (CLEAN, OPENING):
        if name in names:
            return CleanMark.decode(read_small(vfs, name))
    return None


def survey(vfs: Vfs, identity: LogId, record: VoteRecord, mark: CleanMark | None) -> Survey:
    """Survey the files of the log in ``vfs``. ``record`` is the newest vote record, and ``mark``
    the mark of a clean stop."""
    seen, names = Survey(LoadedRows(vfs)), vfs.names()
    found = [_Found(vfs, number, record) for number in sorted(_numbers(names))]
    for one in found:
        _refuse_strange(one, identity)
    while found and _is_leftover(found[-1], record):
        begun = found.pop()
        if not record.cutting and begun.written:
            raise Damaged(f"{segment_name(begun.number)} {OLD_RECORD}; {WHOLE_ADVICE}")
        seen.leftovers.append(segment_name(begun.number))
        if found and found[-1].number == begun.number - 1:
            found[-1].begun = begun.header
    indexes = {index_name(one.number) for one in found}
    seen.leftovers += [name for name in names if _unfinished(name, indexes)]
    indexes &= set(names)
    for place, one in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else None
        before = seen.segments[-1] if seen.segments else None
        header = one.header or _substitute(seen, one, before, record)
        if before is not None:
            _compare_neighbours(seen, before, header)
        if one.footer is not None and following is not None:
            indexed = index_name(one.number) in indexes
            seen.segments.append(_sealed(vfs, seen, header, one.footer, indexed=indexed))
        else:
            _take(vfs.open(segment_name(one.number)), seen, one, header, following, record, mark)
    _note_missing(seen, record)
    return seen


def _refuse_strange(one: _Found, identity: LogId) -> None:
    if one.header is not None and one.header.log != identity:
        raise WrongDirectory(
            f"{segment_name(one.number)} belongs to another log or another node's disk; "
            f"this directory was put together from two: restore the right one"
        )


def _is_leftover(newest: _Found, record: VoteRecord) -> bool:
    """Whether a segment is no part of the log: it was cut off, or no block was ever written to it.
    The record names a segment before its first block. Without any record a segment with a header
    counts as part of the log."""
    return newest.number > record.segment and (record.number > 0 or newest.header is None)


def _unfinished(name: str, indexes: set[str]) -> bool:
    """Whether a file was begun and not finished, or outlived its segment."""
    if name.endswith(UNFINISHED):
        return True
    return name.endswith(".index") and name not in indexes


def _numbers(names: list[str]) -> list[int]:
    return [number for name in names if (number := segment_number(name)) is not None]


class _Found:
    """A segment file with its header and its footer.

    The file is not kept open: a log may have more segments than a process may have open files.
    """

    __slots__ = ("begun", "footer", "header", "number", "size", "written")

    def __init__(self, vfs: Vfs, number: int, record: VoteRecord) -> None:
        self.number = number
        # Header of the next segment, if that was begun and the record does not name it yet.
        self.begun: SegmentHeader | None = None
        with closing(vfs.open(segment_name(number))) as file:
            self.size = file.size()
            header = SegmentHeader.decode(file.read(0, PAGE))
            belongs = header is not None and header.belongs(number, record)
            self.header = header if belongs else None
            # None unless the segment is sealed.
            self.footer = read_footer(file, self.header.nonce) if self.header is not None else None
            # Whether it holds a block, if the record does not name it.
            self.written = number > record.segment and is_written(file, self.header)


def is_written(file: File, header: SegmentHeader | None) -> bool:
    """Whether the first block of a segment is there."""
    if header is None:
        return False
    head = file.read(PAGE, BLOCK_BYTES)
    return Block.decode(head, block_seed(header.nonce, PAGE)) is not None


def _sealed(
    vfs: Vfs, seen: Survey, header: SegmentHeader, footer: Footer, *, indexed: bool
) -> Segment:
    """The sealed segment that a header and a footer describe. Its frames are checked when they are
    read."""
    segment = Segment(header, ReopenedFile(vfs, segment_name(header.number)), seen.loaded)
    segment.indexed = indexed
    segment.footer = footer
    segment.end, segment.last = footer.end, footer.last
    segment.write_number = footer.write_number
    segment.next_offset, segment.append_time = footer.next_offset, footer.append_time
    return segment


def _take(
    file: File,
    seen: Survey,
    one: _Found,
    header: SegmentHeader,
    following: _Found | None,
    record: VoteRecord,
    mark: CleanMark | None,
) -> None:
    """Scan a segment, the newest one or one that is not sealed, and add it to the survey."""
    # Bytes behind the place of a cut are not scanned.
    cut = record.cutting if one.number == record.segment else 0
    proof = _proof(one, following, mark, record)
    limit = cut or one.size
    if proof is not None and following is not None:
        limit = proof.end
    data = Window(file, limit)
    if proof is None and one.header is not None and one.begun is not None:
        proof = proof_of_begun(data, one.header, one.begun)
    nonce = one.header.nonce if one.header is not None else None
    found = scan(data, nonce, header.before, proof)
    segment = _scanned(header, file, data, found)
    seen.segments.append(segment)
    name = segment_name(one.number)
    faults = found.damage
    if found.torn is not None and (following is not None or nonce is None):
        faults = [*faults, found.torn]  # a rolled segment was durable: no crash tore it
    seen.damage += [Damage(name, *fault) for fault in faults]
    if following is None:
        _judge_newest(seen, one, found, cut, proof)
        return
    if one.size < header.capacity:
        segment.capacity = segment.end  # it was cut, and its room was not allocated again
    if one.size > segment.end and (
        one.size != header.capacity or any(file.read(segment.end, PAGE))
    ):
        seen.untidy.append(segment)


def _proof(
    one: _Found, following: _Found | None, mark: CleanMark | None, record: VoteRecord
) -> Proof | None:
    """The proof of the segment's end: the header of the next segment, a clean stop or a cut."""
    if following is not None:
        header = following.header
        return Proof(header.previous_end, header.before) if header is not None else None
    if mark is not None and mark.number == one.number:
        return Proof(mark.end, mark.last, newest=True)
    cutting = record.cutting > 0 and one.number == record.segment
    return Proof(record.cutting, record.before, newest=True) if cutting else None


def proof_of_begun(data: Window, header: SegmentHeader, begun: SegmentHeader) -> Proof | None:
    """The proof of the newest segment's end by ``begun``, the header of a segment behind it that
    the vote record does not name yet.

    All of the newest segment was durable before that header was written. But the header may be that
    of an earlier segment of the same number, back on disk. So it counts only if the newest segment
    ends exactly as it says, or lacks entries: it is never a reason to drop entries that are there.
    """
    found = scan(data, header.nonce, header.before, None)
    proof = Proof(begun.previous_end, begun.before, newest=True)
    exact = (found.end, found.last) == (proof.end, proof.last)
    return proof if exact or found.last.index < proof.last.index else None


def _scanned(header: SegmentHeader, file: File, data: Window, found: Scan) -> Segment:
    segment = Segment(header, file, found.rows)
    segment.last, segment.end = found.last, found.end
    segment.hollow, segment.write_number = found.hollow, found.write_number
    segment.committed = found.committed
    rows = found.rows
    segment.note_lost(rows)
    if rows.starts:
        last = last_header(data, rows)
        records = last.count if last is not None else 0
        segment.next_offset = rows.offsets[-1] + records
        segment.append_time = rows.times[-1]
    return segment


def _judge_newest(seen: Survey, one: _Found, found: Scan, cut: int, proof: Proof | None) -> None:
    """Decide where the newest segment is to be cut, and whether durable entries at its end are
    lost."""
    segment = seen.segments[-1]
    seen.durable_end = found.durable_end
    seen.unproven = found.unproven
    if cut:
        seen.cut_at = min(cut, one.size)  # again: the first cut may be in the page cache only
    if one.header is None:
        # Without the header no block can be recognized: the segment takes no more blocks, and its
        # last entry is not known to be the last one of the log.
        segment.header = replace(segment.header, capacity=PAGE)
        segment.capacity = PAGE
        seen.lost_tail = True
        seen.durable_end = segment.end
        return
    if found.torn is not None:
        seen.cut_at = found.torn.start
    if found.lost_tail is not None:
        seen.lost_tail = True
        seen.cut_at = found.lost_tail
    if cut or one.size >= segment.header.capacity:
        return
    if seen.cut_at is None:
        seen.cut_at = min(one.size, found.end)
    name = segment_name(one.number)
    following = Index(found.last.index + 1)
    end = segment.header.capacity
    what = "the file is shorter than it was made"
    seen.damage.append(Damage(name, one.size, end, following, found.last.index, what))
    seen.lost_tail = seen.lost_tail or proof is None


def _substitute(
    seen: Survey, one: _Found, before: Segment | None, record: VoteRecord
) -> SegmentHeader:
    """A substitute for a header that cannot be read: its frames continue the segment before.

    If the segments before were trimmed, only the index of the entry before is known. Without the
    chain of that entry no frame proves itself, so all entries up to the next segment are lost.
    """
    name = segment_name(one.number)
    trimmed = Position(Index(record.first - 1), Term(0), 0)
    last = before.last if before is not None else trimmed
    what = "the segment's header is bad"
    seen.damage.append(Damage(name, 0, PAGE, Index(last.index + 1), last.index, what))
    offset, time, end = 0, 0, 0
    if before is not None:
        offset, time, end = before.next_offset, before.append_time, before.end
    log = before.header.log if before is not None else None
    # The record keeps its nonce: an old header that comes back is not taken for this one.
    nonce = record.nonce if one.number == record.segment else 0
    return SegmentHeader(one.number, nonce, log, last, offset, time, end, one.size)  # type: ignore[arg-type]  # never written


def _compare_neighbours(seen: Survey, before: Segment, header: SegmentHeader) -> None:
    """Note the segments or entries that are missing between two segments."""
    if header.number > before.number + 1:
        first, last = Index(before.last.index + 1), header.before.index
        seen.damage.append(_missing(before.number + 1, header.number - 1, first, last))
    elif header.before != before.last:
        first, last = Index(before.last.index + 1), header.before.index
        what = "the segment does not follow the one before"
        seen.damage.append(Damage(segment_name(header.number), 0, PAGE, first, last, what))


def _note_missing(seen: Survey, record: VoteRecord) -> None:
    """Note missing segments that the vote record proves: at the front, or at the end."""
    segments = seen.segments
    if segments and segments[0].first > record.first:
        number, last = segments[0].number - 1, Index(segments[0].first - 1)
        seen.damage.append(_missing(number, number, record.first, last))
    newest = segments[-1].number if segments else 0
    last = segments[-1].last.index if segments else Index(0)
    if record.segment > newest:
        seen.damage.append(_missing(newest + 1, record.segment, Index(last + 1), last))
        seen.lost_tail = True


def _missing(number: int, until: int, first: Index, last: Index) -> Damage:
    """The damage of missing segments ``number`` to ``until``, which held entries first..last."""
    what = "the segment is missing"
    if until > number:
        what = f"this segment and all up to {segment_name(until)} are missing"
    return Damage(segment_name(number), 0, 0, first, last, what)
