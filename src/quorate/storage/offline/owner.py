"""The id of a log whose files are read without its node.

The identity of the data directory names the disk. If it is missing or bad, the segments still do:
the header of each names its log, and its CRC needs no more than that.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from quorate.storage.directory import STORAGE_BYTES
from quorate.storage.layout import PAGE, LogId, SegmentHeader, segment_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.storage.vfs import Vfs

__all__ = ["find_log_id"]


def find_log_id(vfs: Vfs, names: Iterable[str], incarnation: int, storage: bytes | None) -> LogId:
    """The id of the log whose files ``names`` are. ``storage`` is the storage id of the identity;
    without it, that of the first segment with a whole header counts. Without any, the id is that of
    no log: nothing but a segment can be read with it."""
    for name in () if storage is not None else sorted(names):
        if segment_number(name) is None:
            continue
        # While a node runs, the file may go; and the disk may not give it back.
        with suppress(OSError), closing(vfs.open(name)) as file:
            header = SegmentHeader.decode(file.read(0, PAGE))
            if header is not None:
                return LogId(incarnation, header.log.storage)
    return LogId(incarnation, storage if storage is not None else bytes(STORAGE_BYTES))
