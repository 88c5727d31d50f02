"""The writer of one log: flushes first, chores between them, and what a crash leaves of both."""

from __future__ import annotations

import asyncio
import errno
import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from replica_rig import in_loop, until
from writer_rig import ENTRIES, VOTE, rest, set_up, two_segments

from quorate.replica import log_writer
from quorate.replica.engine_io import FilesAwaited, Flushed, FlushFailed, Room
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE
from quorate.types import Index, NodeId, Term
from verification.disk.enumerate import (
    SEGMENT_BYTES,
    CrashScenario,
    Kept,
    enumerate_all,
    grow,
    open_disk,
)
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

# -- flushes and chores ------------------------------------------------------------------------


@in_loop
async def test_a_flush_is_reported_with_its_number_and_the_room_after_it() -> None:
    seconds: list[float] = []
    stage = set_up()
    stage.writer.observe = seconds.append
    stage.work.flush(Flush(7, VOTE, entries=ENTRIES[:1]), Index(0))
    await rest(stage)
    # The first segment took the spare; the next one is allocated by then.
    assert stage.reports == [Flushed(7, 0), Room(SEGMENT_BYTES - 7 * PAGE)]
    assert len(seconds) == 1
    assert stage.log.last == ENTRIES[0].position
    stage.writer.close()


@in_loop
async def test_chores_follow_the_flush_that_made_them_and_stop_when_done() -> None:
    stage = await two_segments()
    more = grow(ENTRIES[-1].position, 100, 100, 100)
    stage.work.flush(Flush(2, entries=more[:1]), Index(3))
    await rest(stage)
    assert stage.sealed() == [True, False]
    assert stage.log.segments[0].indexed
    assert stage.flushed() == [2]
    assert isinstance(stage.reports[-1], Room)
    stage.work.flush(Flush(3, entries=more[1:2]), Index(4))
    await rest(stage)
    stage.reports.clear()
    # Nothing is left to do: a flush is a flush.
    stage.work.flush(Flush(4, entries=more[2:]), Index(5))
    await rest(stage)
    assert [type(report) for report in stage.reports] == [Flushed]
    stage.writer.close()


@in_loop
async def test_a_flush_waits_for_one_step_of_the_chores_at_most() -> None:
    stage = await two_segments()
    more = grow(ENTRIES[-1].position, 100, 100)
    stage.halt_at.append("write footer")
    stage.work.flush(Flush(2, entries=more[:1]), Index(3))
    await until(lambda: stage.flushed() == [2])
    await until(lambda: not stage.halt_at)
    stage.work.flush(Flush(3, entries=more[1:]), Index(4))
    stage.go_on.set()
    await until(lambda: stage.flushed() == [2, 3])
    await rest(stage)
    footer = next(n for n, step in enumerate(stage.steps) if step.startswith("write footer"))
    assert stage.steps[footer + 1].startswith("write block")
    assert stage.steps[footer + 2].startswith("sync block")
    assert stage.steps[footer + 3].startswith("shorten")
    assert stage.log.segments[0].indexed
    stage.writer.close()


@in_loop
async def test_the_spare_is_allocated_at_once_even_if_a_flush_waits() -> None:
    stage = set_up()
    stage.halt_at.append("allocate spare")
    stage.work.flush(Flush(1, VOTE, entries=ENTRIES[:1]), Index(0))
    await until(lambda: not stage.halt_at)
    stage.work.flush(Flush(2, entries=ENTRIES[1:]), Index(0))
    stage.go_on.set()
    await until(lambda: stage.flushed() == [1, 2])
    await rest(stage)
    place = stage.steps.index("allocate spare")
    assert stage.steps[place + 1] == "sync spare"
    assert stage.log.last == ENTRIES[-1].position
    stage.writer.close()


@in_loop
async def test_the_last_flush_is_proved_when_that_is_wanted() -> None:
    stage = await two_segments()
    stage.work.tend(Index(4), prove=True)
    await rest(stage)
    assert not stage.work.unproven
    assert stage.steps[0].startswith("write block")
    # And what there was to do besides.
    assert stage.sealed() == [True, False]
    stage.writer.close()


@in_loop
async def test_chores_that_were_begun_are_finished_before_a_clean_stop() -> None:
    stage = await two_segments()
    stage.halt_at.append("write footer")
    more = grow(ENTRIES[-1].position, 100, 100)
    stage.work.flush(Flush(2, entries=more[:1]), Index(3))
    await until(lambda: not stage.halt_at)
    stage.work.flush(Flush(3, entries=more[1:]), Index(4))
    resting = asyncio.ensure_future(stage.work.rest())
    await asyncio.sleep(0)
    stage.go_on.set()
    await resting
    assert stage.sealed() == [False, False]
    await stage.work.close(Index(4))
    assert stage.sealed() == [True, False]
    log, _ = open_disk(stage.disk)
    assert (log.damage, log.last) == ([], stage.log.last)
    stage.writer.close()


