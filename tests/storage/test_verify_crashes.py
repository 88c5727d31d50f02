"""The offline check of a log that was killed: what a crash may have done is no damage."""

from __future__ import annotations

import errno
import os
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import pytest

from directory_rig import (
    INCARNATION,
    SEGMENT_BYTES,
    Writer,
    flip,
    log_path,
    only,
    report_of,
    run,
    spoilt,
    written,
)
from quorate.entry import make_entry
from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import CLEAN, PAGE, CleanMark, LogId, pages, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.recovery.open import open_log
from quorate.types import EntryKind, Index, NodeId, Term
from verification.disk.inode import KEPT, LOST, TORN
from verification.disk.simulated import SimulatedDisk
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

FIRST, SECOND = (segment_name(number) for number in (1, 2))
IDENTITY = LogId(1, b"s" * 16)


def last_block(writer: Writer) -> tuple[str, int]:
    """Where the newest block of a killed node stands."""
    newest = writer.log.segments[-1]
    return segment_name(newest.number), newest.end - PAGE


def test_a_bad_last_block_that_nothing_proves_durable_is_a_warning(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.flush(writer.entries(2))
    writer.crash()
    name, position = last_block(writer)
    for number, place in enumerate((20, 64 + 20, 64 + 200, 64 + 772 + 20)):
        log = spoilt(tmp_path / "n1", tmp_path / str(number), name, position + place)
        assert log.damage == []
        assert only(log.warnings).file == name
        assert log.last.index == (4 if place > 772 else 3)
        assert log.next_offset == 3 * log.last.index
        assert log.entries == log.last.index


def test_the_same_is_damage_once_something_proves_it_durable(tmp_path: Path) -> None:
    """An empty block after it, the next segment, or the mark of a clean stop."""
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    name, position = last_block(writer)
    run(writer.flusher.prove(Index(0)))
    writer.crash()
    assert spoilt(tmp_path / "n1", tmp_path / "proved", name, position + 84).damage

    writer = Writer.open(tmp_path / "n2", "n2")
    writer.flush(writer.entries(3))
    name, position = last_block(writer)
    writer.stop()
    assert spoilt(tmp_path / "n2", tmp_path / "closed", name, position + 84).damage

    writer = Writer.open(tmp_path / "n3", "n3")
    writer.flush(writer.entries(20))
    writer.flush(writer.entries(20), committed=0)
    assert len(writer.log.segments) == 2
    writer.crash()
    assert spoilt(tmp_path / "n3", tmp_path / "rolled", FIRST, PAGE + 84).damage


def test_one_bad_vote_copy_is_a_warning_and_two_are_damage(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.vote(3, "n2")
    writer.crash()
    for place in (100, 8 * PAGE + 100):
        flip(log_path(tmp_path / "n1") / "vote-a", place)
    log = report_of(tmp_path / "n1")
    assert (log.damage, only(log.warnings).file) == ([], "vote-a")
    for place in (100, 8 * PAGE + 100):
        flip(log_path(tmp_path / "n1") / "vote-b", place)
    log = report_of(tmp_path / "n1")
    assert "no copy of the vote record can be read" in {damage.what for damage in log.damage}
    with pytest.raises(Damaged):
        Writer.open(tmp_path / "n1")


def test_leftovers_of_a_crash_are_warnings(tmp_path: Path) -> None:
    written(tmp_path / "n1", clean=False)
    path = log_path(tmp_path / "n1")
    (path / "clean.new").touch()
    (path / segment_name(4)).write_bytes(bytes(SEGMENT_BYTES))
    with (path / "spare").open("r+b") as spare:
        spare.write(b"x")
    with (path / SECOND).open("r+b") as second:
        second.seek(8 * PAGE)
        second.write(b"half a footer")
    log = report_of(tmp_path / "n1")
    assert log.damage == []
    assert {(warning.file, warning.what) for warning in log.warnings} == {
        ("clean.new", "begun and not finished"),
        (segment_name(4), "a segment begun and not finished"),
        ("spare", "the spare segment is not zero"),
        (SECOND, "a seal was begun and not finished"),
    }


def test_a_kill_between_any_two_steps_leaves_nothing_to_complain_about(tmp_path: Path) -> None:
    """A vote, a cut, entries that roll, a seal: every file at every step of it."""
    writer = Writer.open(tmp_path / "n1")
    for _ in range(4):
        writer.flush(writer.entries(8), committed=0)
    entries = writer.entries(30)

    def everything() -> Iterator[str]:
        yield from writer.flusher.plan(Flush(90, vote=(Term(3), NodeId("n2"))))
        yield from writer.flusher.plan(Flush(91, entries=tuple(entries[:20])))
        yield from writer.flusher.plan(Flush(92, truncate_from=Index(26)))
        yield from writer.flusher.chores(Index(25))

    steps = 0
    for step in everything():
        log = audit_log(
            log_path(tmp_path / "n1"), INCARNATION, writer.directory.identity.storage, ignored
        )
        assert log.damage == [], step
        steps += 1
    assert steps > 12


UNFINISHED = "a cut was begun and not finished"


def cut_until(path: Path, step: str) -> Writer:
    """A node that was about to cut two of its three segments off, up to ``step``."""
    writer = Writer.open(path)
    for _ in range(8):
        writer.flush(writer.entries(8), committed=0)
    assert len(writer.log.segments) == 3
    for done in writer.flusher.plan(Flush(90, truncate_from=Index(10))):
        if done.startswith(step):
            return writer
    raise AssertionError(step)


@pytest.mark.parametrize(
    ("step", "files"),
    [
        ("sync vote-b", [segment_name(3), SECOND, FIRST]),
        ("unlink", [SECOND, FIRST]),
        ("sync directory", [FIRST]),
        ("erase", [FIRST]),
    ],
)
def test_an_unfinished_cut_is_a_warning_and_after_a_clean_stop_damage(
    step: str, files: list[str], tmp_path: Path
) -> None:
    writer = cut_until(tmp_path / "n1", step)
    path, storage = log_path(tmp_path / "n1"), writer.directory.identity.storage
    log = audit_log(path, INCARNATION, storage, ignored)
    assert log.damage == []
    assert [(one.file, one.what) for one in log.warnings] == [(name, UNFINISHED) for name in files]
    assert (log.last.index, log.entries) == (9, 9)
    # A node that stops in order has finished its cuts.
    record = writer.log.record
    mark = CleanMark(record.boot, 1, pages(record.cutting), log.last)
    (path / CLEAN).write_bytes(mark.encode(writer.log.identity))
    log = audit_log(path, INCARNATION, storage, ignored)
    assert {one.file for one in log.damage} == set(files)
    writer.crash()


def test_what_stands_behind_a_cut_is_not_looked_at_and_what_stands_before_it_is(
    tmp_path: Path,
) -> None:
    writer = cut_until(tmp_path / "n1", "erase")
    writer.crash()
    cut = writer.log.record.cutting
    path = log_path(tmp_path / "n1") / FIRST
    with path.open("r+b") as file:
        file.truncate(SEGMENT_BYTES)
        file.seek(cut)
        file.write(b"x" * 9_000)
    log = report_of(tmp_path / "n1")
    assert (log.damage, [one.what for one in log.warnings]) == ([], [UNFINISHED])
    assert spoilt(tmp_path / "n1", tmp_path / "body", FIRST, cut - 9).damage[0].last == 9
    with path.open("r+b") as file:
        file.truncate(cut - 1)
    log = report_of(tmp_path / "n1")
    assert [(one.last, one.what) for one in log.damage] == [
        (8, "nothing confirms these entries"),
        (9, "entries are lost"),
    ]
    writer = Writer.open(tmp_path / "n1")
    assert [(one.last, one.what) for one in writer.log.damage] == [(9, "entries are lost")]
    assert writer.log.record.unsure
    writer.crash()


def test_a_log_that_was_cut_without_room_and_closed_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest segment ends with its last frame, and not a byte elsewhere."""
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(8))

    def full(descriptor: int, _: int, length: int) -> None:
        """Of what was asked for a part was there."""
        os.truncate(descriptor, length - PAGE)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # Killed before it had cut: the next open cuts, and finds no room.
    for step in writer.flusher.plan(Flush(90, truncate_from=Index(4))):
        if step.startswith("sync vote-b"):
            break
    writer.crash()
    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        writer = Writer.open(tmp_path / "n1")
    cut = writer.log.record.cutting
    assert cut == writer.log.segments[-1].rows.ends[-1]
    writer.stop(committed=0)
    log = report_of(tmp_path / "n1")
    assert (log.clean, log.damage, log.warnings, log.last.index) == (True, [], [], 3)
    path = log_path(tmp_path / "n1") / FIRST
    whole = path.read_bytes()
    for size in (cut - 1, cut + 1, SEGMENT_BYTES):
        os.truncate(path, size)
        assert report_of(tmp_path / "n1").damage, size
    path.write_bytes(whole)
    writer = Writer.open(tmp_path / "n1")
    assert (writer.log.damage, writer.log.last.index, writer.log.record.cutting) == ([], 3, 0)
    writer.crash()


def test_of_a_trimmed_log_whose_first_header_is_bad_only_what_was_there_is_lost(
    tmp_path: Path,
) -> None:
    writer = Writer.open(tmp_path / "n1")
    for _ in range(14):
        writer.flush(writer.entries(5))
    run(writer.flusher.trim(writer.log.segments[1].first))
    first, last = writer.log.segments[0].first, writer.log.segments[0].last.index
    assert first > 1
    name = segment_name(writer.log.segments[0].number)
    writer.stop()
    log = spoilt(tmp_path / "n1", tmp_path / "bad", name, 10)
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(first, last)]
    assert log.before.index == first - 1


def ignored(_: int) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_at_any_step_leaves_no_damage(seed: int, tmp_path: Path) -> None:
    """On a disk that keeps, loses and tears as it pleases what was not synced."""
    random = Random(seed)
    disk = SimulatedDisk()
    for _ in islice(busy_life(disk, random), 40 + 7 * seed):
        pass
    disk.power_cut(lambda: random.choice((KEPT, LOST, TORN, random.getrandbits(16))))
    for name, inode in disk.files.items():
        (tmp_path / name).write_bytes(bytes(inode.content))
    log = audit_log(tmp_path, 1, IDENTITY.storage, ignored)
    assert log.damage == []
    found, _ = complete(open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1))
    assert (log.last, log.entries) == (found.last, found.last.index)


def busy_life(disk: SimulatedDisk, random: Random) -> Iterator[str]:
    """The steps of a node that appends, votes, truncates, seals, proves and opens again."""
    log: SegmentLog
    flusher: Flusher
    nonces: Callable[[], int] = lambda: random.getrandbits(64)  # noqa: E731
    log, flusher = yield from open_log(disk, IDENTITY, SEGMENT_BYTES, nonces)
    committed = Index(0)
    for number in range(1, 1000):
        before, entries = log.last, []
        for _ in range(random.randrange(1, 6)):
            body = random.randbytes(random.choice((10, 700, 3000)))
            entry = make_entry(before, Term(number), EntryKind.NOOP, body)
            entries.append(entry)
            before = entry.position
        yield from flusher.plan(Flush(number, entries=tuple(entries), committed=committed))
        chance = random.random()
        if chance < 0.2:
            yield from flusher.plan(Flush(number, vote=(Term(number), NodeId("n2"))))
        elif chance < 0.4 and log.last.index > committed:
            cut = Index(random.randrange(committed + 1, log.last.index + 1))
            yield from flusher.plan(Flush(number, truncate_from=cut))
        elif chance < 0.5:
            yield from flusher.prove(committed)
        elif chance < 0.6:
            yield from flusher.close(committed)
            log, flusher = yield from open_log(disk, IDENTITY, SEGMENT_BYTES, nonces)
        committed = Index(max(committed, log.last.index - random.randrange(20)))
        yield from flusher.chores(committed)
