"""The flusher: turns votes and entries that must become durable into plans of ordered steps.

A crash after any step leaves files that the next open can use. A plan is a generator: each ``next``
makes one call of the vfs and names it. The owner of the disk runs a plan to its end: the writer's
thread, or the simulator, which may crash between any two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.disk_errors import patiently
from quorate.storage.index import plan_index
from quorate.storage.layout import (
    BLOCK_BYTES,
    BOOT_SHIFT,
    CLEAN,
    PAGE,
    SPARE,
    Block,
    CleanMark,
    SegmentHeader,
    block_seed,
    pages,
    segment_name,
)
from quorate.storage.publishing import derive, publish, unlink_unfinished
from quorate.storage.rows import Rows
from quorate.storage.seal import plan_seal
from quorate.storage.segment import Segment
from quorate.storage.spare import SpareSegment
from quorate.storage.stored_entries import plan_looks
from quorate.storage.truncate import end_cut, trim, truncate
from quorate.storage.vote import plan_record
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Buffer, File

    Plan = Iterator[str]

__all__ = ["UNPROMISED_PAGES", "Flush", "Flusher"]

# Up to this size, copying a block into one buffer is cheaper than passing a list of buffers.
JOINED_BYTES = 128 * 1024
# Pages kept free at the end of a segment: one for the empty block that proves the last one, one for
# the footer.
KEPT_PAGES = 2
# Pages of a new segment that are not promised to entries: the kept pages, one for its header, and
# the heads and the padding of two blocks.
UNPROMISED_PAGES = KEPT_PAGES + 5


@dataclass(frozen=True, slots=True)
class Flush:
    """The changes that one plan makes durable, in the order of the fields."""

    number: int
    vote: tuple[Term, NodeId | None] | None = None
    truncate_from: Index | None = None
    entries: tuple[Entry, ...] = ()
    # The commit index as far as it is known: blocks carry it, and the next open reads it.
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    # The log has caught up with all entries that this node may have lost: it may vote again.
    sure: bool = False


class Flusher:
    """Writes the end of the log, one plan at a time."""

    def __init__(
        self,
        log: SegmentLog,
        segment_bytes: int,
        draw_nonce: Callable[[], int],
        usage_max: int = 100,
        least_bytes: int | None = None,
        *,
        unproven: bool = False,
        reserve_bytes: int = 0,
    ) -> None:
        self._log = log
        self._vfs = log.vfs
        # Size of the largest segments, and of the smallest, with which a log begins. Both are whole
        # pages: no block uses a part of one.
        self._segment_bytes = segment_bytes // PAGE * PAGE
        self._least_bytes = pages(segment_bytes if least_bytes is None else least_bytes)
        self._draw_nonce = draw_nonce
        # The write number of the newest block. Blocks of an earlier process have lower ones, also
        # those that were cut off.
        newest = max((one.write_number for one in log.segments), default=0)
        self._write_number = max(newest, log.record.boot << BOOT_SHIFT)
        self.spare = SpareSegment(log.vfs, usage_max)
        # Whether the newest block is durable and no block that was written after it proves that.
        self._unproven = unproven
        # The highest index that a block or a footer on this disk claims to be committed.
        self._claimed = max((one.claimed for one in log.segments), default=Index(0))
        # The membership entries of the newest segments, in rising order.
        self._memberships = log.memberships
        # Room on a full disk that is kept for entries without which the group cannot go on.
        self._reserve_bytes = reserve_bytes
        # Bytes of the entry that found no room; 0 if there is no such entry.
        self._wanted = 0

    def note_memberships(self, indexes: Iterable[Index]) -> None:
        """Note membership entries that the replica knows to be in the log: if the disk lost what
        named them, the blocks to come must name them again."""
        last = self._log.last.index
        known = {*self._memberships, *(index for index in indexes if index <= last)}
        self._memberships = sorted(known)

    def plan(self, flush: Flush) -> Plan:
        """Make ``flush`` durable: the vote first, then the log. A crash between two steps leaves a
        log that this replica had at some moment."""
        if flush.vote is not None:
            term, vote = flush.vote
            yield from plan_record(self._log, term=term, vote=vote)
        if flush.truncate_from is not None and flush.truncate_from <= self._log.last.index:
            yield from truncate(self._log, flush.truncate_from, self.spare)
            first = flush.truncate_from
            self._memberships = [index for index in self._memberships if index < first]
            self._unproven = True
        if flush.entries:
            yield from self._append(flush.entries, flush.committed)
            check(not self._log.record.cutting, "what is acknowledged stands behind no cut")
        if flush.sure:
            yield from plan_record(self._log, unsure=False)

    def trim(self, first: Index) -> Plan:
        """Drop the sealed segments that hold only entries below ``first``."""
        yield from trim(self._log, first)

    def chores(self, settled: Index) -> Plan:
        """Allocate the next segment, look at the segments that turns want, seal at most one segment
        and index at most one.

        All entries up to ``settled`` are committed as they stand on this disk.

        Chores run between two flushes, never within one: no acknowledgement may wait for them.
        """
        yield from self.allocate_ahead()
        yield from plan_looks(self._log)
        yield from plan_seal(self._log, settled)
        yield from plan_index(self._log)

    @property
    def unproven(self) -> bool:
        """Whether the last flush is not proved yet and can be. A segment without room for the empty
        block was cut, and the vote record proves its end, or the next segment will."""
        return self._unproven and self._log.segments[-1].room >= KEPT_PAGES * PAGE

    def wants_proof(self, settled: Index) -> bool:
        """Whether the last flush is to be proved now.

        Of the last pages of a full disk one is spent only to claim that all of the log is
        committed: a leader that knows this needs no entry to begin its term, so changes of leaders
        do not fill the disk.
        """
        claims = self._claimed < self._log.last.index <= settled
        return self.unproven and (claims or not self._scarce)

    def prove(self, committed: Index) -> Plan:
        """Write an empty block, which proves that all blocks before it are durable."""
        segment = self._log.segments[-1]
        if segment.room >= KEPT_PAGES * PAGE:
            yield from self._write_block(segment, (), committed)
            self._unproven = False

    def close(self, committed: Index) -> Plan:
        """Write the mark of a clean stop."""
        segments = self._log.segments
        if segments and (self._unproven or self._is_worth_a_claim(committed)):
            yield from self.prove(committed)
        boot = self._log.record.boot
        mark = CleanMark(boot, 0, 0, self._log.last)
        if segments:
            mark = CleanMark(boot, segments[-1].number, segments[-1].end, segments[-1].last)
        yield from publish(self._vfs, CLEAN, [mark.encode(self._log.identity)])

    def _is_worth_a_claim(self, committed: Index) -> bool:
        """Whether more entries are committed than any block claims, so that an empty block is worth
        its page: tools that read the files of a stopped node need the claim. The last pages of a
        full disk are kept for the next leader."""
        return not self._scarce and self._claimed < min(committed, self._log.last.index)

    @property
    def _scarce(self) -> bool:
        """Whether no more space can be allocated, and only the reserve is left."""
        return bool(self.spare.shortage) and self.room <= self._reserve_bytes

    # -- appending -----------------------------------------------------------------------------

    def _append(self, entries: Sequence[Entry], committed: Index) -> Plan:
        check(entries[0].index == self._log.last.index + 1, "a log has no gaps")
        position = 0
        while position < len(entries):
            fitting = self._fitting(entries, position)
            if not fitting:
                size = entries[position].size
                yield from self._roll(pages(BLOCK_BYTES + size) + (1 + KEPT_PAGES) * PAGE)
                continue
            segment = self._log.segments[-1]
            chosen = entries[position : position + fitting]
            yield from self._write_block(segment, chosen, committed)
            position += fitting
            self._unproven = True

    def _fitting(self, entries: Sequence[Entry], start: int) -> int:
        """The number of entries from ``start`` on that the newest segment takes in one block.

        One page is kept for the empty block that will prove this one, and one for the footer.
        """
        segments = self._log.segments
        room = segments[-1].room - KEPT_PAGES * PAGE - BLOCK_BYTES if segments else -1
        fitting = 0
        for entry in entries[start:]:
            room -= entry.size
            if room < 0:
                break
            fitting += 1
        return fitting

    def _write_block(self, segment: Segment, entries: Sequence[Entry], committed: Index) -> Plan:
        length = sum(entry.size for entry in entries)
        position = segment.end
        # Invariant: a block claims no entry that only a later block holds.
        committed = min(committed, entries[-1].index if entries else segment.last.index)
        self._claimed = max(self._claimed, committed)
        self._write_number += 1
        # Every block is synced before the next is written: all bytes below this one are durable.
        membership = self._memberships[-1] if self._memberships else Index(0)
        block = Block(segment.last, self._write_number, position, committed, length, membership)
        head = block.encode(block_seed(segment.header.nonce, position))
        buffers: list[Buffer] = [head]
        for entry in entries:
            buffers += (entry.header, entry.body)
        size = pages(BLOCK_BYTES + length)
        buffers.append(bytes(size - BLOCK_BYTES - length))
        if size <= JOINED_BYTES:
            buffers = [b"".join(buffers)]
        segment.file.write(position, buffers)
        yield f"write block at {position}"
        segment.file.sync()
        yield f"sync block at {position}"
        start = position + BLOCK_BYTES
        for entry in entries:
            stop = start + entry.size
            chain = entry.position.chain
            segment.rows.add(start, stop, entry.base_offset, entry.append_time, chain)
            if entry.kind is EntryKind.MEMBERSHIP:
                self._memberships.append(entry.index)
            start = stop
        if entries:
            last = entries[-1]
            segment.last = last.position
            segment.next_offset = last.base_offset + last.count
            segment.append_time = last.append_time
        segment.end = position + size
        segment.write_number = self._write_number
        yield from end_cut(self._log)

    # -- segments ------------------------------------------------------------------------------

    @property
    def next_bytes(self) -> int:
        """Size of the next segment. The first two have the smallest size, and each later one has
        twice the size of the one before, up to the largest."""
        newest = self._log.segments[-1].header if self._log.segments else None
        doubled = 2 * newest.capacity if newest is not None and newest.number > 1 else 0
        return min(max(self._least_bytes, pages(doubled)), self._segment_bytes)

    def _roll(self, needed: int) -> Plan:
        """Begin the next segment, of at least ``needed`` bytes."""
        log, vfs = self._log, self._vfs
        if self.spare.bytes < needed:
            size = max(needed, self.next_bytes)
            yield from patiently(partial(self.spare.allocate, size))
        before = log.segments[-1] if log.segments else None
        number = before.number + 1 if before is not None else 1
        name = segment_name(number)
        vfs.rename(SPARE, name)
        yield f"rename {name}"
        vfs.sync_directory()
        yield f"sync directory for {name}"
        header = SegmentHeader(
            number,
            self._draw_nonce(),
            log.identity,
            log.last,
            before.next_offset if before is not None else 0,
            before.append_time if before is not None else 0,
            before.end if before is not None else 0,
            self.spare.bytes,
            self._memberships[-1] if self._memberships else Index(0),
        )
        self.spare.bytes = 0
        file = yield from patiently(partial(self._write_header, header))
        log.segments.append(Segment(header, file, Rows(Index(log.last.index + 1))))
        yield from plan_record(log, segment=number, nonce=header.nonce, cutting=0, before=ORIGIN)

    def _write_header(self, header: SegmentHeader) -> Generator[str, None, File]:
        """Write the header of a new segment, durably before any block. Returns the open file."""
        name = segment_name(header.number)
        file = self._vfs.open(name)
        file.write(0, [header.encode()])
        yield f"write header of {name}"
        file.sync()
        yield f"sync header of {name}"
        return file

    def allocate_ahead(self, wanted: int | None = None) -> Plan:
        """Allocate the next spare segment if the disk has room. Without a spare segment, appends
        are refused before the room runs out.

        It is large enough for an entry of ``wanted`` bytes, even if this node's settings no longer
        allow entries of that size; None: for the entry that was wanted last.
        """
        if wanted is not None:
            self._wanted = wanted
        wanted = pages(self._wanted) + UNPROMISED_PAGES * PAGE if self._wanted else 0
        size = max(self.next_bytes, wanted)
        if self.spare.bytes < size:
            yield from self.spare.allocate_ahead(size)
        else:
            # What was short was wanted by an entry that is not wanted any more.
            self.spare.shortage = ""

    @property
    def room(self) -> int:
        """Bytes of entries that are sure to find a place, in up to two more blocks with padding.

        The room is that of the newest segment or that of the spare one, not the sum of both: no
        entry is divided between segments.
        """
        segments = self._log.segments
        newest = segments[-1].room if segments else 0
        return max(0, max(newest + PAGE, self.spare.bytes) - UNPROMISED_PAGES * PAGE)

    def keep(self, checkpoint: Checkpoint) -> Plan:
        """Write a checkpoint beside the log, in place of an older one. Each section is one step,
        and is made in that step."""
        yield from derive(self._vfs, CHECKPOINT, checkpoint.pieces(self._log.identity))

    def give_up_keeping(self) -> Plan:
        """Remove the unfinished file of a plan of :meth:`keep` that was abandoned."""
        yield from unlink_unfinished(self._vfs, CHECKPOINT)
