"""The newest batches of one producer, packed: 40 bytes each, and no object for each.

A log may remember ten million of them. As tuples they would take gigabytes, stop the process while
the garbage collector looks at them, and cost a walk whenever the state is copied or encoded.
Packed, a copy is a reference and the encoding is a slice.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import accumulate, starmap
from operator import add, le
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.types import Index, Term

__all__ = ["ROW_BYTES", "Run", "Runs", "pack_run"]

_ROW = struct.Struct("<QQQQQ")
ROW_BYTES = _ROW.size
# Bytes of forgotten runs that a buffer holds before it is replaced, however few it keeps.
FORGOTTEN_BYTES_MIN = 16 * ROW_BYTES


class Run(NamedTuple):
    """One batch of a producer, and where it is in the log."""

    # Of its first record.
    sequence: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    # Of its first record.
    offset: int
    # Of the entry that holds it.
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    term: Term


# The fields of a run, in their order, as a row.
pack_run = _ROW.pack


class Runs:
    """Some runs in rising order of sequence. Never changed: extended into another one.

    What is extended shares its buffer with what it was before. The buffer only grows at its end,
    behind everything that an earlier version can see, so a version may be read in another thread
    while a later one is made.
    """

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, buffer: bytearray, start: int, stop: int) -> None:
        # The rows of this version are the bytes from start to stop.
        self._buffer = buffer
        self._start = start
        self._stop = stop

    @staticmethod
    def of(runs: Iterable[Run] = ()) -> Runs:
        return Runs.of_rows(b"".join(starmap(pack_run, runs)))

    @staticmethod
    def of_rows(rows: bytes) -> Runs:
        """The runs that stand packed in ``rows``."""
        return Runs(bytearray(rows), 0, len(rows))

    def __len__(self) -> int:
        return (self._stop - self._start) // ROW_BYTES

    def __iter__(self) -> Iterator[Run]:
        return map(Run._make, _ROW.iter_unpack(self.rows))

    def __getitem__(self, place: int) -> Run:
        """A negative place counts from the end."""
        at = (self._start if place >= 0 else self._stop) + place * ROW_BYTES
        if not self._start <= at < self._stop:
            raise IndexError(f"run {place} of {len(self)}")
        return Run._make(_ROW.unpack_from(self._buffer, at))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]  # as of any container that is compared by contents

    def __repr__(self) -> str:
        return f"Runs.of({[*self]})"

    @property
    def version(self) -> tuple[bytearray, int, int]:
        """What makes the same runs again."""
        return self._buffer, self._start, self._stop

    @property
    def rows(self) -> bytearray:
        """All of them, packed, in bytes of their own. No view: a buffer that somebody looks at
        through one cannot grow."""
        return self._buffer[self._start : self._stop]

    def find(self, sequence: int) -> Run | None:
        """The run that begins with ``sequence``."""
        place = bisect_left(range(len(self)), sequence, key=lambda place: self[place].sequence)
        found = self[place] if place < len(self) else None
        return found if found is not None and found.sequence == sequence else None

    def extended(self, added: bytes | bytearray, window: int) -> Runs:
        """With the packed runs ``added``, and of all of them the newest ``window``.

        Costs what is added, and now and then a copy of what is kept.
        """
        buffer, start, stop = self._buffer, self._start, self._stop
        # What is forgotten takes more than what is kept, or another version went on from here.
        if (start > FORGOTTEN_BYTES_MIN and start > stop - start) or len(buffer) != stop:
            buffer = buffer[start:stop]
            start, stop = 0, stop - start
        buffer += added
        stop += len(added)
        least = stop - window * ROW_BYTES
        return Runs(buffer, least if start < least else start, stop)

    @property
    def checksum(self) -> int:
        """Of all of them: what a digest knows of them. In one call, ten microseconds at most."""
        return crc32c(self.rows)

    def newest(self, window: int) -> Runs:
        """The newest ``window`` of them."""
        return self.extended(b"", window)

    def follow(self) -> bool:
        """Whether each run follows the one before it, as in a log. Column by column: no object is
        made for each run."""
        if not len(self):
            return True
        columns = struct.unpack(f"<{5 * len(self)}Q", self.rows)
        sequences, counts, offsets, indexes, terms = (columns[place::5] for place in range(5))
        return (
            min(sequences[0], indexes[0], terms[0], *counts) >= 1
            and [*accumulate(counts[:-1], initial=sequences[0])] == [*sequences]
            and all(map(le, map(add, offsets, counts), offsets[1:]))
            and [*indexes] == sorted(indexes)
            and [*terms] == sorted(terms)
        )