@in_loop
async def test_a_stop_ends_the_plan_after_the_step_under_way() -> None:
    stage = set_up()
    stage.halt_at.append("write vote-a")
    stage.work.flush(Flush(1, VOTE, entries=ENTRIES[:1]), Index(0))
    await until(lambda: not stage.halt_at)
    stage.work.abandon()
    stage.go_on.set()
    await stage.work.rest()
    assert stage.steps == ["write vote-a"]
    assert stage.reports == []
    stage.writer.close()


# -- disks that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["flush", "chores", "prove"])
@in_loop
async def test_whatever_fails_is_reported_and_nothing_is_written_after_it(what: str) -> None:
    stage = await two_segments()
    stage.disk.error = 5
    if what == "flush":
        stage.work.flush(Flush(2, VOTE), Index(3))
    else:
        stage.work.tend(Index(3), prove=what == "prove")
    await until(lambda: stage.reports)
    (report,) = stage.reports
    assert isinstance(report, FlushFailed)
    assert report.number == (2 if what == "flush" else 0)
    assert not stage.work.busy
    stage.writer.close()


@in_loop
async def test_a_flush_that_waited_for_failed_chores_is_not_begun() -> None:
    stage = await two_segments()
    stage.halt_at.append("write footer")
    stage.work.tend(Index(3), prove=False)
    await until(lambda: not stage.halt_at)
    stage.work.flush(Flush(2, VOTE), Index(3))
    stage.disk.error = 5
    stage.go_on.set()
    await rest(stage)
    # It had stopped for the flush, which fails then; or it failed itself.
    assert [type(report) for report in stage.reports][-1] is FlushFailed
    assert stage.flushed() == []
    stage.writer.close()


# -- crashes -----------------------------------------------------------------------------------

SETTLED = Index(3)
LONGER = grow(ENTRIES[-1].position, 100)
ROLLING = grow(ENTRIES[-1].position, *[5_000] * 4)
OTHER = grow(ENTRIES[2].position, 200, 5_000, term=2)


def flushes() -> dict[str, tuple[Flush, Kept]]:
    def kept(*entries: Entry) -> Kept:
        return Kept(entries, Index(1), *VOTE)

    second = (Term(2), NodeId("n2"))
    replaced = Kept((*ENTRIES[:3], *OTHER), Index(1), *second)
    return {
        "append": (Flush(2, entries=LONGER), kept(*ENTRIES, *LONGER)),
        "roll": (Flush(2, entries=ROLLING), kept(*ENTRIES, *ROLLING)),
        "replace": (Flush(2, second, Index(4), OTHER), replaced),
    }


def woven(flush: Flush, pause: int) -> Callable[[SegmentLog, Flusher], Iterator[str]]:
    """Chores that stop after so many steps for a flush, as the writer has them stop."""

    def plan(_: SegmentLog, flusher: Flusher) -> Iterator[str]:
        yield from flusher.allocate_ahead()
        chores = flusher.chores(SETTLED)
        yield from islice(chores, pause)
        yield from flusher.plan(flush)
        yield from flusher.allocate_ahead()
        yield from chores

    return plan


def past() -> tuple[Callable[[SegmentLog, Flusher], Iterator[str]], ...]:
    return (lambda _, flusher: flusher.plan(Flush(1, VOTE, entries=ENTRIES)),)


def chore_steps() -> list[str]:
    log, flusher = open_disk(SimulatedDisk())
    for step in past():
        for _ in step(log, flusher):
            pass
    for _ in flusher.allocate_ahead():
        pass
    return list(flusher.chores(SETTLED))


def test_chores_after_the_spare_do_not_touch_it() -> None:
    """So that they may stop for a flush at any step."""
    steps = chore_steps()
    assert [step for step in steps if step.startswith("write footer")]
    assert not [step for step in steps if step.endswith("spare")]


@pytest.mark.parametrize(
    ("name", "pause"), [("append", 2), ("append", 5), ("roll", 2), ("replace", 5)]
)
def test_a_flush_amid_chores_survives_every_crash(name: str, pause: int) -> None:
    """In the middle of sealing, and of writing an index file; the other places are alike."""
    assert pause < len(chore_steps())
    flush, after = flushes()[name]
    before = Kept(ENTRIES, Index(1), *VOTE)
    scenario = CrashScenario(f"{name} after {pause}", before, after, woven(flush, pause), past())
    outcome = enumerate_all(scenario, every=1 << 30)
    assert outcome.problems == []
    assert outcome.crashed > 50


