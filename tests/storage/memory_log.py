"""A log in memory with the interface of the log on disk, to try the rules for logs without a disk.

Every step of a plan is durable at once. The :class:`MemoryLog` itself survives a simulated process:
opening it again is the next boot.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.types import ORIGIN, Index, Position, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.entry import Entry
    from quorate.storage.damage import Damage
    from quorate.storage.flusher import Flush

__all__ = ["MemoryFlusher", "MemoryLog", "open_memory"]


class MemoryLog:
    """A list of entries with the interface of a :class:`quorate.storage.log.SegmentLog`."""

    def __init__(self) -> None:
        self.record = VoteRecord(0, Term(0), None, 0)
        # Always empty: no entry in memory is ever damaged.
        self.damage: list[Damage] = []
        # Position of the entry before the first that is kept.
        self._before: Position = ORIGIN
        self._entries: list[Entry] = []

    @property
    def first(self) -> Index:
        """The first entry that can be read."""
        return Index(self._before.index + 1)

    @property
    def last(self) -> Position:
        """The position of the last entry."""
        return self._entries[-1].position if self._entries else self._before

    def position(self, index: Index) -> Position:
        """The position of entry ``index``, which lies in first - 1 .. last."""
        if index == self._before.index:
            return self._before
        return self._entries[index - self.first].position

    # -- reading -------------------------------------------------------------------------------

    def frames(self, start: Index, stop: Index, bytes_max: int) -> list[bytes]:
        """The frames of entries start..stop-1, up to ``bytes_max`` and at least one."""
        check(self.first <= start < stop <= self.last.index + 1, "only what is there is read")
        found: list[bytes] = []
        for entry in self._entries[start - self.first : stop - self.first]:
            bytes_max -= entry.size
            if found and bytes_max < 0:
                break
            found.append(entry.header + entry.body)
        return found

    def entries(self, start: Index, stop: Index) -> Iterator[Entry]:
        """Entries start..stop-1."""
        yield from self._entries[start - self.first : stop - self.first]

    def index_at_offset(self, offset: int) -> Index:
        """The entry that holds the record at ``offset``."""
        bases = [entry.base_offset for entry in self._entries]
        return Index(self.first + max(0, bisect_right(bases, offset) - 1))

    # -- writing, for the flusher ----------------------------------------------------------------

    def append(self, entries: tuple[Entry, ...]) -> None:
        check(entries[0].index == self.last.index + 1, "a log has no gaps")
        self._entries.extend(entries)

    def truncate(self, first: Index) -> None:
        """Drop entry ``first`` and all after it."""
        del self._entries[first - self.first :]

    def trim(self, first: Index) -> None:
        """Drop the entries before ``first``, but never the last entry."""
        first = Index(min(first, self.last.index))
        if first > self.first:
            self._before, self._entries = (
                self.position(Index(first - 1)),
                self._entries[first - self.first :],
            )


class MemoryFlusher:
    """The plans of a :class:`quorate.storage.flusher.Flusher`, carried out on a list."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        # Memory needs no proof of durability, and its room counts as unlimited.
        self.unproven = False
        self.room = 1 << 62

    def plan(self, flush: Flush) -> Iterator[str]:
        """Carry out ``flush``: the vote first, then the log."""
        if flush.vote is not None:
            term, vote = flush.vote
            yield self._record(replace(self._log.record, term=term, vote=vote))
        if flush.truncate_from is not None:
            self._log.truncate(flush.truncate_from)
            yield f"truncate from {flush.truncate_from}"
        if flush.entries:
            self._log.append(flush.entries)
            yield f"append {len(flush.entries)} entries"
        if flush.sure:
            yield self._record(replace(self._log.record, unsure=False))

    def trim(self, first: Index) -> Iterator[str]:
        """Drop the entries below ``first``."""
        self._log.trim(first)
        yield self._record(replace(self._log.record, first=self._log.first))

    def chores(self, committed: Index) -> Iterator[str]:
        """Do no step: there are no segments."""
        yield from ()

    def prove(self, committed: Index) -> Iterator[str]:
        """Do no step: there is no disk."""
        yield from ()

    def close(self, committed: Index) -> Iterator[str]:
        """Do no step: the log stays as it is."""
        yield from ()

    def _record(self, record: VoteRecord) -> str:
        self._log.record = replace(record, number=record.number + 1)
        return "write vote"


def open_memory(log: MemoryLog) -> Generator[str, None, tuple[MemoryLog, MemoryFlusher]]:
    """Open ``log`` for its next boot, by a plan like that of an open on disk."""
    record = log.record
    term = max(record.term, log.last.term)
    vote = record.vote if term == record.term else None
    log.record = replace(
        record, number=record.number + 1, term=term, vote=vote, boot=record.boot + 1
    )
    yield "write vote"
    return log, MemoryFlusher(log)
