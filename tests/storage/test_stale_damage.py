"""What is known of damage is about the entries that are there, not about those before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import Corrupt
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.enumerate import grow, open_disk
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.storage.log import SegmentLog

SEGMENT = segment_name(1)
LOG = grow(ORIGIN, *[100] * 6)


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


def spoil(disk: SimulatedDisk, log: SegmentLog, index: int, *, header: bool = False) -> None:
    start, end = log.segments[0].rows.frame(Index(index))
    place = start if header else end - 1
    disk.spoil(SEGMENT, place, bytes([disk.files[SEGMENT].content[place] ^ 1]))


@pytest.fixture
def disk() -> SimulatedDisk:
    """Six entries that are not committed, each in a block of its own."""
    made = SimulatedDisk()
    _, flusher = open_disk(made, 16 * PAGE)
    for number, entry in enumerate(LOG, 1):
        vote = (Term(1), NodeId("n1")) if number == 1 else None
        run(flusher.plan(Flush(number, vote=vote, entries=(entry,))))
    run(flusher.prove(Index(0)))
    return made


def test_damage_of_an_entry_that_was_replaced_halts_no_log(disk: SimulatedDisk) -> None:
    log, _ = open_disk(disk, 16 * PAGE)
    spoil(disk, log, 5)
    log, flusher = open_disk(disk, 16 * PAGE)
    stored = Recovered.of(log).stored
    assert stored is not None
    assert [one.first for one in log.damage] == [5]
    new = grow(LOG[3].position, 100, 100, term=2)
    run(flusher.plan(Flush(1, truncate_from=Index(5), entries=new)))
    assert log.damage == []
    spoil(disk, log, 2)
    (found,) = stored.entries(Index(2), Index(3))
    assert (found.whole, found.position) == (False, LOG[1].position)
    assert [one.first for one in log.damage] == [2]


def test_damage_before_a_cut_is_not_forgotten(disk: SimulatedDisk) -> None:
    log, _ = open_disk(disk, 16 * PAGE)
    spoil(disk, log, 3)
    spoil(disk, log, 5)
    log, flusher = open_disk(disk, 16 * PAGE)
    run(flusher.plan(Flush(1, truncate_from=Index(5))))
    assert [one.first for one in log.damage] == [3]


def test_only_what_is_found_now_is_judged(disk: SimulatedDisk) -> None:
    """An entry is lost; that stops only who needs it."""
    log, _ = open_disk(disk, 16 * PAGE)
    stored = StoredEntries(log)
    spoil(disk, log, 5, header=True)
    with pytest.raises(Corrupt):
        stored.entries(Index(5), Index(6))
    spoil(disk, log, 2)
    (found,) = stored.entries(Index(2), Index(3))
    assert not found.whole
    with pytest.raises(Corrupt):
        stored.entries(Index(5), Index(6))
    assert sorted(one.first for one in log.damage) == [2, 5], "each is noted once"
