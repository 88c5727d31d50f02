"""The reader of one replica: fetches stored frames by offset, waits for new ones, finds offsets.

An offset leads to the entry that takes it. If that is a publish, the records lie in the stage
entries that it names, and those are given in its place, with its offsets and its append time.

Entries in memory are returned at once. A disk may be slow, so a pool of threads reads it, and only
settled entries are read: no thread writes there any more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from quorate.entry import decode_entry, parse_header
from quorate.errors import Behind, Busy, Corrupt, NotLeader, OffsetOutOfRange, Trimmed
from quorate.replica.publish_index import RecentPublishes
from quorate.storage.disk_errors import TOO_MANY_FILES
from quorate.types import EntryKind, Index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Executor

    from quorate.entry import Entry
    from quorate.entry_body import Chunk
    from quorate.replica.engine import Engine
    from quorate.replica.engine_io import ReadAnswer
    from quorate.replica.publish_index import PublishIndex
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Buffer

    # (offset of the first record, records, bytes of the frame, append time) of each entry
    Rows = list[tuple[int, int, int, int]]

__all__ = ["Fetched", "LogReader"]

Result = TypeVar("Result")

# Bytes of the first read, before it is known whether the entry is a publish: the entries behind a
# publish are seldom wanted.
PEEK_BYTES = 64 << 10
# Errors of a frame that is damaged or that the disk cannot read: the answer ends before it.
_UNREADABLE = (Corrupt, OSError)


class Fetched(NamedTuple):
    """Stored frames, and the first and end offset of the log when they were read."""

    first_offset: int
    end_offset: int
    rows: Rows
    # The frames in order; a frame may be in several pieces.
    buffers: list[Buffer]


class LogReader:
    """The reads of one replica. They change no state."""

    __slots__ = (
        "_barrier", "_busy", "_engine", "_log", "_loop", "_pool", "_published", "_reading",
        "_stopped", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        log: SegmentLog,
        pool: Executor,
        barrier: Callable[[], Awaitable[ReadAnswer]],
    ) -> None:
        self._engine = engine
        self._log = log
        self._pool = pool
        self._barrier = barrier
        self._published = RecentPublishes()
        self._loop = asyncio.get_running_loop()
        # Number of reads that have no answer yet, and of cancelled reads that a thread still does.
        self._busy = 0
        # The reads that wait until the end moves: all of them are at the present end.
        self._waiting: set[asyncio.Future[None]] = set()
        # The reads that are in threads, also those whose caller was cancelled.
        self._reading: set[asyncio.Future[Any]] = set()
        # The reason why reads are refused; None while they are not.
        self._stopped: str | None = None

    @property
    def first_offset(self) -> int:
        """The first offset that is kept."""
        segments = self._log.segments
        return segments[0].header.base_offset if segments else 0

    # -- calls of the replica ------------------------------------------------------------------

    def moved(self) -> None:
        """Wake the reads that wait for the end to move."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            _wake(future)

    def stop(self, why: str) -> None:
        """Refuse every read from now on."""
        self._stopped = why
        self.moved()

    async def rest(self) -> None:
        """Wait until no thread reads any more. No read begins after a stop."""
        if self._reading:
            await asyncio.wait(self._reading)

    # -- reading by offset ---------------------------------------------------------------------

    async def fetch(self, offset: int, bytes_max: int, wait_s: float, session_end: int) -> Fetched:
        """Frames from the one that holds ``offset`` on: up to ``bytes_max``, and at least one.

        At the end of the log the fetch waits for the next record, ``wait_s`` at most; then it
        returns no frame.
        """
        self._begin()
        try:
            engine, first = self._engine, self.first_offset
            end = engine.state.end
            if session_end > end:
                raise Behind(f"the session has seen {session_end}, {engine.node} ends with {end}")
            if offset < first:
                raise Trimmed(f"offset {offset} is gone, the log begins with {first}")
            if offset > end:
                await self._refuse_beyond_end(offset)
            if offset == engine.state.end:
                await self._wait_for_more(wait_s)
            if offset == engine.state.end:
                return Fetched(first, offset, [], [])
            rows, buffers = await self._read(offset, bytes_max)
            return Fetched(first, engine.state.end, rows, buffers)
        finally:
            self._busy -= 1

    def _begin(self) -> None:
        self._refuse_if_stopped()
        limit = self._engine.config.limits.pending_reads
        if self._busy >= limit:
            raise Busy(f"{limit} reads wait already (limits.pending_reads)")
        self._busy += 1

    def _refuse_if_stopped(self) -> None:
        if self._stopped is not None:
            raise NotLeader(self._stopped)

    async def _refuse_beyond_end(self, offset: int) -> None:
        """Raise OffsetOutOfRange if ``offset`` is past the end of the log. This replica may only be
        behind, so it asks the leader for the end first."""
        answer = await self._barrier()
        if offset > answer.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is past the end, {answer.end_offset}")

    async def _wait_for_more(self, wait_s: float) -> None:
        lost = self._engine.core.raft.lost
        if lost is not None:
            raise Corrupt(
                f"entry {lost} is damaged on {self._engine.node}, which cannot say what "
                f"follows; ask another"
            )
        if wait_s <= 0:
            return
        moved = self._loop.create_future()
        self._waiting.add(moved)
        timer = self._loop.call_later(wait_s, _wake, moved)
        try:
            await moved
        finally:
            timer.cancel()
            self._waiting.discard(moved)
        self._refuse_if_stopped()

    async def _read(self, offset: int, bytes_max: int) -> tuple[Rows, list[Buffer]]:
        """Frames from ``offset`` on; ``offset`` is below the end."""
        known = self._in_memory
        if known and offset >= self._entry(known.start).base_offset:
            found, missing = self._read_memory(known, offset, bytes_max)
            if missing:
                await self._in_thread(_read_missing, self._log, found, missing)
        else:
            # Entries behind an entry that this disk lost are settled and yet not applied.
            last = min(self._engine.settled, self._engine.applied)
            arguments = self._log, self._published, offset, last, bytes_max
            found = await self._in_thread(_read_disk, *arguments)
        return found.rows, found.buffers

    def _entry(self, index: int) -> Entry:
        """The entry at ``index``, which is in memory."""
        return self._engine.core.raft.log.slice(Index(index), 1, 0)[0]

    @property
    def _in_memory(self) -> range:
        """The indexes of the applied entries that are in memory."""
        return range(self._engine.core.raft.log.first_in_memory, self._engine.applied + 1)

    def _read_memory(
        self, known: range, offset: int, bytes_max: int
    ) -> tuple[_Found, list[_Missing]]:
        """The frames in memory, and the chunks that must be read from disk.

        Chunks may have left memory before their publish came.
        """
        # The last entry that begins at or before the offset: entries without records may precede it
        # with the same offset.
        place = bisect_right(known, offset, key=lambda index: self._entry(index).base_offset) - 1
        index = Index(known[place])
        log = self._engine.core.raft.log
        found = _Found(offset, bytes_max)
        missing: list[_Missing] = []
        while index < known.stop:
            for entry in log.slice(index, known.stop - index, bytes_max):
                index = Index(entry.index + 1)
                if entry.kind is EntryKind.DATA:
                    row = entry.base_offset, entry.count, entry.size, entry.append_time
                    if found.takes(*row):
                        found.buffers += (entry.header, entry.body)
                elif entry.kind is EntryKind.PUBLISH:
                    for chunk in found.chunks(self._published.of(entry)):
                        if chunk.index in known:
                            staged = self._entry(chunk.index)
                            found.buffers += (staged.header, staged.body)
                        else:
                            missing.append(found.leave_out(chunk.index))
                if found.full:
                    return found, missing
        return found, missing

    async def _in_thread(self, read: Callable[..., Result], *arguments: object) -> Result:
        """The result of ``read``, which a thread calls. A cancelled caller does not stop the thread
        and stays counted until the thread is done: only so are the reads in the pool bounded."""
        self._refuse_if_stopped()
        disk_read = _DiskRead(partial(read, *arguments))
        reading = self._loop.run_in_executor(self._pool, disk_read.do)
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        try:
            return await asyncio.shield(reading)  # type: ignore[arg-type]  # it is wanted
        except asyncio.CancelledError:
            disk_read.wanted = False
            if not reading.done():
                self._busy += 1
                reading.add_done_callback(self._end_unwanted)
            raise
        except OSError as error:
            node = self._engine.node
            if error.errno in TOO_MANY_FILES:
                raise Busy(f"{node} has too many files open: {error}") from error
            raise Corrupt(f"{node} cannot read its disk: {error}; ask another") from error

    def _end_unwanted(self, _: object) -> None:
        self._busy -= 1

    # -- offsets by time -----------------------------------------------------------------------

    async def offset_at(self, time_us: int) -> int:
        """The first offset appended at ``time_us`` or later; the end if there is none yet."""
        self._begin()
        try:
            known, end = self._in_memory, self._engine.state.end
            place = bisect_left(known, time_us, key=lambda index: self._entry(index).append_time)
            later = self._entry(known[place]).base_offset if place < len(known) else end
            if place:
                return later
            stored = Index(min(known.start - 1, self._engine.applied))
            found = await self._in_thread(_disk_offset_at, self._log, time_us, stored)
            return later if found is None else found
        finally:
            self._busy -= 1


