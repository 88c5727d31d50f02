"""A page in front of a cut, or the header of a segment that was just begun, is again what it was
before. The vote record names the entry before the cut and the newest segment: both are noticed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from quorate.commands import Receipt
from quorate.errors import Damaged
from quorate.raft.messages import PreVote, Vote
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, VOTE_COPIES, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId
from verification.disk.crashes import crash_states, power_cut
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, opening, run
from verification.hand import HandCluster

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.offline.report import LogReport
    from quorate.types import Position

SEGMENT = segment_name(1)
SECOND = segment_name(2)


def page_of(disk: SimulatedDisk, page: int, name: str = SEGMENT) -> bytes:
    return bytes(disk.files[name].content[page * PAGE : (page + 1) * PAGE])


def flush(flusher: Flusher, *entries: Entry, cut: int | None = None) -> None:
    run(flusher.plan(Flush(1, None, Index(cut) if cut is not None else None, entries)))


def is_noticed(disk: SimulatedDisk, last: Position) -> bool:
    """Whether an open of ``disk`` has all up to ``last``, or knows that it has not."""
    log, _ = open_disk(disk)
    try:
        Recovered.of(log)
    except Damaged:
        return True
    if log.record.unsure:
        return True
    return log.last.index >= last.index and log.position(last.index) == last


def audited(disk: SimulatedDisk, path: Path) -> LogReport:
    """What ``quorate verify`` finds in the files of ``disk``."""
    for name, inode in disk.files.items():
        (path / name).write_bytes(bytes(inode.content))
    return audit_log(path, 1, None, lambda _: None)


# -- in front of a cut ---------------------------------------------------------------------------

# The entries behind entry 1 that stood on a page once, and those that took their place.
SIZES = {
    "fewer entries": ((50,), (50, 60)),
    "the first of those that are there": ((50,), None),
    "fewer entries that end where the others do": ((164,), (50, 50)),
    "more entries": ((50, 60, 70), (300,)),
    "more entries that end where the others do": ((50, 50), (164,)),
    "as many entries": ((50, 60), (50, 60)),
    "a longer entry": ((3_000,), (50, 60)),
    "nothing but a proof": ((), (50, 60)),
}


def replaced(sizes: str) -> tuple[SimulatedDisk, Flusher, bytes, Position]:
    """Entries took the place of others on the third page, are proved, and one more stands behind
    them; that page as it was, and the entry before the last."""
    old, new = SIZES[sizes]
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    flush(flusher, *grow(ORIGIN, 50))
    if old:
        flush(flusher, *(entries := grow(log.last, *old)))
    else:
        run(flusher.prove(Index(0)))
    page = page_of(disk, 2)
    if new is None:
        flush(flusher, *entries, *grow(log.last, 60, term=2), cut=2)
    elif old:
        flush(flusher, *grow(log.position(Index(1)), *new, term=2), cut=2)
    else:
        # The proof goes with a cut, and the next block stands in its place.
        flush(flusher, *grow(log.last, 40))
        flush(flusher, *grow(log.position(Index(1)), *new, term=2), cut=2)
    run(flusher.prove(Index(0)))
    before = log.last
    flush(flusher, *grow(before, 40, term=3))
    assert page_of(disk, 2) != page
    return disk, flusher, page, before


@pytest.mark.parametrize("sizes", SIZES)
def test_an_old_page_in_front_of_a_cut_is_noticed_wherever_the_cut_is_killed(
    sizes: str, tmp_path: Path
) -> None:
    """Its entries end before the cut: the byte alone does not tell that they are others."""
    disk, flusher, old, before = replaced(sizes)
    plan = flusher.plan(Flush(9, truncate_from=Index(before.index + 1)))
    named = 0
    for number, _ in enumerate(plan):
        for durable in (False, True):
            twin = disk.copy()
            if durable:
                power_cut(twin)
            twin.spoil(SEGMENT, 2 * PAGE, old)
            (tmp_path / f"{number}-{durable}").mkdir()
            report = audited(twin, tmp_path / f"{number}-{durable}")
            assert report.damage
            assert is_noticed(twin, before), (number, durable)
            log, _ = open_disk(twin)
            named += log.record.unsure
    assert named > 6, "else the record never names the cut"


@pytest.mark.parametrize("sizes", SIZES)
def test_a_loss_in_front_of_a_cut_is_told_and_not_forgotten_by_an_open_that_crashes(
    sizes: str,
) -> None:
    disk, flusher, old, before = replaced(sizes)
    run(flusher.plan(Flush(9, truncate_from=Index(before.index + 1))), until="sync vote-b")
    disk.spoil(SEGMENT, 2 * PAGE, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, crash
    log, flusher = open_disk(disk)
    lost = [(one.file, one.last) for one in log.damage if one.entries]
    assert lost == [(SEGMENT, before.index)]
    assert log.last.index < before.index
    more = grow(log.last, 100, term=4)
    flush(flusher, *more)
    power_cut(disk)
    log, _ = open_disk(disk)
    assert (log.last, log.record.unsure) == (more[-1].position, True)


@pytest.mark.parametrize("sizes", SIZES)
def test_an_old_page_in_front_of_a_cut_that_a_full_disk_leaves_standing_is_noticed(
    sizes: str,
) -> None:
    """An open cannot make the file long again: the record goes on naming the cut and the entry."""
    disk, flusher, old, before = replaced(sizes)
    run(flusher.plan(Flush(9, truncate_from=Index(before.index + 1))), until="sync vote-b")
    plan = opening(disk)
    while True:
        try:
            next(plan)
        except StopIteration as end:
            log, _ = end.value
            break
        disk.capacity -= disk.space()[0]
    assert (log.record.cutting, log.record.before) == (len(disk.files[SEGMENT].content), before)
    disk.spoil(SEGMENT, 2 * PAGE, old[: log.record.cutting - 2 * PAGE])
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.record.unsure, log.last == before) == (True, False), crash


def test_a_whole_page_in_front_of_a_cut_is_no_loss() -> None:
    for sizes in SIZES:
        disk, flusher, _, before = replaced(sizes)
        for _ in flusher.plan(Flush(9, truncate_from=Index(before.index + 1))):
            log, _ = open_disk(disk.copy())
            assert (log.damage, log.record.unsure) == ([], False)
            assert log.position(before.index) == before


def test_an_old_page_in_front_of_a_cut_does_not_make_a_cluster_forget() -> None:
    """n1 logged an entry alone. A leader of the next term gives it two others, in one block, and
    acknowledges the second. n1 is killed while it cuts off what another leader gave it, the page
    of that block is old again, and the leader is gone."""
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
    last = store.log.last
    flush(store.flusher, *grow(last, 40, term=int(last.term) + 1))
    cut = Flush(9, truncate_from=Index(last.index + 1))
    start, _ = store.log.segments[-1].rows.frame(Index(receipt.index))
    page = start // PAGE * PAGE
    old = store.disk.files[SEGMENT].older[page]
    assert b"never acknowledged" in old
    assert list(islice(store.flusher.plan(cut), 4))[-1] == "sync vote-b"
    cluster.crash("n1")
    store.disk.spoil(SEGMENT, page, old)
    cluster.restart("n1")
    assert not cluster.engine("n1").core.raft.sure
    cluster.crash("n2")
    cluster.heal()
    cluster.table.clear()
    cluster.run(ticks=600)
    assert cluster.leader() is None, "no other node has the entry"


# -- a segment that the record does not name yet -------------------------------------------------


def begun(readded: bool) -> tuple[SimulatedDisk, bytes, Position]:
    """A node is killed when the second segment has its header and the record does not name it. The
    file held an earlier second segment: the header of that one, and the last entry that is proved.

    The earlier one began after entry 3, which is there again if it was ``readded``.
    """
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    old = grow(ORIGIN, 100, 100, 100, 13_000)
    for entries in (old[:2], old[2:3], old[3:]):
        flush(flusher, *entries)
    header = page_of(disk, 0, SECOND)
    flush(flusher, *grow(old[1].position, 60, term=2), cut=3)
    if readded:
        flush(flusher, *old[2:3], *grow(old[2].position, 60, term=3), cut=3)
    flush(flusher, *grow(log.last, 5_000, term=3))
    run(flusher.prove(Index(5)))
    last = log.last
    more = grow(last, 13_000, term=3)
    run(flusher.plan(Flush(9, entries=more)), until="sync header")
    return disk, header, last


@pytest.mark.parametrize("readded", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_an_old_header_of_a_segment_that_was_begun_costs_the_one_before_nothing(
    durable: bool, readded: bool, tmp_path: Path
) -> None:
    disk, header, last = begun(readded)
    if durable:
        power_cut(disk)
    disk.spoil(SECOND, 0, header)
    report = audited(disk, tmp_path)
    assert (report.damage, report.last) == ([], last)
    assert [one.file for one in report.warnings] == [SECOND]
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, log.damage, log.record.unsure) == (last, [], False), crash
        Recovered.of(log)


@pytest.mark.parametrize("data", [bytes(PAGE), b"\xa5" * PAGE], ids=["zeros", "garbage"])
def test_the_header_of_a_segment_that_was_begun_proves_the_last_block_before_it(
    data: bytes, tmp_path: Path
) -> None:
    """Nothing else does: that segment has no block, and the one before gets no more."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in grow(ORIGIN, 100, 100):
        flush(flusher, entry)
    last = log.last
    run(flusher.plan(Flush(9, entries=grow(last, 26_000))), until="sync header")
    power_cut(disk)
    log, _ = open_disk(disk.copy())
    assert (log.last, log.damage, log.record.unsure) == (last, [], False)
    disk.spoil(SEGMENT, 2 * PAGE, data)
    report = audited(disk, tmp_path)
    assert [(one.first, one.last) for one in report.damage if one.entries] == [(2, 2)]
    log, _ = open_disk(disk.copy())
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(2, 2)]
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last.index, log.record.unsure) == (1, True), crash


def test_entries_of_a_segment_that_no_vote_record_names_are_not_removed(tmp_path: Path) -> None:
    """The newest record rotted in both copies: the one before it does not know the segment."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    flush(flusher, *grow(ORIGIN, 100))
    older = {name: bytes(disk.files[name].content) for name in VOTE_COPIES}
    flush(flusher, *grow(log.last, 26_000))
    assert (log.segments[-1].number, log.last.index) == (2, 2)
    for name, content in older.items():
        disk.spoil(name, 0, content)
    assert [one.file for one in audited(disk, tmp_path).damage] == [SECOND]
    with pytest.raises(Damaged, match="holds entries, and no readable vote record names it"):
        open_disk(disk)
    assert SECOND in disk.files
