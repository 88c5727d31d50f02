"""A log on disk: its segments in order, and reading them.

Knows nothing of leaders and votes. Writing is the flusher's business: it works on the same
segments, in the writer's thread; a reader asks only for what it knows to be flushed.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from quorate.entry import Entry, decode_entry
from quorate.errors import Busy, Corrupt, check
from quorate.storage.damage import UNREADABLE_ADVICE, Damage
from quorate.storage.index import LoadedRows
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.scan import Proof, scan
from quorate.storage.window import Window
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.storage.layout import LogId
    from quorate.storage.scan import Fault
    from quorate.storage.segment import Segment
    from quorate.storage.vfs import Vfs

__all__ = ["SegmentLog"]


class SegmentLog:
    """What an open log holds."""

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
        # The newest vote record; on disk in both copies.
        self.record = record
        # In order, without a gap; the last one takes what is written. Empty in a new log.
        self.segments = segments
        # Who loads the rows of sealed segments: for those that were found sealed and, from here on,
        # for those that are.
        self.loaded = loaded if loaded is not None else LoadedRows(vfs)
        self.damage: list[Damage] = []
        # Whether chores look at segments for a turn, which has no time for it.
        self.looks_later = False
        # Segments that they are to look at, and whether at every byte. The loop adds to it, and the
        # thread with the chores removes.
        self.wanted: list[tuple[Segment, bool]] = []

    @property
    def first(self) -> Index:
        """The first entry that can be read."""
        return self.segments[0].first if self.segments else Index(1)

    @property
    def last(self) -> Position:
        """Where the log stands at its end."""
        return self.segments[-1].last if self.segments else ORIGIN

    @property
    def sealed(self) -> Index:
        """The last entry of the newest sealed segment; 0 if there is none."""
        sealed = (one.last.index for one in self.segments if one.footer is not None)
        return max(sealed, default=Index(0))

    @property
    def unsealed(self) -> list[Segment]:
        """Those that are full and wait for their footer; a damaged one gets none."""
        full = (one for one in self.segments[:-1] if one.footer is None)
        return [one for one in full if not (one.hollow or one.lost)]

    @property
    def unindexed(self) -> list[Segment]:
        """Those that are sealed and wait for their index file; a damaged one gets none."""
        sealed = (one for one in self.segments if one.footer is not None)
        return [one for one in sealed if not (one.indexed or one.hollow or one.lost)]

    def position(self, index: Index) -> Position:
        """Where the log stands at ``index``, which lies in first - 1 .. last."""
        return self.segment(index).position(index) if self.segments else ORIGIN

    # -- reading -------------------------------------------------------------------------------

    def frame_bytes(self, index: Index) -> int:
        """How long a stored frame is; 0 if it is lost."""
        rows = self.segment(index).rows
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
            rows = segment.rows
            if start > rows.last:
                raise Corrupt(f"entry {start} is lost on this disk; ask another replica for it")
            # What lies between frames counts as well: less is read then, never more.
            limit = rows.starts[start - rows.first] + bytes_max
            fitting = bisect_right(rows.ends, limit, start - rows.first)
            end = Index(min(stop, rows.first + fitting))
            if end <= start and found:
                break
            end = max(end, Index(start + 1))
            self._refuse_hollow(segment, start, end)
            found += segment.frames(start, end)
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
        """Note what is bad in ``segment``: of a sealed one look at every byte, of another only at
        entries start..stop-1. Those are settled; behind them the writer may be at work."""
        if segment.footer is None:
            faults = segment.spoiled(start, min(stop, Index(segment.rows.last + 1)))
        else:
            faults = self._scan(segment)
        name = segment_name(segment.number)
        found = [Damage(name, *fault) for fault in faults]
        self.damage += [damage for damage in found if damage not in self.damage]

    def refuse_hole(self, segment: Segment, index: Index) -> None:
        """Raise Corrupt if not even the header of ``index`` is left, and see that it is noted."""
        if index not in segment.holes:
            return
        name = segment_name(segment.number)
        if not any(one.first <= index <= one.last for one in self.damage):
            # A walk through the segment for its rows found that, and noted nothing.
            self.damage.append(Damage(name, PAGE, segment.end, index, index, "the entry is lost"))
        raise Corrupt(f"entry {index} of {name} is lost on this disk; ask another replica")

    def give_up(self, segment: Segment, error: OSError) -> None:
        """The disk does not say where the entries of ``segment`` lie."""
        segment.lost, segment.unreadable = True, str(error)
        what = f"it cannot be read: {error}; {UNREADABLE_ADVICE}"
        entries = segment.first, segment.last.index
        self.damage.append(Damage(segment_name(segment.number), 0, segment.end, *entries, what))

    def _scan(self, segment: Segment) -> list[Fault]:
        header = segment.header
        data = Window(segment.file, segment.end, durable=True)
        proof = Proof(segment.end, segment.last)
        found = scan(data, header.nonce, header.before, proof)
        segment.take(found)
        return found.damage

    def want(self, segment: Segment, *, examined: bool) -> Busy:
        """Have ``segment`` looked at by a chore. Until then it is not known what is in there."""
        if (segment, examined) not in self.wanted:
            self.wanted.append((segment, examined))
        return Busy(f"{segment_name(segment.number)} is to be looked at first")

    def forget_damage(self, first: Index) -> None:
        """``first`` and all after it are cut off: what was bad of them is gone."""
        # In place: the loop may add to it meanwhile.
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
        # Without its own header (then it has no nonce) a segment has no blocks that tell.
        known = segment.header.nonce and index in segment.holes and index <= segment.rows.last
        known = known and index < committed
        return known or index in segment.hollow

    def index_at_offset(self, offset: int) -> Index:
        """The entry that holds the record at ``offset``."""
        rows = self._segment_at(offset, attrgetter("header.base_offset")).rows
        return Index(rows.first + max(0, bisect_right(rows.offsets, offset) - 1))

    def _refuse_hollow(self, segment: Segment, start: Index, stop: Index) -> None:
        bad = [index for index in tuple(segment.hollow) if start <= index < stop]
        if bad:
            raise Corrupt(f"entry {min(bad)} is damaged on this disk; ask another replica for it")

    def close(self) -> None:
        """Give the files back; nothing can be read or written any more."""
        for segment in self.segments:
            segment.file.close()

    # -- segments ------------------------------------------------------------------------------

    def segment(self, index: Index) -> Segment:
        """The segment that holds ``index``; the first one for the entry before all."""
        return self._segment_at(index, attrgetter("first"))

    def _segment_at(self, place: int, start: Callable[[Segment], int]) -> Segment:
        """The last segment that does not ``start`` behind ``place``, else the first one."""
        # A copy: the writer's thread may cut the log meanwhile.
        segments = self.segments[:]
        return segments[max(0, bisect_right(segments, place, key=start) - 1)]
