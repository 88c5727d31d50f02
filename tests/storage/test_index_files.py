"""An index file is to be made of a sealed segment that the disk does not give back."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, index_name, segment_name
from quorate.storage.offline.verify_log import audit_log
from verification.disk.crashes import power_cut
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk, SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

SEGMENT = segment_name(1)
INDEX = index_name(1)


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


@pytest.fixture
def disk() -> SimulatedDisk:
    """A sealed segment without its index file."""
    made = SimulatedDisk()
    log, flusher = open_disk(made, 16 * PAGE)
    for number in range(1, 20):
        more = grow(log.last, 3000)
        run(flusher.plan(Flush(number, entries=more, committed=more[-1].index)))
        run(flusher.chores(more[-1].index))
    made.lose(INDEX)
    return made


def refusing(
    disk: SimulatedDisk, patched: pytest.MonkeyPatch, number: int
) -> tuple[SegmentLog, Flusher]:
    """The log, open, with a disk that does not read the sealed segment."""
    opened = open_disk(disk, 16 * PAGE)
    usual = SimulatedFile.read

    def read(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name == SEGMENT:
            raise OSError(number, os.strerror(number), SEGMENT)
        return usual(file, position, length)

    patched.setattr(SimulatedFile, "read", read)
    return opened


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN])
def test_a_segment_that_cannot_be_read_goes_without_an_index_file(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is told once, and the log goes on."""
    log, flusher = refusing(disk, monkeypatch, number)
    for _ in range(2):
        run(flusher.chores(log.last.index))
    assert INDEX not in disk.names()
    (damage,) = [one.damage for one in log.findings if one.damage is not None]
    assert damage.file == SEGMENT
    assert "it cannot be read now" in damage.what
    assert log.damage == []


def test_a_segment_that_cannot_be_opened_now_is_indexed_later(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        log, flusher = refusing(disk, patched, errno.EMFILE)
        run(flusher.chores(log.last.index))
        assert INDEX not in disk.names()
    run(flusher.chores(log.last.index))
    assert INDEX in disk.names()


def test_any_other_error_is_no_damage(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log, flusher = refusing(disk, monkeypatch, errno.EACCES)
    with pytest.raises(OSError, match=SEGMENT):
        run(flusher.chores(log.last.index))


# -- a footer that a killed process left ---------------------------------------------------------


@pytest.fixture
def unsynced() -> SimulatedDisk:
    """A node was killed while it sealed its first segment: the footer is in the page cache."""
    made = SimulatedDisk()
    log, flusher = open_disk(made, 16 * PAGE)
    while len(log.segments) < 2:
        run(flusher.plan(Flush(1, entries=grow(log.last, 3000))))
    for step in flusher.chores(log.last.index):
        if step == f"shorten {SEGMENT}":
            break
    return made


def test_a_footer_whose_sync_failed_is_written_again_before_its_index_file_is(
    tmp_path: Path,
) -> None:
    """Its page looks clean after that: another sync would write nothing."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk, 16 * PAGE)
    while len(log.segments) < 2:
        run(flusher.plan(Flush(1, entries=grow(log.last, 3000))))
    plan = flusher.chores(log.last.index)
    while next(plan) != f"shorten {SEGMENT}":
        pass
    disk.error = errno.EIO
    with pytest.raises(OSError, match="error"):
        next(plan)
    log, flusher = open_disk(disk, 16 * PAGE)
    run(flusher.chores(log.last.index))
    assert log.segments[0].indexed
    power_cut(disk)
    for name, data in disk.durable.items():
        (tmp_path / name).write_bytes(bytes(data))
    report = audit_log(tmp_path, 1, None, lambda _: None)
    assert (report.damage, report.warnings, report.sealed) == ([], [], 1)


def test_a_footer_is_durable_before_its_index_file_is(
    unsynced: SimulatedDisk, tmp_path: Path
) -> None:
    """The file says so: without the footer it would look as if one had rotted."""
    log, flusher = open_disk(unsynced, 16 * PAGE)
    assert log.segments[0].footer is not None
    last = log.last
    steps = list(flusher.chores(last.index))
    assert steps.index(f"sync {SEGMENT} again") < steps.index(f"write {INDEX}.new")
    power_cut(unsynced)
    for name, data in unsynced.durable.items():
        (tmp_path / name).write_bytes(bytes(data))
    report = audit_log(tmp_path, 1, None, lambda _: None)
    assert (report.damage, report.warnings, report.sealed) == ([], [], 1)
    log, _ = open_disk(unsynced, 16 * PAGE)
    assert (log.last, log.damage) == (last, [])


def test_an_index_file_waits_until_its_segment_can_be_opened(
    unsynced: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, flusher = open_disk(unsynced, 16 * PAGE)
    assert len(log.segments[0].rows.starts)
    usual = SimulatedDisk.open

    def refuse(disk: SimulatedDisk, name: str) -> SimulatedFile:
        if name == SEGMENT:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        return usual(disk, name)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedDisk, "open", refuse)
        run(flusher.chores(log.last.index))
    assert INDEX not in unsynced.names()
    run(flusher.chores(log.last.index))
    assert INDEX in unsynced.names()
