"""The header page of a segment falls back to that of an earlier segment of its name: it costs no
entry in front of it, neither of a segment in the middle nor of one that was just begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index
from verification.disk.crashes import crash_states, power_cut
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, opening, run

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.storage.offline.report import LogReport

FIRST, SECOND = segment_name(1), segment_name(2)


def flush(flusher: Flusher, *entries: Entry, cut: int | None = None, committed: int = 0) -> None:
    first = Index(cut) if cut is not None else None
    run(flusher.plan(Flush(1, None, first, entries, Index(committed))))


def page_of(disk: SimulatedDisk, name: str, page: int) -> bytes:
    return bytes(disk.durable[name][page * PAGE : (page + 1) * PAGE])


def given(log: SegmentLog) -> list[Entry]:
    stored = StoredEntries(log)
    indexes = map(Index, range(1, log.last.index + 1))
    return [entry for one in indexes for entry in stored.entries(one, Index(one + 1))]


def audited(disk: SimulatedDisk, path: Path) -> LogReport:
    """What ``quorate verify`` finds in the files of ``disk``."""
    for name, inode in disk.files.items():
        (path / name).write_bytes(bytes(inode.content))
    return audit_log(path, 1, None, lambda _: None)


# -- a segment in the middle ---------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [0, 4])
def test_a_header_in_the_middle_is_not_confirmed_by_frames_alone(claimed: int) -> None:
    """The earlier segment began behind the same entry, when that stood elsewhere. The frames of the
    later one follow that entry, and no block of it has the nonce of the old header."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 30, 20_000)
    for entry in old:
        flush(flusher, entry)
    header = page_of(disk, SECOND, 0)
    flush(flusher, cut=2)
    run(flusher.prove(Index(0)))
    entries = [*old[:2], *grow(old[1].position, 20_000, 20_000, term=3)]
    for entry in entries[1:]:
        flush(flusher, entry)
    run(flusher.prove(Index(claimed)))
    power_cut(disk)
    before = bytes(disk.durable[FIRST])
    disk.spoil(SECOND, 0, header)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert given(log) == entries, crash
        assert not log.record.unsure, crash
    log, _ = open_disk(disk)
    Recovered.of(log)
    assert bytes(disk.durable[FIRST]) == before


def test_a_header_that_follows_a_sealed_segment_is_confirmed_by_its_first_block() -> None:
    """Without it the header is old: under its nonce an empty block looks like a bad page, and the
    entries behind it would be lost."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    old = grow(ORIGIN, 9_000, 30, 5_000)
    for entry in old:
        flush(flusher, entry)
    header = page_of(disk, SECOND, 0)
    flush(flusher, old[1], cut=2)
    new = grow(old[1].position, 5_000, 3_000, 20_000, term=2)
    flush(flusher, new[0], committed=2)
    run(flusher.prove(Index(2)))
    for entry in new[1:]:
        flush(flusher, entry, committed=2)
    run(flusher.chores(Index(2)))
    assert [one.footer is not None for one in log.segments] == [True, False, False]
    assert log.segments[0].last == log.segments[1].header.before == old[1].position
    run(flusher.prove(Index(2)))
    disk.spoil(SECOND, 0, header)
    log, _ = open_disk(disk)
    assert given(log) == [*old[:2], *new]


def test_bytes_are_not_cut_off_in_front_of_which_an_entry_was_not_read() -> None:
    """Two pages fall back, the header and the first page of a block: together they look like the
    second segment, which began when the first one was shorter."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    entries = grow(ORIGIN, 30, 30, 20_000, 20_000)
    for entry in entries[:3]:
        flush(flusher, entry)
    pages = [page_of(disk, SECOND, page) for page in (0, 1)]
    flush(flusher, cut=2)
    run(flusher.prove(Index(0)))
    for entry in entries[1:]:
        flush(flusher, entry)
    run(flusher.prove(Index(0)))
    power_cut(disk)
    before = bytes(disk.durable[FIRST])
    for page, data in enumerate(pages):
        disk.spoil(SECOND, page * PAGE, data)
    log, _ = open_disk(disk)
    with pytest.raises(Damaged, match=r"entries are lost \(entry 2\)"):
        Recovered.of(log)
    assert bytes(disk.durable[FIRST]) == before


