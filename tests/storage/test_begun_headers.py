"""A roll is killed before the vote record names the new segment. Under load its header is the first
thing that is written behind the last block, and it alone proves that block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import Corrupt
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.recovery.inventory import OTHER_END
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, opening, run

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = segment_name(1), segment_name(2)
# Entry 2/1 is replaced, and entry 3/2 needs the next segment.
OLD = grow(ORIGIN, 100, 100)
NEW = (OLD[0], *grow(OLD[0].position, 100, 25_000, term=2))


def killed_amid_a_roll(last: str) -> tuple[SimulatedDisk, int, bytes]:
    """A disk whose newest entry is 2/2; and the place of its page, and the page's old content."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in OLD:
        run(flusher.plan(Flush(1, (Term(1), NodeId("n1")), None, (entry,))))
    place = log.segments[0].rows.frame(Index(2))[0] // PAGE * PAGE
    old = disk.open(FIRST).read(place, PAGE)
    # This flush ends: entry 2/2 is acknowledged.
    run(flusher.plan(Flush(2, (Term(2), NodeId("n2")), Index(2), NEW[1:2])))
    assert disk.open(FIRST).read(place, PAGE) != old
    run(flusher.plan(Flush(3, None, None, NEW[2:])), last)
    assert SECOND in disk.names()
    return disk, place, old


def contradicted(disk: SimulatedDisk, path: Path) -> list[str]:
    """The headers of which ``quorate verify`` warns; it finds no damage."""
    for name, inode in disk.files.items():
        (path / name).write_bytes(bytes(inode.content))
    report = audit_log(path, 1, None, lambda _: None)
    assert not report.damage
    return [one.file for one in report.warnings if one.what == OTHER_END]


def test_no_node_is_sure_of_an_entry_that_the_header_of_a_begun_segment_contradicts() -> None:
    disk, place, old = killed_amid_a_roll("sync header")
    disk.spoil(FIRST, place, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, crash
        # No byte says which of the two is old: no entry is dropped.
        assert StoredEntries(log).position(Index(2)) == OLD[1].position, crash
    log, _ = open_disk(disk)
    assert [(one.file, one.what) for one in log.damage] == [(SECOND, OTHER_END)]


def test_an_entry_that_the_header_of_a_named_segment_contradicts_is_lost() -> None:
    """The kill came one step later: the vote record names the segment, so its header counts."""
    disk, place, old = killed_amid_a_roll("write vote-a")
    disk.spoil(FIRST, place, old)
    log, _ = open_disk(disk)
    with pytest.raises(Corrupt):
        StoredEntries(log).entries(Index(2), Index(3))
    assert log.last == NEW[1].position


def test_verify_warns_of_a_header_that_contradicts_the_segment_before(tmp_path: Path) -> None:
    disk, place, old = killed_amid_a_roll("sync header")
    assert contradicted(disk, tmp_path) == []
    disk.spoil(FIRST, place, old)
    assert contradicted(disk, tmp_path) == [SECOND]


def test_the_header_of_a_begun_segment_makes_no_node_unsure_whose_log_ends_as_it_says() -> None:
    disk, _, _ = killed_amid_a_roll("sync header")
    log, _ = open_disk(disk)
    assert (log.last, log.record.unsure, log.damage) == (NEW[1].position, False, [])


def test_an_empty_block_that_rots_before_a_begun_segment_makes_no_node_unsure() -> None:
    """The segment ends before the place that the header names, and with the same entry."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, (Term(2), NodeId("n1")), None, OLD)))
    run(flusher.prove(Index(0)))
    more = grow(OLD[-1].position, 25_000)
    run(flusher.plan(Flush(2, None, None, more)), "sync header")
    disk.spoil(FIRST, 2 * PAGE, bytes(PAGE))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, log.record.unsure) == (OLD[-1].position, False), crash
