"""A page falls back to a block that was replaced, and nothing in front of it or behind it fits: the
old entries are never given for those that took their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.entry import HEADER_BYTES
from quorate.errors import Busy, Corrupt, Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries, plan_looks
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import power_cut
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, run

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

FIRST, SECOND = segment_name(1), segment_name(2)
OLD = grow(ORIGIN, 3_000)
NEW = grow(ORIGIN, 3_000, 3_000, 100, 13_000, 13_000, term=2)


def flush(flusher: Flusher, *entries: Entry, cut: int | None = None, committed: int = 0) -> None:
    first = Index(cut) if cut is not None else None
    vote = (entries[-1].position.term, NodeId("n1"))
    run(flusher.plan(Flush(1, vote, first, entries, Index(committed))))


def page_of(disk: SimulatedDisk, name: str, page: int) -> bytes:
    return bytes(disk.durable[name][page * PAGE : (page + 1) * PAGE])


class Wider:
    """A block of two pages takes the place of one of a page, and the first page falls back."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.log, self.flusher = open_disk(self.disk)
        flush(self.flusher, *OLD)
        self.old = page_of(self.disk, FIRST, 1)
        flush(self.flusher, *NEW[:2], cut=1)
        flush(self.flusher, NEW[2], committed=2)

    def seal(self) -> None:
        """Seal and index the segment."""
        flush(self.flusher, NEW[3], committed=3)
        flush(self.flusher, NEW[4], committed=3)
        for _ in range(3):
            run(self.flusher.chores(Index(3)))
        assert self.log.segments[0].indexed

    def spoil(self) -> None:
        self.disk.spoil(FIRST, PAGE, self.old)


def given(log: SegmentLog) -> dict[int, Entry]:
    """The entries that can be read."""
    found: dict[int, Entry] = {}
    stored = StoredEntries(log)
    for index in map(Index, range(1, log.last.index + 1)):
        try:
            (found[index],) = stored.entries(index, Index(index + 1))
        except Corrupt:
            assert index in log.segment(index).holes
    return found


@pytest.mark.parametrize("closed", [False, True])
def test_an_old_block_in_front_of_a_loss_is_lost_as_well(closed: bool) -> None:
    life = Wider()
    run((life.flusher.close if closed else life.flusher.prove)(Index(3)))
    life.spoil()
    power_cut(life.disk)
    log, _ = open_disk(life.disk)
    assert Recovered.of(log).committed == 3
    assert given(log) == {3: NEW[2]}


def test_a_look_at_a_sealed_segment_does_not_forget_which_entries_it_held() -> None:
    life = Wider()
    life.seal()
    life.spoil()
    life.log.looks_later = True
    with pytest.raises(Busy):
        StoredEntries(life.log).entries(Index(1), Index(2))
    run(plan_looks(life.log))
    # The second page is whole, but entry 2 begins on the first one.
    assert given(life.log) == {3: NEW[2], 4: NEW[3], 5: NEW[4]}
    log, _ = open_disk(life.disk)
    assert given(log) == {3: NEW[2], 4: NEW[3], 5: NEW[4]}


def test_one_bad_page_of_a_segment_in_the_middle_costs_no_more_if_nothing_there_was_committed() -> (
    None
):
    """Commits lag behind by a segment. The header of the next segment names the last entry, and a
    block of this one has it."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for size in (20_000, 100, 100, 100, 20_000):
        flush(flusher, *grow(log.last, size))
    run(flusher.prove(Index(5)))
    middle = log.segment(Index(3))
    assert (middle.first, middle.last.index, middle.footer) == (2, 4, None)
    start, _ = middle.rows.frame(Index(2))
    power_cut(disk)
    disk.spoil(segment_name(middle.number), start // PAGE * PAGE, bytes(PAGE))
    log, _ = open_disk(disk)
    Recovered.of(log)
    assert (log.last.index, log.segment(Index(3)).holes, log.record.unsure) == (5, {2}, False)


def test_entries_that_a_block_in_front_of_a_loss_claims_committed_stay() -> None:
    """A committed entry is never replaced: even an old block tells the truth about it."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    entries = grow(ORIGIN, *[50] * 5)
    for entry in entries:
        flush(flusher, entry, committed=entry.index - 1)
    run(flusher.prove(Index(5)))
    disk.spoil(FIRST, 4 * PAGE, bytes(PAGE))
    log, _ = open_disk(disk)
    Recovered.of(log)
    # The block of entry 4 was to say that entry 3 is committed.
    assert given(log) == {1: entries[0], 2: entries[1], 5: entries[4]}


