"""A few real power cuts where they can be had, and what the check must notice anywhere."""

from __future__ import annotations

import ctypes
import errno
import re
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import TYPE_CHECKING, NoReturn

import pytest

from core_rig import chain, end
from quorate.storage.flusher import Flush
from quorate.storage.layout import LogId, segment_name
from quorate.storage.recovery.open import open_log
from quorate.storage.vfs import RealFile, RealVfs
from quorate.types import Index, NodeId, Term, VoteRecord
from verification.disk.enumerate import grow
from verification.disk.store import complete
from verification.powercut.image import BLOCK_BYTES, NO_LOG_FLUSH, Image, why_not
from verification.powercut.known import Failed, Known, LogOpened, OperationBegun, OperationDone
from verification.powercut.worker import IDENTITY as WORKED
from verification.powercut.worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

CUTS = 20
SEGMENT_BYTES = 64 << 10
IDENTITY = LogId(1, b"power cuts".ljust(16, b"\0"))
# Flags of sync_file_range: wait for what is under way, write, and wait for that.
WRITE_AND_WAIT = 7

RECORD = VoteRecord(5, Term(3), NodeId("n1"), 2)
REOPENED = replace(RECORD, number=6, boot=3)
LOG = chain(1, 1, 2, 2)
FRAMES = [entry.header for entry in LOG]


