"""The end of a log rotted while its node was stopped, and the next open crashes on its way.

Only the mark of a clean stop, or a vote record that names a cut, proves that such an end was
durable. The open takes that proof away, so it writes the loss down first.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from quorate.commands import Receipt
from quorate.entry import HEADER_BYTES
from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    OPENING,
    PAGE,
    VOTE_COPIES,
    newest_vote,
    segment_name,
)
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import crash_states, power_cut
from verification.disk.enumerate import grow, open_disk, opening
from verification.disk.simulated import UNLIMITED, SimulatedDisk
from verification.disk.small import IDENTITY
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.entry import Entry

SEGMENT = segment_name(1)
LOG = grow(ORIGIN, 50, 50, 50, 50)
# Blocks: entries 1 and 2; the empty block that proves them; entries 3 and 4; the empty block of the
# stop.
LAST = 3 * PAGE
FRAME = HEADER_BYTES + 50
ROT = {
    "zeros": (LAST, bytes(2 * PAGE)),
    "garbage": (LAST, b"\xa5" * 2 * PAGE),
    "the head of the block": (LAST, bytes(BLOCK_BYTES)),
    "the header of entry 4": (LAST + BLOCK_BYTES + FRAME, bytes(HEADER_BYTES)),
    "the body of entry 3": (LAST + BLOCK_BYTES + HEADER_BYTES, bytes(8)),
    "the body of entry 4": (LAST + BLOCK_BYTES + FRAME + HEADER_BYTES, bytes(8)),
}


def run(plan: Iterable[str], until: str = "") -> None:
    for step in plan:
        if until and step.startswith(until):
            return


def stopped() -> SimulatedDisk:
    """The disk of a node that acknowledged four entries and stopped in order."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=LOG[:2])))
    run(flusher.prove(Index(2)))
    run(flusher.plan(Flush(2, entries=LOG[2:])))
    run(flusher.close(Index(2)))
    assert CLEAN in disk.names()
    return disk


def rotten(kind: str) -> SimulatedDisk:
    """The empty block of the stop rotted as well: only the mark proves entries 3 and 4."""
    disk = stopped()
    place, data = ROT[kind]
    disk.spoil(SEGMENT, LAST + PAGE, b"\xa5" * PAGE)
    disk.spoil(SEGMENT, place, data)
    return disk


@pytest.mark.parametrize("kind", ROT)
def test_a_loss_that_only_the_mark_proves_is_written_down_before_the_mark_goes(kind: str) -> None:
    for crash in crash_states(rotten(kind), opening):
        for again in (crash.disk, *(one.disk for one in crash_states(crash.disk, opening))):
            log, _ = open_disk(again)
            assert log.record.unsure, f"{crash} left a node that is sure of {log.last.index}"


@pytest.mark.parametrize("kind", ROT)
def test_the_open_that_finds_a_loss_names_the_entries(kind: str) -> None:
    log, _ = open_disk(rotten(kind))
    first = 4 if kind.endswith("entry 4") else 3
    assert log.last == LOG[first - 2].position
    assert (first, 4) in {(one.first, one.last) for one in log.damage}
    assert {one.file for one in log.damage} == {SEGMENT}


def test_a_log_that_was_stopped_in_order_is_whole_however_often_its_open_crashes() -> None:
    for crash in crash_states(stopped(), opening):
        log, _ = open_disk(crash.disk)
        assert (log.damage, log.record.unsure, log.last) == ([], False, LOG[-1].position)
        assert not {CLEAN, OPENING} & set(crash.disk.names())


def test_a_mark_that_an_open_left_says_nothing_about_what_is_written_later() -> None:
    """Once the node has written, a torn tail is a torn tail."""
    for crash in crash_states(stopped(), opening):
        disk = crash.disk
        log, flusher = open_disk(disk)
        run(flusher.plan(Flush(3, truncate_from=Index(3), entries=grow(LOG[1].position, 70))))
        run(flusher.plan(Flush(4, entries=grow(log.last, 90))), until="write block")
        last = log.last
        disk.spoil(SEGMENT, log.segments[-1].end, bytes(BLOCK_BYTES))
        log, _ = open_disk(disk)
        assert (log.damage, log.record.unsure, log.last) == ([], False, last)


