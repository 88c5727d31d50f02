"""A log of many segments: neither its memory nor its open files grow with it."""

from __future__ import annotations

import errno
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import pytest

from quorate.storage.flusher import Flush
from quorate.storage.index import ROWS_KEPT, load_rows
from quorate.storage.layout import index_name
from quorate.storage.rows import Rows
from quorate.types import Index
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk, SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

SEGMENTS = 4 * ROWS_KEPT
# The newest segment, and one that was just rolled.
OPEN_SEGMENTS = 2


def run(plan: Iterator[str]) -> None:
    for _ in plan:
        pass


def write(log: SegmentLog, flusher: Flusher) -> list[Entry]:
    """All of it is committed at once, so that all but the newest segment are sealed."""
    entries: list[Entry] = []
    while len(log.segments) < SEGMENTS:
        entries += (more := grow(log.last, 100, 3_000))
        run(flusher.plan(Flush(1, entries=more, committed=more[-1].index)))
        run(flusher.chores(more[-1].index))
    run(flusher.chores(log.last.index))
    return entries


def read(log: SegmentLog) -> list[Entry]:
    return list(log.entries(log.first, Index(log.last.index + 1)))


def rows_in_memory() -> int:
    gc.collect()
    return sum(isinstance(one, Rows) for one in gc.get_objects())


# -- rows --------------------------------------------------------------------------------------


def test_rows_of_sealed_segments_do_not_stay_in_memory() -> None:
    others = rows_in_memory()
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = write(log, flusher)
    assert rows_in_memory() - others <= OPEN_SEGMENTS
    assert read(log) == entries
    assert rows_in_memory() - others <= OPEN_SEGMENTS + ROWS_KEPT
    del log, flusher
    log, _ = open_disk(disk)
    assert rows_in_memory() - others <= OPEN_SEGMENTS
    assert read(log) == entries
    assert rows_in_memory() - others <= OPEN_SEGMENTS + ROWS_KEPT


def test_rows_are_loaded_once_while_they_are_in_use() -> None:
    log, flusher = open_disk(SimulatedDisk())
    write(log, flusher)
    rows = log.segments[0].rows
    read(log)
    assert log.segments[0].rows is rows, "somebody still holds them"


def test_rows_that_left_memory_come_back_without_their_index_file() -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = write(log, flusher)
    for segment in log.segments[:3]:
        disk.lose(index_name(segment.number))
    assert read(log) == entries
    for _ in range(3):
        run(flusher.chores(log.last.index))
    assert all(index_name(segment.number) in disk.files for segment in log.segments[:3])


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG], ids=["EIO", "EBADMSG"])
def test_rows_come_back_although_the_disk_does_not_give_their_index_file(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = write(log, flusher)
    real, bad = SimulatedFile.read, index_name(1)

    def refuse(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name == bad:
            raise OSError(number, os.strerror(number))
        return real(file, position, length)

    before = disk.files[bad]
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "read", refuse)
        assert read(log) == entries
    run(flusher.chores(log.last.index))
    assert disk.files[bad] is not before, "it is made again"
    assert read(log) == entries


def test_an_index_file_that_cannot_be_opened_for_now_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    write(log, flusher)
    real, segment = SimulatedDisk.open, log.segments[0]

    def refuse(disk: SimulatedDisk, name: str) -> SimulatedFile:
        if name == index_name(segment.number):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(disk, name)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedDisk, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            load_rows(disk, segment)
    assert segment.indexed


def test_threads_that_read_at_once_find_what_was_written() -> None:
    log, flusher = open_disk(SimulatedDisk())
    entries = write(log, flusher)

    def walk(seed: int) -> bool:
        random, found = Random(seed), True
        for _ in range(300):
            start = random.randrange(len(entries))
            stop = min(len(entries), start + random.randrange(1, 20))
            got = list(log.entries(Index(start + 1), Index(stop + 1)))
            found = found and got == entries[start:stop]
        return found

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(walk, range(8)))


# -- open files --------------------------------------------------------------------------------


class Counted(SimulatedFile):
    """An open file that its disk counts."""

    _disk: CountingDisk

    def close(self) -> None:
        self._disk.open_files.discard(id(self))


class CountingDisk(SimulatedDisk):
    """Knows how many files were open at once."""

    def __init__(self) -> None:
        super().__init__()
        self.open_files: set[int] = set()
        self.most = 0
        # So that no two of them ever have one id.
        self._all: list[Counted] = []

    def open(self, name: str) -> Counted:
        file = Counted(self, name, super().open(name).inode)
        self._all.append(file)
        self.open_files.add(id(file))
        self.most = max(self.most, len(self.open_files))
        return file


def test_opening_a_log_keeps_no_sealed_segment_open() -> None:
    disk = CountingDisk()
    log, flusher = open_disk(disk)
    entries = write(log, flusher)
    log.close()
    disk.open_files.clear()
    disk.most = 0
    log, _ = open_disk(disk)
    assert len(disk.open_files) <= OPEN_SEGMENTS
    assert disk.most <= OPEN_SEGMENTS + 1
    assert read(log) == entries
    assert disk.most <= OPEN_SEGMENTS + 1