def test_what_was_reported_outlives_a_power_cut() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "verification.powercut", "--cuts", str(CUTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert last == f"powercut: cuts={CUTS} lost=0", done.stdout + done.stderr
    assert done.returncode == 0
    during = re.findall(r"^ +(\d+)  cuts during", done.stdout, re.MULTILINE)
    assert sum(map(int, during)) == CUTS


@pytest.mark.parametrize("block_bytes", BLOCK_BYTES)
def test_a_page_that_is_zeroed_for_a_cut_may_reach_the_disk_before_the_cut(
    block_bytes: int, tmp_path: Path
) -> None:
    """Later blocks name durable what the zeros took away; the cut was decided, so none of it
    counts."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    image = Image(tmp_path)
    image.make(block_bytes)
    image.mount()
    try:
        with opened(image) as (_, flusher):
            more = grow(end(LOG), 100, 100, 3_000, term=2)
            for entries in (LOG, more[:2], more[2:]):
                list(flusher.plan(Flush(1, entries=entries)))
            for step in flusher.plan(Flush(2, truncate_from=Index(6))):
                if step.startswith("truncate"):
                    break
            write_pages(image.mounted / segment_name(1))
            image.cut(NO_LOG_FLUSH)
        image.unmount()
        image.mount()
        assert (image.mounted / segment_name(1)).stat().st_size == SEGMENT_BYTES
        with opened(image) as (log, _):
            assert (log.damage, log.record.unsure, log.last) == ([], False, more[0].position)
    finally:
        image.unmount()


@contextmanager
def opened(image: Image) -> Iterator[tuple[SegmentLog, Flusher]]:
    with closing(RealVfs(image.mounted)) as vfs:
        log, flusher = complete(open_log(vfs, IDENTITY, SEGMENT_BYTES, lambda: 7))
        with closing(log):
            yield log, flusher


def write_pages(path: Path) -> None:
    """What the kernel does at any time: pages go to the disk, the length of the file does not."""
    write = ctypes.CDLL(None, use_errno=True).sync_file_range
    write.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    with path.open("rb") as file:
        assert write(file.fileno(), 0, 0, WRITE_AND_WAIT) == 0


# -- what the check allows and what it does not ------------------------------------------------


def known(*reports: OperationBegun | OperationDone) -> Known:
    """A log of four entries is open, then ``reports`` are made."""
    found = Known(frames=dict(enumerate(FRAMES, 1)), record=RECORD)
    for report in reports:
        found.hear(report)
    return found


def problems(before: Known, frames: list[bytes], record: VoteRecord = REOPENED) -> str:
    return "; ".join(before.compare(LogOpened(1, frames, record, [])))


def test_the_log_as_it_was_reported_is_fine() -> None:
    assert problems(known(), FRAMES) == ""


def test_an_entry_less_is_lost_and_an_entry_more_came_from_nowhere() -> None:
    assert problems(known(), FRAMES[:3]) == "ends at entry 3, reported was 4"
    more = [*FRAMES, chain(2, after=end(LOG))[0].header]
    assert problems(known(), more) == "entries 1 to 5 are of no log that existed"


def test_another_byte_is_noticed() -> None:
    changed = [*FRAMES[:3], FRAMES[3][:-1] + b"\0"]
    assert "of no log that existed" in problems(known(), changed)


def test_a_flush_under_way_may_be_there_in_part() -> None:
    added = chain(3, 3, after=end(LOG))
    before = known(OperationBegun("flush", Flush(0, entries=added)))
    for count in range(3):
        assert problems(before, FRAMES + [entry.header for entry in added[:count]]) == ""
    assert "of no log" in problems(before, [*FRAMES, added[1].header])


def test_a_flush_that_was_reported_must_be_there_in_full() -> None:
    added = chain(3, 3, after=end(LOG))
    before = known(OperationBegun("flush", Flush(0, entries=added)), OperationDone(RECORD))
    assert problems(before, [*FRAMES, added[0].header]) == "ends at entry 5, reported was 6"
    assert problems(before, FRAMES + [entry.header for entry in added]) == ""


def test_a_truncation_under_way_leaves_the_old_log_or_the_new_one_and_no_mix() -> None:
    added = chain(3, 3, after=end(LOG[:2]))
    new = [entry.header for entry in added]
    before = known(OperationBegun("truncation", Flush(0, truncate_from=Index(3), entries=added)))
    for frames in (FRAMES, FRAMES[:3], FRAMES[:2], [*FRAMES[:2], new[0]], [*FRAMES[:2], *new]):
        assert problems(before, frames) == ""
    assert problems(before, FRAMES[:1]) == "ends at entry 1, reported was 2"
    assert "of no log" in problems(before, [*FRAMES[:3], new[1]])


def test_a_vote_is_the_one_reported_or_the_one_under_way() -> None:
    before = known(OperationBegun("flush", Flush(0, vote=(Term(4), NodeId("n2")))))
    assert problems(before, FRAMES) == ""
    assert problems(before, FRAMES, replace(REOPENED, term=Term(4), vote=NodeId("n2"))) == ""
    assert "voted for n3" in problems(before, FRAMES, replace(REOPENED, vote=NodeId("n3")))
    before.hear(OperationDone(replace(RECORD, number=6, term=Term(4), vote=NodeId("n2"))))
    assert "voted for n1 in term 3" in problems(before, FRAMES, replace(REOPENED, number=7))


@pytest.mark.parametrize("changes", [{"number": 5}, {"boot": 2}])
def test_a_record_must_be_newer_than_the_one_reported(changes: dict[str, int]) -> None:
    assert "older" in problems(known(), FRAMES, replace(REOPENED, **changes))  # type: ignore[arg-type]


def test_a_trim_under_way_leaves_any_beginning_up_to_its_own() -> None:
    before = known(OperationBegun("trim", first=3))
    for first in (1, 2, 3):
        assert not list(before.compare(LogOpened(first, FRAMES[first - 1 :], REOPENED, [])))
    assert list(before.compare(LogOpened(4, FRAMES[3:], REOPENED, []))) == [
        "begins at entry 4, reported was 1"
    ]
    before.hear(OperationDone(RECORD))
    assert "begins at entry 2" in "; ".join(before.compare(LogOpened(2, FRAMES[1:], REOPENED, [])))


def test_a_log_that_was_trimmed_may_be_cut_to_nothing() -> None:
    before = known(OperationBegun("trim", first=3), OperationDone(RECORD))
    before.hear(OperationBegun("truncation", Flush(0, truncate_from=Index(3))))
    assert not list(before.compare(LogOpened(3, [], REOPENED, [])))


def test_damage_a_lost_end_and_failure_are_problems() -> None:
    assert list(known().compare(LogOpened(1, [], REOPENED, ["bad page"]))) == ["damage: bad page"]
    assert "unsure" in problems(known(), FRAMES, replace(REOPENED, unsure=True))
    before = known()
    before.hear(Failed("KeyError(3)"))
    assert before.problems == ["the worker failed: KeyError(3)"]


def test_an_open_that_is_cut_short_decides_nothing() -> None:
    """What was under way before it may still be there or not."""
    added = chain(3, after=end(LOG))
    before = known(OperationBegun("flush", Flush(0, entries=added)), OperationBegun("open"))
    assert problems(before, FRAMES) == ""
    assert problems(before, [*FRAMES, added[0].header]) == ""


# -- the worker ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True])
def test_a_log_of_which_a_cut_lets_no_page_be_read_is_not_called_damaged(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power may fail while an open reads the vote record: it takes both copies for bad."""
    with closing(RealVfs(tmp_path)) as vfs:
        complete(open_log(vfs, WORKED, SEGMENT_BYTES, lambda: 7))

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "the power has failed")

    monkeypatch.setattr(RealFile, "read", fail)
    if gone:
        monkeypatch.setattr(RealVfs, "sync_directory", fail)
    ours, theirs = Pipe(duplex=False)
    work(str(tmp_path), "0", 0, theirs)
    theirs.close()
    reports = []
    with suppress(EOFError):
        while True:
            reports.append(ours.recv())
    assert reports[0] == OperationBegun("open")
    assert [type(one) for one in reports[1:]] == ([] if gone else [Failed])