@pytest.mark.parametrize("sealed", [False, True])
def test_the_header_of_a_segment_without_a_block_is_confirmed_by_the_next_one(
    sealed: bool,
) -> None:
    """All entries of the segment were cut off, and the first entry of the next leader is too large
    for it."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 20_000)
    for entry in old:
        flush(flusher, entry)
    entries = [old[0], *grow(old[0].position, 40_000, 30, term=2)]
    flush(flusher, cut=2)
    for entry in entries[1:]:
        flush(flusher, entry, committed=entry.index - 1)
    if sealed:
        run(flusher.chores(Index(1)))
    power_cut(disk)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.damage, log.record.unsure) == ([], False), crash
        assert [one.first for one in log.segments] == [1, 2, 2, 3], crash
        assert given(log) == entries, crash


def test_the_header_of_an_earlier_segment_counts_for_no_segment_without_a_block() -> None:
    """The earlier segment began behind another entry."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 30, 20_000)
    for entry in old:
        flush(flusher, entry)
    header = page_of(disk, SECOND, 0)
    new = grow(old[0].position, 20_000, term=2)
    flush(flusher, *new, cut=2)
    entries = [old[0], *grow(old[0].position, 40_000, term=3)]
    flush(flusher, entries[1], cut=2)
    power_cut(disk)
    disk.spoil(SECOND, 0, header)
    log, _ = open_disk(disk)
    assert [(one.file, one.what) for one in log.damage] == [(SECOND, "the segment's header is bad")]
    assert given(log) == entries


# -- a segment that was just begun ---------------------------------------------------------------


def test_an_old_header_of_a_begun_segment_that_names_more_entries_on_fewer_pages_is_none(
    tmp_path: Path,
) -> None:
    """The newest segment ends behind the place at which the header says that it does."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 30, 30, 30, 30, 25_000)
    flush(flusher, *old[:5])
    flush(flusher, old[5])
    header = page_of(disk, SECOND, 0)
    entries = [old[0], *grow(old[0].position, 3_000, 3_000, term=2)]
    flush(flusher, entries[1], cut=2)
    flush(flusher, entries[2], committed=3)
    run(flusher.prove(Index(3)))
    more = grow(entries[2].position, 25_000, term=2)
    run(flusher.plan(Flush(9, entries=more)), until="sync header")
    power_cut(disk)
    disk.spoil(SECOND, 0, header)
    report = audited(disk, tmp_path)
    assert (report.damage, report.last) == ([], entries[2].position)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.damage, log.record.unsure) == ([], False), crash
        assert given(log) == entries, crash


class Begun:
    """A block of many entries and one of a single long entry stood on one page, the ``last`` of
    them at the end; and the second segment was begun behind each of them."""

    def __init__(self, *, last: str) -> None:
        self.disk = SimulatedDisk()
        _, flusher = open_disk(self.disk)
        (first,) = grow(ORIGIN, 30)
        blocks = {
            "one entry": grow(first.position, 3_900),
            "many entries": grow(first.position, 30, 30, 30, 30, term=2),
        }
        then = blocks.pop(last)
        (earlier,) = blocks.values()
        flush(flusher, first)
        flush(flusher, *earlier)
        flush(flusher, *grow(earlier[-1].position, 25_000))
        self.block, self.header = page_of(self.disk, FIRST, 2), page_of(self.disk, SECOND, 0)
        flush(flusher, *then, cut=2)
        more = grow(then[-1].position, 25_000, term=3)
        run(flusher.plan(Flush(9, entries=more)), until="sync header")
        power_cut(self.disk)
        self.entries = [first, *then]


def test_the_header_of_a_begun_segment_drops_no_entry_to_make_room_for_those_that_it_names(
    tmp_path: Path,
) -> None:
    """The header is the old one here. But the block could be: so the node is unsure."""
    life = Begun(last="one entry")
    life.disk.spoil(SECOND, 0, life.header)
    before = bytes(life.disk.durable[FIRST])
    lost = [(one.first, one.last) for one in audited(life.disk, tmp_path).damage if one.entries]
    assert lost == [(3, 5)]
    for crash in crash_states(life.disk, opening):
        log, _ = open_disk(crash.disk)
        assert (given(log), log.record.unsure) == (life.entries, True), crash
    log, _ = open_disk(life.disk)
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(3, 5)]
    assert bytes(life.disk.durable[FIRST]) == before


def test_the_header_of_a_begun_segment_proves_entries_in_whose_place_an_older_block_is_back() -> (
    None
):
    life = Begun(last="many entries")
    life.disk.spoil(FIRST, 2 * PAGE, life.block)
    for crash in crash_states(life.disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, crash
