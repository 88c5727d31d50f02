"""The mark of an earlier clean stop is back: a disk lost the mark written after it, or the removal.

The mark is whole, and says how the log ended long ago. It must cost no entry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import CLEAN, OPENING, PAGE, VOTE_COPIES, CleanMark, LogId, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.types import ORIGIN, Index, NodeId, Position, Term
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import IDENTITY, grow, open_disk, opening, run

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.offline.report import LogReport

LOG = grow(ORIGIN, 50, 50, 50, 50)


def stop(disk: SimulatedDisk, *entries: Entry, committed: int = 0) -> bytes:
    """Open the log, acknowledge ``entries`` and stop in order; return the mark of this stop."""
    _, flusher = open_disk(disk)
    vote = None if entries[0].index > 1 else (Term(1), NodeId("n1"))
    run(flusher.plan(Flush(1, vote=vote, entries=entries, committed=Index(committed))))
    run(flusher.close(Index(committed)))
    return bytes(disk.files[CLEAN].content)


def stopped(committed: int = 0) -> SimulatedDisk:
    """The disk of a node that acknowledged four entries and stopped in order."""
    disk = SimulatedDisk()
    stop(disk, *LOG, committed=committed)
    return disk


def put(disk: SimulatedDisk, data: bytes, name: str = CLEAN) -> SimulatedDisk:
    """Let the file ``name`` hold ``data``, and let it be the only mark."""
    for mark in {CLEAN, OPENING} & set(disk.names()):
        disk.lose(mark)
    file = disk.create(name)
    file.write(0, [data])
    file.sync()
    disk.sync_directory()
    return disk


def mark_of(disk: SimulatedDisk) -> CleanMark:
    mark = CleanMark.decode(bytes(disk.files[CLEAN].content), IDENTITY)
    assert mark is not None
    return mark


def changed(disk: SimulatedDisk, **changes: int | Position) -> bytes:
    """The mark of ``disk`` with other fields, as if a node had written it so."""
    return replace(mark_of(disk), **changes).encode(IDENTITY)  # type: ignore[arg-type]  # names of its fields


def audited(disk: SimulatedDisk, path: Path) -> LogReport:
    for name, inode in disk.files.items():
        (path / name).write_bytes(bytes(inode.content))
    return audit_log(path, 1, None, lambda _: None)


# -- the boot of a mark --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CLEAN, OPENING])
@pytest.mark.parametrize("stops", [1, 2])
def test_a_mark_of_an_earlier_stop_costs_no_entry(name: str, stops: int) -> None:
    disk = SimulatedDisk()
    old = stop(disk, *LOG[:2])
    for number in range(stops):
        stop(disk, LOG[2 + number])
    put(disk, old, name)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, log.damage) == (LOG[1 + stops].position, []), crash
        assert not log.record.unsure, crash


def test_a_mark_of_an_earlier_stop_makes_no_torn_write_a_loss() -> None:
    """It says where the log ended then, and no word of what was written since."""
    disk = SimulatedDisk()
    old = stop(disk, *LOG)
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(2, truncate_from=Index(3), entries=grow(LOG[1].position, 70, term=2))))
    last = open_disk(disk)[0].last
    log, _ = open_disk(put(disk, old, OPENING))
    assert (log.last, log.damage, log.record.unsure) == (last, [], False)


def test_a_mark_of_a_later_boot_than_the_vote_record_stops_the_log(tmp_path: Path) -> None:
    """Both copies of the record lost what the last process wrote: a vote may be among it."""
    disk = SimulatedDisk()
    stop(disk, *LOG[:2])
    votes = {name: bytes(disk.files[name].content) for name in VOTE_COPIES}
    stop(disk, *LOG[2:])
    for name, data in votes.items():
        disk.spoil(name, 0, data)
    report = audited(disk, tmp_path)
    assert [(one.file, one.what) for one in report.damage if one.file == CLEAN] == [
        (CLEAN, "the mark of a clean stop is newer than the vote record: the newest record is lost")
    ]
    with pytest.raises(Damaged, match=r"newer than the vote record.*never put"):
        open_disk(disk)
    assert {name: disk.files[name].content for name in VOTE_COPIES} == votes


# -- the log of a mark ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [LogId(2, IDENTITY.storage), LogId(1, b"another disk".ljust(16, b"\0"))]
)
def test_a_mark_of_another_log_counts_for_nothing(other: LogId, tmp_path: Path) -> None:
    disk = stopped()
    end = 3 * PAGE
    strange = replace(mark_of(disk), end=end, last=LOG[1].position).encode(other)
    put(disk, strange)
    assert [(one.file, one.what) for one in audited(disk, tmp_path).damage] == [
        (CLEAN, "the mark of a clean stop is bad")
    ]
    log, _ = open_disk(disk)
    assert (log.last, log.damage, log.record.unsure) == (LOG[3].position, [], False)


# -- a mark that the blocks contradict -----------------------------------------------------------


@pytest.mark.parametrize("committed", [3, 4])
def test_no_mark_costs_an_entry_that_a_block_claims_to_be_committed(committed: int) -> None:
    disk = stopped(committed)
    put(disk, changed(disk, end=2 * PAGE, last=LOG[1].position))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, log.damage, log.record.unsure) == (LOG[3].position, [], False), crash


def test_no_mark_puts_another_entry_in_the_place_of_a_committed_one() -> None:
    disk = stopped(committed=4)
    put(disk, changed(disk, last=replace_chain(LOG[3].position)))
    log, _ = open_disk(disk)
    assert (log.last, log.damage, log.record.unsure) == (LOG[3].position, [], False)


def replace_chain(position: Position) -> Position:
    return position._replace(chain=position.chain ^ 1)


def test_a_mark_that_the_blocks_contradict_proves_no_end_of_the_file() -> None:
    """What stood behind the end may be lost, and the mark does not know."""
    disk = stopped(committed=4)
    put(disk, changed(disk, end=2 * PAGE, last=LOG[1].position))
    disk.shorten(segment_name(1), 4 * PAGE)
    log, _ = open_disk(disk)
    assert (log.last, log.record.unsure) == (LOG[3].position, True)


@pytest.mark.parametrize("committed", [0, 1, 3, 4])
def test_entries_for_which_there_is_no_room_cost_no_committed_one(committed: int) -> None:
    """The mark names a hundred entries more, in the same bytes."""
    disk = stopped(committed)
    put(disk, changed(disk, last=Position(Index(104), Term(1), 7)))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, crash
        assert log.last == ([ORIGIN, *(one.position for one in LOG)])[committed], crash


# -- quorate verify ------------------------------------------------------------------------------


def test_verify_names_an_old_mark_and_judges_as_after_a_crash(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    old = stop(disk, *LOG[:2])
    stop(disk, LOG[2])
    put(disk, old)
    disk.lose("vote-b")  # after a stop in order this is damage, after a crash a warning
    report = audited(disk, tmp_path)
    assert (report.clean, report.last, report.entries) == (False, LOG[2].position, 3)
    assert [(one.file, one.what) for one in report.damage] == [
        (CLEAN, "it is of a stop in boot 1, and the log was opened with boot 2")
    ]
    assert [one.file for one in report.warnings] == ["vote-b"]


def test_verify_takes_a_mark_that_an_open_left_for_no_proof(tmp_path: Path) -> None:
    """The open died behind its vote record: that says all that the mark said."""
    disk = stopped()
    run(opening(disk), until="sync vote-b")
    assert OPENING in disk.names()
    for step in (disk, put(disk.copy(), changed(stopped()), OPENING)):
        report = audited(step, tmp_path)
        assert (report.clean, report.damage, report.last) == (False, [], LOG[3].position)
