"""A page of a disk is again what it was before an entry on it was replaced: the frame there is
whole, of the right index and as long as the new one. Only the chain tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.entry import HEADER_BYTES
from quorate.errors import Corrupt
from quorate.storage.flusher import Flush
from quorate.storage.index import encode_index
from quorate.storage.layout import BLOCK_BYTES, PAGE, index_name, segment_name
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

SEGMENT = segment_name(1)
# Entry 3 is replaced. Each flush is a page of its own.
PLACE = Index(3)
PLACE_PAGE = 3 * PAGE


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


def replaced(old: tuple[Entry, ...], new: tuple[Entry, ...]) -> tuple[SimulatedDisk, bytes]:
    """A disk with two entries and ``new`` in place of ``old``; and the page of ``old``."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk, 16 * PAGE)
    for number, entry in enumerate(BEGINNING, 1):
        run(flusher.plan(Flush(number, vote=(Term(1), NodeId("n1")), entries=(entry,))))
    run(flusher.plan(Flush(3, entries=old)))
    page = bytes(disk.files[SEGMENT].content[PLACE_PAGE : PLACE_PAGE + PAGE])
    for number, entry in enumerate(new, 4):
        cut = PLACE if number == 4 else None
        run(flusher.plan(Flush(number, truncate_from=cut, entries=(entry,))))
    return disk, page


BEGINNING = grow(ORIGIN, 100, 100)
OLD = grow(BEGINNING[-1].position, 100)
NEW = grow(BEGINNING[-1].position, 100, 100, 100, term=2)
# The old ones follow one another, and stood in one page.
OLD_TWO = grow(BEGINNING[-1].position, 100, 200)
NEW_TWO = grow(BEGINNING[-1].position, 100, 100, 100, term=2)


class Log:
    """An open log of which one page is an old one."""

    def __init__(self, disk: SimulatedDisk, page: bytes, *, seal: bool) -> None:
        self.disk, self.page = disk, page
        self.log, self.flusher = self._open(seal=seal)

    def _open(self, *, seal: bool) -> tuple[SegmentLog, Flusher]:
        log, flusher = open_disk(self.disk, 16 * PAGE)
        if seal:
            more = grow(log.last, *[3000] * 12, term=2)
            for number, entry in enumerate(more, 1):
                run(flusher.plan(Flush(number, entries=(entry,), committed=entry.index)))
            for _ in range(2):
                run(flusher.chores(more[-1].index))
            assert log.segments[0].indexed
        return log, flusher

    def spoil(self) -> None:
        self.disk.spoil(SEGMENT, PLACE_PAGE, self.page)

    def read_again(self) -> None:
        """As a node does that starts again."""
        self.log, self.flusher = open_disk(self.disk, 16 * PAGE)


@pytest.fixture(params=["one", "two in one page"])
def sealed(request: pytest.FixtureRequest) -> Log:
    both = (OLD, NEW) if request.param == "one" else (OLD_TWO, NEW_TWO)
    return Log(*replaced(*both), seal=True)


def frame(log: SegmentLog, index: Index) -> bytes:
    return bytes(log.frames(index, Index(index + 1), 1)[0])


def refuse(log: SegmentLog) -> None:
    """Nothing gives the old entry."""
    with pytest.raises(Corrupt):
        frame(log, PLACE)
    with pytest.raises(Corrupt):
        log.position(PLACE)
    stored = StoredEntries(log)
    for look in (stored.position, lambda index: stored.entries(index, Index(index + 1))):
        with pytest.raises(Corrupt):
            look(PLACE)
    assert PLACE in {index for one in log.damage for index in range(one.first, one.last + 1)}


def test_an_entry_that_was_replaced_is_not_read_from_a_segment_that_is_sealed(sealed: Log) -> None:
    assert frame(sealed.log, PLACE) == NEW[0].header + NEW[0].body
    sealed.spoil()
    refuse(sealed.log)


def test_an_index_file_knows_the_entry_that_was_not_replaced(sealed: Log) -> None:
    sealed.spoil()
    sealed.read_again()
    assert sealed.log.damage == []
    refuse(sealed.log)


def test_a_segment_without_its_index_file_is_walked_through_by_its_chain(sealed: Log) -> None:
    sealed.spoil()
    sealed.disk.lose(index_name(1))
    sealed.read_again()
    refuse(sealed.log)


def test_the_last_entry_of_a_segment_without_its_index_file_is_the_one_that_was_sealed() -> None:
    disk, page = replaced(OLD, NEW[:1])
    log, flusher = open_disk(disk, 16 * PAGE)
    (more,) = grow(log.last, 14 * PAGE, term=2)  # begins the next segment
    run(flusher.plan(Flush(1, entries=(more,), committed=more.index)))
    run(flusher.chores(more.index))
    assert log.sealed == PLACE
    disk.lose(index_name(1))
    disk.spoil(SEGMENT, PLACE_PAGE, page)
    log, _ = open_disk(disk, 16 * PAGE)
    with pytest.raises(Corrupt):
        frame(log, PLACE)


