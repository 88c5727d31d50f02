"""A page is again what it was before it was last written, and the open that finds it goes on with
what the rest of the disk proves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorate.commands import Receipt
from quorate.errors import Damaged
from quorate.raft.messages import PreVote, Vote
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, opening, run
from verification.hand import HandCluster

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.types import Position

SEGMENT = segment_name(1)
SECOND = segment_name(2)


def page_of(disk: SimulatedDisk, page: int, name: str = SEGMENT) -> bytes:
    return bytes(disk.files[name].content[page * PAGE : (page + 1) * PAGE])


def flush(flusher: Flusher, *entries: Entry, cut: int | None = None) -> None:
    run(flusher.plan(Flush(1, None, Index(cut) if cut is not None else None, entries)))


def is_noticed(disk: SimulatedDisk, last: Position) -> bool:
    """Whether an open of ``disk`` ends with ``last``, or knows that it does not."""
    log, _ = open_disk(disk)
    if log.record.unsure:
        return True
    try:
        Recovered.of(log)
    except Damaged:
        return True
    return log.last == last


# -- the page of a block -------------------------------------------------------------------------


def replaced(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[SimulatedDisk, Flusher, bytes]:
    """A block of entries with the sizes ``old`` stood behind entry 1, and one with the sizes
    ``new`` took its place; and the first page of that block as it was before."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    flush(flusher, *grow(ORIGIN, 50))
    flush(flusher, *grow(log.last, *old))
    page = page_of(disk, 2)
    flush(flusher, *grow(log.position(Index(1)), *new, term=2), cut=2)
    return disk, flusher, page


SIZES = {
    "fewer entries on one page": ((50,), (60, 70)),
    "more entries on one page": ((50, 60, 70), (60,)),
    "many more entries than fit on another page": ((50,), (0,) * 60),
    "fewer entries on many pages": ((9_000,), (9_000, 30)),
    "more pages": ((9_000, 30), (60, 70)),
    "fewer pages": ((50,), (9_000, 30)),
    "the same sizes": ((50, 60), (50, 60)),
}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_whole_block_is_never_cut_off_for_an_old_page_in_front_of_it(
    sizes: str, closed: bool
) -> None:
    """It is newer, and says which entries stood there: those are lost, and the log says so."""
    disk, flusher, old = replaced(*SIZES[sizes])
    run(flusher.close(Index(0)) if closed else flusher.prove(Index(0)))
    last = open_disk(disk.copy())[0].last
    disk.spoil(SEGMENT, 2 * PAGE, old)
    for crash in crash_states(disk, opening):
        assert is_noticed(crash.disk, last), crash


@pytest.mark.parametrize("closed", [False, True])
def test_two_old_pages_in_a_row_are_no_reason_to_cut_off_what_stands_behind_them(
    closed: bool,
) -> None:
    """Together they make the log that was there before, as far as it goes."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for size in (50, 60, 70):
        flush(flusher, *grow(log.last, size))
    old = page_of(disk, 2) + page_of(disk, 3)
    flush(flusher, *grow(log.position(Index(1)), *[0] * 60, term=2), cut=2)
    flush(flusher, *grow(log.last, *[0] * 60, term=2))
    run(flusher.close(Index(0)) if closed else flusher.prove(Index(0)))
    last = log.last
    disk.spoil(SEGMENT, 2 * PAGE, old)
    for crash in crash_states(disk, opening):
        assert is_noticed(crash.disk, last), crash


@pytest.mark.parametrize("closed", [False, True])
def test_an_entry_that_is_back_does_not_count_for_another_of_its_index(closed: bool) -> None:
    """The block of entry 1 is back with entry 2, which was cut off, and an old block goes on from
    there. What stands behind them names another entry 2."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    flush(flusher, *grow(ORIGIN, 3000, 30))
    flush(flusher, *grow(log.last, 30))
    old = page_of(disk, 1) + page_of(disk, 2)
    flush(flusher, *grow(log.position(Index(1)), 3000, term=2), cut=2)
    run(flusher.close(Index(0)) if closed else flusher.prove(Index(0)))
    last = log.last
    disk.spoil(SEGMENT, PAGE, old)
    for crash in crash_states(disk, opening):
        assert is_noticed(crash.disk, last), crash
    log, _ = open_disk(disk)
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(2, 2), (1, 1)]