class _Missing(NamedTuple):
    """A row that was taken and whose frame is still to be read."""

    row: int
    # The position of the frame in the buffers.
    place: int
    entry: Index


class _Found:
    """Frames that hold the records from an offset on, as many as fit into one answer."""

    __slots__ = ("buffers", "full", "offset", "room", "rows")

    def __init__(self, offset: int, bytes_max: int) -> None:
        # The offset of the next record that is wanted.
        self.offset = offset
        self.rows: Rows = []
        self.buffers: list[Buffer] = []
        # Bytes that may still be taken.
        self.room = bytes_max
        # Whether no more frames are taken.
        self.full = False

    def takes(self, offset: int, count: int, size: int, append_time: int) -> bool:
        """Take the row of a frame if it fits; the first always does. If so, the caller adds the
        frame's bytes."""
        if self.full or offset + count <= self.offset:
            return False
        self.room -= size
        self.full = self.room <= 0
        if self.room < 0 and self.rows:
            return False
        self.rows.append((offset, count, size, append_time))
        self.offset = offset + count
        return True

    def chunks(self, publish: PublishIndex) -> Iterator[Chunk]:
        """The chunks of a publish that are wanted. The caller adds the bytes of each before it asks
        for the next."""
        for offset, chunk in publish.from_offset(self.offset):
            if self.takes(offset, chunk.records, chunk.size, publish.append_time):
                yield chunk
            if self.full:
                return

    def leave_out(self, index: Index) -> _Missing:
        """Leave a place for the frame of the last row: entry ``index``, which is to be read."""
        missing = _Missing(len(self.rows) - 1, len(self.buffers), index)
        self.buffers.append(b"")
        return missing

    def end_before(self, missing: _Missing) -> bool:
        """End the answer before ``missing``, which cannot be read. Whether a frame is left."""
        del self.rows[missing.row :], self.buffers[missing.place :]
        self.full = True
        return bool(self.rows)


