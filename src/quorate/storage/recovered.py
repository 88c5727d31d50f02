"""The state from which a replica starts once its log is open, and reads of entries from disk.

Only entries that may not be committed yet are taken into memory. All entries before them stay on
disk: the replica reads them from there when a peer needs them, and its state comes from the newest
checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from quorate.entry import chain_holds, decode_entry
from quorate.errors import Busy, Corrupt, Damaged
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from quorate.storage.damage import UNREADABLE_ADVICE, Damage
from quorate.storage.layout import segment_name
from quorate.storage.steps import PASSING, TOO_MANY_FILES
from quorate.types import ORIGIN, Index, Position, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog

__all__ = ["Recovered", "SegmentArchive", "plan_looks"]

Result = TypeVar("Result")

READ_BYTES = 1 << 20


class SegmentArchive:
    """The entries of an open log, by index; whole, or hollow if the disk spoiled the body.

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
            raise Corrupt(f"entry {start} cannot be read: {segment.unreadable}")
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
            raise Busy(what) if error.errno in TOO_MANY_FILES else Corrupt(what) from error

    def _read(self, start: Index, stop: Index, bytes_max: int) -> list[Entry]:
        segment = self._log.segment(start)
        if start in segment.hollow:
            return [segment.hollow_entry(start)]
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


def refuse_lost(log: SegmentLog, committed: Index) -> None:
    """Raise Damaged if no replica can start from the log, because entries are lost of which not
    even the header is left: entry ``committed``, from which a replica starts, a later one, or an
    earlier one whose place in its segment is not known."""
    lost = [damage for damage in log.damage if log.loses(damage, committed)]
    if lost:
        raise Damaged(
            "entries are lost on this disk and this release cannot fetch them again: "
            + "; ".join(map(str, lost))
            + "; go on with the other nodes, this release cannot replace this one yet"
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """The durable state from which a replica starts."""

    record: VoteRecord
    # All entries above ``before``: those that may not be committed yet.
    entries: tuple[Entry, ...] = ()
    before: Position = ORIGIN
    # The offset after the last record up to ``before``, and that entry's append time.
    next_offset: int = 0
    append_time: int = 0
    # The highest index that this disk proves committed; at least ``before``.
    committed: Index = ORIGIN.index
    # The newest checkpoint; None if there is none that belongs to this log.
    checkpoint: Checkpoint | None = None
    # Entries whose body is lost; of a committed one the header may be lost, too.
    hollow: frozenset[Index] = frozenset()
    archive: SegmentArchive | None = None

    @staticmethod
    def of(log: SegmentLog) -> Recovered:
        """The state of a log that was just opened. Raises Damaged if no replica can start from
        it."""
        archive = SegmentArchive(log)
        checkpoint = _usable(_read_checkpoint(log), log, archive)
        committed = max((segment.claimed for segment in log.segments), default=Index(0))
        if checkpoint is not None:
            committed = max(committed, checkpoint.position.index)
        committed = min(committed, log.last.index)
        refuse_lost(log, committed)
        entries: list[Entry] = []
        try:
            while (start := Index(committed + 1 + len(entries))) <= log.last.index:
                entries += archive.entries(start, Index(log.last.index + 1))
            before = archive.position(committed)
        except Corrupt as error:
            raise Damaged(f"{error}; {UNREADABLE_ADVICE}") from error
        next_offset, append_time = _ended(log, committed)
        hollow = frozenset(
            index for segment in log.segments for index in (*segment.hollow, *segment.holes)
        )
        return Recovered(
            log.record, tuple(entries), before, next_offset, append_time, committed, checkpoint,
            hollow, archive,
        )  # fmt: skip


def _read_checkpoint(log: SegmentLog) -> Checkpoint | None:
    """The checkpoint of the log; None if there is no whole one. A checkpoint that the disk does not
    give back is noted as damage and is not used, like one with a bad bit: the log works without."""
    try:
        return read_checkpoint(log.vfs)
    except OSError as error:
        if error.errno in PASSING:
            raise
        what = f"the checkpoint cannot be read: {error}; the log was replayed from its beginning"
        log.damage.append(Damage(CHECKPOINT, 0, 0, Index(1), Index(0), what))
        return None


def _usable(
    checkpoint: Checkpoint | None, log: SegmentLog, archive: SegmentArchive
) -> Checkpoint | None:
    """The checkpoint if it was made of this very log, else None. If the entry at its position is
    lost, that cannot be decided, and the checkpoint is not used."""
    if checkpoint is None or not log.first - 1 <= checkpoint.position.index <= log.last.index:
        return None
    try:
        same = archive.position(checkpoint.position.index) == checkpoint.position
    except Corrupt:
        return None
    return checkpoint if same else None


def _ended(log: SegmentLog, index: Index) -> tuple[int, int]:
    """The offset after the last record up to ``index``, and the append time of that entry."""
    if not log.segments or index < log.first:
        return (log.segments[0].header.base_offset, 0) if log.segments else (0, 0)
    segment = log.segment(index)
    if index == segment.last.index:
        return segment.next_offset, segment.append_time
    rows, row = segment.rows, index - segment.first
    return rows.offsets[row + 1], rows.times[row]
