"""The seal of a segment: the footer on its last page, written once all entries are committed.

A sealed segment is never truncated, so its file keeps no room for more blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.disk_errors import NO_SPACE
from quorate.storage.layout import PAGE, Footer, segment_name
from quorate.storage.vfs import ReopenedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.storage.log import SegmentLog
    from quorate.types import Index

__all__ = ["plan_seal"]


def plan_seal(log: SegmentLog, settled: Index) -> Iterator[str]:
    """Seal the oldest unsealed segment if no entry of it is above ``settled``. The newest segment
    is never sealed."""
    segment = next(iter(log.unsealed), None)
    if segment is None or segment.last.index > settled:
        return
    footer = Footer(
        segment.end, segment.last, segment.write_number, segment.next_offset, segment.append_time
    )
    name = segment_name(segment.number)
    try:
        segment.file.write(segment.end, [footer.encode(segment.number, segment.header.nonce)])
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return  # it was cut, and not allocated again: the footer waits for space
    yield f"write footer of {name}"
    segment.file.truncate(segment.end + PAGE)
    yield f"shorten {name}"
    segment.file.sync()
    yield f"sync {name}"
    segment.footer = footer
    segment.synced = True
    # From now on the file is open only during a read: a log may have more sealed segments than a
    # process may have open files.
    segment.file = ReopenedFile(log.vfs, name)
