"""What nobody waits for: it keeps up with the flushes, and nobody has to wait for it either."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from replica_rig import LOG, SMALL, Cluster, append_all, in_loop, until
from writer_rig import VOTE, rest, set_up

from quorate.errors import Busy
from quorate.replica.chores import LOOK_MS, ChoreSchedule
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Flushed, FlushFailed, Room
from quorate.replica.log_writer import UNSEALED_MAX, LogWriter
from quorate.replica.writer import Writer
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.directory import LOGS, log_name
from quorate.storage.flusher import Flush
from quorate.storage.layout import UNFINISHED
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index
from verification.disk.enumerate import SEGMENT_BYTES, grow, open_disk
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from writer_rig import Stage

    from quorate.replica.engine_io import DiskReport
    from verification.disk.simulated import SimulatedFile

# So many entries of this size fill a segment.
FULL = [6_500] * 3
SEGMENTS = 8


class Saturated:
    """A log whose next flush is there before the one under way is done. Each fills a segment."""

    def __init__(self, writer: Writer, flushes: int) -> None:
        self.log, flusher = open_disk(SimulatedDisk())
        self.work = LogWriter(
            writer, self.log, flusher, report=self.report, checkpoint=self.checkpoint
        )
        self.left = flushes
        self.number = 0
        self.unsealed_most = 0
        self.failed = False
        # The last sealed entry at each time that a checkpoint was asked for.
        self.asked: list[Index] = []
        self._settled = self._given = Index(0)
        self._last = self.log.last

    def give(self) -> None:
        self.left -= 1
        self.number += 1
        entries = grow(self._last, *FULL)
        self._settled, self._given = self._given, entries[-1].index
        self._last = entries[-1].position
        vote = VOTE if self.number == 1 else None
        self.work.flush(Flush(self.number, vote, entries=entries), self._settled)

    def report(self, item: DiskReport) -> None:
        self.failed |= isinstance(item, FlushFailed)
        self.unsealed_most = max(self.unsealed_most, len(self.log.unsealed))
        if isinstance(item, Flushed) and self.left:
            self.give()

    def checkpoint(self, sealed: Index) -> Checkpoint | None:
        self.asked.append(sealed)
        return None


@in_loop
async def test_sealing_keeps_up_with_flushes_that_never_pause() -> None:
    writer = Writer(1)
    busy = Saturated(writer, 4 * SEGMENTS)
    busy.give()
    await until(lambda: not (busy.left or busy.work.busy))
    assert not busy.failed
    assert len(busy.log.segments) >= 4 * SEGMENTS
    # One is full because of the flush at hand, one waits for its commit.
    assert busy.unsealed_most <= UNSEALED_MAX + 2
    # And the state can be kept meanwhile, not only when all is over.
    assert any(0 < sealed < busy.log.last.index // 2 for sealed in busy.asked)
    writer.close()


@in_loop
async def test_whatever_can_be_sealed_is_sealed_as_soon_as_there_is_time() -> None:
    stage = set_up()
    for number in range(1, SEGMENTS + 1):
        entries = grow(stage.log.last, *FULL)
        stage.work.flush(Flush(number, VOTE if number == 1 else None, entries=entries), Index(0))
        await rest(stage)
    assert not any(stage.sealed())
    stage.work.tend(stage.log.last.index)
    await rest(stage)
    assert stage.sealed() == [True] * (len(stage.log.segments) - 1) + [False]
    assert (stage.log.unsealed, stage.log.unindexed) == ([], [])
    stage.writer.close()


# -- other logs --------------------------------------------------------------------------------


def blocked(writer: Writer, go: threading.Event) -> list[asyncio.Future[None]]:
    """Logs that take long to open, more than there are threads."""

    def plan() -> Generator[str, None, None]:
        go.wait()
        yield "looked"

    return [asyncio.ensure_future(writer.carry_out(plan())) for _ in range(3)]


@in_loop
async def test_a_flush_does_not_wait_while_other_logs_are_opened() -> None:
    stage, go = set_up(), threading.Event()
    opening = blocked(stage.writer, go)
    await asyncio.sleep(0)
    for number in (1, 2):
        # Chores are due after each, and no thread has time for them.
        entries = grow(stage.log.last, *FULL)
        stage.work.flush(Flush(number, VOTE, entries=entries), stage.log.last.index)
        await until(lambda: len(stage.flushed()) == number)  # noqa: B023  # called at once
    assert not any(stage.sealed())
    go.set()
    await asyncio.gather(*opening)
    await rest(stage)
    assert stage.sealed()[:-2] == [True] * (len(stage.log.segments) - 2)
    stage.writer.close()


@in_loop
async def test_a_stop_does_not_wait_for_chores_that_were_not_begun() -> None:
    stage, go = set_up(), threading.Event()
    stage.work.flush(Flush(1, VOTE, entries=grow(stage.log.last, *FULL, *FULL)), Index(0))
    await rest(stage)
    opening = blocked(stage.writer, go)
    await asyncio.sleep(0)
    steps = len(stage.steps)
    stage.work.tend(Index(3), prove=True)
    await stage.work.rest()
    go.set()
    await asyncio.gather(*opening)
    stage.writer.close()
    assert len(stage.steps) == steps


# -- checkpoints ---------------------------------------------------------------------------------


class Endless:
    """Sections without an end; the thread that makes them waits at one until it may go on."""

    def __init__(self, wait_at: int) -> None:
        self.made = 0
        # How many were made when each flush began.
        self.made_before: list[int] = []
        self.go_on = threading.Event()
        self._wait_at = wait_at

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.made += 1
            if self.made == self._wait_at:
                self.go_on.wait()
            yield b"section"


def keeping(sections: Endless) -> tuple[Writer, SimulatedDisk, LogWriter, list[object]]:
    """A log that has begun to write a checkpoint of these sections."""
    writer, disk = Writer(1), SimulatedDisk()
    log, flusher = open_disk(disk)
    reports: list[object] = []
    due = [Checkpoint(log.last, sections)]
    plan = flusher.plan

    def planned(flush: Flush) -> Iterator[str]:
        sections.made_before.append(sections.made)
        return plan(flush)

    flusher.plan = planned  # type: ignore[method-assign]  # only to look
    work = LogWriter(
        writer, log, flusher, report=reports.append, checkpoint=lambda _: due.pop() if due else None
    )
    work.flush(Flush(1, VOTE, entries=grow(log.last, *FULL)), Index(0))
    return writer, disk, work, reports


@in_loop
async def test_a_flush_waits_for_one_section_of_a_checkpoint_at_most() -> None:
    sections = Endless(wait_at=5)
    writer, _, work, reports = keeping(sections)
    await until(lambda: sections.made == 5)
    work.flush(Flush(2, VOTE), Index(0))
    sections.go_on.set()
    await until(lambda: [one.number for one in reports if isinstance(one, Flushed)] == [1, 2])
    assert sections.made_before == [0, 5]
    await until(lambda: sections.made > 20)
    await work.rest()
    writer.close()


@in_loop
async def test_a_stop_gives_up_the_checkpoint_that_is_being_written() -> None:
    """It may take seconds, and the next one has all that this one would have."""
    sections = Endless(wait_at=3)
    writer, disk, work, _ = keeping(sections)
    await until(lambda: sections.made == 3)
    assert CHECKPOINT + UNFINISHED in disk.files
    stopping = asyncio.ensure_future(work.rest())
    await asyncio.sleep(0)
    sections.go_on.set()
    await stopping
    await work.close(Index(0))
    assert sections.made <= 4
    assert CHECKPOINT not in disk.files
    assert CHECKPOINT + UNFINISHED not in disk.files
    writer.close()


# -- too many open files -----------------------------------------------------------------------


class ScarceFiles(SimulatedDisk):
    """A disk that is fine, in a process that may open no more files."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def create(self, name: str) -> SimulatedFile:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused), name)
        return super().create(name)


