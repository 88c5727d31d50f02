"""What a replica starts from once its log is open, and how it reads what is not in memory.

Only entries that may not be committed yet are taken into memory. Everything before them stays on
disk: the replica reads it from there when a peer needs it, and its state comes from the newest
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
    """The entries of an open log, by index; whole, or without the body that the disk spoiled.

    Raises Corrupt if the first entry that is asked for is lost and nothing identifies it, or if the
    disk does not give it. Raises Busy if no file can be opened right now, or if that would take
    long and chores do it: nothing is wrong with the entry then.
    """

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    def position(self, index: Index) -> Position:
        edge = self._log.segment(index).edge(index) if self._log.segments else ORIGIN
        if edge is not None:
            return edge
        return self._found(index, Index(index + 1), partial(self._log.position, index))

    def entries(self, start: Index, stop: Index, bytes_max: int = READ_BYTES) -> list[Entry]:
        """Entries start..stop-1, up to ``bytes_max`` and at least one; those behind one that cannot
        be read are not among them."""
        while True:
            try:
                return self._found(start, stop, partial(self._read, start, stop, bytes_max))
            except Corrupt:
                if stop <= start + 1:
                    raise
            # The disk did not give all of it. What is bad may be behind the first ones.
            stop = Index(start + (stop - start) // 2)

    def _found(self, start: Index, stop: Index, read: Callable[[], Result]) -> Result:
        """What ``read`` finds. A segment is believed until it is read: then it is looked at."""
        log, segment = self._log, self._log.segment(start)
        if segment.unreadable:
            raise Corrupt(f"entry {start} cannot be read: {segment.unreadable}")
        try:
            # Held while they are used.
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
                # What was lost elsewhere stops only who needs it.
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
        # A leader sends what it finds here: that rests on no index file.
        if chain is not None and not chain_holds(_before(start, chain), tuple(entries)):
            name = segment_name(segment.number)
            raise Corrupt(f"entries from {start} on of {name} do not follow one another")
        return entries


def _before(index: Index, chain: int) -> Position:
    return Position(Index(index - 1), Term(0), chain)


def plan_looks(log: SegmentLog) -> Iterator[str]:
    """Look at the segments that turns want. What is lost there stops only who needs it."""
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
    """Raise Damaged if the log cannot be started from, because entries are lost of which not even
    the header is left: those that may not be ``committed``, and that one, with which it begins."""
    lost = [damage for damage in log.damage if log.loses(damage, committed)]
    if lost:
        raise Damaged(
            "entries are lost on this disk and this release cannot fetch them again: "
            + "; ".join(map(str, lost))
            + "; go on with the other nodes, this release cannot replace this one yet"
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a replica starts from."""

    record: VoteRecord
    # Everything above ``before``: what may not be committed yet.
    entries: tuple[Entry, ...] = ()
    before: Position = ORIGIN
    # The offset after the last record at ``before``, and that entry's append time.
    next_offset: int = 0
    append_time: int = 0
    # What this disk proves to be committed; at least ``before``.
    committed: Index = ORIGIN.index
    # The newest state on disk; None if there is none that belongs to this log.
    checkpoint: Checkpoint | None = None
    # Entries that have no body; of those that are committed not even the header may be left.
    hollow: frozenset[Index] = frozenset()
    archive: SegmentArchive | None = None

    @staticmethod
    def of(log: SegmentLog) -> Recovered:
        """Of a log that was just opened. Raises Damaged if it cannot be started from."""
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
    """One that the disk does not give back is damage and counts for nothing, like one with a bad
    bit: the log can do without it."""
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
    """A checkpoint counts only for the very log that it was made of: without the entry at its end
    that cannot be told."""
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
