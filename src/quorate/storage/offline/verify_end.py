"""The check of a segment's end: a footer and an index file if it is sealed, else unused room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.index import decode_index, encode_index
from quorate.storage.layout import PAGE, index_name, pages, segment_name
from quorate.storage.offline.verify_segment import check_blank
from quorate.storage.scan_result import Fault
from quorate.storage.segment import Segment

if TYPE_CHECKING:
    from quorate.storage.layout import Footer, SegmentHeader
    from quorate.storage.offline.report import Findings
    from quorate.storage.offline.verify_segment import Contents
    from quorate.storage.vfs import RealFile

__all__ = ["UNFINISHED_CUT", "check_open_end", "check_sealed_end"]

UNFINISHED_CUT = "a cut was begun and not finished"


def check_sealed_end(
    findings: Findings, file: RealFile, header: SegmentHeader, footer: Footer, contents: Contents
) -> None:
    """Check the footer of a sealed segment, and its index file."""
    report, name = findings.report, segment_name(header.number)
    report.sealed += 1
    # Only committed entries are sealed.
    report.committed = max(report.committed, footer.last.index)
    same = (footer.next_offset, footer.append_time) == (contents.next_offset, contents.append_time)
    page = file.read(footer.end, PAGE)
    problem = None
    if page != footer.encode(header.number, header.nonce):
        problem = "the footer page holds more than it should"
    # The newest block may have been truncated; its write number was used all the same.
    elif not contents.damage and not (same and contents.write_number <= footer.write_number):
        problem = "the footer contradicts the blocks"
    if problem is not None:
        findings.add(name, [Fault.of_bytes(footer.end, footer.end + PAGE, problem)], [])
    findings.progress(2 * PAGE)
    _check_index(findings, file, header, footer, contents)


def _check_index(
    findings: Findings, file: RealFile, header: SegmentHeader, footer: Footer, contents: Contents
) -> None:
    name = index_name(header.number)
    if name not in findings.sizes:
        findings.warn(name, "the index file is missing")
        return
    segment = Segment(header, file, contents.rows)
    segment.last, segment.next_offset = footer.last, footer.next_offset
    data = findings.read(name)
    if contents.damage:
        right = decode_index(data, segment) is not None
    else:
        right = data == encode_index(segment)
    if not right:
        findings.damage(name, "the index file is not what the segment's frames make it")


def check_open_end(
    findings: Findings,
    file: RealFile,
    header: SegmentHeader,
    contents: Contents,
    proved: int | None,
    *,
    newest: bool,
) -> None:
    """Check the bytes after the blocks of a segment that is not sealed: allocated room, all zeros.

    ``proved`` is the end of the blocks by a proof; None if there is no proof.
    """
    name, clean = segment_name(header.number), findings.report.clean
    cut = findings.report.cut_of(header.number)
    if cut and not clean:
        # The cut is complete if the disk had no room to give the file its old length again.
        if findings.sizes[name] != cut:
            findings.leftover(name, UNFINISHED_CUT)
        return
    end = proved if proved is not None else contents.end
    faults = check_blank(file, end, findings.progress) if proved is not None else []
    footer = Fault.of_bytes(end, end + PAGE, "the footer is bad")
    shortened = not newest and file.size() == end + PAGE < header.capacity
    begun = shortened or bool(faults and faults[0].start == end and faults[-1].stop <= end + PAGE)
    if not newest and index_name(header.number) in findings.sizes:
        # The index file is made only when the footer is durable, so there was a footer.
        findings.add(name, [footer], [])
    elif begun and not newest and not clean:
        findings.add(name, [], [footer._replace(what="a seal was begun and not finished")])
    else:
        findings.add(name, faults, [])
        _check_size(findings, header, end, newest=newest)


def _check_size(findings: Findings, header: SegmentHeader, end: int, *, newest: bool) -> None:
    report, name = findings.report, segment_name(header.number)
    size, unknown = findings.sizes[name], newest and report.record is None
    # A cut segment keeps the length of the cut if the disk had no room to allocate the rest again.
    expected = report.cut_of(header.number) or header.capacity
    if size == expected or (pages(size) == end and (unknown or not newest)):
        return
    what = f"the file is {size} bytes long and was made with {header.capacity}"
    if unknown and size < header.capacity:
        findings.leftover(name, what)
    else:
        findings.damage(name, what)
