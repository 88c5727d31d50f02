"""A page that the disk does not give back counts as bad, like one that rotted: it costs what stood
on it, and not the log."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.storage.buffered import UNREADABLE_PAGES_MAX, BufferedFile
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.open import open_log
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import power_cut
from verification.disk.simulated import SimulatedDisk, SimulatedFile
from verification.disk.small import IDENTITY, SEGMENT_BYTES, grow, open_disk, opening, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.storage.log import SegmentLog

    Refuse = Callable[[str, int], None]

ENTRIES = grow(ORIGIN, 30, 20_000, 20_000, 20_000, 30, 30)
NEWEST = segment_name(5)
# The newest segment: header, entry 5, entry 6, the empty block that proves it, unused pages.
LAST, PROOF, NEXT = 2 * PAGE, 3 * PAGE, 4 * PAGE


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let the disk refuse to give back a page."""
    read = SimulatedFile.read
    pages: set[tuple[str, int]] = set()

    def refusing(file: SimulatedFile, position: int, length: int) -> bytes:
        for name, place in pages:
            if file._name == name and position < place + PAGE and place < position + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, position, length)

    monkeypatch.setattr(SimulatedFile, "read", refusing)
    return lambda name, place: pages.add((name, place))


@pytest.fixture
def forgive(refuse: Refuse) -> Callable[[], None]:
    """Let the disk give back all pages again."""
    cell = next(one for one in refuse.__closure__ or () if isinstance(one.cell_contents, set))
    return cell.cell_contents.clear  # type: ignore[no-any-return]  # a set of pages