@pytest.mark.parametrize("place", [LAST + BLOCK_BYTES + HEADER_BYTES, LAST])
def test_a_loss_that_only_an_unfinished_cut_proves_is_written_down_before_the_cut_ends(
    place: int,
) -> None:
    """Whatever stood behind entry 3, and proved it, is being cut off."""
    disk = stopped()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(3, truncate_from=Index(4))), until="sync vote-b")
    disk.spoil(SEGMENT, place, bytes(8))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, f"{crash} left a node that is sure of {log.last.index}"
        assert log.last == LOG[1].position


@pytest.mark.parametrize("kind", ["gone", "short", "no header"])
def test_a_newest_segment_that_is_gone_or_short_or_has_no_header_makes_its_node_unsure(
    kind: str,
) -> None:
    disk = stopped()
    disk.lose(CLEAN)
    if kind == "gone":
        disk.lose(SEGMENT)
    elif kind == "short":
        disk.shorten(SEGMENT, LAST)
    else:
        disk.spoil(SEGMENT, 0, bytes(PAGE))
    for crash in crash_states(disk, opening):
        assert open_disk(crash.disk)[0].record.unsure, crash


@pytest.mark.parametrize("size", [200, 2000, PAGE - 1])
@pytest.mark.parametrize("full", [False, True])
def test_a_newest_segment_that_ends_within_its_header_page_makes_its_node_unsure_for_good(
    size: int, full: bool
) -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=LOG)))
    run(flusher.prove(Index(2)))
    disk.shorten(SEGMENT, size)
    if full:
        disk.capacity = sum(len(inode.content) for inode in disk.files.values()) + PAGE
    for crash in crash_states(disk, opening):
        crash.disk.capacity = UNLIMITED
        log, flusher = open_disk(crash.disk)
        assert (log.last, log.record.unsure) == (ORIGIN, True), crash
        run(flusher.plan(Flush(1, vote=(Term(5), NodeId("n3")), entries=LOG[:1])))
        log, _ = open_disk(crash.disk)
        assert (log.record.vote, log.record.unsure, log.last.index) == ("n3", True, 1), crash


def test_an_open_says_where_it_cuts_and_what_is_lost_before_it_cuts() -> None:
    disk = rotten("garbage")
    for step in opening(disk):
        if step.startswith(("truncate", "unlink")):
            for name in VOTE_COPIES:
                record = newest_vote([disk.durable[name]], IDENTITY)
                assert record is not None
                assert (record.cutting, record.unsure) == (LAST, True), step
            if step.startswith("truncate"):
                return
    raise AssertionError("nothing was cut")


def test_write_numbers_rise_over_restarts() -> None:
    """Else the blocks of a new process would be older than those before them."""
    disk = stopped()
    numbers = []
    for term in (2, 3, 4):
        log, flusher = open_disk(disk)
        run(flusher.plan(Flush(1, entries=grow(log.last, 50, term=term))))
        numbers.append(log.segments[-1].write_number)
    assert numbers == sorted(set(numbers))
    log, _ = open_disk(disk)
    assert (log.last.index, log.damage) == (7, [])


# -- an old page that comes back ---------------------------------------------------------------


