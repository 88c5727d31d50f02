"""Turns what must become durable into a plan of steps, in an order that no crash can break.

A plan is a generator: each ``next`` makes one call of the vfs and names it. Whoever owns the disk
runs it to its end: the writer's thread, or the simulator, which may crash between any two steps.
"""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.cutting import end_cut, trim, truncate
from quorate.storage.index import plan_index
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    PAGE,
    SPARE,
    Block,
    CleanMark,
    Footer,
    SegmentHeader,
    block_seed,
    pages,
    segment_name,
)
from quorate.storage.publishing import derive, publish, unlink_unfinished
from quorate.storage.recovered import plan_looks
from quorate.storage.rows import Rows
from quorate.storage.segment import Segment
from quorate.storage.steps import NO_SPACE, PASSING, patiently, plan_record
from quorate.storage.vfs import ReopenedFile
from quorate.storage.window import is_zero
from quorate.types import ORIGIN, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Buffer, File

    Plan = Iterator[str]

__all__ = ["UNPROMISED_PAGES", "Flush", "Flusher"]

# Fewer bytes are cheaper to copy into one buffer than to name one by one.
JOINED_BYTES = 128 * 1024
# A block's number says in its upper half which start of the node wrote it.
BOOT_SHIFT = 32
# At the end of a segment: one for the empty block that proves the last one, one for the footer.
KEPT_PAGES = 2
# Of a new segment: those, one for its header, and what two blocks take besides entries.
UNPROMISED_PAGES = KEPT_PAGES + 5


@dataclass(frozen=True, slots=True)
class Flush:
    """What one plan makes durable, in this order."""

    number: int
    vote: tuple[Term, NodeId | None] | None = None
    truncate_from: Index | None = None
    entries: tuple[Entry, ...] = ()
    # What is known to be committed: written beside the entries, for whoever opens the log.
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    # The log has caught up with all that this node may have lost: it may vote again.
    sure: bool = False