def made(*, proved: bool = True) -> SimulatedDisk:
    """Five segments, of which four are sealed; all entries are flushed."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in ENTRIES:
        committed = Index(entry.index - 1)
        run(flusher.plan(Flush(1, (Term(1), NodeId("n1")), None, (entry,), committed)))
    for _ in range(6):
        run(flusher.chores(Index(5)))
    if proved:
        run(flusher.prove(Index(6)))
    assert segment_name(log.segments[-1].number) == NEWEST
    assert [segment.footer is None for segment in log.segments] == [False] * 4 + [True]
    power_cut(disk)
    return disk


def given(log: SegmentLog) -> list[int]:
    return [entry.index for entry in log.entries(Index(1), Index(log.last.index + 1))]


@pytest.mark.parametrize("place", [0, 2 * PAGE], ids=["header", "footer"])
def test_a_sealed_segment_works_without_its_header_or_its_footer(
    refuse: Refuse, place: int
) -> None:
    disk = made()
    refuse(segment_name(1), place)
    log, _ = open_disk(disk)
    Recovered.of(log)
    assert (given(log), log.record.unsure) == ([1, 2, 3, 4, 5, 6], False)


def test_an_unused_page_behind_one_that_can_be_read_costs_nothing(refuse: Refuse) -> None:
    disk = made()
    refuse(NEWEST, NEXT + PAGE)
    log, flusher = open_disk(disk)
    Recovered.of(log)
    assert (given(log), log.record.unsure) == ([1, 2, 3, 4, 5, 6], False)
    assert [(one.start, one.stop) for one in log.damage] == [(NEXT + PAGE, NEXT + 2 * PAGE)]
    run(flusher.plan(Flush(1, entries=grow(log.last, 30))))
    assert log.last.index == 7


@pytest.mark.parametrize("place", [LAST, PROOF], ids=["of the last block", "behind the last block"])
def test_a_page_in_which_the_last_block_may_have_stood_makes_the_node_unsure(
    refuse: Refuse, place: int
) -> None:
    """No later block says what stood there: it may have been acknowledged."""
    disk = made(proved=False)
    refuse(NEWEST, place)
    log, _ = open_disk(disk)
    assert log.record.unsure
    assert log.last.index == (5 if place == LAST else 6)
    assert any(one.what == "the disk does not give back this page" for one in log.damage)


@pytest.mark.parametrize("place", [LAST, NEXT + PAGE], ids=["with entries", "unused"])
def test_a_segment_whose_header_is_refused_is_not_cut(
    refuse: Refuse, forgive: Callable[[], None], place: int
) -> None:
    """Without the header no block is recognized, and the disk may give all of it back later."""
    disk = made()
    refuse(NEWEST, 0)
    refuse(NEWEST, place)
    log, _ = open_disk(disk)
    assert log.record.unsure
    forgive()
    log, _ = open_disk(disk)
    assert (given(log), log.record.unsure) == ([1, 2, 3, 4, 5, 6], True)


def test_an_unused_page_of_a_full_segment_that_is_refused_costs_nothing(refuse: Refuse) -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=grow(ORIGIN, 30, 12_000))))
    run(flusher.plan(Flush(2, entries=grow(log.last, 20_000))))
    first, second = log.segments
    assert first.footer is None
    assert second.number == 2
    power_cut(disk)
    refuse(segment_name(1), first.end)
    log, _ = open_disk(disk)
    assert given(log) == [1, 2, 3]


def test_a_page_that_is_refused_again_and_again_counts_once(refuse: Refuse) -> None:
    disk = made()
    refuse(NEWEST, LAST)
    file = disk.open(NEWEST)
    data = BufferedFile(file, file.size(), durable=True)
    for _ in range(2 * UNREADABLE_PAGES_MAX):
        assert data._read(LAST, 10) == bytes(10)


def test_a_page_behind_the_mark_of_a_clean_stop_held_no_block(refuse: Refuse) -> None:
    disk = made()
    log, flusher = open_disk(disk)
    run(flusher.close(Index(6)))
    end = log.segments[-1].end
    refuse(NEWEST, end)
    log, _ = open_disk(disk)
    assert (log.last.index, log.record.unsure) == (6, False)


@pytest.mark.parametrize("least", [0, 1])
def test_a_folder_that_cannot_be_listed_stops_its_log_alone(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    disk = made()

    def names() -> list[str]:
        raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN))

    monkeypatch.setattr(disk, "names", names)
    plan = open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1, least_boot=least)
    with pytest.raises(Damaged, match="this log cannot be read"):
        next(plan)


def test_an_older_folder_is_not_opened() -> None:
    disk = made()
    run(opening(disk))
    with pytest.raises(Damaged, match="older copy"):
        next(open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1, least_boot=3))
    run(open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1, least_boot=2))


# -- reads of an open besides the scan ---------------------------------------------------------


def begun(*, cutting: bool) -> SimulatedDisk:
    """A segment that the vote record does not name holds a block: the record that named it is gone,
    or says that the segment is cut off."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, (Term(1), NodeId("n1")), None, ENTRIES[:1])))
    votes = {name: bytes(disk.files[name].content) for name in ("vote-a", "vote-b")}
    run(flusher.plan(Flush(2, None, None, ENTRIES[1:2])))
    assert log.segments[-1].number == 2
    if cutting:
        run(flusher.plan(Flush(3, None, Index(1))), until="erase")
    else:
        for name, data in votes.items():
            disk.spoil(name, 0, data)
    power_cut(disk)
    return disk


def test_a_segment_without_a_vote_record_is_kept_if_its_first_block_is_refused(
    refuse: Refuse,
) -> None:
    disk = begun(cutting=False)
    refuse(segment_name(2), PAGE)
    before = {name: bytes(data) for name, data in disk.durable.items()}
    with pytest.raises(Damaged):
        run(opening(disk))
    assert {name: bytes(data) for name, data in disk.durable.items()} == before


def test_behind_a_cut_no_block_has_to_be_read(refuse: Refuse) -> None:
    disk = begun(cutting=True)
    refuse(segment_name(2), PAGE)
    log, _ = open_disk(disk)
    assert (log.last.index, log.record.unsure) == (0, False)


def test_a_page_that_is_refused_when_it_is_to_be_renewed_stops_its_log_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scan read it a moment ago. A write that fails still ends the node."""
    disk = made(proved=False)
    usual = SimulatedFile.read

    def read(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name == NEWEST and position == LAST:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return usual(file, position, length)

    monkeypatch.setattr(SimulatedFile, "read", read)
    with pytest.raises(Damaged, match="cannot be read"):
        run(opening(disk))
