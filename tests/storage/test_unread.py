"""A read that the disk refuses is no loss: the log says so, and reads again after a while."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Busy, Corrupt
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, index_name, segment_name
from quorate.storage.stored_entries import StoredEntries
from quorate.storage.unread import REFUSALS_MAX, look_again
from quorate.types import Index
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk, SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.entry import Entry

SEGMENT = segment_name(1)
SEGMENT_BYTES = 64 * PAGE
# In the middle of the sealed segment.
PLACE = Index(20)
EIO = os.strerror(errno.EIO)


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


class Running:
    """A running log on a disk that refuses some bytes of its sealed segment."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.refused: list[tuple[int, int]] = []
        self.refusals = 0
        self._usual = SimulatedFile.read
        patched.setattr(SimulatedFile, "read", lambda *call: self._read(*call))
        self.disk = SimulatedDisk()
        self.log, self.flusher = open_disk(self.disk, SEGMENT_BYTES)
        while len(self.log.segments) < 2:
            more = grow(self.log.last, 3000)
            run(self.flusher.plan(Flush(1, entries=more, committed=more[-1].index)))
        self.tend()
        self.start()

    def _read(self, file: SimulatedFile, position: int, length: int) -> bytes:
        for start, stop in self.refused if file._name == SEGMENT else ():
            if start < position + length and position < stop:
                self.refusals += 1
                raise OSError(errno.EIO, EIO, SEGMENT)
        return self._usual(file, position, length)

    def start(self) -> None:
        self.log, self.flusher = open_disk(self.disk, SEGMENT_BYTES)
        self.log.looks_later = True
        self.stored = StoredEntries(self.log)

    def tend(self) -> None:
        run(self.flusher.chores(self.log.last.index))

    def look_again(self) -> None:
        look_again(self.log)
        self.tend()

    def refuse(self, index: int = PLACE) -> None:
        self.refused.append(self.log.segments[0].rows.frame(Index(index)))

    def spoil(self, index: int = PLACE) -> None:
        _, end = self.log.segments[0].rows.frame(Index(index))
        byte = self.disk.files[SEGMENT].content[end - 1]
        self.disk.spoil(SEGMENT, end - 1, bytes([byte ^ 1]))

    def entry(self, index: int = PLACE) -> Entry:
        return self.stored.entries(Index(index), Index(index + 1))[0]

    def told(self) -> list[str]:
        """What is reported since the last call."""
        found = [one.damage for one in self.log.findings if one.damage is not None]
        self.log.findings.clear()
        return [damage.what for damage in found]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    return Running(monkeypatch)


@pytest.mark.parametrize("reads", ["stored", "log"], ids=["for a peer", "for a client"])
def test_an_entry_that_the_disk_refused_is_told_once_and_read_again_after_a_while(
    running: Running, reads: str
) -> None:
    def read() -> object:
        return running.entry() if reads == "stored" else running.log.frames(PLACE, Index(21), 1)

    running.refuse()
    with pytest.raises((Corrupt, OSError)):
        read()
    assert [one.bad for one in running.log.findings] == [(PLACE,)]
    (told,) = running.told()
    assert f"it cannot be read now: [Errno 5] {EIO}" in told
    assert "it is read again every few seconds" in told
    met = running.refusals
    with pytest.raises(Corrupt):  # at once: a disk may take seconds to refuse a page
        read()
    assert running.refusals == met
    running.look_again()
    assert running.refusals == met + 1
    with pytest.raises(Corrupt):
        read()
    assert running.told() == []
    running.refused.clear()
    running.look_again()
    assert [one.readable for one in running.log.findings] == [(PLACE,)]
    read()
    assert (running.log.damage, running.log.refusing) == ([], [])
    assert running.entry().whole


def test_entries_beside_a_refused_one_are_read(running: Running) -> None:
    running.refuse()
    with pytest.raises(Corrupt):
        running.entry()
    before = running.stored.entries(Index(PLACE - 3), Index(PLACE + 3))
    assert before[-1].index < PLACE
    assert running.entry(PLACE + 1).whole


def test_bytes_that_were_read_and_are_bad_stay_damage(running: Running) -> None:
    running.refuse()
    with pytest.raises(Corrupt):
        running.entry()
    running.told()
    running.refused.clear()
    running.spoil()
    running.look_again()
    assert running.told() == ["the body is bad"]
    assert not running.entry().whole
    running.look_again()
    assert running.log.segments[0].without_body == {PLACE}
    assert [one.first for one in running.log.damage] == [PLACE]


def test_a_look_bears_some_refusals_and_the_next_one_goes_on_behind_them(running: Running) -> None:
    entries = range(2, 2 + REFUSALS_MAX + 1)
    for index in entries:
        running.refuse(index)
        with pytest.raises(Corrupt):
            running.entry(index)
    met = running.refusals
    running.look_again()
    assert running.refusals == met + REFUSALS_MAX
    # The disk gives back the entry that the first look did not get to.
    running.refused.pop()
    running.look_again()
    assert running.log.segments[0].unread == set(entries[:REFUSALS_MAX])


def test_an_entry_whose_page_was_refused_to_an_examination_is_no_loss(running: Running) -> None:
    """Another entry of the segment is bad, so a chore looks at all of it."""
    running.spoil(PLACE + 9)
    running.refuse()
    with pytest.raises(Busy):
        running.entry(PLACE + 9)
    running.tend()
    assert not running.entry(PLACE + 9).whole
    assert running.log.segments[0].unread == {PLACE}
    assert [one.first for one in running.log.damage] == [PLACE + 9]
    running.refused.clear()
    running.look_again()
    assert running.entry().whole
    assert not running.entry(PLACE + 9).whole


def a_block(running: Running) -> tuple[int, int]:
    """A page with the heads of a block and a frame: a walk cannot say what stood there."""
    start, _ = running.log.segments[0].rows.frame(PLACE)
    return start - start % PAGE, start - start % PAGE + PAGE


def everything(running: Running) -> tuple[int, int]:
    return PAGE, SEGMENT_BYTES


@pytest.mark.parametrize("what", [a_block, everything])
def test_a_walk_to_which_the_disk_refused_pages_is_made_again(
    running: Running, what: Callable[[Running], tuple[int, int]]
) -> None:
    refused = what(running)
    running.disk.lose(index_name(1))
    running.start()
    running.refused.append(refused)
    with pytest.raises(Busy):
        running.entry()
    running.tend()
    with pytest.raises(Corrupt):
        running.entry()
    assert len(running.told()) == 1
    running.look_again()
    with pytest.raises(Corrupt):
        running.entry()
    assert (running.told(), running.log.damage) == ([], [])
    running.refused.clear()
    running.look_again()
    assert running.entry().whole
    assert (running.told(), running.log.refusing) == ([], [])
    running.tend()
    assert index_name(1) in running.disk.names()