class Flusher:
    """Owns the end of the log: one plan at a time."""

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
        # Of the largest segments, and of the smallest, with which a log begins. Whole pages: a part
        # of one takes nothing.
        self._segment_bytes = segment_bytes // PAGE * PAGE
        self._least_bytes = pages(segment_bytes if least_bytes is None else least_bytes)
        # Percent of the file system that may be in use before no more is allocated.
        self._usage_max = usage_max
        self._draw_nonce = draw_nonce
        # The number of the newest block. What an earlier process wrote and cut off had a lower one.
        newest = max((one.write_number for one in log.segments), default=0)
        self._write_number = max(newest, log.record.boot << BOOT_SHIFT)
        # The size of the spare segment; 0 if there is none.
        self._spare_bytes = 0
        # Why the last spare could not be had; empty once it could.
        self.shortage = ""
        # Whether the newest block is durable and nothing that was written after it says so.
        self._unproven = unproven
        # What this disk says to be committed.
        self._claimed = max((one.claimed for one in log.segments), default=Index(0))
        # Room on a full disk that is kept for what a group cannot do without.
        self._reserve_bytes = reserve_bytes

    def plan(self, flush: Flush) -> Plan:
        """Vote first, then the log; what a crash leaves of it is a log that existed."""
        if flush.vote is not None:
            term, vote = flush.vote
            yield from plan_record(self._log, term=term, vote=vote)
        if flush.truncate_from is not None and flush.truncate_from <= self._log.last.index:
            self._spare_bytes = yield from truncate(
                self._log, flush.truncate_from, self._spare_bytes
            )
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
        """What nobody waits for: at most one segment is sealed, and the next one allocated.

        Everything up to ``settled`` is committed as it stands on this disk.

        Between two flushes, never within one: an acknowledgement must not wait for it.
        """
        yield from self.allocate_ahead()
        yield from plan_looks(self._log)
        yield from self._seal(settled)
        yield from plan_index(self._log)

    @property
    def unproven(self) -> bool:
        """Whether the last flush can be proved: a segment that has no room for that was cut, and
        the vote record proves it, or the next one will."""
        return self._unproven and self._log.segments[-1].room >= KEPT_PAGES * PAGE

    def wants_proof(self, settled: Index) -> bool:
        """Whether the last flush is to be proved now.

        Of the last pages of a full disk one is spent only to say that all of the log is committed:
        a leader that knows this begins without an entry, however often leaders change.
        """
        claims = self._claimed < self._log.last.index <= settled
        return self.unproven and (claims or not self._scarce)

    def prove(self, committed: Index) -> Plan:
        """An empty block: it says that everything before it is durable."""
        segment = self._log.segments[-1]
        if segment.room >= KEPT_PAGES * PAGE:
            yield from self._write_block(segment, (), committed)
            self._unproven = False

    def close(self, committed: Index) -> Plan:
        """Leave the mark of a clean stop."""
        segments = self._log.segments
        if segments and (self._unproven or self._is_worth_a_claim(committed)):
            yield from self.prove(committed)
        mark = CleanMark(0, 0, self._log.last)
        if segments:
            mark = CleanMark(segments[-1].number, segments[-1].end, segments[-1].last)
        yield from publish(self._vfs, CLEAN, [mark.encode()])

    def _is_worth_a_claim(self, committed: Index) -> bool:
        """Whether more was committed than any block says: whoever reads the files of a stopped node
        is to see it. The last pages of a full disk are for the next leader, not for this."""
        return not self._scarce and self._claimed < min(committed, self._log.last.index)

    @property
    def _scarce(self) -> bool:
        """Whether no more can be allocated, and what is left is the reserve."""
        return bool(self.shortage) and self.room <= self._reserve_bytes

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
        """How many entries from ``start`` the newest segment takes in one block.

        A page is kept for the empty block that will prove it, and one for the footer.
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
        # No block claims what only a later one holds.
        committed = min(committed, entries[-1].index if entries else segment.last.index)
        self._claimed = max(self._claimed, committed)
        self._write_number += 1
        # Every flush is synced before the next is written: all below this block is durable.
        block = Block(segment.last, self._write_number, position, committed, length)
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
    def _next_bytes(self) -> int:
        """Of the next segment: the first two are the smallest, each one after has twice as many."""
        newest = self._log.segments[-1].header if self._log.segments else None
        doubled = 2 * newest.capacity if newest is not None and newest.number > 1 else 0
        return min(max(self._least_bytes, pages(doubled)), self._segment_bytes)

    def _roll(self, needed: int) -> Plan:
        """Begin the next segment, of so many bytes at least."""
        log, vfs = self._log, self._vfs
        if self._spare_bytes < needed:
            size = max(needed, self._next_bytes)
            yield from patiently(partial(self._allocate_spare, size))
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
            self._spare_bytes,
        )
        self._spare_bytes = 0
        file = yield from patiently(partial(self._write_header, header))
        log.segments.append(Segment(header, file, Rows(Index(log.last.index + 1))))
        yield from plan_record(log, segment=number, nonce=header.nonce, cutting=0, before=ORIGIN)

    def _write_header(self, header: SegmentHeader) -> Generator[str, None, File]:
        """Durable before any block; gives the open file."""
        name = segment_name(header.number)
        file = self._vfs.open(name)
        file.write(0, [header.encode()])
        yield f"write header of {name}"
        file.sync()
        yield f"sync header of {name}"
        return file

    def _allocate_spare(self, size: int) -> Generator[str, None, None]:
        """Room for the next segment, taken ahead so that a roll cannot run out of it."""
        free, total = self._vfs.space()
        if (total - free + size) * 100 > total * self._usage_max:
            used = (total - free) * 100 // max(1, total)
            raise OSError(
                errno.ENOSPC,
                f"{used} % of the disk are in use, storage.disk_usage_max = {self._usage_max}",
                SPARE,
            )
        vfs = self._vfs
        with closing(vfs.open(SPARE) if self._spare_bytes else vfs.create(SPARE)) as file:
            file.allocate(size)
            yield "allocate spare"
            file.sync()
            yield "sync spare"
        self._spare_bytes = size
        self.shortage = ""

    def adopt_spare(self) -> Plan:
        """Keep the spare that an earlier process left: its room might not be had again."""
        if SPARE not in self._vfs.names():
            return
        with closing(self._vfs.open(SPARE)) as file:
            size = file.size()
            usable = size >= self._next_bytes and size % PAGE == 0 and is_zero(file, size)
            if usable:
                file.sync()
                yield "sync spare"
                self._spare_bytes = size
        if not usable:
            self._vfs.unlink(SPARE)
            yield "unlink spare"
        self._vfs.sync_directory()
        yield "sync directory for spare"

    def allocate_ahead(self, wanted: int = 0) -> Plan:
        """The next spare, if it can be had: without one, appends are refused in time.

        It takes an entry of ``wanted`` bytes, even if none as large is made by this node any more.
        """
        size = max(self._next_bytes, pages(wanted) + UNPROMISED_PAGES * PAGE if wanted else 0)
        if self._spare_bytes >= size:
            return
        try:
            yield from self._allocate_spare(size)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.shortage = error.strerror or "no space is left"
            if error.errno in NO_SPACE:  # else it was not even opened
                yield from patiently(self._keep_spare)

    @property
    def has_spare(self) -> bool:
        return self._spare_bytes > 0

    def _keep_spare(self) -> Generator[str, None, None]:
        """It could not be had, or not made larger: what there was before stays."""
        if self._spare_bytes:
            with closing(self._vfs.open(SPARE)) as file:
                file.truncate(self._spare_bytes)
                yield "shorten spare"
                file.sync()
                yield "sync spare"
        elif SPARE in self._vfs.names():
            self._vfs.unlink(SPARE)
            yield "unlink spare"

    @property
    def room(self) -> int:
        """Bytes of entries that are sure to find a place, in two more blocks and their padding.

        All of them in the newest segment or all in the spare one: no entry is divided.
        """
        segments = self._log.segments
        newest = segments[-1].room if segments else 0
        return max(0, max(newest + PAGE, self._spare_bytes) - UNPROMISED_PAGES * PAGE)

    def _seal(self, settled: Index) -> Plan:
        """Close a segment in which everything is committed; the newest one stays open."""
        segment = next(iter(self._log.unsealed), None)
        if segment is not None and segment.last.index <= settled:
            footer = Footer(
                segment.end, segment.last, segment.write_number, segment.next_offset,
                segment.append_time,
            )  # fmt: skip
            name = segment_name(segment.number)
            page = footer.encode(segment.number, segment.header.nonce)
            try:
                segment.file.write(segment.end, [page])
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                return  # it was cut, and could not be made long again: it waits for room
            yield f"write footer of {name}"
            segment.file.truncate(segment.end + PAGE)
            yield f"shorten {name}"
            segment.file.sync()
            yield f"sync {name}"
            segment.footer = footer
            segment.synced = True
            # Open only while it is read from now on: a log may have more of them than a process
            # may have open files.
            segment.file = ReopenedFile(self._vfs, name)

    def keep(self, checkpoint: Checkpoint) -> Plan:
        """Put the state of the log beside it, in place of an older one: a step for each section,
        which is made in that step."""
        yield from derive(self._vfs, CHECKPOINT, checkpoint.pieces())

    def give_up_keeping(self) -> Plan:
        """The plan that keeps a checkpoint is not carried on: leave nothing of it."""
        yield from unlink_unfinished(self._vfs, CHECKPOINT)
