"""The second look at what a disk did not give back: it may have been a passing error.

A thread for reads takes it, never the loop and never the writer: a disk may take seconds to refuse
a page. Until then no turn and no reader tries the same entry again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Corrupt
from quorate.storage.damage import DiskFinding
from quorate.storage.disk_errors import TOO_MANY_FILES
from quorate.types import Index

if TYPE_CHECKING:
    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment

__all__ = ["REFUSALS_MAX", "look_again"]

# Reads that the disk may refuse in one look.
REFUSALS_MAX = 2


def look_again(log: SegmentLog) -> None:
    """Read again what the disk did not give back, up to so many refusals; the next look goes on
    from there. If no file can be opened now, the look ends."""
    refusals, later = 0, log.looked_at
    for segment in log.refusing:
        try:
            if segment.unreadable or segment.guessed:
                segment.forget_walk()
                segment.rows  # noqa: B018  # the walk finds out whether they can be read
            for index in sorted(segment.unread, key=lambda index: (index <= later, index)):
                if refusals >= REFUSALS_MAX:
                    return
                log.looked_at = index
                refusals += not _is_readable(log, segment, index)
        except OSError as error:
            if error.errno in TOO_MANY_FILES:
                return
            log.give_up(segment, error)
            refusals += 1


def _is_readable(log: SegmentLog, segment: Segment, index: Index) -> bool:
    """Whether the disk gives back entry ``index`` now. Then it is read as any other from now on, or
    its bytes are proved to be bad."""
    if index in segment.holes:
        if not segment.guessed:
            segment.unread.discard(index)
        return not segment.guessed
    try:
        segment.frames(index, Index(index + 1))
    except Corrupt as bad:
        segment.unread.discard(index)
        log.suspect(index, bad)
    except OSError as error:
        if error.errno in TOO_MANY_FILES:
            raise
        return False
    else:
        segment.unread.discard(index)
        log.findings.append(DiskFinding(readable=(index,)))
    return True