@in_loop
async def test_a_checkpoint_that_cannot_be_made_now_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Index] = []
    real = Engine.checkpoint

    def checkpoint(engine: Engine, sealed: Index) -> Checkpoint | None:
        asked.append(sealed)
        if sealed == asked[0]:
            raise Busy("no file can be opened")
        return real(engine, sealed)

    monkeypatch.setattr(Engine, "checkpoint", checkpoint)
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        place = tmp_path / leader.engine.node / LOGS / log_name(LOG) / CHECKPOINT
        while not place.exists():
            await append_all(leader, [bytes(300)] * 100)
        assert cluster.halts == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE], ids=["EMFILE", "ENFILE"])
@in_loop
async def test_an_index_file_that_cannot_be_opened_is_written_later(number: int) -> None:
    writer, disk = Writer(1), ScarceFiles()
    log, flusher = open_disk(disk)
    reports: list[DiskReport] = []
    work = LogWriter(writer, log, flusher, report=reports.append, checkpoint=lambda _: None)
    work.flush(Flush(1, VOTE, entries=grow(log.last, *FULL, *FULL)), Index(0))
    await until(lambda: not work.busy)
    disk.refused = number
    for _ in range(2):
        work.tend(Index(3))
        await until(lambda: not work.busy)
    assert log.unindexed == [log.segments[0]]
    assert work.has_chores
    disk.refused = 0
    work.tend(Index(3))
    await until(lambda: not work.busy)
    assert log.unindexed == []
    assert not any(isinstance(report, FlushFailed) for report in reports)
    writer.close()


