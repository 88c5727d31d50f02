"""What a replica reads of its log while the writer adds to it, and what it does not find."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from directory_rig import INCARNATION, Writer, run
from quorate.errors import Busy, Corrupt
from quorate.storage.directory import LOGS, log_name
from quorate.storage.flusher import Flush
from quorate.storage.layout import segment_name
from quorate.storage.stored_entries import StoredEntries
from quorate.storage.unread import look_again
from quorate.storage.vfs import RealFile, RealVfs
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.vfs import File

# Nothing is sealed before this is full.
SEGMENT_BYTES = 64 * 4096


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Fifteen entries in one open segment."""
    made = Writer.open(tmp_path / "n1", segment_bytes=SEGMENT_BYTES)
    made.vote(2, "n2")
    for _ in range(3):
        made.flush(made.entries(5))
    yield made
    made.crash()


def spoil(writer: Writer, index: int, *, header: bool = False) -> None:
    """Flip a byte of an entry, on disk."""
    segment = writer.log.segment(Index(index))
    start, end = segment.rows.frame(Index(index))
    place = start if header else end - 1
    path = writer.directory.path / LOGS / log_name(INCARNATION) / segment_name(segment.number)
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0xFF]))


class Meanwhile:
    """A file during whose second read, the one that examines what the first one found to be bad,
    something else is done: by another thread, as it were."""

    def __init__(self, file: File, plan: Iterator[str]) -> None:
        self._file = file
        self._plan = plan
        self._reads = 0

    def read(self, position: int, length: int) -> bytes:
        data = self._file.read(position, length)
        self._reads += 1
        if self._reads == 2:
            run(self._plan)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def entry(writer: Writer, index: int) -> Entry:
    (found,) = StoredEntries(writer.log).entries(Index(index), Index(index + 1))
    return found


def test_a_flush_that_ends_while_the_open_segment_is_examined_is_not_forgotten(
    writer: Writer,
) -> None:
    spoil(writer, 3)
    more = writer.entries(4)
    flush = writer.flusher.plan(Flush(9, entries=tuple(more), committed=more[-1].index))
    next(flush)
    segment = writer.log.segments[-1]
    segment.file = Meanwhile(segment.file, flush)  # type: ignore[assignment]  # as good as one
    assert not entry(writer, 3).whole
    assert segment.without_body == {3}
    assert list(writer.log.entries(Index(4), Index(20)))[-4:] == more
    run(writer.flusher.plan(Flush(10, truncate_from=Index(18))))
    assert (writer.log.last.index, segment.rows.last) == (17, 17)


def test_only_what_is_asked_for_is_looked_at_in_an_open_segment(writer: Writer) -> None:
    """What follows may be cut off at any moment: nothing is said about it."""
    spoil(writer, 3)
    spoil(writer, 12)
    assert not entry(writer, 3).whole
    assert writer.log.segments[-1].without_body == {3}
    assert [(one.first, one.last) for one in writer.log.damage] == [(3, 3)]
    found = StoredEntries(writer.log).entries(Index(4), Index(16))
    assert [one.index for one in found] == list(range(4, 12))
    assert not entry(writer, 12).whole


def test_a_cut_takes_the_damage_with_it(writer: Writer) -> None:
    spoil(writer, 3)
    spoil(writer, 12)
    assert not entry(writer, 3).whole
    assert not entry(writer, 12).whole
    run(writer.flusher.plan(Flush(9, truncate_from=Index(10))))
    assert writer.log.segments[-1].without_body == {3}


def test_an_entry_without_its_header_is_lost_in_an_open_segment_too(writer: Writer) -> None:
    spoil(writer, 3, header=True)
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"entry 3 of .*is lost"):
            entry(writer, 3)
        with pytest.raises(Corrupt, match=r"entry 3 of .*is lost"):
            StoredEntries(writer.log).position(Index(3))
    assert [(one.first, one.what) for one in writer.log.damage] == [(3, "the header is bad")]


def test_a_lost_entry_stops_only_who_needs_it(writer: Writer) -> None:
    spoil(writer, 8, header=True)
    stored = StoredEntries(writer.log)
    assert [one.index for one in stored.entries(Index(2), Index(16))] == list(range(2, 8))
    assert [one.index for one in stored.entries(Index(9), Index(16))] == list(range(9, 16))


def test_a_segment_with_a_lost_entry_is_not_sealed(writer: Writer) -> None:
    """A footer says how it ends: an open would believe that, and look no more."""
    spoil(writer, 8, header=True)
    with pytest.raises(Corrupt):
        entry(writer, 8)
    while len(writer.log.segments) < 3:
        writer.flush(writer.entries(20))
    run(writer.flusher.chores(writer.log.last.index))
    assert [one.footer is None for one in writer.log.segments] == [True, False, True]


def test_what_the_disk_gives_is_read_up_to_the_entry_that_it_refuses(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several are read at once: the error says nothing about the first of them."""
    bad, end = writer.log.segment(Index(12)).rows.frame(Index(12))
    usual = RealFile.read

    def read(file: RealFile, position: int, length: int) -> bytes:
        if position < end and bad < position + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO), segment_name(1))
        return usual(file, position, length)

    monkeypatch.setattr(RealFile, "read", read)
    stored, found = StoredEntries(writer.log), [Index(1)]
    while found[-1] < 11:
        found += [one.index for one in stored.entries(Index(found[-1] + 1), Index(16))]
    assert found == list(range(1, 12))
    with pytest.raises(Corrupt, match="Input/output error"):
        stored.entries(Index(12), Index(16))
    assert [one.index for one in stored.entries(Index(13), Index(16))] == [13, 14, 15]


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EMFILE, Busy), (errno.ENFILE, Busy), (errno.EIO, Corrupt)],
    ids=["EMFILE", "ENFILE", "EIO"],
)
def test_a_file_that_cannot_be_opened_now_is_no_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    writer = Writer.open(tmp_path / "n1")
    for _ in range(12):
        writer.flush(writer.entries(5))
    assert writer.log.segments[0].footer is not None
    stored = StoredEntries(writer.log)

    def refuse(_: RealVfs, name: str) -> RealFile:
        raise OSError(number, os.strerror(number), name)

    with monkeypatch.context() as patched:
        patched.setattr(RealVfs, "open", refuse)
        with pytest.raises(error):
            stored.entries(Index(2), Index(3))
        with pytest.raises(error):
            stored.position(Index(2))
    look_again(writer.log)
    assert stored.entries(Index(2), Index(3))[0].whole
    writer.crash()