# -- too many open files -----------------------------------------------------------------------


class Shortage:
    """A disk on which no file can be opened or listed for so many calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.met = 0
        for name in ("open", "create", "names"):
            monkeypatch.setattr(SimulatedDisk, name, self._refusing(getattr(SimulatedDisk, name)))

    def _refusing(self, usual: Callable[..., object]) -> Callable[..., object]:
        def call(disk: SimulatedDisk, *arguments: str) -> object:
            if self.left:
                self.left -= 1
                self.met += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return usual(disk, *arguments)

        return call


@pytest.mark.parametrize("calls", [1, 2, 3])
@in_loop
async def test_a_flush_waits_until_files_can_be_opened(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """A vote, and entries that begin a segment: each needs files, and nothing fails."""
    stage = set_up()
    shortage = Shortage(monkeypatch)
    shortage.left = calls
    stage.work.flush(Flush(1, VOTE, entries=ENTRIES), Index(0))
    await rest(stage)
    assert shortage.met == calls
    assert stage.flushed() == [1]
    assert not [report for report in stage.reports if isinstance(report, FlushFailed)]
    assert stage.log.last == ENTRIES[-1].position
    assert len(stage.log.segments) == 2
    log, _ = open_disk(stage.disk)
    assert (log.last, log.record.vote) == (ENTRIES[-1].position, VOTE[1])
    stage.writer.close()


@in_loop
async def test_each_wait_for_files_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = set_up()
    shortage = Shortage(monkeypatch)
    for number in (1, 2):
        shortage.left = 5
        stage.work.flush(Flush(number, (Term(number), NodeId("n1"))), Index(0))
        await rest(stage)
        assert stage.flushed()[-1] == number
        told = [report for report in stage.reports if isinstance(report, FilesAwaited)]
        assert len(told) == number
    stage.writer.close()


@in_loop
async def test_a_segment_is_begun_when_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = set_up()
    shortage = Shortage(monkeypatch)
    stage.halt_at.append("sync directory for 0000000000000001")
    stage.work.flush(Flush(1, entries=ENTRIES[:1]), Index(0))
    await until(lambda: not stage.halt_at)
    shortage.left = 2
    stage.go_on.set()
    await rest(stage)
    assert (shortage.met, stage.flushed()) == (2, [1])
    stage.writer.close()


@in_loop
async def test_a_flush_that_waits_for_files_can_be_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = set_up()
    shortage = Shortage(monkeypatch)
    shortage.left = 1 << 30
    stage.work.flush(Flush(1, VOTE), Index(0))
    await until(lambda: shortage.met > 1)
    stage.work.abandon()
    await stage.work.rest()
    assert stage.flushed() == []
    stage.writer.close()


@in_loop
async def test_a_flush_that_waits_for_files_leaves_its_thread_to_other_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one thread for flushes. An append opens no file."""
    stage = set_up()
    other = set_up(stage.writer)
    other.work.flush(Flush(1, entries=ENTRIES[:1]), Index(0))
    await until(lambda: other.flushed() == [1] and not other.work.busy)
    shortage = Shortage(monkeypatch)
    shortage.left = 1 << 30
    stage.work.flush(Flush(1, VOTE), Index(0))
    await until(lambda: shortage.met > 1)
    other.work.flush(Flush(2, entries=ENTRIES[1:2]), Index(0))
    await until(lambda: other.flushed() == [1, 2])
    assert stage.flushed() == []
    shortage.left = 0
    await until(lambda: stage.flushed() == [1])
    await rest(stage)
    await rest(other)
    stage.writer.close()


@in_loop
async def test_a_stop_gives_up_a_flush_that_finds_no_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "STOP_S", 0.1)
    stage = set_up()
    shortage = Shortage(monkeypatch)
    shortage.left = 1 << 30
    stage.work.flush(Flush(1, VOTE), Index(0))
    await until(lambda: shortage.met > 1)
    await asyncio.wait_for(stage.work.rest(), 10)
    assert stage.flushed() == []
    with pytest.raises(OSError, match="Too many open files"):
        await stage.work.close(Index(0))
    shortage.left = 0
    log, _ = open_disk(stage.disk)
    assert log.record.vote is None
    stage.writer.close()


@in_loop
async def test_a_stop_waits_for_a_flush_that_finds_files_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = set_up()
    shortage = Shortage(monkeypatch)
    shortage.left = 3
    stage.work.flush(Flush(1, VOTE), Index(0))
    await until(lambda: shortage.met > 1)
    await stage.work.rest()
    await stage.work.close(Index(0))
    log, _ = open_disk(stage.disk)
    assert log.record.vote == VOTE[1]
    stage.writer.close()
