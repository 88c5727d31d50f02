"""A restart on a full disk gives no room of a log away: other programs would take it."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from directory_rig import Writer, log_path, run
from quorate.entry import HEADER_BYTES
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, SPARE, LogId, segment_name
from quorate.storage.recovery.open import open_log
from quorate.types import ORIGIN, Index
from verification.disk.crashes import crash_states
from verification.disk.simulated import UNLIMITED, SimulatedDisk, SimulatedFile
from verification.disk.small import grow
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

LEAST = 10 * PAGE
MOST = 64 * PAGE
FIRST, SECOND, THIRD = map(segment_name, (1, 2, 3))


def opening(
    disk: SimulatedDisk, least: int = LEAST
) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
    return open_log(disk, LogId(1, bytes(16)), MOST, lambda: 1, least_bytes=least)


def fill(disk: SimulatedDisk) -> None:
    """Another program takes all that is free."""
    disk.capacity -= disk.space()[0]


def full(
    disk: SimulatedDisk, plan: Generator[str, None, tuple[SegmentLog, Flusher]]
) -> tuple[SegmentLog, Flusher]:
    """Carry out an open while another program takes all free room."""

    def filling() -> Generator[str, None, tuple[SegmentLog, Flusher]]:
        while True:
            fill(disk)
            try:
                step = next(plan)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what the generator returned
            yield step

    return complete(filling())


def killed(plan: Iterator[str], last: str) -> None:
    """Carry out ``plan`` up to the step that begins with ``last``."""
    assert any(step.startswith(last) for step in plan)


def takes_all_of(room: int, log: SegmentLog, flusher: Flusher) -> None:
    """The log takes entries that need all of a spare segment of ``room`` bytes."""
    assert flusher.spare.bytes == room
    entries = grow(log.last, flusher.room - HEADER_BYTES, term=9)
    run(flusher.plan(Flush(9, entries=entries)))
    assert tuple(log.entries(entries[0].index, Index(log.last.index + 1))) == entries


def test_a_spare_that_is_too_small_now_is_kept_and_grows_once_there_is_room() -> None:
    disk = SimulatedDisk()
    complete(opening(disk))
    for _ in range(2):
        _, flusher = full(disk, opening(disk, 20 * PAGE))
        assert flusher.spare.bytes == len(disk.durable[SPARE]) == LEAST
        assert flusher.spare.shortage
    disk.capacity += 10 * PAGE
    run(flusher.chores(Index(0)))
    assert flusher.spare.bytes == len(disk.durable[SPARE]) == 20 * PAGE
    assert not flusher.spare.shortage


def test_a_spare_grows_up_to_the_limit_of_the_disk() -> None:
    """What it has already is in use, and counts once."""
    disk = SimulatedDisk(100 * PAGE)
    complete(opening(disk))
    held = 100 * PAGE - disk.space()[0]
    plan = open_log(disk, LogId(1, bytes(16)), MOST, lambda: 1, 50, least_bytes=MOST)
    assert complete(plan)[1].spare.shortage
    fits = 50 * PAGE - (held - LEAST)
    plan = open_log(disk, LogId(1, bytes(16)), MOST, lambda: 1, 50, least_bytes=fits)
    assert complete(plan)[1].spare.bytes == fits


@pytest.mark.parametrize("size", [LEAST - 1, LEAST + 1, LEAST + PAGE - 1])
def test_a_spare_of_which_a_part_was_made_is_kept_in_whole_pages(size: int) -> None:
    """The process was killed while the spare grew."""
    disk = SimulatedDisk()
    complete(opening(disk))
    disk.open(SPARE).truncate(size)
    disk.open(SPARE).sync()
    log, flusher = full(disk, opening(disk, 20 * PAGE))
    takes_all_of(size // PAGE * PAGE, log, flusher)


@pytest.mark.parametrize("size", [0, 1, PAGE - 1])
def test_a_spare_without_a_page_is_removed(size: int) -> None:
    disk = SimulatedDisk()
    complete(opening(disk))
    disk.open(SPARE).truncate(size)
    _, flusher = full(disk, opening(disk))
    assert SPARE not in disk.files
    assert flusher.spare.bytes == 0


@pytest.mark.parametrize("last", ["rename", "sync directory for", "write header", "sync header",
                                  "write vote-a"])  # fmt: skip
@pytest.mark.parametrize("least", [LEAST, 20 * PAGE])
def test_a_roll_that_is_killed_costs_no_room(last: str, least: int) -> None:
    disk = SimulatedDisk()
    log, flusher = complete(opening(disk))
    run(flusher.plan(Flush(1, entries=grow(ORIGIN, PAGE))))
    run(flusher.chores(Index(0)))
    roll = flusher.plan(Flush(2, entries=grow(log.last, 6 * PAGE)))
    killed(roll, f"{last} {SECOND}" if last == "rename" else last)
    assert SPARE not in disk.files
    log, flusher = full(disk, opening(disk, least))
    assert len(log.segments) in (1, 2)
    if len(log.segments) == 1:
        assert not any(disk.durable[SPARE])
        takes_all_of(LEAST, log, flusher)


def cut(disk: SimulatedDisk, last: str) -> SimulatedDisk:
    """A log of segments of 10, 10 and 20 pages whose cut within the first one was killed."""
    log, flusher = complete(opening(disk))
    while len(log.segments) < 3:
        run(flusher.chores(Index(0)))
        run(flusher.plan(Flush(1, entries=grow(log.last, PAGE))))
    killed(flusher.plan(Flush(2, truncate_from=Index(2))), last)
    return disk


def test_a_cut_that_is_killed_costs_no_room() -> None:
    """The largest segment that it cuts off becomes the spare."""
    disk = cut(SimulatedDisk(), "sync vote-b")
    log, flusher = full(disk, opening(disk, 30 * PAGE))
    assert SECOND not in disk.files
    assert not any(disk.durable[SPARE])
    takes_all_of(20 * PAGE, log, flusher)


def test_a_spare_that_is_as_large_as_a_segment_that_was_cut_off_stays() -> None:
    disk = cut(SimulatedDisk(), "sync vote-b")
    disk.create(SPARE).allocate(20 * PAGE)
    spare = disk.files[SPARE]
    full(disk, opening(disk, 30 * PAGE))
    assert disk.files[SPARE] is spare
    assert {SECOND, THIRD}.isdisjoint(disk.files)


@pytest.mark.parametrize("last", ["sync vote-b", "erase", "rename"])
def test_an_open_that_crashes_gives_no_room_away_either(last: str) -> None:
    """However it crashes: the next open has the room of the largest segment, or more."""
    disk = cut(SimulatedDisk(), last)
    room = max(len(disk.files.get(name, disk.files[FIRST]).content) for name in (SPARE, THIRD))
    fill(disk)
    for crash in crash_states(disk, lambda live: opening(live, 30 * PAGE)):
        log, flusher = full(crash.disk, opening(crash.disk, 30 * PAGE))
        assert (log.last.index, log.damage, log.record.unsure) == (1, [], False), crash
        assert flusher.spare.bytes >= room, crash


# -- copied files that are sparse --------------------------------------------------------------


def test_a_spare_that_was_copied_gets_its_room_back(tmp_path: Path) -> None:
    """A tool that copies a directory may leave out the zeros."""
    Writer.open(tmp_path / "n1").crash()
    path = log_path(tmp_path / "n1") / SPARE
    size = path.stat().st_size
    path.unlink()
    with path.open("wb") as file:
        file.truncate(size)
    assert path.stat().st_blocks == 0
    Writer.open(tmp_path / "n1").crash()
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 >= size


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_system_that_asks_for_room_twice_takes_none_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a full disk it refuses to allocate even the room that a file has."""
    disk = SimulatedDisk()
    complete(opening(disk))
    monkeypatch.setattr(SimulatedFile, "allocate", no_room)
    log, flusher = full(disk, opening(disk, 20 * PAGE))
    takes_all_of(LEAST, log, flusher)


def test_what_was_copied_and_has_no_room_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that is not there is not promised; the log opens without a spare."""
    disk = cut(SimulatedDisk(), "sync vote-b")
    with closing(disk.create(SPARE)) as spare:
        spare.allocate(LEAST)
    write = SimulatedFile.write

    def sparse(file: SimulatedFile, position: int, buffers: list[bytes]) -> None:
        if file._name in (SPARE, SECOND, THIRD):
            no_room()
        write(file, position, buffers)

    monkeypatch.setattr(SimulatedFile, "allocate", no_room)
    monkeypatch.setattr(SimulatedFile, "write", sparse)
    log, flusher = full(disk, opening(disk))
    assert (log.last.index, log.damage) == (1, [])
    assert flusher.spare.bytes == 0
    assert {SPARE, SECOND, THIRD}.isdisjoint(disk.files)
    monkeypatch.undo()
    disk.capacity = UNLIMITED
    run(flusher.chores(Index(0)))
    assert flusher.spare.bytes == LEAST
