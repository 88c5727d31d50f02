"""The survey of a log's files before an open changes them: segments, damage, torn bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quorate.errors import Damaged, WrongDirectory
from quorate.storage.buffered import BufferedFile, is_zero
from quorate.storage.damage import UNREADABLE_ADVICE, WHOLE_ADVICE, Damage
from quorate.storage.disk_errors import read_small
from quorate.storage.index import LoadedRows
from quorate.storage.layout import (
    CLEAN,
    OPENING,
    PAGE,
    UNFINISHED,
    CleanMark,
    SegmentHeader,
    index_name,
    segment_name,
    segment_number,
)
from quorate.storage.recovery.headers import (
    FoundSegment,
    forget_old_headers,
    proof_by_header,
    proof_of_begun,
)
from quorate.storage.rows import last_header
from quorate.storage.segment import Segment
from quorate.storage.segment_scan import Fault, Proof, scan
from quorate.storage.vfs import ReopenedFile
from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from quorate.storage.layout import Footer, LogId
    from quorate.storage.segment_scan import Scan
    from quorate.storage.vfs import File, Vfs
    from quorate.types import VoteRecord

__all__ = [
    "LATER_BLOCK",
    "OLD_RECORD",
    "OLD_VOTES",
    "OTHER_END",
    "Survey",
    "read_mark",
    "survey",
]

# The fault of a segment behind the one that the newest vote record names. A record names a segment
# before its first block is written, so a newer record is lost, and votes with it.
OLD_RECORD = "holds entries, and no readable vote record names it: the newest one is lost"
# The fault of a block that names a later boot than the newest vote record: each boot has a
# record before its first block.
LATER_BLOCK = "a block is of a later boot than the vote record: the newest record is lost"
# The fault of a mark that names a later boot than the newest vote record: each boot has a record
# before its mark.
OLD_VOTES = "the mark of a clean stop is newer than the vote record: the newest record is lost"
# The fault of the header of a segment that was begun if it names another last entry than the
# segment before has, and nothing else proves that entry.
OTHER_END = "the segment before does not end as this header says: one of the two is old"


@dataclass(slots=True)
class Survey:
    """The result of a survey, from which an open starts."""

    # Loads the rows of the sealed segments.
    loaded: LoadedRows
    # In order; a gap between two of them is noted as damage.
    segments: list[Segment] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    # Segments that are no part of the log: begun and not used, or cut off.
    leftovers: list[str] = field(default_factory=list)
    # Other files that an open log must not have: begun and not finished, or without their segment.
    unfinished: list[str] = field(default_factory=list)
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


def read_mark(vfs: Vfs, identity: LogId) -> CleanMark | None:
    """The mark of a clean stop, under either name; None if there is no whole one. An open removes
    it before its first cut."""
    names = vfs.names()
    for name in (CLEAN, OPENING):
        if name in names:
            return CleanMark.decode(read_small(vfs, name), identity)
    return None


def survey(vfs: Vfs, identity: LogId, record: VoteRecord, mark: CleanMark | None) -> Survey:
    """Survey the files of the log in ``vfs``. ``record`` is the newest vote record, and ``mark``
    the mark of a clean stop. A mark of an earlier stop, back on disk, proves nothing."""
    if mark is not None and mark.boot != record.boot:
        mark = None
    seen, names = Survey(LoadedRows(vfs)), vfs.names()
    found = [FoundSegment(vfs, number, record, identity) for number in sorted(_numbers(names))]
    _refuse_strange(found, identity)
    while found and _is_leftover(found[-1], record):
        begun = found.pop()
        if begun.written:
            raise Damaged(f"{segment_name(begun.number)} {OLD_RECORD}; {WHOLE_ADVICE}")
        seen.leftovers.append(segment_name(begun.number))
        if found and found[-1].number == begun.number - 1:
            found[-1].begun = begun.header
    forget_old_headers(vfs, found, record)
    indexes = {index_name(one.number) for one in found}
    seen.unfinished = [name for name in names if _unfinished(name, indexes)]
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


def _refuse_strange(found: list[FoundSegment], identity: LogId) -> None:
    """Raise WrongDirectory if all headers that are whole name another log. If one of them names
    this one, those that do not are pages that the disk misdirected: they count as bad."""
    strange = [one for one in found if one.log not in (None, identity)]
    if strange and not any(one.log == identity for one in found):
        raise WrongDirectory(
            f"{segment_name(strange[0].number)} belongs to another log or another node's disk; "
            f"this directory was put together from two: restore the right one"
        )


def _is_leftover(newest: FoundSegment, record: VoteRecord) -> bool:
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
    one: FoundSegment,
    header: SegmentHeader,
    following: FoundSegment | None,
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
    data = BufferedFile(file, limit, durable=True)
    if proof is None and one.header is not None and one.begun is not None:
        proof, doubt = proof_of_begun(data, one.header, one.begun)
        if doubt:
            seen.lost_tail = True
            name = segment_name(one.begun.number)
            seen.damage.append(Damage(name, *Fault.of_bytes(0, PAGE, OTHER_END)))
    nonce = one.header.nonce if one.header is not None else None
    found = scan(data, nonce, header.before, proof)
    if found.refuted:
        proof = None
    segment = _scanned(header, file, data, found)
    seen.segments.append(segment)
    name = segment_name(one.number)
    faults = found.damage
    if found.torn is not None and (following is not None or nonce is None):
        faults = [*faults, found.torn]  # a rolled segment was durable: no crash tore it
    seen.damage += [Damage(name, *fault) for fault in faults]
    if following is None:
        _judge_newest(seen, one, found, cut, proof)
        if one.header is not None:
            # Without the header no block was recognized: the bytes may be whole, and are not cut.
            _judge_refused(seen, data, found, proof)
        return
    if one.size < header.capacity:
        segment.capacity = segment.end  # it was cut, and its room was not allocated again
    # Bytes are cut off only if the next segment says that they are no part of this one, and the
    # entry that it names was read in front of them.
    ended = proof is not None and found.last == proof.last and not found.ends_with_loss
    if (
        ended
        and one.size > segment.end
        and (one.size != header.capacity or not is_zero(file, segment.end, segment.end + PAGE))
    ):
        seen.untidy.append(segment)


def _proof(
    one: FoundSegment, following: FoundSegment | None, mark: CleanMark | None, record: VoteRecord
) -> Proof | None:
    """The proof of the segment's end: the header of the next segment, a clean stop or a cut."""
    if following is not None:
        return proof_by_header(following)
    if mark is not None and mark.number == one.number:
        return Proof(mark.end, mark.last, newest=True)
    cutting = record.cutting > 0 and one.number == record.segment
    return Proof(record.cutting, record.before, newest=True) if cutting else None


