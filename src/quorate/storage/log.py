"""A log on disk: its segments in order, and reads of their entries.

This module is not concerned with leaders and votes. The flusher writes to the same segments, in the
writer's thread; a reader asks only for entries that it knows to be flushed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from quorate.entry import Entry, decode_entry
from quorate.errors import Busy, Corrupt, check
from quorate.storage.buffered import BufferedFile
from quorate.storage.damage import AGAIN_ADVICE, Damage, DiskFinding
from quorate.storage.disk_errors import UNREADABLE
from quorate.storage.index import LoadedRows
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.segment_scan import Proof, scan
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.storage.layout import LogId
    from quorate.storage.rows import Rows
    from quorate.storage.segment import Segment
    from quorate.storage.segment_scan import Fault
    from quorate.storage.vfs import Vfs

__all__ = ["SegmentLog"]


class SegmentLog:
    """An open log: its newest vote record, its segments and its known damage."""

    def __init__(
        self,
        vfs: Vfs,
        identity: LogId,
        record: VoteRecord,
        segments: list[Segment],
        loaded: LoadedRows | None = None,
    ) -> None:
        self.vfs = vfs
        self.identity = identity
        # The newest vote record; both copies on disk hold it.
        self.record = record
        # In order; a gap is noted as damage. New blocks go to the last one. Empty in a new log.
        self.segments = segments
        # Loads the rows of sealed segments: of those that the open found sealed, and of those that
        # are sealed later.
        self.loaded = loaded if loaded is not None else LoadedRows(vfs)
        self.damage: list[Damage] = []
        # Whether chores examine segments on behalf of a turn, which must not take that long.
        self.looks_later = False
        # Segments that chores are to look at, and whether at every byte. The event loop adds to the
        # list, and the thread that runs the chores removes from it.
        self.wanted: list[tuple[Segment, bool]] = []
        # What reads found out about the disk and the engine was not told yet. All threads add to
        # it.
        self.findings: deque[DiskFinding] = deque()
        # The entry that was read again last: not each look gets to all that are unread.
        self.looked_at = Index(0)

    @property
    def first(self) -> Index:
        """The first entry that can be read."""
        return self.segments[0].first if self.segments else Index(1)

    @property
    def last(self) -> Position:
        """The position of the last entry."""
        return self.segments[-1].last if self.segments else ORIGIN

    @property
    def sealed(self) -> Index:
        """The last entry of the newest sealed segment; 0 if there is none."""
        sealed = (one.last.index for one in self.segments if one.footer is not None)
        return max(sealed, default=Index(0))

    @property
    def unsealed(self) -> list[Segment]:
        """The full segments that wait for their footer; a damaged segment gets none."""
        full = (one for one in self.segments[:-1] if one.footer is None)
        return [one for one in full if not (one.without_body or one.lost)]

    @property
    def memberships(self) -> list[Index]:
        """The membership entries that the files named when the log was opened, in rising order: the
        newest one among them, even if it is lost."""
        named = {segment.header.membership for segment in self.segments}
        named.update(*(segment.memberships for segment in self.segments))
        return sorted(index for index in named if 0 < index <= self.last.index)

    @property
    def unindexed(self) -> list[Segment]:
        """The sealed segments that wait for their index file; a damaged segment gets none."""
        sealed = (one for one in self.segments if one.footer is not None)
        missing = [one for one in sealed if not (one.indexed or one.without_body or one.lost)]
        return [one for one in missing if not one.unreadable]

    @property
    def refusing(self) -> list[Segment]:
        """The segments of which the disk did not give back all that was read last."""
        return [one for one in self.segments[:] if one.unread or one.unreadable or one.guessed]

    def position(self, index: Index) -> Position:
        """The position of entry ``index``, which lies in first - 1 .. last."""
        return self.segment(index).position(index) if self.segments else ORIGIN

    # -- reading -------------------------------------------------------------------------------

    def frame_bytes(self, index: Index) -> int:
        """The size of the stored frame of ``index``; 0 if it is lost."""
        rows = self._rows(self.segment(index))
        if index > rows.last:
            return 0
        start, end = rows.frame(index)
        return end - start

    def frames(self, start: Index, stop: Index, bytes_max: int) -> list[memoryview]:
        """The stored frames of entries start..stop-1, up to ``bytes_max`` and at least one.

        Raises Corrupt rather than give back a byte that was not written.
        """
        check(self.first <= start < stop <= self.last.index + 1, "only what is there is read")
        found: list[memoryview] = []
        while start < stop and (bytes_max > 0 or not found):
            segment = self.segment(start)
            rows = self._rows(segment)
            if start > rows.last:
                raise Corrupt(f"entry {start} is lost on this disk; ask another replica for it")
            # The bytes between frames count as well: fewer frames may be read for that, never more.
            limit = rows.starts[start - rows.first] + bytes_max
            fitting = bisect_right(rows.ends, limit, start - rows.first)
            end = Index(min(stop, rows.first + fitting))
            if end <= start and found:
                break
            end = max(end, Index(start + 1))
            self._refuse_bad(segment, start, end)
            try:
                found += segment.frames(start, end)
            except OSError as error:
                if end == start + 1 and error.errno in UNREADABLE:
                    self.refuse(segment, start, str(error))
                raise
            bytes_max -= rows.ends[end - 1 - rows.first] - rows.starts[start - rows.first]
            start = end
        return found

    def entries(self, start: Index, stop: Index) -> Iterator[Entry]:
        """Entries start..stop-1."""
        while start < stop:
            for frame in self.frames(start, stop, 1 << 20):
                yield decode_entry(bytes(frame))
                start = Index(start + 1)

    def examine(self, segment: Segment, start: Index, stop: Index) -> None:
        """Note the damage in ``segment``. Every entry of a sealed segment is checked, of another
        segment only entries start..stop-1: those are settled, and behind them the writer may be at
        work.

        The chains that are known of a segment say which entry stood in each place. A scan has only
        the blocks to go by, and it may lose more: it is made if it is the chains that are wrong.
        """
        if segment.footer is not None:
            start, stop = segment.first, Index(segment.last.index + 1)
        unread = frozenset(segment.unread)
        faults = segment.spoiled(start, min(stop, Index(segment.rows.last + 1)))
        refused = sorted(segment.unread - unread)
        known = faults or segment.holes or segment.without_body or segment.unread
        if segment.footer is not None and not known:
            faults = self._scan(segment)
        name = segment_name(segment.number)
        found = [Damage(name, *fault) for fault in faults]
        self._tell([damage for damage in found if damage not in self.damage])
        if refused:
            self._tell_refused(segment, refused, "the disk does not give back its page", unread)

    def refuse_hole(self, segment: Segment, index: Index) -> None:
        """Raise Corrupt if not even the header of ``index`` is left, and note the damage."""
        if index not in segment.holes:
            return
        if segment.guessed:
            self.refuse(segment, index, "the disk did not give back all of its segment")
            raise Corrupt(f"entry {index} cannot be read now; ask another replica")
        name = segment_name(segment.number)
        if not any(one.first <= index <= one.last for one in self.damage):
            # The walk through the segment that made its rows found the hole and did not note it.
            self._tell([Damage(name, PAGE, segment.end, index, index, "the entry is lost")])
        raise Corrupt(f"entry {index} of {name} is lost on this disk; ask another replica")

    def refuse(self, segment: Segment, index: Index, why: str) -> None:
        """Note that the disk does not give back ``index`` now."""
        unread = frozenset(segment.unread)
        if index not in unread:
            segment.unread.add(index)
            self._tell_refused(segment, [index], why, unread)

    def give_up(self, segment: Segment, error: OSError) -> None:
        """Note that the rows of ``segment`` cannot be read now: all of its entries are unreadable
        until chores have read it again."""
        unread = frozenset(segment.unread)
        segment.unreadable = str(error)
        segment.unread.add(segment.first)
        self._tell_refused(segment, [segment.first], str(error), unread)

    def _tell_refused(
        self, segment: Segment, entries: list[Index], why: str, unread: frozenset[Index]
    ) -> None:
        """Report that entries cannot be read now. Of a segment that had ``unread`` ones that was
        reported before."""
        damage = None
        if not unread:
            what = f"it cannot be read now: {why}; {AGAIN_ADVICE}"
            name, first = segment_name(segment.number), entries[0]
            last = segment.last.index if segment.unreadable else first
            damage = Damage(name, PAGE, segment.end, first, last, what)
        self.findings.append(DiskFinding(damage, bad=tuple(entries)))

    def _tell(self, found: list[Damage]) -> None:
        """Note damage that is proved by bytes that were read, and report it."""
        self.damage += found
        for damage in found:
            entries = map(Index, range(damage.first, damage.last + 1))
            self.findings.append(DiskFinding(damage, bad=tuple(entries)))

    def _scan(self, segment: Segment) -> list[Fault]:
        header = segment.header
        data = BufferedFile(segment.file, segment.end, durable=True)
        proof = Proof(segment.end, segment.last)
        found = scan(data, header.nonce, header.before, proof)
        segment.take(found)
        return found.damage

    def want(self, segment: Segment, *, examined: bool) -> Busy:
        """Ask the chores to look at ``segment``. Returns the Busy error for requests until then."""
        if (segment, examined) not in self.wanted:
            self.wanted.append((segment, examined))
        return Busy(f"{segment_name(segment.number)} is to be looked at first")

    def suspect(self, index: Index, error: Exception) -> None:
        """Have ``index`` examined if a reader's ``error`` says that its bytes are not those that
        were written."""
        segment = self.segment(index)
        if not isinstance(error, Corrupt):
            pass  # the disk did not give the bytes back: they prove nothing
        elif segment.footer is not None:
            self.want(segment, examined=True)
        else:
            self.examine(segment, index, Index(index + 1))

    def forget_damage(self, first: Index) -> None:
        """Forget the damage of ``first`` and of all entries after it: they are cut off."""
        # In place: the event loop may add to the list meanwhile.
        for damage in tuple(self.damage):
            if damage.first >= first:
                self.damage.remove(damage)

    def loses(self, damage: Damage, committed: Index) -> bool:
        """Whether ``damage`` took an entry within the log of which not even the header is left,
        other than one before ``committed`` whose place in its segment is known."""
        inside = map(Index, range(damage.first, min(damage.last, self.last.index) + 1))
        return any(not self._goes_without(index, committed) for index in inside)

    def _goes_without(self, index: Index, committed: Index) -> bool:
        segment = self.segment(index)
        # A segment that lost its own header (its nonce is 0 then) has no readable block heads.
        known = segment.header.nonce and index in segment.holes and index <= segment.rows.last
        known = known and index < committed
        return known or index in segment.without_body

    def index_at_offset(self, offset: int) -> Index:
        """The entry that holds the record at ``offset``."""
        rows = self._rows(self._segment_at(offset, attrgetter("header.base_offset")))
        return Index(rows.first + max(0, bisect_right(rows.offsets, offset) - 1))

    def _refuse_bad(self, segment: Segment, start: Index, stop: Index) -> None:
        bad = [index for index in (*segment.without_body, *segment.unread) if start <= index < stop]
        if bad:
            state = "cannot be read now" if min(bad) in segment.unread else "is damaged"
            raise Corrupt(f"entry {min(bad)} {state} on this disk; ask another replica for it")

    def _rows(self, segment: Segment) -> Rows:
        """The rows of ``segment``, for a thread that may walk through all of it."""
        if segment.unreadable:
            raise Corrupt(f"{segment_name(segment.number)} cannot be read: {segment.unreadable}")
        try:
            return segment.rows
        except OSError as error:
            if error.errno in UNREADABLE:
                self.give_up(segment, error)
            raise

    def close(self) -> None:
        """Close the files; the log can be neither read nor written any more."""
        for segment in self.segments:
            segment.file.close()

    # -- segments ------------------------------------------------------------------------------

    def segment(self, index: Index) -> Segment:
        """The segment that holds ``index``; the first segment for the entry before all others."""
        return self._segment_at(index, attrgetter("first"))

    def _segment_at(self, place: int, start: Callable[[Segment], int]) -> Segment:
        """The last segment that does not ``start`` behind ``place``, else the first one."""
        # A copy: the writer's thread may cut the log meanwhile.
        segments = self.segments[:]
        return segments[max(0, bisect_right(segments, place, key=start) - 1)]
