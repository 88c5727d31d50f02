"""The state from which a replica starts once its log is open.

Only entries that may not be committed yet are taken into memory. All entries before them stay on
disk: the replica reads them from disk when a peer needs them, and its state comes from the
newest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.errors import Corrupt, Damaged
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from quorate.storage.damage import UNREADABLE_ADVICE, Damage
from quorate.storage.disk_errors import PASSING
from quorate.storage.layout import segment_name
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog

__all__ = ["Recovered"]


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
    without_body: frozenset[Index] = frozenset()
    stored: StoredEntries | None = None
    # The newest membership entry, even if it is lost; 0 if there is none.
    membership: Index = ORIGIN.index

    @staticmethod
    def of(log: SegmentLog) -> Recovered:
        """The state of a log that was just opened. Raises Damaged if no replica can start from
        it."""
        stored = StoredEntries(log)
        checkpoint = _usable(_read_checkpoint(log), log, stored)
        committed = max((segment.claimed for segment in log.segments), default=Index(0))
        if checkpoint is not None:
            committed = max(committed, checkpoint.position.index)
        committed = min(committed, log.last.index)
        refuse_lost(log, committed)
        entries: list[Entry] = []
        try:
            while (start := Index(committed + 1 + len(entries))) <= log.last.index:
                entries += stored.entries(start, Index(log.last.index + 1))
            before = stored.position(committed)
        except Corrupt as error:
            raise Damaged(f"{error}; {UNREADABLE_ADVICE}") from error
        next_offset, append_time = _ended(log, committed)
        without_body = frozenset(
            index for segment in log.segments for index in (*segment.without_body, *segment.holes)
        )
        return Recovered(
            log.record, tuple(entries), before, next_offset, append_time, committed, checkpoint,
            without_body, stored, max(log.memberships, default=Index(0)),
        )  # fmt: skip


def _read_checkpoint(log: SegmentLog) -> Checkpoint | None:
    """The checkpoint of the log; None if there is no whole one. A checkpoint that the disk does not
    give back is noted as damage and is not used, like one with a bad bit: the log works without."""
    try:
        return read_checkpoint(log.vfs, log.identity)
    except OSError as error:
        if error.errno in PASSING:
            raise
        what = f"the checkpoint cannot be read: {error}; the log was replayed from its beginning"
        log.damage.append(Damage(CHECKPOINT, 0, 0, Index(1), Index(0), what))
        return None


def _usable(
    checkpoint: Checkpoint | None, log: SegmentLog, stored: StoredEntries
) -> Checkpoint | None:
    """The checkpoint if the log has the entry with which it ends, else None: then entries are lost,
    and the checkpoint is not used.

    Raises Damaged if the log has another entry there: a checkpoint covers committed entries, which
    are never replaced, so an old content of some page came back.
    """
    if checkpoint is None or not log.first - 1 <= checkpoint.position.index <= log.last.index:
        return None
    index = checkpoint.position.index
    try:
        same = stored.position(index) == checkpoint.position
    except Corrupt:
        return None
    if not same:
        name = segment_name(log.segment(index).number)
        raise Damaged(f"{name} has another entry {index} than the checkpoint; {UNREADABLE_ADVICE}")
    return checkpoint


def _ended(log: SegmentLog, index: Index) -> tuple[int, int]:
    """The offset after the last record up to ``index``, and the append time of that entry."""
    if not log.segments or index < log.first:
        return (log.segments[0].header.base_offset, 0) if log.segments else (0, 0)
    segment = log.segment(index)
    if index == segment.last.index:
        return segment.next_offset, segment.append_time
    rows, row = segment.rows, index - segment.first
    return rows.offsets[row + 1], rows.times[row]
