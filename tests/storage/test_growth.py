"""A log begins with small segments, and has room for the largest batch from its first moment on."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from quorate.config import KIB, MIB, Config, Limits, Storage
from quorate.replica.disk_space import DROP_BYTES, ENTRY_OVERHEAD, NAMES_BYTES
from quorate.storage.disk_errors import WAIT_FOR_FILES
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, SPARE, LogId
from quorate.storage.recovery.open import open_log
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index
from verification.disk.crashes import crash_states
from verification.disk.enumerate import grow
from verification.disk.simulated import UNLIMITED, SimulatedDisk, SimulatedFile
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

LEAST = 10 * PAGE
MOST = 64 * PAGE
# A block that takes this takes two pages.
BODY = PAGE


def opened(disk: SimulatedDisk, least: int = LEAST, most: int = MOST) -> tuple[SegmentLog, Flusher]:
    return complete(open_log(disk, LogId(1, bytes(16)), most, lambda: 1, least_bytes=least))


def run(plan: Iterator[str]) -> None:
    for _ in plan:
        pass


def append(log: SegmentLog, flusher: Flusher, *sizes: int) -> None:
    """And the chores that follow."""
    run(flusher.plan(Flush(1, entries=grow(log.last, *sizes))))
    run(flusher.chores(log.last.index))


def fill(log: SegmentLog, flusher: Flusher, segments: int) -> None:
    while len(log.segments) < segments:
        append(log, flusher, BODY)


def capacities(log: SegmentLog) -> list[int]:
    return [segment.header.capacity // PAGE for segment in log.segments]


def spare(disk: SimulatedDisk) -> int:
    return len(disk.files[SPARE].content) // PAGE


def test_segments_double_up_to_the_largest() -> None:
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    assert spare(disk) == 10
    fill(log, flusher, 7)
    assert capacities(log) == [10, 10, 20, 40, 64, 64, 64]
    assert spare(disk) == 64


def test_a_restart_goes_on_where_it_was() -> None:
    disk = SimulatedDisk()
    for segments in range(1, 6):
        log, flusher = opened(disk)
        fill(log, flusher, segments)
        run(flusher.close(Index(0)))
    log, _ = opened(disk)
    assert capacities(log) == [10, 10, 20, 40, 64]
    assert log.damage == []


def test_without_a_smallest_size_all_are_the_largest() -> None:
    disk = SimulatedDisk()
    log, flusher = complete(open_log(disk, LogId(1, bytes(16)), LEAST, lambda: 1))
    fill(log, flusher, 3)
    assert capacities(log) == [10, 10, 10]


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(Config().timing, Limits(batch_bytes=64 * KIB), Storage(segment_bytes=1 * MIB)),
        Config(Config().timing, Limits(batch_bytes=2 * MIB), Storage(segment_bytes=64 * MIB)),
        Config(
            Config().timing,
            Limits(batch_bytes=8 * MIB),
            Storage(segment_bytes=20 * MIB, reserve_bytes=MIB),
        ),
    ],
)
def test_the_largest_batch_is_admitted_whatever_the_log_holds(config: Config) -> None:
    limits, storage = config.limits, config.storage
    drops = min(DROP_BYTES * limits.staged_chunks, storage.segment_bytes // 4)
    largest = limits.batch_bytes + ENTRY_OVERHEAD + NAMES_BYTES + drops + storage.reserve_bytes
    disk = SimulatedDisk()
    log, flusher = opened(disk, config.least_segment_bytes, storage.segment_bytes)
    assert flusher.room >= largest
    # Before the next spare is there, a first entry leaves as much.
    run(flusher.plan(Flush(1, entries=grow(log.last, 100))))
    run(flusher.prove(Index(0)))
    assert flusher.room >= largest
    for _ in range(12):
        run(flusher.chores(log.last.index))
        assert flusher.room >= largest
        run(flusher.plan(Flush(2, entries=grow(log.last, limits.batch_bytes))))


# -- sizes that are no whole pages -------------------------------------------------------------


def fill_and_prove(log: SegmentLog, flusher: Flusher, segments: int) -> None:
    """Every flush can be proved, however full its segment is."""
    for size in cycle((3_800, 100, 7_900, 12_000, 4_032)):
        run(flusher.plan(Flush(1, entries=grow(log.last, size))))
        assert list(flusher.prove(Index(0))), "there is no room to prove it"
        assert not flusher.unproven
        run(flusher.chores(log.last.index))
        if len(log.segments) == segments:
            return


@pytest.mark.parametrize("part", [1, 2_000, PAGE - 1])
def test_segments_are_made_of_whole_pages(part: int) -> None:
    log, flusher = opened(SimulatedDisk(), LEAST - part, MOST + part)
    fill_and_prove(log, flusher, 6)
    assert capacities(log) == [10, 10, 20, 40, 64, 64]
    assert not any(segment.header.capacity % PAGE for segment in log.segments)


def test_the_largest_size_counts_more_than_the_smallest() -> None:
    log, flusher = opened(SimulatedDisk(), MOST + 1, MOST + 1)
    fill_and_prove(log, flusher, 3)
    assert capacities(log) == [64, 64, 64]


def test_a_segment_with_a_part_of_a_page_takes_whole_ones() -> None:
    """An earlier release made such."""
    disk = SimulatedDisk()
    _, flusher = opened(disk)
    flusher._least_bytes = flusher.spare.bytes = LEAST + 2_000
    with closing(disk.open(SPARE)) as file:
        file.allocate(LEAST + 2_000)
    run(flusher.plan(Flush(1, entries=grow(ORIGIN, 100))))
    run(flusher.chores(Index(0)))
    log, flusher = opened(disk)
    assert log.segments[0].header.capacity == LEAST + 2_000
    assert spare(disk) * PAGE == len(disk.files[SPARE].content) == LEAST
    fill_and_prove(log, flusher, 3)
    assert capacities(log) == [10, 10, 20]
    assert log.segments[2].header.capacity == 2 * LEAST


# -- spares ------------------------------------------------------------------------------------


def test_what_was_admitted_fits_although_nothing_more_can_be_allocated() -> None:
    """The roll takes the spare as it is, though it is smaller than the next one is to be."""
    _, log, flusher = shrunk()
    while len(log.segments) == 1:
        assert flusher.room > ENTRY_OVERHEAD
        run(flusher.plan(Flush(1, entries=grow(log.last, flusher.room - ENTRY_OVERHEAD))))
    assert capacities(log) == [10, 10]


def tight() -> SimulatedDisk:
    """With a log of two segments that were made under smaller limits, and room for nothing more."""
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    fill(log, flusher, 1)
    while len(log.segments) == 1:
        run(flusher.plan(Flush(1, entries=grow(log.last, BODY))))
    run(flusher.close(Index(0)))
    disk.capacity = disk.space()[1] - disk.space()[0]
    return disk


def cut(log: SegmentLog) -> Flush:
    """The first segment is left, and the other one becomes the spare."""
    return Flush(1, truncate_from=Index(log.segments[1].first - 1))


def shrunk() -> tuple[SimulatedDisk, SegmentLog, Flusher]:
    """A log whose spare is smaller than it is to be."""
    disk = tight()
    log, flusher = opened(disk, least=20 * PAGE)
    assert SPARE not in disk.files
    run(flusher.plan(cut(log)))
    assert spare(disk) == 10
    return disk, log, flusher


def test_a_spare_that_cannot_be_made_larger_stays_what_it_was() -> None:
    disk, _, flusher = shrunk()
    room = flusher.room
    assert room > 0
    disk.capacity += 3 * PAGE
    run(flusher.allocate_ahead())
    assert (spare(disk), flusher.room) == (10, room)
    assert flusher.spare.shortage


def test_a_spare_is_made_larger_once_there_is_room() -> None:
    disk, _, flusher = shrunk()
    disk.capacity = UNLIMITED
    run(flusher.allocate_ahead())
    assert spare(disk) == 20
    assert not flusher.spare.shortage


@pytest.mark.parametrize("wanted", [1, PAGE, MOST, 3 * MOST + 1])
def test_a_spare_takes_an_entry_that_others_have_whatever_its_size(wanted: int) -> None:
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    append(log, flusher, BODY)
    run(flusher.allocate_ahead(wanted))
    assert flusher.room >= wanted
    room = flusher.room
    # And it stays what it is until it is used.
    run(flusher.allocate_ahead())
    assert flusher.room == room
    body = max(0, wanted - len(grow(log.last, 0)[0].header))
    append(log, flusher, body)
    assert not log.damage
    assert opened(disk)[0].last == log.last


@pytest.mark.parametrize("pages", [3, 1000])
def test_a_crash_while_a_spare_grows_costs_nothing(pages: int) -> None:
    disk = tight()
    log, _ = opened(disk.copy(), least=20 * PAGE)
    ends = {log.last.index, log.segments[1].first - 2}
    disk.capacity += pages * PAGE

    def growing(live: SimulatedDisk) -> Generator[str, None, None]:
        log, flusher = yield from open_log(
            live, LogId(1, bytes(16)), MOST, lambda: 1, least_bytes=20 * PAGE
        )
        yield from flusher.plan(cut(log))
        yield from flusher.allocate_ahead()

    steps, found_ends = set(), set()
    for crash in crash_states(disk, growing):
        found, flusher = opened(crash.disk, least=20 * PAGE)
        assert (found.damage, found.record.unsure) == ([], False)
        found_ends.add(found.last.index)
        steps.add(crash.step)
        crash.disk.capacity = UNLIMITED
        append(found, flusher, BODY)
    assert found_ends == ends
    assert {"shorten spare" if pages == 3 else "allocate spare", "sync spare"} <= steps


# -- a clean stop ------------------------------------------------------------------------------


def test_a_clean_stop_says_what_was_committed_since_the_last_block() -> None:
    """Whoever reads the files of a stopped node sees all that it knew to be committed."""
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    run(flusher.plan(Flush(1, entries=grow(log.last, 10, 10, 10))))
    run(flusher.prove(Index(2)))
    run(flusher.close(Index(3)))
    end = log.segments[-1].end
    run(flusher.close(Index(3)))
    assert log.segments[-1].end == end, "once is enough"
    log, _ = opened(disk)
    assert Recovered.of(log).committed == 3


def test_a_restart_that_brings_nothing_new_takes_no_room() -> None:
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    fill(log, flusher, 2)
    run(flusher.close(log.last.index))
    end = log.segments[-1].end
    for _ in range(3):
        log, flusher = opened(disk)
        run(flusher.close(log.last.index))
        assert log.segments[-1].end == end


@pytest.mark.parametrize("full", [False, True])
def test_the_reserve_of_a_full_disk_is_not_for_saying_what_is_committed(full: bool) -> None:
    """It is only on a full disk that there is nothing but the reserve."""
    disk = SimulatedDisk()
    identity, most = LogId(1, bytes(16)), 1 << 30
    log, flusher = complete(
        open_log(disk, identity, MOST, lambda: 1, least_bytes=LEAST, reserve_bytes=most)
    )
    run(flusher.plan(Flush(1, entries=grow(log.last, 10, 10))))
    run(flusher.prove(Index(1)))
    if full:
        disk.capacity -= disk.space()[0] - PAGE  # the mark of a clean stop finds room
    run(flusher.allocate_ahead())
    assert bool(flusher.spare.shortage) == full
    end = log.segments[-1].end
    run(flusher.close(Index(2)))
    assert (log.segments[-1].end == end) == full


def test_a_spare_that_could_not_be_removed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota refuses the room, and then no file can be opened to remove what was begun: the chore
    is put aside, and another one is begun."""
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    run(flusher.plan(Flush(1, entries=grow(ORIGIN, BODY))))
    names, allocate = disk.names, SimulatedFile.allocate

    def many() -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refused(file: SimulatedFile, size: int) -> None:
        allocate(file, size + PAGE)
        monkeypatch.setattr(disk, "names", many)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(SimulatedFile, "allocate", refused)
    parked = flusher.chores(Index(0))
    assert next(parked) == WAIT_FOR_FILES
    monkeypatch.setattr(SimulatedFile, "allocate", allocate)
    monkeypatch.setattr(disk, "names", names)
    run(flusher.allocate_ahead())
    assert spare(disk) == LEAST // PAGE
    run(parked)
    assert spare(disk) == LEAST // PAGE
    fill(log, flusher, 2)
    assert capacities(log) == [LEAST // PAGE] * 2
