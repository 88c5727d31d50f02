"""The chunks of a publish, found by offset: a publish may have thousands, and a fetch wants a few.

A reader asks for the same publish again and again. So the first offset of each chunk is computed
once and kept for a while.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import accumulate, chain
from threading import Lock
from typing import TYPE_CHECKING

from quorate.entry_body import chunk_at, chunk_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Entry
    from quorate.entry_body import Chunk

__all__ = ["PublishIndex", "RecentPublishes"]

_RECORDS = struct.Struct("<8xI4x")
# Number of publishes that are kept: several readers may be in different ones.
KEPT = 4


class PublishIndex:
    """One publish entry, with the offset of each of its chunks."""

    __slots__ = ("_rows", "_starts", "append_time")

    def __init__(self, entry: Entry) -> None:
        # The append time of all its records.
        self.append_time = entry.append_time
        self._rows = chunk_rows(entry)
        records = chain.from_iterable(_RECORDS.iter_unpack(self._rows))
        # The offset of each chunk's first record; then the offset behind the last record.
        self._starts = array("Q", accumulate(records, initial=entry.base_offset))

    def from_offset(self, offset: int) -> Iterator[tuple[int, Chunk]]:
        """The chunks from the one that holds ``offset`` on, each with its first offset."""
        starts = self._starts
        for place in range(max(0, bisect_right(starts, offset) - 1), len(starts) - 1):
            yield starts[place], chunk_at(self._rows, place)


class RecentPublishes:
    """The publishes that were read last. The loop and threads may use it at the same time."""

    __slots__ = ("_found", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        # By index: entries that are read are committed, so no index ever gets another entry.
        self._found: dict[int, PublishIndex] = {}

    def of(self, entry: Entry) -> PublishIndex:
        with self._lock:
            known = self._found.pop(entry.index, None)
            if known is None:
                known = PublishIndex(entry)
                if len(self._found) >= KEPT:
                    del self._found[next(iter(self._found))]
            self._found[entry.index] = known
            return known