def rewritten(cut: int, committed: int = 0) -> tuple[SimulatedDisk, tuple[Entry, ...], bytes]:
    """Entries from ``cut`` on were replaced by others; and the page of 3 and 4 as it was before.
    The first block claims that the first ``committed`` entries are committed."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=LOG[:2], committed=Index(committed))))
    run(flusher.plan(Flush(2, entries=LOG[2:])))
    old = bytes(disk.files[SEGMENT].content[2 * PAGE : 3 * PAGE])
    others = grow(LOG[cut - 2].position, 70, term=2)
    run(flusher.plan(Flush(3, truncate_from=Index(cut), entries=others)))
    run(flusher.prove(Index(0)))
    return disk, tuple(log.entries(Index(1), Index(log.last.index + 1))), old


def test_an_entry_in_whose_place_an_older_one_is_back_is_lost_and_not_torn() -> None:
    """The block behind it knows better, and is not cut off for that."""
    disk, now, old = rewritten(3)
    disk.spoil(SEGMENT, 2 * PAGE, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert {(one.first, one.last, one.what) for one in log.damage if one.entries} == {
            (3, 3, "entries are lost"),
            (1, 2, "nothing confirms these entries"),
        }
        assert log.last == now[-1].position
        with pytest.raises(Damaged, match=r"entry 3.*entries 1 to 2"):
            Recovered.of(log)


def test_a_bad_head_before_an_older_entry_costs_no_entry_that_is_known_to_be_committed() -> None:
    disk, now, old = rewritten(3, committed=2)
    disk.spoil(SEGMENT, 2 * PAGE, bytes(BLOCK_BYTES) + old[BLOCK_BYTES:])
    log, _ = open_disk(disk)
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(3, 3)]
    assert log.last == now[-1].position


def test_entries_that_were_cut_off_and_are_back_count_for_nothing() -> None:
    disk, now, old = rewritten(4)
    disk.spoil(SEGMENT, 2 * PAGE, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.damage, log.record.unsure) == ([], False)
        assert tuple(log.entries(Index(1), Index(log.last.index + 1))) == now


def test_a_block_within_the_bytes_of_an_entry_that_is_back_is_found() -> None:
    """The entry reached into the page where the next block stands now. It was cut off before, and
    must not hide that block: the one behind it would seem not to belong there, and be cut off."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=grow(ORIGIN, 3000, 3000))))
    old = bytes(disk.files[SEGMENT].content[PAGE : 2 * PAGE])
    others = grow(log.position(Index(1)), 60, 70, 80, term=2)
    run(flusher.plan(Flush(2, truncate_from=Index(2), entries=others[:2])))
    run(flusher.plan(Flush(3, entries=others[2:])))
    run(flusher.prove(Index(0)))
    now = tuple(log.entries(Index(1), Index(5)))
    disk.spoil(SEGMENT, PAGE, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.damage, log.record.unsure) == ([], False)
        assert tuple(log.entries(Index(1), Index(log.last.index + 1))) == now


@pytest.mark.parametrize("page", [2, 3, 4, 5])
def test_a_block_of_an_earlier_process_is_older_although_it_was_cut_off(page: int) -> None:
    """Else it would count for more than what stands in front of it, if its page came back."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=LOG[:1])))
    for number, entry in enumerate(LOG[1:3], 2):
        run(flusher.prove(Index(0)))
        run(flusher.plan(Flush(number, entries=(entry,))))
    old = bytes(disk.files[SEGMENT].content[page * PAGE : (page + 1) * PAGE])
    run(flusher.plan(Flush(4, truncate_from=Index(2))))
    for term in (2, 3, 4):
        log, flusher = open_disk(disk)
        run(flusher.plan(Flush(1, entries=grow(log.last, 50, term=term))))
    run(flusher.prove(Index(0)))
    last = log.last
    disk.spoil(SEGMENT, page * PAGE, old)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, bool(log.damage)) == (last, page < 5)


# -- in a cluster ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(20))
def test_an_open_that_is_killed_does_not_make_a_cluster_forget_what_it_acknowledged(
    steps: int,
) -> None:
    """n1 and n2 acknowledge an entry. It rots on n2, whose next open is killed; then n1 is gone."""
    cluster = HandCluster(3)
    cluster.run(ticks=20)
    cluster.isolate("n3")
    token = cluster.propose("n1", b"precious")
    cluster.run(ticks=5)
    receipt = cluster.answers[token]
    assert isinstance(receipt, Receipt)
    store = cluster.nodes[NodeId("n2")].store
    assert store.flusher is not None
    run(store.flusher.close(cluster.engine("n2").settled))
    cluster.crash("n2")
    content = store.disk.files[SEGMENT].content
    used = [start for start in range(0, len(content), PAGE) if any(content[start : start + PAGE])]
    store.disk.spoil(SEGMENT, used[-2], bytes(2 * PAGE))
    for _ in islice(store.opening(), steps):
        pass
    cluster.restart("n2")
    cluster.crash("n1")
    cluster.heal()
    cluster.run(ticks=600)
    assert cluster.leader() is None, "n2 and n3 do not have the entry"
    cluster.restart("n1")
    cluster.run(ticks=600)
    leader = cluster.leader()
    assert leader is not None
    token = cluster.propose(leader, b"the next one")
    cluster.run(ticks=20)
    answer = cluster.answers[token]
    assert isinstance(answer, Receipt)
    assert answer.offset == receipt.offset + 1


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_block_that_proves_entries_is_believed_although_the_block_before_it_is_bad_twice(
    later: int,
) -> None:
    """One flipped bit in its head and one in the header of its second entry: how many entries it
    had is told by the next block alone."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = grow(ORIGIN, *[50] * 5)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=entries[:1])))
    run(flusher.prove(Index(1)))
    block = log.segments[-1].end
    run(flusher.plan(Flush(2, entries=entries[1:3], committed=Index(1))))
    run(flusher.prove(Index(3)))
    header = log.segments[-1].rows.frame(Index(3))[0]
    for number in range(later):
        run(flusher.plan(Flush(3 + number, entries=entries[3 + number : 4 + number])))
    for place in (block + 8, header + 8):
        disk.spoil(SEGMENT, place, bytes([disk.files[SEGMENT].content[place] ^ 1]))
    log, _ = open_disk(disk)
    assert log.last.index == 3 + later
    assert [(one.first, one.last) for one in log.damage if one.entries] == [(3, 3), (2, 2)]
    with pytest.raises(Damaged, match="entries are lost on this disk"):
        Recovered.of(log)