class _DiskRead(Generic[Result]):
    """A read for a thread, which skips it if its caller was cancelled."""

    __slots__ = ("_read", "wanted")

    def __init__(self, read: Callable[[], Result]) -> None:
        self._read = read
        self.wanted = True

    def do(self) -> Result | None:
        return self._read() if self.wanted else None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# -- in a thread -------------------------------------------------------------------------------


def _read_disk(
    log: SegmentLog, published: RecentPublishes, offset: int, last: Index, bytes_max: int
) -> _Found:
    """Frames of entries up to ``last``. Entries that take no offset are skipped."""
    found = _Found(offset, bytes_max)
    index, step = Index(0), min(bytes_max, PEEK_BYTES)
    one_by_one = False
    while not found.full:
        # The entry of the next record: many stage entries may lie before it.
        index = max(index, log.index_at_offset(found.offset))
        if index > last or (found.rows and log.frame_bytes(index) > found.room):
            break  # the frame would not fit
        try:
            frames = log.frames(index, Index(last + 1), 1 if one_by_one else step)
        except _UNREADABLE as error:
            if not one_by_one:
                one_by_one = True  # one of several is bad: frames before it are given
                continue
            log.suspect(index, error)
            if not found.rows:
                raise
            break
        for frame in frames:
            index = Index(index + 1)
            header = parse_header(frame)
            assert header is not None  # for the type checker: it was proved when it was read
            if header.kind == EntryKind.DATA:
                row = header.base_offset, header.count, len(frame), header.append_time
                if found.takes(*row):
                    found.buffers.append(frame)
            else:
                if header.kind == EntryKind.PUBLISH:
                    for chunk in found.chunks(published.of(decode_entry(frame))):
                        _read_missing(log, found, [found.leave_out(chunk.index)])
                break
        step = found.room
    return found


def _read_missing(log: SegmentLog, found: _Found, missing: list[_Missing]) -> None:
    """Put frames in their places, or end before the first that cannot be read. Raises the error of
    that frame if no frame stands before it."""
    for one in missing:
        try:
            (found.buffers[one.place],) = log.frames(one.entry, Index(one.entry + 1), 1)
        except _UNREADABLE as error:
            log.suspect(one.entry, error)
            if not found.end_before(one):
                raise
            return


def _disk_offset_at(log: SegmentLog, time_us: int, last: Index) -> int | None:
    """The first offset among entries up to ``last`` that was appended at ``time_us`` or later."""
    segments = list(log.segments)
    place = bisect_left(segments, time_us, key=lambda segment: segment.append_time)
    if place == len(segments):
        return None
    rows = segments[place].rows
    stop = max(0, min(len(rows.times), last + 1 - rows.first))
    row = bisect_left(rows.times, time_us, 0, stop)
    return rows.offsets[row] if row < stop else None
