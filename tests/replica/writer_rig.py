"""The writer of one log over a disk in memory, which can be made to wait at a step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from replica_rig import until

from quorate.replica.engine_io import Flushed
from quorate.replica.log_writer import LogWriter
from quorate.replica.writer import Writer
from quorate.storage.flusher import Flush, Flusher
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.enumerate import SEGMENT_BYTES, grow, open_disk
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.replica.engine_io import DiskReport
    from quorate.storage.log import SegmentLog

# Two segments: entries 1 to 3 in the first, 4 in the second.
ENTRIES = grow(ORIGIN, *[6_500] * 4)
VOTE = (Term(1), NodeId("n1"))


class Stage(NamedTuple):
    """A log writer over a disk in memory."""

    writer: Writer
    disk: SimulatedDisk
    log: SegmentLog
    work: LogWriter
    # The steps that were done, and what was reported.
    steps: list[str]
    reports: list[DiskReport]
    # The step before which the thread waits, and what lets it go on.
    halt_at: list[str]
    go_on: threading.Event

    def flushed(self) -> list[int]:
        return [report.number for report in self.reports if isinstance(report, Flushed)]

    def sealed(self) -> list[bool]:
        return [segment.footer is not None for segment in self.log.segments]


class SteppedFlusher(Flusher):
    """Tells its steps, and can be made to wait at one."""

    stage: Stage

    def plan(self, flush: Flush) -> Iterator[str]:
        return self._told(super().plan(flush))

    def chores(self, settled: Index) -> Iterator[str]:
        return self._told(super().chores(settled))

    def allocate_ahead(self, wanted: int | None = None) -> Iterator[str]:
        return self._told(super().allocate_ahead(wanted))

    def prove(self, committed: Index) -> Iterator[str]:
        return self._told(super().prove(committed))

    def _told(self, plan: Iterator[str]) -> Iterator[str]:
        for step in plan:
            self.stage.steps.append(step)
            if self.stage.halt_at and step.startswith(self.stage.halt_at[0]):
                self.stage.halt_at.pop()
                self.stage.go_on.wait()
            yield step


def set_up(writer: Writer | None = None) -> Stage:
    """A log with a vote and nothing in it."""
    writer, disk = writer or Writer(1), SimulatedDisk()
    log, opened = open_disk(disk)
    flusher = SteppedFlusher(log, SEGMENT_BYTES, lambda: 7)
    flusher.spare.bytes = opened.spare.bytes
    reports: list[DiskReport] = []
    work = LogWriter(writer, log, flusher, report=reports.append, checkpoint=lambda _: None)
    flusher.stage = Stage(writer, disk, log, work, [], reports, [], threading.Event())
    return flusher.stage


async def rest(stage: Stage) -> None:
    await until(lambda: not stage.work.busy)


async def two_segments() -> Stage:
    """The first segment is full and not sealed; the second one has an entry."""
    stage = set_up()
    stage.work.flush(Flush(1, VOTE, entries=ENTRIES), Index(0))
    await rest(stage)
    assert len(stage.log.segments) == 2
    stage.steps.clear()
    stage.reports.clear()
    return stage