def test_a_page_within_a_block_is_held_against_the_frames_around_it() -> None:
    """Entry 4 ends with the second page of its block, and that page is an old one."""
    sizes = 4068, 2 * PAGE - BLOCK_BYTES - 2 * HEADER_BYTES - 4068
    disk = SimulatedDisk()
    log, flusher = open_disk(disk, 16 * PAGE)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=BEGINNING)))
    start, place = log.segments[0].end, Index(4)
    run(flusher.plan(Flush(2, entries=grow(log.last, *sizes))))
    page = bytes(disk.files[SEGMENT].content[start + PAGE : start + 2 * PAGE])
    new = grow(BEGINNING[-1].position, *sizes, 100, term=2)
    run(flusher.plan(Flush(3, truncate_from=PLACE, entries=new)))
    assert log.segments[0].rows.frame(place)[1] == start + 2 * PAGE
    (more,) = grow(log.last, 14 * PAGE, term=2)
    run(flusher.plan(Flush(4, entries=(more,), committed=more.index)))
    run(flusher.chores(more.index))
    disk.lose(index_name(1))
    disk.spoil(SEGMENT, start + PAGE, page)
    log, _ = open_disk(disk, 16 * PAGE)
    with pytest.raises(Corrupt):
        frame(log, place)


def test_a_segment_with_a_lost_entry_gets_no_index_file(sealed: Log) -> None:
    sealed.spoil()
    sealed.disk.lose(index_name(1))
    sealed.read_again()
    for _ in range(3):
        run(sealed.flusher.chores(sealed.log.last.index))
    assert index_name(1) not in sealed.disk.names()


def test_an_entry_that_was_replaced_is_not_read_from_an_open_segment() -> None:
    found = Log(*replaced(OLD, NEW), seal=False)
    found.spoil()
    refuse(found.log)


def test_what_stands_behind_an_entry_that_is_lost_is_read(sealed: Log) -> None:
    sealed.spoil()
    refuse(sealed.log)
    last = NEW[-1]
    assert frame(sealed.log, last.index) == last.header + last.body
    assert StoredEntries(sealed.log).entries(last.index, Index(last.index + 1)) == [last]


def test_entries_in_front_of_a_lost_one_are_read_if_their_chains_are_known(sealed: Log) -> None:
    sealed.spoil()
    refuse(sealed.log)
    assert StoredEntries(sealed.log).entries(Index(1), PLACE) == list(BEGINNING)


def spoil_body(log: Log, index: Index) -> None:
    _, end = log.log.segment(index).rows.frame(index)
    byte = log.disk.files[SEGMENT].content[end - 1]
    log.disk.spoil(SEGMENT, end - 1, bytes([byte ^ 1]))


@pytest.mark.parametrize("seal", [True, False])
def test_an_old_page_in_place_of_an_entry_without_its_body_is_no_header_of_it(seal: bool) -> None:
    """It is known by its header; after that the whole page is an old one."""
    found = Log(*replaced(OLD, NEW), seal=seal)
    spoil_body(found, PLACE)
    stored = StoredEntries(found.log)
    (without_body,) = stored.entries(PLACE, Index(PLACE + 1))
    assert (without_body.whole, without_body.position) == (False, NEW[0].position)
    found.spoil()
    with pytest.raises(Corrupt):
        stored.entries(PLACE, Index(PLACE + 1))


def test_an_index_file_that_names_the_old_entry_is_not_believed() -> None:
    """Its CRCs hold, so it is the chain from entry to entry that tells."""
    found = Log(*replaced(OLD, NEW), seal=True)
    segment = found.log.segments[0]
    rows = segment.rows
    rows.chains[PLACE - 1] = OLD[0].position.chain
    found.disk.files[index_name(1)].content[:] = encode_index(segment)
    del rows
    found.spoil()
    found.read_again()
    assert StoredEntries(found.log).entries(Index(PLACE + 1), Index(PLACE + 2)) == [NEW[1]]
    # Nothing but the index file says that the entries in front of the old one are not old as well.
    for start in (Index(PLACE - 1), PLACE):
        found.read_again()
        with pytest.raises(Corrupt):
            StoredEntries(found.log).entries(start, Index(PLACE + 3))


LIES: dict[str, Callable[[bytearray], None]] = {
    "a chain": lambda data: data.__setitem__(-1, data[-1] ^ 1),
    "an index file that is shorter by a chain": lambda data: data.__delitem__(slice(-4, None)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_file_with_a_bad_chain_is_made_again(sealed: Log, lie: str) -> None:
    good = bytes(sealed.disk.files[index_name(1)].content)
    LIES[lie](sealed.disk.files[index_name(1)].content)
    sealed.read_again()
    assert frame(sealed.log, PLACE) == NEW[0].header + NEW[0].body
    run(sealed.flusher.chores(sealed.log.last.index))
    assert sealed.disk.files[index_name(1)].content == good
