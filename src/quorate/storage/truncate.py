"""Shortening a log: at its end, where a leader has other entries, and at its front.

A running log overwrites dropped entries with zeros, and an open truncates the file. A power cut may
leave a part of either, and a page of zeros in the middle of a log looks like damage. So the vote
record names the place of the cut first. Until a record says that the cut is done, every open cuts
there again, and the bytes behind the cut do not count.

A cut may fall into the middle of a page with durable frames, and a disk may tear all of that page.
The record proves which entry stood before the cut, so such a loss is noticed (docs/adr/0010).

A running log keeps the disk space of dropped entries: it accepted new entries on the strength of
that space, and another file could take it if it were given back even for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Corrupt, Damaged, check
from quorate.storage.damage import UNREADABLE_ADVICE
from quorate.storage.disk_errors import NO_SPACE
from quorate.storage.layout import PAGE, SPARE, index_name, pages, segment_name
from quorate.storage.spare import erase
from quorate.storage.vote import plan_record
from quorate.types import ORIGIN, Index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment
    from quorate.storage.spare import SpareSegment
    from quorate.types import Position

    Plan = Iterator[str]

__all__ = ["end_cut", "shorten", "trim", "truncate"]


def truncate(log: SegmentLog, first: Index, spare: SpareSegment) -> Plan:
    """Drop entry ``first`` and all after it: later segments whole, then the end of its own segment.

    The zeros and the dropped files are durable before a new block is written in their place. The
    cut ends with the next block (:func:`end_cut`).
    """
    kept = max(n for n, segment in enumerate(log.segments) if segment.first <= first)
    target = log.segments[kept]
    check(target.footer is None, "a sealed segment is never truncated")
    rows, before = target.rows, _end_before(target, first)
    check(first <= rows.last, "only what is there is truncated")
    # The byte right behind the last frame that stays.
    position = rows.frame(before.index)[1] if before.index >= rows.first else PAGE
    yield from plan_record(
        log, segment=target.number, nonce=target.header.nonce, cutting=position, before=before
    )
    yield from _drop_segments(log, kept + 1, spare)
    target.next_offset = rows.offsets[first - rows.first]
    rows.cut(first)
    target.without_body -= {index for index in tuple(target.without_body) if index >= first}
    log.forget_damage(first)
    target.last = before
    target.append_time = rows.times[-1] if rows.times else target.header.append_time
    if target.capacity == target.header.capacity:
        yield from _erase(target, position)
    else:
        yield from shorten(target, position)


def _end_before(segment: Segment, first: Index) -> Position:
    """The position of the entry before ``first``. Raises Damaged if it cannot be read: that stops
    this log alone, because no step of the cut has been written yet."""
    try:
        return segment.position(Index(first - 1))
    except Corrupt as error:
        raise Damaged(f"{error}; {UNREADABLE_ADVICE}") from error
    except OSError as error:
        place = f"entry {first - 1} of {segment_name(segment.number)}"
        raise Damaged(f"{place} cannot be read: {error}; {UNREADABLE_ADVICE}") from error


def _drop_segments(log: SegmentLog, kept: int, spare: SpareSegment) -> Plan:
    """Drop all segments but the first ``kept``. Their order does not matter: while the record names
    the cut, no open reads the segments behind it.

    A dropped segment with more room than the spare segment becomes the spare segment.
    """
    vfs = log.vfs
    if len(log.segments) == kept:
        return
    while len(log.segments) > kept:
        dropped = log.segments.pop()
        name = segment_name(dropped.number)
        if dropped.capacity == dropped.header.capacity > spare.bytes:
            yield from _erase(dropped, 0)
            vfs.rename(name, SPARE)
            yield f"rename {name} to spare"
            spare.bytes = dropped.capacity
        else:
            vfs.unlink(name)
            yield f"unlink {name}"
        dropped.file.close()
    vfs.sync_directory()
    yield f"sync directory up to {segment_name(log.segments[-1].number)}"


def _erase(segment: Segment, position: int) -> Plan:
    """Overwrite the segment from ``position`` on with zeros, durably before the room is used."""
    yield from erase(segment.file, segment_name(segment.number), position, segment.end)
    segment.end = pages(position)


def shorten(segment: Segment, size: int) -> Plan:
    """Truncate the file at ``size`` and allocate the rest again, durably before it is used.

    An open cuts this way, because it does not know how far old bytes reach behind the cut.
    """
    file, name = segment.file, segment_name(segment.number)
    segment.end = pages(size)
    file.truncate(size)
    yield f"truncate {name} at {size}"
    try:
        file.allocate(segment.header.capacity)
        segment.capacity = segment.header.capacity
        yield f"allocate {name}"
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        segment.capacity = segment.end  # the segment takes no more blocks
        file.truncate(size)  # a part of the room may have been allocated
        yield f"truncate {name} at {size} again"
    file.sync()
    yield f"sync {name}"


def end_cut(log: SegmentLog) -> Plan:
    """Record that the cut is done, once the newest segment has its full length again: from then on
    the bytes behind the cut count.

    A running log calls this when a block behind the cut is durable. The blocks that proved the last
    entries before the cut may be gone, and until that block is durable only the record proves them.

    If the room could not be allocated again the record goes on naming the cut: the segment takes no
    more blocks, and the roll to the next segment ends the cut.
    """
    newest = log.segments[-1] if log.segments else None
    full = newest is None or newest.capacity == newest.header.capacity
    if log.record.cutting and full:
        yield from plan_record(log, cutting=0, before=ORIGIN)


def trim(log: SegmentLog, first: Index) -> Plan:
    """Drop the sealed segments that hold only entries below ``first``, from the front."""
    vfs = log.vfs
    dropped = 0
    for segment in log.segments[:-1]:
        if segment.footer is None or segment.last.index >= first:
            break
        dropped += 1
    if not dropped:
        return
    yield from plan_record(log, first=log.segments[dropped].first)
    names = vfs.names()
    for segment in log.segments[:dropped]:
        log.segments.pop(0)
        segment.file.close()
        for name in (index_name(segment.number), segment_name(segment.number)):
            if name in names:
                vfs.unlink(name)
                yield f"unlink {name}"
        vfs.sync_directory()
        yield f"sync directory without {segment_name(segment.number)}"
