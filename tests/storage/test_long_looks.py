"""A turn of the event loop has no time to walk through a segment: a chore does that for it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Busy, Corrupt
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, index_name, segment_name
from quorate.storage.stored_entries import StoredEntries
from quorate.types import Index
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk, SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry

SEGMENT = segment_name(1)
SEGMENT_BYTES = 64 * PAGE
# In the middle of the sealed segment.
PLACE = Index(20)


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


class Running:
    """A log that takes turns: its first segment is sealed, and looked at by chores."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.log, self.flusher = open_disk(self.disk, SEGMENT_BYTES)
        while len(self.log.segments) < 2:
            more = grow(self.log.last, 3000)
            run(self.flusher.plan(Flush(1, entries=more, committed=more[-1].index)))
        self.tend()
        self.start()

    def start(self) -> None:
        self.log, self.flusher = open_disk(self.disk, SEGMENT_BYTES)
        self.log.looks_later = True
        self.stored = StoredEntries(self.log)

    def tend(self) -> None:
        run(self.flusher.chores(self.log.last.index))

    def spoil(self, *, header: bool = False) -> None:
        start, end = self.log.segments[0].rows.frame(PLACE)
        place = start if header else end - 1
        self.disk.spoil(SEGMENT, place, bytes([self.disk.files[SEGMENT].content[place] ^ 1]))

    def entry(self) -> Entry:
        return self.stored.entries(PLACE, Index(PLACE + 1))[0]


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes each read took from the disk."""
    lengths: list[int] = []
    usual = SimulatedFile.read

    def reads(file: SimulatedFile, position: int, length: int) -> bytes:
        data = usual(file, position, length)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(SimulatedFile, "read", reads)
    yield lengths


def test_a_segment_without_its_index_file_is_walked_through_by_a_chore(
    running: Running, read: list[int]
) -> None:
    running.disk.lose(index_name(1))
    running.start()
    read.clear()
    for look in (running.entry, lambda: running.stored.position(PLACE)):
        with pytest.raises(Busy):
            look()
    assert sum(read) < PAGE
    running.tend()
    read.clear()
    assert running.entry().whole
    assert sum(read) < 2 * PAGE
    assert running.stored.position(PLACE).index == PLACE


def test_where_a_segment_begins_and_ends_is_known_without_a_look(running: Running) -> None:
    running.disk.lose(index_name(1))
    running.start()
    last = running.log.segments[0].last
    assert running.stored.position(last.index) == last
    assert running.stored.position(Index(0)).index == 0
    assert running.log.wanted == []


def test_it_is_found_also_if_no_index_file_can_be_written(running: Running) -> None:
    running.disk.lose(index_name(1))
    running.start()
    running.disk.capacity = 0
    with pytest.raises(Busy):
        running.entry()
    running.tend()
    assert running.entry().whole
    assert index_name(1) not in running.disk.names()


def test_a_bad_body_is_examined_by_a_chore(running: Running, read: list[int]) -> None:
    running.spoil()
    read.clear()
    with pytest.raises(Busy):
        running.entry()
    assert sum(read) < 2 * PAGE
    running.tend()
    found = running.entry()
    assert (found.index, found.whole) == (PLACE, False)
    assert [one.first for one in running.log.damage] == [PLACE]


def test_a_segment_is_wanted_once(running: Running) -> None:
    running.spoil()
    for _ in range(3):
        with pytest.raises(Busy):
            running.entry()
    assert len(running.log.wanted) == 1
    running.tend()
    assert running.log.wanted == []


def test_a_chore_that_finds_a_lost_entry_stops_only_who_needs_it(running: Running) -> None:
    running.spoil(header=True)
    with pytest.raises(Busy):
        running.entry()
    running.tend()
    for _ in range(2):
        with pytest.raises(Corrupt, match=f"entry {PLACE} of {SEGMENT} is lost"):
            running.entry()
    assert running.log.wanted == []
    assert [(one.file, one.first, one.last) for one in running.log.damage] == [
        (SEGMENT, PLACE, PLACE)
    ]
    for index in (Index(PLACE - 1), Index(PLACE + 1)):
        assert running.stored.entries(index, Index(index + 2))[0].whole


def test_a_page_that_the_disk_does_not_give_back_costs_its_entries_and_no_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another entry of the segment has a bad body: so a chore looks at all of it."""
    begin, end = running.log.segments[0].rows.frame(Index(4))
    usual = SimulatedFile.read

    def read(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name == SEGMENT and position < end and begin < position + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO), SEGMENT)
        return usual(file, position, length)

    monkeypatch.setattr(SimulatedFile, "read", read)
    running.spoil()
    with pytest.raises(Busy):
        running.entry()
    running.tend()
    assert not running.entry().whole
    with pytest.raises(Corrupt):
        running.stored.entries(Index(4), Index(8))
    for index in (3, 5):
        (found,) = running.stored.entries(Index(index), Index(index + 1))
        assert found.whole


def test_a_segment_that_was_trimmed_is_not_looked_at(running: Running) -> None:
    running.spoil()
    with pytest.raises(Busy):
        running.entry()
    run(running.flusher.trim(running.log.segments[-1].first))
    running.tend()
    assert (running.log.wanted, running.log.damage) == ([], [])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_look_that_fails_is_tried_again_or_is_damage(
    running: Running, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    running.spoil()
    with pytest.raises(Busy):
        running.entry()
    usual = SimulatedDisk.open

    def opens(disk: SimulatedDisk, name: str) -> SimulatedFile:
        if name == SEGMENT:
            raise OSError(number, os.strerror(number), name)
        return usual(disk, name)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedDisk, "open", opens)
        running.tend()
        if number == errno.EIO:
            assert running.log.wanted == []
            with pytest.raises(Corrupt, match="cannot be read"):
                running.entry()
            found = [one.damage for one in running.log.findings if one.damage is not None]
            assert [(one.first, one.last) for one in found] == [
                (1, running.log.segments[0].last.index)
            ]
            return
        assert len(running.log.wanted) == 1
    running.tend()
    assert not running.entry().whole