def _scanned(header: SegmentHeader, file: File, data: BufferedFile, found: Scan) -> Segment:
    segment = Segment(header, file, found.rows)
    segment.last, segment.end = found.last, found.end
    segment.without_body, segment.write_number = found.without_body, found.write_number
    segment.committed = found.committed
    segment.memberships = found.memberships
    rows = found.rows
    segment.note_lost(rows)
    if rows.starts:
        last = last_header(data, rows)
        records = last.count if last is not None else 0
        segment.next_offset = rows.offsets[-1] + records
        segment.append_time = rows.times[-1]
    return segment


def _judge_newest(
    seen: Survey, one: FoundSegment, found: Scan, cut: int, proof: Proof | None
) -> None:
    """Decide where the newest segment is to be cut, and whether durable entries at its end are
    lost."""
    segment = seen.segments[-1]
    seen.durable_end = found.durable_end
    # The proof of a bad entry may be a single page: another one is written, so that the entry is
    # not taken for torn if that page rots, too.
    seen.unproven = found.unproven or bool(found.damage or found.without_body)
    if cut:
        # Again: the first cut may be in the page cache only.
        seen.cut_at = _cut_behind_header(cut, one.size)
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
        seen.cut_at = _cut_behind_header(one.size, found.end)
    name = segment_name(one.number)
    following = Index(found.last.index + 1)
    end = segment.header.capacity
    what = "the file is shorter than it was made"
    seen.damage.append(Damage(name, one.size, end, following, found.last.index, what))
    seen.lost_tail = seen.lost_tail or proof is None


def _judge_refused(seen: Survey, data: BufferedFile, found: Scan, proof: Proof | None) -> None:
    """Judge the pages at the end of the newest segment that the disk does not give back, and which
    no block proves to be durable. They are cut off, so that others take their place.

    If a page in which the last block may have stood is among them, an acknowledged entry may be
    lost. Behind the zeros of a page that can be read there is nothing.
    """
    refused = sorted(place for place in data.refused if place >= found.durable_end)
    if not refused:
        return
    segment, following = seen.segments[-1], Index(found.last.index + 1)
    what = "the disk does not give back this page"
    name, none = segment_name(segment.number), found.last.index
    seen.damage += [Damage(name, one, one + PAGE, following, none, what) for one in refused]
    if seen.cut_at is None:
        seen.cut_at = found.end
    if proof is None and (found.torn is not None or refused[0] <= found.end):
        seen.lost_tail = True


def _cut_behind_header(*ends: int) -> int:
    """The place of a cut at the lowest of ``ends``. A header is never cut, even if the file ends
    within its page: all that counts of it was read."""
    return max(PAGE, min(ends))


def _substitute(
    seen: Survey, one: FoundSegment, before: Segment | None, record: VoteRecord
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
        damage = Damage(segment_name(header.number), 0, PAGE, first, last, what)
        if last < first:
            # One of the two is an old content of its pages, and nothing says which.
            raise Damaged(f"{damage}; {UNREADABLE_ADVICE}")
        seen.damage.append(damage)


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
        if record.cutting and seen.cut_at is None:
            # The segments behind the cut may still be there. If this open crashes, the next one has
            # to know that they were cut off.
            seen.cut_at = _behind_all(segments)


def _behind_all(segments: list[Segment]) -> int:
    """The place of a cut behind all that is left: it drops no entry. In a segment without its
    header the bytes behind the last frame may be whole, and are not cut off."""
    if not segments:
        return PAGE
    newest = segments[-1]
    headless = newest.header.capacity == PAGE
    return _cut_behind_header(newest.file.size()) if headless else newest.end


def _missing(number: int, until: int, first: Index, last: Index) -> Damage:
    """The damage of missing segments ``number`` to ``until``, which held entries first..last."""
    what = "the segment is missing"
    if until > number:
        what = f"this segment and all up to {segment_name(until)} are missing"
    return Damage(segment_name(number), 0, 0, first, last, what)
