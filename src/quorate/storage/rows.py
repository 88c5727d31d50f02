"""The rows of a segment: the place of each entry in the file."""

from __future__ import annotations

from array import array
from operator import eq
from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES, parse_header
from quorate.types import Index

if TYPE_CHECKING:
    from quorate.entry import Header
    from quorate.storage.buffered import Readable

__all__ = ["Rows", "last_header"]


class Rows:
    """The place, base offset, append time and chain of each entry of a segment: 36 bytes an
    entry."""

    __slots__ = ("__weakref__", "chains", "ends", "first", "offsets", "starts", "times")

    def __init__(self, first: Index) -> None:
        # The index of the first row.
        self.first = first
        # First byte of the frame, and the byte after its last; start = end for a lost entry.
        self.starts = array("Q")
        self.ends = array("Q")
        # Base offset and append time. Invariant: neither ever falls from row to row.
        self.offsets = array("Q")
        self.times = array("Q")
        # Chain of the entry, the checksum of it and all before it; 0 for a lost entry.
        self.chains = array("I")

    def add(self, start: int, end: int, offset: int, time: int, chain: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.offsets.append(offset)
        self.times.append(time)
        self.chains.append(chain)

    def cut(self, index: Index) -> None:
        """Forget ``index`` and all after it."""
        kept = max(0, index - self.first)
        for column in self._columns:
            del column[kept:]

    def cut_out(self, index: Index) -> Rows:
        """The rows of ``index`` and all after it, as they are here."""
        behind, kept = Rows(index), max(0, index - self.first)
        for column, source in zip(behind._columns, self._columns, strict=True):
            column.extend(source[kept:])
        return behind

    def extend(self, behind: Rows) -> None:
        """Add the rows of ``behind``, which follow the last one."""
        for column, source in zip(self._columns, behind._columns, strict=True):
            column.extend(source)

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self.starts, self.ends, self.offsets, self.times, self.chains

    @property
    def last(self) -> Index:
        """The index of the last row; ``first - 1`` if there is none."""
        return Index(self.first + len(self.starts) - 1)

    def frame(self, index: Index) -> tuple[int, int]:
        """Start and end of the frame of ``index``, which must be here."""
        row = index - self.first
        return self.starts[row], self.ends[row]

    def chain(self, index: Index) -> int:
        """The chain of ``index``, which must be here."""
        return self.chains[index - self.first]

    @property
    def holes(self) -> set[Index]:
        """The entries that are lost."""
        lost = map(eq, self.starts, self.ends)
        return {Index(self.first + row) for row, gone in enumerate(lost) if gone}


def last_header(data: Readable, rows: Rows) -> Header | None:
    """The header of the last of ``rows``; None if there is none, or if that entry is lost."""
    if not rows.starts:
        return None
    start = rows.starts[-1]
    return parse_header(data[start : min(rows.ends[-1], start + HEADER_BYTES)])
