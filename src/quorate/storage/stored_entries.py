"""Reads of an open log's entries from disk: for peers that need old entries, and at a start."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from quorate.entry import chain_holds, decode_entry
from quorate.errors import Busy, Corrupt
from quorate.storage.disk_errors import TOO_MANY_FILES, UNREADABLE
from quorate.storage.layout import segment_name
from quorate.types import ORIGIN, Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog

__all__ = ["StoredEntries", "plan_looks"]

Result = TypeVar("Result")

READ_BYTES = 1 << 20


class StoredEntries:
    """The entries of an open log, by index; whole, or without the body if the disk spoiled it.

    Raises Corrupt if the first requested entry is lost and not even its header is left, or if the
    disk does not give it back. Raises Busy if no file can be opened now, or if the read would take
    long and chores are to do it: Busy does not mean that the entry is damaged.
    """

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    def position(self, index: Index) -> Position:
        edge = self._log.segment(index).edge(index) if self._log.segments else ORIGIN
        if edge is not None:
            return edge
        return self._found(index, Index(index + 1), partial(self._log.position, index))

    def entries(self, start: Index, stop: Index, bytes_max: int = READ_BYTES) -> list[Entry]:
        """Entries start..stop-1, up to ``bytes_max`` and at least one; the list ends before the
        first entry that cannot be read."""
        while True:
            try:
                return self._found(start, stop, partial(self._read, start, stop, bytes_max))
            except Corrupt:
                if stop <= start + 1:
                    raise
            # The disk did not give back all of the range. The bad entry may be in its second half.
            stop = Index(start + (stop - start) // 2)

    def _found(self, start: Index, stop: Index, read: Callable[[], Result]) -> Result:
        """The result of ``read``. A segment is trusted until a read of it fails: then it is
        examined."""
        log, segment = self._log, self._log.segment(start)
        if segment.unreadable:
            log.refuse(segment, start, segment.unreadable)
        if start in segment.unread:
            raise Corrupt(f"entry {start} cannot be read from this disk for now")
        try:
            # This reference keeps the rows in memory while they are used.
            rows = segment.rows_at_hand() if log.looks_later else segment.rows
            if rows is None:
                raise log.want(segment, examined=False)
            log.refuse_hole(segment, start)
            try:
                return read()
            except Corrupt:
                if log.looks_later and segment.footer is not None:
                    raise log.want(segment, examined=True) from None
                log.examine(segment, start, stop)
                # Other entries that are lost do not stop this read.
                log.refuse_hole(segment, start)
                return read()
        except OSError as error:
            what = f"entry {start} cannot be read: {error}"
            if error.errno in TOO_MANY_FILES:
                raise Busy(what) from error
            if error.errno in UNREADABLE and stop == start + 1:
                log.refuse(segment, start, str(error))
            raise Corrupt(what) from error

    def _read(self, start: Index, stop: Index, bytes_max: int) -> list[Entry]:
        segment = self._log.segment(start)
        if start in segment.without_body:
            return [segment.entry_without_body(start)]
        stop = min(stop, Index(segment.last.index + 1))
        bad = segment.bad_from(start)
        frames = self._log.frames(start, stop if bad is None else min(stop, bad), bytes_max)
        entries = [decode_entry(bytes(frame)) for frame in frames]
        chain = segment.chain_before(start)
        # A leader sends these entries to peers, so the chain is checked: an index file alone is no
        # proof.
        if chain is not None and not chain_holds(_before(start, chain), tuple(entries)):
            name = segment_name(segment.number)
            raise Corrupt(f"entries from {start} on of {name} do not follow one another")
        return entries


def _before(index: Index, chain: int) -> Position:
    return Position(Index(index - 1), Term(0), chain)


def plan_looks(log: SegmentLog) -> Iterator[str]:
    """Look at the segments that turns want. A loss that is found there stops only the reads that
    need the lost entries."""
    while log.wanted:
        segment, examined = log.wanted[0]
        try:
            if segment not in log.segments:
                pass  # it was trimmed
            elif examined:
                log.examine(segment, segment.first, Index(segment.last.index + 1))
            else:
                segment.load()
        except OSError as error:
            if error.errno in TOO_MANY_FILES:
                return
            log.give_up(segment, error)
        log.wanted.remove((segment, examined))
        yield f"look at {segment_name(segment.number)}"