def test_an_entry_that_is_back_is_not_kept_if_only_the_mark_names_another() -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    flush(flusher, *grow(ORIGIN, 3000, 30))
    flush(flusher, *grow(log.last, 30))
    old = page_of(disk, 1) + page_of(disk, 2)
    flush(flusher, *grow(log.position(Index(1)), 3000, term=2), cut=2)
    run(flusher.close(Index(0)))
    disk.spoil(SEGMENT, PAGE, old + bytes(PAGE))
    log, _ = open_disk(disk)
    assert (log.last.index, log.record.unsure) == (1, True)
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(2, 2)]


# -- the page of a header ------------------------------------------------------------------------


def recycled(cut: int, together: int) -> tuple[SimulatedDisk, SegmentLog, Flusher, bytes]:
    """The second segment was dropped at ``cut``, became the spare, and is the second one again; its
    blocks have so many entries ``together``. And its header page as it was before."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    old = grow(ORIGIN, *[3000] * 6)
    for entry in old[:5]:
        flush(flusher, entry)
    run(flusher.allocate_ahead())
    room, disk.capacity = disk.capacity, disk.capacity - disk.space()[0]
    flush(flusher, old[5])
    page = page_of(disk, 0, SECOND)
    before = log.position(Index(cut - 1)) if cut > 1 else ORIGIN
    flush(flusher, *grow(before, *[30] * together, term=2), cut=cut)
    while len(log.segments) < 2 or log.segments[-1].end < 4 * PAGE:
        flush(flusher, *grow(log.last, *[30] * together, term=2))
    disk.capacity = room
    return disk, log, flusher, page


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_newest_segment_whose_header_is_old_makes_its_node_unsure(
    cut: int, together: int, closed: bool
) -> None:
    """Its blocks cannot be told from rubbish by the number that an old header names."""
    disk, log, flusher, old = recycled(cut, together)
    run(flusher.close(Index(0)) if closed else flusher.prove(Index(0)))
    last = log.last
    assert disk.files[SECOND].older[0] == old
    disk.spoil(SECOND, 0, old)
    for crash in crash_states(disk, opening):
        assert is_noticed(crash.disk, last), crash
    log, _ = open_disk(disk)
    assert log.record.unsure
    assert "the segment's header is bad" in {one.what for one in log.damage}


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_an_old_header_of_a_segment_in_the_middle_is_as_good_as_none(cut: int) -> None:
    """It costs no entry, neither of its segment nor of the one before: both are not sealed."""
    disk, log, flusher, old = recycled(cut, 1)
    while len(log.segments) < 3:
        flush(flusher, *grow(log.last, 3000, term=2))
    run(flusher.prove(Index(0)))
    entries = tuple(log.entries(Index(1), Index(log.last.index + 1)))
    disk.spoil(SECOND, 0, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        Recovered.of(log)
        assert not log.record.unsure
        assert tuple(log.entries(Index(1), Index(log.last.index + 1))) == entries


def test_a_segment_that_does_not_follow_the_one_before_is_not_started_from() -> None:
    """Whatever brought that about: its blocks do not follow either, and must not look torn."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in grow(ORIGIN, *[3000] * 7):
        flush(flusher, entry)
    run(flusher.chores(Index(5)))
    run(flusher.prove(Index(5)))
    first, second = log.segments
    assert first.footer is not None
    lie = replace(second.header, before=log.position(Index(first.last.index - 1)))
    disk.spoil(SECOND, 0, lie.encode())
    with pytest.raises(Damaged, match="the segment does not follow the one before"):
        Recovered.of(open_disk(disk)[0])