@pytest.mark.parametrize("closed", [False, True])
def test_segments_that_contradict_each_other_are_not_started_from(closed: bool) -> None:
    """The footer of the first falls back to a block, and the header of the second to that of the
    earlier segment of its name, which began behind that block."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 30, 20_000)
    for entry in old:
        flush(flusher, entry)
    block, header = page_of(disk, FIRST, 2), page_of(disk, SECOND, 0)
    new = grow(old[0].position, 20_000, 20_000, 20_000, term=2)
    flush(flusher, new[0], cut=2, committed=1)
    flush(flusher, new[1], committed=2)
    flush(flusher, new[2], committed=3)
    for _ in range(4):
        run(flusher.chores(Index(4)))
    assert [segment.indexed for segment in log.segments] == [True, True, True, False]
    run((flusher.close if closed else flusher.prove)(Index(4)))
    disk.spoil(FIRST, 2 * PAGE, block)
    disk.spoil(SECOND, 0, header)
    power_cut(disk)
    before = {name: bytes(data) for name, data in disk.durable.items()}
    with pytest.raises(Damaged, match="does not follow the one before"):
        open_disk(disk)
    assert {name: bytes(data) for name, data in disk.durable.items()} == before


@pytest.mark.parametrize("committed", [0, 5, 6])
@pytest.mark.parametrize("again", [False, True])
def test_an_old_header_in_the_middle_costs_no_entry_and_no_byte(
    committed: int, again: bool
) -> None:
    """Neither the segment before it nor its own is sealed, and the entry that it names may be there
    again, with others behind it."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    old = grow(ORIGIN, 30, 30, 20_000)
    for entry in old:
        flush(flusher, entry)
    header = page_of(disk, SECOND, 0)
    if again:
        flush(flusher, *grow(old[0].position, 30, term=2), cut=2)
        new = (old[1], *grow(old[1].position, 30, 30, 20_000, 20_000, term=3))
    else:
        new = grow(old[0].position, 30, 30, 30, 20_000, 20_000, term=2)
    flush(flusher, new[0], cut=2)
    for entry in new[1:]:
        flush(flusher, entry, committed=min(committed, entry.index))
    run(flusher.prove(Index(committed)))
    assert [segment.footer for segment in log.segments] == [None] * 3
    before = bytes(disk.durable[FIRST])
    disk.spoil(SECOND, 0, header)
    power_cut(disk)
    log, _ = open_disk(disk)
    assert bytes(disk.durable[FIRST]) == before
    assert Recovered.of(log).committed == committed
    assert given(log) == dict(enumerate((old[0], *new), 1))
    assert Term(log.record.term) == new[-1].position.term
    assert not log.record.unsure


def test_the_bad_end_of_a_full_segment_is_not_cut_off_if_nothing_says_where_it_ends() -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in grow(ORIGIN, 30, 30, 20_000, 20_000):
        flush(flusher, entry)
    run(flusher.prove(Index(0)))
    assert len(log.segments) == 3
    disk.spoil(FIRST, 2 * PAGE, b"\xa5" * 2 * HEADER_BYTES)
    disk.spoil(SECOND, 0, bytes(PAGE))
    before = bytes(disk.durable[FIRST])
    log, _ = open_disk(disk)
    assert bytes(disk.durable[FIRST]) == before
    with pytest.raises(Damaged, match="entries are lost"):
        Recovered.of(log)