# -- looks for a turn --------------------------------------------------------------------------


@in_loop
async def test_a_segment_that_a_turn_wants_to_know_is_looked_at_without_a_flush() -> None:
    stage = set_up()
    entries = grow(ORIGIN, *[6_500] * 4)
    stage.work.flush(Flush(1, VOTE, entries=entries), Index(0))
    await rest(stage)
    while stage.work.has_chores:
        stage.work.tend(Index(4))
        await rest(stage)
    _, end = stage.log.segments[0].rows.frame(Index(2))
    byte = stage.disk.files["0000000000000001.segment"].content[end - 1]
    stage.disk.spoil("0000000000000001.segment", end - 1, bytes([byte ^ 1]))
    stored = StoredEntries(stage.log)
    assert not stage.work.wanted
    with pytest.raises(Busy):
        stored.entries(Index(2), Index(3))
    assert (stage.work.wanted, stage.work.has_chores) == (True, True)
    disk_space: Any = SimpleNamespace(missing=0, shortage="")
    schedule = ChoreSchedule(stage.work, disk_space, 0)
    schedule.flushed(1)
    schedule.tend(Index(4), 1)
    assert stage.work.busy
    await rest(stage)
    assert not stage.work.wanted
    assert not stored.entries(Index(2), Index(3))[0].whole
    stage.writer.close()


# -- a shortage that is over -------------------------------------------------------------------


async def without_room(wanted: int) -> tuple[Stage, ChoreSchedule, SimpleNamespace]:
    """A tidy log with a spare, which found no room for an entry of ``wanted`` bytes."""
    stage = set_up()
    stage.work.flush(Flush(1, VOTE, entries=grow(ORIGIN, 100)), Index(0))
    await rest(stage)
    stage.work.tend(Index(1))
    await rest(stage)
    assert not stage.work.has_chores
    stage.disk.capacity -= stage.disk.space()[0]
    stage.work.tend(Index(1), wanted=wanted)
    await rest(stage)
    report = stage.reports[-1]
    assert isinstance(report, Room)
    assert report.shortage
    disk_space: Any = SimpleNamespace(missing=0, shortage=report.shortage)
    return stage, ChoreSchedule(stage.work, disk_space, 0), disk_space


@in_loop
async def test_a_shortage_ends_although_the_entry_does_not_come_again() -> None:
    """The spare is as large as the next segment is to be: nothing else is to be allocated."""
    stage, schedule, _ = await without_room(SEGMENT_BYTES)
    schedule.tend(Index(1), LOOK_MS)
    await rest(stage)
    report = stage.reports[-1]
    assert isinstance(report, Room)
    assert (report.shortage, report.room) == ("", stage.work._flusher.room)
    stage.writer.close()


@in_loop
async def test_the_room_for_an_entry_is_looked_for_as_long_as_the_entry_is_wanted() -> None:
    stage, schedule, disk_space = await without_room(SEGMENT_BYTES)
    disk_space.missing = SEGMENT_BYTES
    schedule.tend(Index(1), LOOK_MS)
    await rest(stage)
    assert stage.work._flusher.spare.shortage
    stage.disk.capacity += 4 * SEGMENT_BYTES
    schedule.tend(Index(1), 2 * LOOK_MS)
    await rest(stage)
    assert not stage.work._flusher.spare.shortage
    assert stage.work._flusher.room >= SEGMENT_BYTES
    stage.writer.close()


@in_loop
async def test_a_spare_that_is_too_small_grows_once_there_is_room() -> None:
    """Settings were raised: the log has a spare, and is short of a larger one."""
    stage, schedule, _ = await without_room(SEGMENT_BYTES)
    stage.work._flusher._least_bytes = stage.work._flusher._segment_bytes = 2 * SEGMENT_BYTES
    schedule.tend(Index(1), LOOK_MS)
    await rest(stage)
    assert stage.work._flusher.spare.shortage
    stage.disk.capacity += 4 * SEGMENT_BYTES
    schedule.tend(Index(1), 2 * LOOK_MS)
    await rest(stage)
    assert stage.work._flusher.spare.bytes == 2 * SEGMENT_BYTES
    assert not stage.work._flusher.spare.shortage
    stage.writer.close()