def test_a_segment_without_its_header_keeps_its_entries_whatever_stands_between_them() -> None:
    """Its empty blocks cannot be told from rubbish; the frames behind them prove themselves."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = grow(ORIGIN, *[3000] * 9)
    for entry in entries:
        flush(flusher, entry)
        if entry.index in (1, 2):
            run(flusher.prove(entry.index))
    run(flusher.close(Index(9)))
    assert len(log.segments) > 1
    disk.spoil(SEGMENT, 0, bytes(PAGE))
    log, _ = open_disk(disk)
    assert tuple(log.entries(Index(1), Index(10))) == entries
    assert not any(one.entries for one in log.damage)
    Recovered.of(log)


def test_an_old_header_does_not_make_a_cluster_forget_what_it_acknowledged() -> None:
    cluster = HandCluster(3)
    cluster.run(ticks=20)
    for _ in range(2):
        cluster.propose("n1", bytes(3000))
        cluster.run(ticks=2)
    cluster.isolate("n1")
    store = cluster.nodes[NodeId("n1")].store
    log = store.log
    assert log is not None
    while len(log.segments) < 2:
        cluster.propose("n1", bytes(6000))
    cluster.run(ticks=300)
    leader = next(name for name in ("n2", "n3") if cluster.engine(name).core.leader)
    cluster.propose(leader, b"x")
    cluster.heal()
    cluster.run(ticks=200)
    while len(log.segments) < 2 or log.segments[-1].end < 5 * PAGE:
        cluster.propose(leader, bytes(50))
        cluster.run(ticks=2)
    cluster.isolate("n3" if leader == "n2" else "n2")
    token = cluster.propose(leader, b"precious")
    cluster.run(ticks=5)
    assert isinstance(cluster.answers[token], Receipt)
    assert store.flusher is not None
    run(store.flusher.prove(cluster.engine("n1").settled))
    cluster.crash("n1")
    store.disk.spoil(SECOND, 0, store.disk.files[SECOND].older[0])
    cluster.restart("n1")
    assert not cluster.engine("n1").core.raft.sure
    cluster.crash(leader)
    cluster.heal()
    cluster.table.clear()
    cluster.run(ticks=600)
    assert cluster.leader() is None, "no other node has the entry"


# -- in a cluster ------------------------------------------------------------------------------


def test_an_old_page_does_not_make_a_cluster_forget_what_it_acknowledged() -> None:
    """n1 logged an entry alone. A leader of the next term gives it two others, in one block, and
    acknowledges the second. The page of that block is old again, and the leader is gone."""
    cluster = HandCluster(3)
    cluster.run(ticks=20)
    assert cluster.leader() == "n1"
    cluster.propose("n1", b"first")
    cluster.run(ticks=3)
    cluster.isolate("n1")
    cluster.propose("n1", b"never acknowledged")
    for _ in range(800):
        cluster.tick("n2")
        cluster.tick("n3")
        for _ in range(6):
            # Of n3 only its vote arrives: n2 has to wait for n1.
            cluster.take(lambda one: one.source == "n3" and isinstance(one.message, PreVote | Vote))
            cluster.deliver_all()
        if cluster.engine("n2").core.leader:
            break
    cluster.settle()
    cluster.isolate("n3")
    cluster.cuts -= {(NodeId("n1"), NodeId("n2")), (NodeId("n2"), NodeId("n1"))}
    cluster.take(lambda _: True)
    token = cluster.propose("n2", b"precious")
    cluster.run(ticks=60)
    receipt = cluster.answers[token]
    assert isinstance(receipt, Receipt)
    store = cluster.nodes[NodeId("n1")].store
    assert store.flusher is not None
    assert store.log is not None
    run(store.flusher.prove(cluster.engine("n1").settled))
    start, _ = store.log.segments[-1].rows.frame(Index(receipt.index))
    page = start // PAGE * PAGE
    old = store.disk.files[SEGMENT].older[page]
    assert b"never acknowledged" in old
    cluster.crash("n1")
    store.disk.spoil(SEGMENT, page, old)
    with pytest.raises(Damaged, match="entries are lost on this disk"):
        cluster.restart("n1")
    cluster.crash("n2")
    cluster.heal()
    cluster.table.clear()
    cluster.run(ticks=600)
    assert cluster.leader() is None, "n3 does not have the entry"