def test_a_truncation_behind_a_damaged_entry_does_not_make_it_look_torn() -> None:
    """The blocks that prove entry 3 hold entry 4, which the next leader replaces. The node dies
    after the truncation and before the next block is durable."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=LOG[:2])))
    run(flusher.prove(Index(2)))
    run(flusher.plan(Flush(2, entries=LOG[2:3], committed=Index(2))))
    run(flusher.prove(Index(3)))
    run(flusher.plan(Flush(3, entries=LOG[3:4], committed=Index(3))))
    run(flusher.prove(Index(3)))
    end = log.segments[-1].rows.frame(Index(3))[1]
    disk.spoil(SEGMENT, end - 1, bytes([disk.files[SEGMENT].content[end - 1] ^ 1]))
    replaced = Flush(
        4,
        vote=(Term(2), NodeId("n2")),
        truncate_from=Index(4),
        entries=grow(LOG[2].position, 50, term=2),
        committed=Index(3),
    )
    _, flusher = open_disk(disk.copy())
    steps = len(list(flusher.plan(replaced)))
    forgotten = []
    for stop in range(1, steps + 1):
        _, flusher = open_disk(twin := disk.copy())
        run(islice(flusher.plan(replaced), stop))
        log, _ = open_disk(twin)
        if log.last.index < 3 and not log.record.unsure:
            forgotten.append(stop)
    assert forgotten == []


def test_a_block_that_is_dropped_proves_no_entry_any_more() -> None:
    """A clean stop proves the last entry by its mark. An old block behind the end is dropped: it
    proves nothing to the open after the next crash, which would take the entry for torn."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    old = grow(ORIGIN, *[30] * 5)
    vote = Term(1), NodeId("n1")
    for entries in (old[:1], old[1:4], old[4:]):
        run(flusher.plan(Flush(1, vote, None, entries)))
    behind = disk.open(SEGMENT).read(3 * PAGE, PAGE)  # the block of 5/1
    (last,) = grow(old[0].position, 30, term=2)
    run(flusher.plan(Flush(2, (Term(2), NodeId("n2")), Index(2), (last,))))
    run(flusher.close(Index(1)))
    disk.spoil(SEGMENT, 2 * PAGE, b"\xa5" * BLOCK_BYTES)
    disk.spoil(SEGMENT, 3 * PAGE, behind)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert log.last == last.position or log.record.unsure, crash
    log, _ = open_disk(disk)
    kept, unsure = log.last, log.record.unsure
    assert kept == last.position or unsure
    # No entry was written, cut or voted since.
    power_cut(disk)
    log, _ = open_disk(disk)
    assert (log.last, log.record.unsure) == (kept, unsure)


def test_a_bad_entry_is_not_forgotten_when_its_only_proof_rots_later() -> None:
    """The open that finds the entry has it proved once more, also before a stop in order."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    entries = grow(ORIGIN, 100, 100)
    for number, entry in enumerate(entries, 1):
        run(flusher.plan(Flush(number, entries=(entry,))))
    run(flusher.prove(Index(0)))
    disk.spoil(SEGMENT, 2 * PAGE + BLOCK_BYTES + HEADER_BYTES, b"\xa5" * 8)
    log, flusher = open_disk(disk)
    assert [damage.what for damage in log.damage] == ["the body is bad"]
    run(flusher.close(Index(0)))
    log, _ = open_disk(disk)
    disk.spoil(SEGMENT, 3 * PAGE, bytes(PAGE))  # the empty block behind the entry
    log, _ = open_disk(disk)
    assert log.last.index == 2
    assert log.damage[0].what == "the body is bad"
