"""The log as the core sees it: the newest entries in memory, older ones in a store, and the
changes that are not flushed yet.

The log does not depend on leaders or disks. The engine writes the disk: it takes the changes, turns
them into a flush, and drops entries from memory that are not likely to be read again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from quorate.errors import Corrupt, check
from quorate.types import ORIGIN, Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry

__all__ = ["BEGINNING", "EntryStore", "LogChange", "LogStart", "RaftLog"]

# Maximum bytes of one read of the store by `RaftLog.walk`.
PIECE_BYTES = 1 << 20


class EntryStore(Protocol):
    """Entries that are no longer in memory: committed and on disk, so they never change.

    A damaged entry comes without its body. Raises Corrupt if not even its header can be read, and
    Busy if no entry can be read right now.
    """

    def position(self, index: Index) -> Position:
        """The position of the entry at ``index``."""

    def entries(self, start: Index, stop: Index, bytes_max: int) -> list[Entry]:
        """Entries start..stop-1, as many as fit ``bytes_max`` and at least one."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """The start of the part of a log that is in memory, and the store of the entries before."""

    before: Position = ORIGIN
    # The offset of the next record, and the append time of the entry at ``before``.
    next_offset: int = 0
    append_time: int = 0
    stored: EntryStore | None = None


BEGINNING = LogStart()


@dataclass(slots=True)
class LogChange:
    """The change that makes the disk hold the same log: truncate first, then write."""

    truncate_from: Index | None
    entries: tuple[Entry, ...]


class RaftLog:
    """The log of one replica: entries 1..last without gaps, with terms that never decrease."""

    __slots__ = (
        "_append_time", "_before", "_changed_from", "_entries", "_next_offset", "_shift", "_stored",
        "_term_starts", "_terms", "_truncated_from", "last_index", "window_bytes",
    )  # fmt: skip

    def __init__(self, entries: Iterable[Entry] = (), start: LogStart = BEGINNING) -> None:
        self._stored = start.stored
        # The window: entries above ``before``, in memory. Entry i stands at place i - shift.
        self._before = start.before
        self._next_offset, self._append_time = start.next_offset, start.append_time
        self._shift = start.before.index + 1
        self._entries: list[Entry] = []
        # The index of the newest entry. Kept, because a turn asks for it dozens of times.
        self.last_index = start.before.index
        # Bytes of the frames in the window.
        self.window_bytes = 0
        # The distinct terms in the window, rising, and the first index of each: conflicts are found
        # one term at a time, not one entry at a time.
        self._terms: list[Term] = []
        self._term_starts: list[Index] = []
        self.append(tuple(entries))
        # Lowest index whose disk copy is out of date; last + 1 when none is.
        self._changed_from = Index(self.last_index + 1)
        # Lowest index that the disk may hold and that is no longer in the log.
        self._truncated_from: Index | None = None

    @property
    def first_in_memory(self) -> Index:
        """The index of the first entry of the window; last + 1 if the window is empty."""
        return Index(self._shift)

    @property
    def last(self) -> Position:
        return self._entries[-1].position if self._entries else self._before

    @property
    def next_offset(self) -> int:
        """The offset that the next record takes."""
        if not self._entries:
            return self._next_offset
        return self._entries[-1].base_offset + self._entries[-1].count

    @property
    def last_append_time(self) -> int:
        return self._entries[-1].append_time if self._entries else self._append_time

    def position(self, index: Index) -> Position:
        """The position at ``index``, which must lie in 0..last."""
        check(0 <= index <= self.last_index, "a position is asked for only within the log")
        if index >= self._shift:
            return self._entries[index - self._shift].position
        return self._stored_position(index)

    def _stored_position(self, index: Index) -> Position:
        if index == self._before.index:
            return self._before
        if index == 0:
            return ORIGIN
        return self._stored_entries.position(index)

    @property
    def _stored_entries(self) -> EntryStore:
        check(self._stored is not None, "what is not in memory is in the store")
        assert self._stored is not None  # for the type checker
        return self._stored

    def term_at(self, index: Index) -> Term:
        return self.position(index).term

    def holds(self, position: Position) -> bool:
        """Whether this log is the same as the leader's up to ``position``, which the leader has.

        An entry that the store lost is committed, so every leader has the same. A difference from
        a leader's log shows above it: the position before the window is always known.
        """
        index = position.index
        if index > self.last_index:
            return False
        try:
            return self.position(index) == position
        except Corrupt:
            return True

    def entries(self, start: Index, stop: Index) -> list[Entry]:
        """Entries start..stop-1."""
        return list(self.walk(start, stop))

    def walk(self, start: Index, stop: Index) -> Iterator[Entry]:
        """Entries start..stop-1; those that are not in memory are read from the store in pieces.

        Raises Corrupt after the last entry before one that the store lost.
        """
        while start < min(stop, self._shift):
            piece = self._stored_entries.entries(start, min(stop, Index(self._shift)), PIECE_BYTES)
            yield from piece
            start = Index(piece[-1].index + 1)
        yield from self._entries[start - self._shift : stop - self._shift]

    def walk_whole(self, start: Index, stop: Index) -> Iterator[Entry]:
        """Entries start..stop-1, up to the first one that is damaged or lost."""
        with suppress(Corrupt):
            yield from takewhile(attrgetter("whole"), self.walk(start, stop))

    def slice(self, start: Index, entries_max: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from ``start``, as many as fit both limits and at least one.

        No entries if the first one is damaged or lost: a damaged entry is not sent.
        """
        if start < self._shift:
            stop = min(Index(start + entries_max), Index(self._shift))
            try:
                stored = self._stored_entries.entries(start, stop, bytes_max)
            except Corrupt:
                return ()
            return tuple(takewhile(attrgetter("whole"), stored))
        place = start - self._shift
        taken = self._entries[place : place + entries_max]
        size = 0
        for count, entry in enumerate(taken):
            size += entry.size
            if not entry.whole or (size > bytes_max and count):
                return tuple(taken[:count])
        return tuple(taken)

    def bytes_after(self, index: Index) -> int:
        """Bytes of the frames above ``index``, which are all in memory."""
        return sum(entry.size for entry in self._entries[index + 1 - self._shift :])

    def first_index_of_term_at(self, index: Index) -> Index:
        """The first index in the window of the run of entries that share the term of ``index``."""
        return self._term_starts[bisect_right(self._term_starts, index) - 1]

    def last_index_up_to_term(self, term: Term) -> Index | None:
        """The index of the last entry whose term is at most ``term``; 0 if there is none.

        None if that entry lies below the one directly before the window: the search would take
        several reads of the store, and a turn has time for one.
        """
        run = bisect_right(self._terms, term)
        if not run and self._before.term > term:
            return None
        return self.last_index if run == len(self._terms) else Index(self._term_starts[run] - 1)

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            check(entry.index == self.last_index + 1, "a log has no gaps")
            last_term = self.last.term
            if not self._terms or entry.term != last_term:
                check(entry.term >= last_term, "terms never decrease")
                self._terms.append(entry.term)
                self._term_starts.append(entry.index)
            self._entries.append(entry)
            self.last_index = entry.index
            self.window_bytes += entry.size

    def truncate(self, first: Index) -> None:
        """Drop the entry ``first`` and all entries after it. All of them are in the window."""
        check(self._shift <= first <= self.last_index, "a truncation drops something in memory")
        place = first - self._shift
        self.window_bytes -= sum(entry.size for entry in self._entries[place:])
        del self._entries[place:]
        self.last_index = Index(first - 1)
        while self._term_starts and self._term_starts[-1] >= first:
            self._term_starts.pop()
            self._terms.pop()
        self._changed_from = min(self._changed_from, first)
        if self._truncated_from is None or first < self._truncated_from:
            self._truncated_from = first

    def forget(self, last: Index, bytes_max: int) -> None:
        """Drop the oldest entries from memory until the window fits ``bytes_max``, none above
        ``last``. The store has them."""
        check(self._stored is not None, "only what a store has is forgotten")
        dropped = 0
        for entry in self._entries:
            if entry.index > last or self.window_bytes <= bytes_max:
                break
            self.window_bytes -= entry.size
            dropped += 1
        if not dropped:
            return
        newest = self._entries[dropped - 1]
        self._before, self._append_time = newest.position, newest.append_time
        self._next_offset = newest.base_offset + newest.count
        self._shift += dropped
        del self._entries[:dropped]
        gone = bisect_left(self._term_starts, self._shift)
        if gone and self._entries and self._entries[0].term == self._terms[gone - 1]:
            gone -= 1  # the end of this run is still in the window
            self._term_starts[gone] = Index(self._shift)
        del self._term_starts[:gone], self._terms[:gone]

    def take_change(self) -> LogChange | None:
        """The changes since the last call; None if there are none."""
        last = self.last_index
        if self._truncated_from is None and self._changed_from > last:
            return None
        changed = self._entries[self._changed_from - self._shift :]
        change = LogChange(self._truncated_from, tuple(changed))
        self._changed_from = Index(last + 1)
        self._truncated_from = None
        return change
