"""The log as the core sees it: entries in memory, and what changed since it was last asked.

Knows nothing of leaders or disks. What is on disk is the engine's business: it takes the changes
and turns them into a flush.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.types import ORIGIN, Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.entry import Entry

__all__ = ["Log", "LogChange"]


@dataclass(slots=True)
class LogChange:
    """What a disk must do to hold the same log: truncate first, then write."""

    truncate_from: Index | None
    entries: tuple[Entry, ...]


class Log:
    """Entries 1..last, contiguous, terms never decreasing."""

    __slots__ = ("_changed_from", "_entries", "_term_starts", "_terms", "_truncated_from")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: list[Entry] = []
        # The distinct terms in the log, rising, and the index at which each begins: conflicts are
        # found a term at a time, not an entry at a time.
        self._terms: list[Term] = []
        self._term_starts: list[Index] = []
        self.append(tuple(entries))
        # Lowest index whose disk copy is out of date; last + 1 when none is.
        self._changed_from = Index(len(self._entries) + 1)
        # Lowest index that a disk may hold and that is no longer in the log.
        self._truncated_from: Index | None = None

    @property
    def last_index(self) -> Index:
        return Index(len(self._entries))

    @property
    def last(self) -> Position:
        return self._entries[-1].position if self._entries else ORIGIN

    @property
    def next_offset(self) -> int:
        """The offset that the next record takes."""
        return self._entries[-1].base_offset + self._entries[-1].count if self._entries else 0

    @property
    def last_append_time(self) -> int:
        return self._entries[-1].append_time if self._entries else 0

    def position(self, index: Index) -> Position:
        """The position at ``index``, which must lie in 0..last."""
        if index == 0:
            return ORIGIN
        check(0 < index <= len(self._entries), "a position is asked for only within the log")
        return self._entries[index - 1].position

    def term_at(self, index: Index) -> Term:
        return self._entries[index - 1].term if index else Term(0)

    def holds(self, position: Position) -> bool:
        """Whether this log is the same as another one that has ``position``, up to there."""
        index = position.index
        return index <= len(self._entries) and self.position(index) == position

    def entries(self, start: Index, stop: Index) -> list[Entry]:
        """Entries start..stop-1."""
        return self._entries[start - 1 : stop - 1]

    def slice(self, start: Index, entries_max: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from ``start``, as many as fit both limits and at least one."""
        taken = self._entries[start - 1 : start - 1 + entries_max]
        size = 0
        for count, entry in enumerate(taken):
            size += entry.size
            if size > bytes_max and count:
                return tuple(taken[:count])
        return tuple(taken)

    def bytes_after(self, index: Index) -> int:
        """Bytes of the frames above ``index``."""
        return sum(entry.size for entry in self._entries[index:])

    def first_index_of_term_at(self, index: Index) -> Index:
        """Where the run of entries that share the term of ``index`` begins."""
        return self._term_starts[bisect_right(self._term_starts, index) - 1]

    def last_index_up_to_term(self, term: Term) -> Index:
        """The last entry whose term is at most ``term``; 0 if there is none."""
        run = bisect_right(self._terms, term)
        if run == len(self._terms):
            return self.last_index
        return Index(self._term_starts[run] - 1)

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            check(entry.index == len(self._entries) + 1, "a log has no gaps")
            if not self._terms or entry.term != self._terms[-1]:
                check(not self._terms or entry.term > self._terms[-1], "terms never decrease")
                self._terms.append(entry.term)
                self._term_starts.append(entry.index)
            self._entries.append(entry)

    def truncate(self, first: Index) -> None:
        """Drop ``first`` and everything after it."""
        check(0 < first <= len(self._entries), "a truncation drops something")
        del self._entries[first - 1 :]
        while self._term_starts and self._term_starts[-1] >= first:
            self._term_starts.pop()
            self._terms.pop()
        self._changed_from = min(self._changed_from, first)
        if self._truncated_from is None or first < self._truncated_from:
            self._truncated_from = first

    def take_change(self) -> LogChange | None:
        """What changed since the last call; None if nothing did."""
        last = len(self._entries)
        if self._truncated_from is None and self._changed_from > last:
            return None
        change = LogChange(self._truncated_from, tuple(self._entries[self._changed_from - 1 :]))
        self._changed_from = Index(last + 1)
        self._truncated_from = None
        return change
