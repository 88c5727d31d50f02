"""The audit of one log, offline: it checks every byte of every file in the log's directory.

In a log that was closed in order no fault can be explained by a crash: every byte that is not as it
was written is damage. Without the mark of a clean stop, a fault in bytes that no proof shows to
have been durable is a warning: the next open cuts them off, or makes them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.blocks import read_footer
from quorate.storage.buffered import BufferedFile
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.layout import (
    BOOT_SHIFT,
    CLEAN,
    OPENING,
    PAGE,
    SPARE,
    UNFINISHED,
    VOTE_COPIES,
    CleanMark,
    Footer,
    SegmentHeader,
    segment_name,
    segment_number,
)
from quorate.storage.offline.report import Findings, LogReport
from quorate.storage.offline.verify_end import UNFINISHED_CUT, check_open_end, check_sealed_end
from quorate.storage.offline.verify_segment import check_blank, check_blocks
from quorate.storage.offline.verify_votes import check_votes, read_votes
from quorate.storage.recovery.headers import is_written, proof_of_begun
from quorate.storage.recovery.inventory import LATER_BLOCK, OLD_RECORD, OLD_VOTES, OTHER_END
from quorate.storage.segment_scan import Fault, Proof, scan
from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.offline.verify_segment import Progress
    from quorate.storage.vfs import RealFile

__all__ = ["audit_log"]


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
    findings = Findings(path, incarnation, storage, progress)
    try:
        # A directory without files was made and never opened.
        if findings.sizes:
            _Audit(findings).run()
            findings.progress(findings.report.bytes)
    finally:
        findings.vfs.close()
    return findings.report


def _number_of_index(name: str) -> int | None:
    stem, _, kind = name.partition(".")
    return segment_number(f"{stem}.segment") if kind == "index" else None


class _Audit:
    """The checks of one log, in their order: each uses the results of those before it."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._report = findings.report
        self._mark: CleanMark | None = None
        # The end of the segment before the one that is being checked.
        self._end: _End | None = None
        # Header of the segment after the newest one, if the vote record does not name it yet.
        self._begun: SegmentHeader | None = None

    def run(self) -> None:
        votes = read_votes(self._findings)
        # First of all: in a log that was closed in order, a leftover of a crash is damage.
        self._check_mark()
        self._check_names()
        check_votes(self._findings, votes)
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
        also that the log has not changed since. It proves nothing if it is not of the boot of the
        vote record."""
        report, identity = self._report, self._findings.identity
        name = CLEAN if report.clean else OPENING
        if name not in self._findings.sizes:
            return
        data = self._findings.read(name)
        mark = CleanMark.decode(data, identity)
        if mark is None or mark.encode(identity) != data:
            self._findings.damage(name, "the mark of a clean stop is bad")
        if mark is None:
            return
        # Without a vote record nothing contradicts the mark.
        boot = report.record.boot if report.record is not None else mark.boot
        if mark.boot == boot:
            self._mark = mark
        elif mark.boot > boot:
            self._findings.damage(name, OLD_VOTES)
        elif name == CLEAN:
            what = f"it is of a stop in boot {mark.boot}, and the log was opened with boot {boot}"
            self._findings.damage(name, what)
            report.clean = False

    def _check_checkpoint(self) -> None:
        if CHECKPOINT not in self._findings.sizes:
            return
        with self._findings.reading(CHECKPOINT) as file:
            checkpoint = Checkpoint.read(file, self._findings.identity)
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
            data = BufferedFile(file, file.size())
            proof, doubt = proof_of_begun(data, header, self._begun)
            if doubt:
                begun = segment_name(self._begun.number)
                self._findings.add(begun, [], [Fault.of_bytes(0, PAGE, OTHER_END)])
        contents = check_blocks(
            file, header, proof, newest=newest, progress=self._findings.progress
        )
        if report.record is not None and contents.write_number >> BOOT_SHIFT > report.record.boot:
            self._findings.damage(name, LATER_BLOCK)
        self._findings.add(name, contents.damage, contents.torn)
        if footer is not None:
            check_sealed_end(self._findings, file, header, footer, contents)
        else:
            end = proof.end if proof is not None else None
            check_open_end(self._findings, file, header, contents, end, newest=newest)
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
        record, cut = self._report.record, self._report.cut_of(number)
        return Proof(cut, record.before) if record is not None and cut else None

    def _check_header(self, file: RealFile, header: SegmentHeader) -> None:
        report, name = self._report, segment_name(header.number)
        if file.read(0, PAGE) != header.encode():
            what = "the header page holds more than it should"
            self._findings.add(name, [Fault.of_bytes(0, PAGE, what)], [])
        if header.log != self._findings.identity:
            what = "the segment belongs to another log or another node's disk"
            self._findings.add(name, [Fault.of_bytes(0, PAGE, what)], [])
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
        data = BufferedFile(file, report.cut_of(number) or file.size())
        found = scan(data, None, before, self._proof(number, None, following))
        bad = Fault.of_bytes(0, PAGE, "the segment's header is bad")
        lost = [fault for fault in found.damage if fault.last >= fault.first]
        self._findings.add(name, [bad, *lost], [])
        report.entries += len(found.rows.starts) - sum(
            fault.last - fault.first + 1 for fault in lost
        )
        report.last = found.last
        self._end = _End(number, found.last, None)
        self._findings.progress(file.size())
