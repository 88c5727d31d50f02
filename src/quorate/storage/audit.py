"""The audit of one log, offline: it checks every byte of every file in the log's directory.

In a log that was closed in order no fault can be explained by a crash: every byte that is not as it
was written is damage. Without the mark of a clean stop, a fault in bytes that no proof shows to
have been durable is a warning: the next open cuts them off, or makes them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.findings import Findings, LogReport
from quorate.storage.index import decode_index, encode_index
from quorate.storage.layout import (
    CLEAN,
    OPENING,
    PAGE,
    SPARE,
    UNFINISHED,
    VOTE_BYTES,
    VOTE_COPIES,
    CleanMark,
    Footer,
    LogId,
    SegmentHeader,
    decode_votes,
    encode_vote,
    index_name,
    never_opened,
    newest_vote,
    pages,
    segment_name,
    segment_number,
    vote_place,
)
from quorate.storage.scan import Fault, Proof, scan
from quorate.storage.segment import Segment
from quorate.storage.strict import check_blank, check_blocks
from quorate.storage.survey import OLD_RECORD, is_written, proof_of_begun
from quorate.storage.walk import read_footer
from quorate.storage.window import Window
from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.strict import Contents, Progress
    from quorate.storage.vfs import RealFile
    from quorate.types import VoteRecord

__all__ = ["audit_log"]

UNFINISHED_CUT = "a cut was begun and not finished"


class _End(NamedTuple):
    """The end of a segment, to be compared with the header of the next one."""

    number: int
    last: Position
    # Next offset, append time of the last entry, end of the blocks; None unless all are known.
    details: tuple[int, int, int] | None


def audit_log(path: Path, incarnation: int, storage: bytes | None, progress: Progress) -> LogReport:
    """Check every file in ``path``, the directory of one log, without changing any.

    ``storage`` is the storage id that every segment must name; None if it is not known.
    """
    findings = Findings(path, incarnation, progress)
    try:
        # A directory without files was made and never opened.
        if findings.sizes:
            _Audit(findings, storage).run()
            findings.progress(findings.report.bytes)
    finally:
        findings.vfs.close()
    return findings.report


def _number_of_index(name: str) -> int | None:
    stem, _, kind = name.partition(".")
    return segment_number(f"{stem}.segment") if kind == "index" else None


class _Audit:
    def __init__(self, findings: Findings, storage: bytes | None) -> None:
        self._findings = findings
        self._report = findings.report
        self._storage = storage
        self._mark: CleanMark | None = None
        # The end of the segment before the one that is being checked.
        self._end: _End | None = None
        # Header of the segment after the newest one, if the vote record does not name it yet.
        self._begun: SegmentHeader | None = None

    def run(self) -> None:
        self._check_names()
        self._check_mark()
        self._check_votes()
        numbers = [n for name in self._findings.sizes if (n := segment_number(name)) is not None]
        self._check_segments(sorted(numbers))
        self._check_checkpoint()
        self._check_spare()
        self._report.committed = min(self._report.committed, self._report.last.index)

    def _check_names(self) -> None:
        for name in self._findings.sizes:
            small = (*VOTE_COPIES, CHECKPOINT, CLEAN, OPENING, SPARE)
            known = name in small or segment_number(name) is not None
            if name.endswith(UNFINISHED):
                self._findings.leftover(name, "begun and not finished")
            elif not known and _number_of_index(name) is None:
                self._findings.damage(name, "no file of a log has this name")

    # -- small files ---------------------------------------------------------------------------

    def _check_mark(self) -> None:
        """Check the mark of a clean stop. Under either name it says how the log ended; under CLEAN
        also that the log has not changed since."""
        name = CLEAN if self._report.clean else OPENING
        if name not in self._findings.sizes:
            return
        data = self._findings.read(name)
        self._mark = CleanMark.decode(data)
        if self._mark is None or self._mark.encode() != data:
            self._findings.damage(name, "the mark of a clean stop is bad")

    def _check_votes(self) -> None:
        report = self._report
        copies = {
            name: self._findings.read(name) for name in VOTE_COPIES if name in self._findings.sizes
        }
        report.record = newest_vote(copies.values())
        seen: dict[int, VoteRecord] = {}
        for name, data in copies.items():
            self._check_vote(name, data, seen)
        for name in VOTE_COPIES:
            if name not in copies:
                self._findings.leftover(name, "this copy of the vote record is missing")
        new = never_opened(self._findings.sizes, copies.get(VOTE_COPIES[0], b""))
        if report.record is None and not new and not report.clean:
            self._findings.damage(VOTE_COPIES[0], "no copy of the vote record can be read")

    def _check_vote(self, name: str, copy: bytes, others: dict[int, VoteRecord]) -> None:
        """Check one copy of the vote record. It holds the newest record and the one before, each on
        its own page, and both copies hold the same; ``others`` are the records seen so far, by
        number."""
        newest = self._report.record
        left, more = set(), False
        for place, record in zip(range(0, VOTE_BYTES, PAGE), decode_votes(copy), strict=True):
            page = copy[place : place + PAGE]
            if record is None or newest is None:
                # The first record of a log has no record before it.
                if any(page) or newest is None or newest.number > 1:
                    left.add("this copy of the vote record is bad")
            elif record.number != newest.number - (place != vote_place(newest.number)):
                left.add("this copy of the vote record is older than the other")
            else:
                more = more or encode_vote(record) != page
                if others.setdefault(record.number, record) != record:
                    left.add("this copy of the vote record is not what the other is")
        if len(copy) != VOTE_BYTES:
            left = {"this copy of the vote record is bad"}
        for what in sorted(left):
            self._findings.leftover(name, what)
        if more:
            self._findings.damage(name, "the vote record holds more than it should")

    def _check_checkpoint(self) -> None:
        if CHECKPOINT not in self._findings.sizes:
            return
        with self._findings.reading(CHECKPOINT) as file:
            checkpoint = Checkpoint.read(file)
            if checkpoint is None:
                self._findings.damage(CHECKPOINT, "the checkpoint is bad")
            elif checkpoint.position.index > self._report.last.index:
                index, last = checkpoint.position.index, self._report.last.index
                what = f"the checkpoint is of entry {index}, the log ends with {last}"
                self._findings.damage(CHECKPOINT, what)

    def _check_spare(self) -> None:
        if SPARE in self._findings.sizes:
            with self._findings.reading(SPARE) as file:
                if check_blank(file, 0, self._findings.progress):
                    self._findings.leftover(SPARE, "the spare segment is not zero")

    # -- segments ------------------------------------------------------------------------------

    def _check_leftover(self, number: int, header: SegmentHeader | None, what: str) -> None:
        """Report a segment that the vote record does not name. It is no part of the log, unless it
        holds entries and is not being cut off: then the newest vote record is lost."""
        name = segment_name(number)
        with self._findings.reading(name) as file:
            if what != UNFINISHED_CUT and is_written(file, header):
                self._findings.damage(name, OLD_RECORD)
                return
        self._findings.leftover(name, what)

    def _check_segments(self, numbers: list[int]) -> None:
        report, record = self._report, self._report.record
        headers = {number: self._read_header(number) for number in numbers}
        newest_named = record.segment if record is not None else 0
        cutting = record is not None and record.cutting > 0
        what = UNFINISHED_CUT if cutting else "a segment begun and not finished"
        known = record is not None and record.number > 0
        while numbers and numbers[-1] > newest_named and (known or headers[numbers[-1]] is None):
            number = numbers.pop()
            self._check_leftover(number, headers[number], what)
            self._begun = headers[number] if numbers and numbers[-1] == number - 1 else None
        for place, number in enumerate(numbers):
            following = headers[numbers[place + 1]] if place + 1 < len(numbers) else None
            newest = place + 1 == len(numbers)
            with self._findings.reading(segment_name(number)) as file:
                header = headers[number]
                if header is None:
                    self._check_headless(number, file, following)
                else:
                    self._check_segment(file, header, following, newest=newest)
            if self._end is None or self._end.number != number:
                # The segment could not be read to its end; the header of the next one says where
                # that was.
                last = following.before if following is not None else report.last
                self._end = _End(number, last, None)
        report.segments = len(numbers)
        newest_found = numbers[-1] if numbers else 0
        for number in range(newest_found + 1, newest_named + 1):
            self._findings.damage(segment_name(number), "the segment is missing")
        if self._mark is not None and self._mark.number != newest_found:
            what = f"it names segment {self._mark.number}, the newest is {newest_found}"
            self._findings.damage(CLEAN if report.clean else OPENING, what)
        for name in self._findings.sizes:
            number_of_index = _number_of_index(name)
            if number_of_index is not None and number_of_index not in numbers:
                self._findings.leftover(name, "an index file without its segment")

    def _cut_of(self, number: int) -> int:
        """The byte at which the segment was to be cut; 0 if no cut of it was begun."""
        record = self._report.record
        return record.cutting if record is not None and record.segment == number else 0

    def _read_header(self, number: int) -> SegmentHeader | None:
        header = None
        with self._findings.reading(segment_name(number)) as file:
            header = SegmentHeader.decode(file.read(0, PAGE))
        belongs = header is not None and header.belongs(number, self._report.record)
        return header if belongs else None

    def _check_segment(
        self,
        file: RealFile,
        header: SegmentHeader,
        following: SegmentHeader | None,
        *,
        newest: bool,
    ) -> None:
        report, name = self._report, segment_name(header.number)
        self._check_header(file, header)
        footer = read_footer(file, header.nonce)
        proof = self._proof(header.number, footer, following)
        if proof is None and newest and self._begun is not None:
            proof = proof_of_begun(Window(file, file.size()), header, self._begun)
        contents = check_blocks(
            file, header, proof, newest=newest, progress=self._findings.progress
        )
        self._findings.add(name, contents.damage, contents.torn)
        if footer is not None:
            self._check_footer(file, header, footer, contents)
        else:
            self._check_rest(file, header, proof, contents, newest=newest)
        report.entries += contents.entries
        report.last, report.next_offset = contents.last, contents.next_offset
        report.committed = max(report.committed, contents.committed)
        details = (contents.next_offset, contents.append_time, contents.end)
        self._end = _End(header.number, contents.last, None if contents.damage else details)

    def _proof(
        self, number: int, footer: Footer | None, following: SegmentHeader | None
    ) -> Proof | None:
        """The proof of the segment's end: its footer, the header of the next segment, the mark of a
        clean stop, or a cut in the vote record."""
        if footer is not None:
            return Proof(footer.end, footer.last)
        if following is not None:
            return Proof(following.previous_end, following.before)
        if self._mark is not None and self._mark.number == number:
            return Proof(self._mark.end, self._mark.last)
        record, cut = self._report.record, self._cut_of(number)
        return Proof(cut, record.before) if record is not None and cut else None

    def _check_header(self, file: RealFile, header: SegmentHeader) -> None:
        report, name = self._report, segment_name(header.number)
        if file.read(0, PAGE) != header.encode():
            self._findings.add(name, [_page("the header page holds more than it should")], [])
        storage = self._storage if self._storage is not None else header.log.storage
        if header.log != LogId(report.incarnation, storage):
            what = "the segment belongs to another log or another node's disk"
            self._findings.add(name, [_page(what)], [])
        before = self._end
        if before is None:
            report.before, report.first_offset = header.before, header.base_offset
            first = report.record.first if report.record is not None else Index(0)
            if 0 < first <= header.before.index:
                missing = segment_name(header.number - 1)
                self._findings.damage(missing, "the segment is missing", first, header.before.index)
            return
        for number in range(before.number + 1, header.number):
            what = "the segment is missing"
            self._findings.damage(
                segment_name(number), what, before.last.index + 1, header.before.index
            )
        details = (header.base_offset, header.append_time, header.previous_end)
        if header.number == before.number + 1 and (
            header.before != before.last or before.details not in (None, details)
        ):
            what = "the segment does not follow the one before"
            first, last = Index(before.last.index + 1), header.before.index
            self._findings.add(name, [Fault(0, PAGE, first, last, what)], [])

    def _check_headless(self, number: int, file: RealFile, following: SegmentHeader | None) -> None:
        """Check a segment whose header is bad: only frames that continue the segment before it
        count as its entries."""
        report, name = self._report, segment_name(number)
        if self._end is not None:
            before = self._end.last
        else:
            # Of the last trimmed entry only the index is known.
            first = report.record.first if report.record is not None else Index(1)
            before = report.before = Position(Index(first - 1), Term(0), 0)
        data = Window(file, self._cut_of(number) or file.size())
        found = scan(data, None, before, self._proof(number, None, following))
        lost = [fault for fault in found.damage if fault.last >= fault.first]
        self._findings.add(name, [_page("the segment's header is bad"), *lost], [])
        report.entries += len(found.rows.starts) - sum(
            fault.last - fault.first + 1 for fault in lost
        )
        report.last = found.last
        self._end = _End(number, found.last, None)
        self._findings.progress(file.size())

    # -- how a segment ends --------------------------------------------------------------------

    def _check_footer(
        self, file: RealFile, header: SegmentHeader, footer: Footer, contents: Contents
    ) -> None:
        report, name = self._report, segment_name(header.number)
        report.sealed += 1
        # Only committed entries are sealed.
        report.committed = max(report.committed, footer.last.index)
        same = (footer.next_offset, footer.append_time) == (
            contents.next_offset,
            contents.append_time,
        )
        page = file.read(footer.end, PAGE)
        if page != footer.encode(header.number, header.nonce):
            what = "the footer page holds more than it should"
            self._findings.add(name, [_page(what, footer.end)], [])
        # The newest block may have been truncated; its write number was used all the same.
        elif not contents.damage and not (same and contents.write_number <= footer.write_number):
            self._findings.add(name, [_page("the footer contradicts the blocks", footer.end)], [])
        self._findings.progress(2 * PAGE)
        self._check_index(file, header, footer, contents)

    def _check_index(
        self, file: RealFile, header: SegmentHeader, footer: Footer, contents: Contents
    ) -> None:
        name = index_name(header.number)
        if name not in self._findings.sizes:
            self._findings.warn(name, "the index file is missing")
            return
        segment = Segment(header, file, contents.rows)
        segment.last, segment.next_offset = footer.last, footer.next_offset
        data = self._findings.read(name)
        if contents.damage:
            right = decode_index(data, segment) is not None
        else:
            right = data == encode_index(segment)
        if not right:
            self._findings.damage(name, "the index file is not what the segment's frames make it")

    def _check_rest(
        self,
        file: RealFile,
        header: SegmentHeader,
        proof: Proof | None,
        contents: Contents,
        *,
        newest: bool,
    ) -> None:
        """Check the bytes after the blocks of a segment that is not sealed: allocated room, all
        zeros."""
        name, clean = segment_name(header.number), self._report.clean
        cut = self._cut_of(header.number)
        if cut and not clean:
            # The cut is complete if the disk had no room to give the file its old length again.
            if self._findings.sizes[name] != cut:
                self._findings.leftover(name, UNFINISHED_CUT)
            return
        end = proof.end if proof is not None else contents.end
        faults = []
        if proof is not None:
            faults = check_blank(file, end, self._findings.progress)
        footer = Fault(end, end + PAGE, Index(1), Index(0), "the footer is bad")
        shortened = not newest and file.size() == end + PAGE < header.capacity
        begun = shortened or bool(
            faults and faults[0].start == end and faults[-1].stop <= end + PAGE
        )
        if not newest and index_name(header.number) in self._findings.sizes:
            # The index file is made only when the footer is durable, so there was a footer.
            self._findings.add(name, [footer], [])
        elif begun and not newest and not clean:
            what = "a seal was begun and not finished"
            self._findings.add(name, [], [footer._replace(what=what)])
        else:
            self._findings.add(name, faults, [])
            self._check_size(name, header, end, newest=newest)

    def _check_size(self, name: str, header: SegmentHeader, end: int, *, newest: bool) -> None:
        size, unknown = self._findings.sizes[name], newest and self._report.record is None
        # A cut segment keeps the length of the cut if the disk had no room to allocate the rest
        # again.
        expected = self._cut_of(header.number) or header.capacity
        if size == expected or (pages(size) == end and (unknown or not newest)):
            return
        what = f"the file is {size} bytes long and was made with {header.capacity}"
        if unknown and size < header.capacity:
            self._findings.leftover(name, what)
        else:
            self._findings.damage(name, what)


def _page(what: str, start: int = 0) -> Fault:
    """A fault of one page that holds no entry."""
    return Fault(start, start + PAGE, Index(1), Index(0), what)
