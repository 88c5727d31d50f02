"""The runs of one producer: its newest batches, packed into 40 bytes each, without an object each.

A log may remember ten million runs. As tuples they would take gigabytes, stop the process while the
garbage collector examines them, and need a loop over all of them to copy or encode the state.
A copy of packed runs is a reference, and their encoding is a slice.
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
# Bytes of forgotten runs that a buffer may hold before it is replaced, even if it keeps fewer.
FORGOTTEN_BYTES_MIN = 16 * ROW_BYTES


class Run(NamedTuple):
    """One batch of a producer, and its place in the log."""

    # The sequence of its first record.
    sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    # The offset of its first record.
    offset: int
    # The index of the entry that holds it.
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: Term


# Packs the fields of a run, in their order, into a row.
pack_run = _ROW.pack


class Runs:
    """Runs in rising order of sequence. Immutable: an extension makes a new version.

    A version shares its buffer with the version that it extends. The buffer only grows at its end,
    after all rows that an earlier version can see, so another thread may read a version while a
    later one is made.
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
        """The runs that ``rows`` holds, packed."""
        return Runs(bytearray(rows), 0, len(rows))

    def __len__(self) -> int:
        return (self._stop - self._start) // ROW_BYTES

    def __iter__(self) -> Iterator[Run]:
        return map(Run._make, _ROW.iter_unpack(self.rows))

    def __getitem__(self, place: int) -> Run:
        """The run at ``place``; a negative place counts from the end."""
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
        """The arguments that construct the same runs."""
        return self._buffer, self._start, self._stop

    @property
    def rows(self) -> bytearray:
        """A copy of all runs, packed. It is no view, because a buffer with a view cannot grow."""
        return self._buffer[self._start : self._stop]

    def find(self, sequence: int) -> Run | None:
        """The run that begins with ``sequence``; None if there is none."""
        place = bisect_left(range(len(self)), sequence, key=lambda place: self[place].sequence)
        found = self[place] if place < len(self) else None
        return found if found is not None and found.sequence == sequence else None

    def extended(self, added: bytes | bytearray, window: int) -> Runs:
        """The newest ``window`` of these runs and the packed runs ``added``.

        The cost is a copy of the added rows, and now and then a copy of the kept rows.
        """
        buffer, start, stop = self._buffer, self._start, self._stop
        # Copy the kept rows if the forgotten ones take more bytes, or if another version has
        # extended the buffer already.
        if (start > FORGOTTEN_BYTES_MIN and start > stop - start) or len(buffer) != stop:
            buffer = buffer[start:stop]
            start, stop = 0, stop - start
        buffer += added
        stop += len(added)
        least = stop - window * ROW_BYTES
        return Runs(buffer, least if start < least else start, stop)

    @property
    def checksum(self) -> int:
        """The checksum of all runs, by which a digest covers them. It is one call, which takes ten
        microseconds at most."""
        return crc32c(self.rows)

    def newest(self, window: int) -> Runs:
        """The newest ``window`` of these runs."""
        return self.extended(b"", window)

    def follow(self) -> bool:
        """True if each run follows the one before it, as in a log. The check goes column by column
        and makes no object for each run."""
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
