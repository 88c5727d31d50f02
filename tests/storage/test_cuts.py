"""Cutting the end of a log off: decided first, then done, and done again after any crash."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from quorate.entry import HEADER_BYTES
from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, SPARE, VOTE_COPIES, newest_vote, pages, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import POWER_CUT, crash_states, power_cut
from verification.disk.enumerate import grow, open_disk, opening
from verification.disk.inode import KEPT, LOST, TORN, FileWrite
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import IDENTITY
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from verification.disk.inode import Fate

FIRST, SECOND = segment_name(1), segment_name(2)
# Three frames in the first block, one in each of the next two; then a segment that begins with 6.
LOG = grow(ORIGIN, 100, 100, 100, 3_000, 3_000, 20_000, 100)
FLUSHES = (LOG[:3], LOG[3:4], LOG[4:5], LOG[5:])
# Where the frames of the first block end.
ENDS = (PAGE + 64 + 164, PAGE + 64 + 2 * 164, PAGE + 64 + 3 * 164)


def run(plan: Iterable[str], until: str = "") -> list[str]:
    """Carry out ``plan``, or its steps up to the one that begins with ``until``."""
    done = []
    for step in plan:
        done.append(step)
        if until and step.startswith(until):
            break
    return done


def two_segments() -> tuple[SimulatedDisk, SegmentLog, Flusher]:
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    for entries in FLUSHES:
        run(flusher.plan(Flush(1, entries=entries)))
    log, flusher = open_disk(disk)
    assert [segment.first for segment in log.segments] == [1, 6]
    return disk, log, flusher


def decided(first: int) -> SimulatedDisk:
    """A disk on which the record names the cut before ``first``, and nothing is cut."""
    disk, _, flusher = two_segments()
    run(flusher.plan(Flush(2, truncate_from=Index(first))), until="sync vote-b")
    power_cut(disk)
    return disk


def entries(log: SegmentLog) -> tuple[Entry, ...]:
    return tuple(log.entries(log.first, Index(log.last.index + 1)))


def found(disk: SimulatedDisk) -> tuple[Entry, ...]:
    """The log that an open finds, and it is sure of it."""
    log, _ = open_disk(disk)
    assert (log.damage, log.record.unsure, log.record.cutting) == ([], False, 0)
    return entries(log)


# -- deciding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "place"), [(1, PAGE), (2, ENDS[0]), (3, ENDS[1]), (4, ENDS[2])])
def test_a_cut_is_decided_before_anything_is_cut(first: int, place: int) -> None:
    disk, log, flusher = two_segments()
    steps = []
    for step in flusher.plan(Flush(2, truncate_from=Index(first))):
        steps.append(step)
        if not step.startswith(("write vote", "sync vote")):
            durable = [newest_vote([disk.durable[name]], IDENTITY) for name in VOTE_COPIES]
            assert [(one.segment, one.cutting) for one in durable if one] == [(1, place)] * 2
            before = LOG[first - 2].position if first > 1 else ORIGIN
            assert [one.before for one in durable if one] == [before] * 2
    assert steps[4:8] == [
        f"unlink {SECOND}",
        f"sync directory up to {FIRST}",
        f"erase {FIRST} from {place}",
        f"sync {FIRST}",
    ]
    assert log.record.cutting == place
    assert found(disk) == LOG[: first - 1]


def test_a_cut_ends_when_a_block_behind_it_is_durable() -> None:
    """Until then only the record proves that what stands before the cut was durable."""
    disk, log, flusher = two_segments()
    run(flusher.plan(Flush(2, truncate_from=Index(2))))
    steps = list(flusher.plan(Flush(3, entries=grow(log.last, 50, term=2))))
    synced = next(place for place, step in enumerate(steps) if step.startswith("sync block"))
    assert steps[synced + 1 :] == ["write vote-a", "sync vote-a", "write vote-b", "sync vote-b"]
    assert log.record.cutting == 0
    assert found(disk)[1:] == grow(LOG[0].position, 50, term=2)
    run(flusher.plan(Flush(4, truncate_from=Index(2))))
    run(flusher.prove(Index(1)))
    assert log.record.cutting == 0


def test_nothing_before_a_cut_is_in_the_page_cache_only() -> None:
    """What a crash tore is cut off at open; what stands before it was never synced either."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=LOG[:2])))
    run(flusher.plan(Flush(2, entries=LOG[2:5])), until="write block")
    torn = log.segments[-1].end + 64 + 164 + 500  # in the body of the second one
    disk.files[FIRST].content[torn] ^= 1
    end = torn - 500
    steps = run(opening(disk))
    again = steps.index(f"write {FIRST} again from {2 * PAGE}")
    assert steps[again + 1] == f"sync {FIRST} again"
    assert again < steps.index("write vote-b") < steps.index(f"truncate {FIRST} at {end}")
    assert found(disk) == LOG[:3]


# -- room --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_full_disk_takes_no_room_from_a_log_that_is_cut(first: int, spare: bool) -> None:
    """Entries are accepted into the room there is; somebody else fills the disk meanwhile."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk, 16 * PAGE)
    before = grow(ORIGIN, 100, 3_000, 40_000, 20_000)
    for entry in before:
        run(flusher.plan(Flush(1, entries=(entry,))))
    assert [segment.first for segment in log.segments] == [1, 4]
    if spare:
        run(flusher.chores(Index(0)))
    disk.capacity -= disk.space()[0]
    more = grow(log.position(Index(first - 1)), flusher.room - HEADER_BYTES, term=2)
    for _ in flusher.plan(Flush(2, truncate_from=Index(first), entries=more)):
        disk.capacity -= disk.space()[0]
    assert entries(log) == found(disk) == (*before[: first - 1], *more)


@pytest.mark.parametrize("first", [1, 2, 5])
def test_nothing_is_left_behind_a_cut_and_nothing_in_what_becomes_the_spare(first: int) -> None:
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    disk.capacity = disk.space()[1] - disk.space()[0]  # the first spare is all there is
    disk.capacity += len(disk.files[SPARE].content)
    for entries in FLUSHES:
        run(flusher.plan(Flush(1, entries=entries)))
    assert len(log.segments) == 2
    assert SPARE not in disk.names()
    run(flusher.plan(Flush(2, truncate_from=Index(first))))
    assert not any(disk.durable[FIRST][log.segments[-1].end :])
    assert not any(disk.durable[SPARE])


def test_a_spare_is_all_zeros_whatever_was_in_it() -> None:
    disk, _, _ = two_segments()
    disk.spoil(SPARE, 3 * PAGE, b"old")
    open_disk(disk)
    assert not any(disk.files[SPARE].content)


def filling(disk: SimulatedDisk) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
    """An open, while somebody else takes whatever is free."""
    plan = opening(disk, 16 * PAGE)
    while True:
        try:
            step = next(plan)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returned
        disk.capacity -= disk.space()[0]
        yield step


def short() -> tuple[SimulatedDisk, SegmentLog, Flusher]:
    """A log whose end an open cut off and could not make long again, and which went on."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk, 16 * PAGE)
    run(flusher.plan(Flush(1, entries=LOG[:3])))
    run(flusher.chores(Index(0)))
    run(flusher.plan(Flush(2, entries=LOG[3:5])), until="write block")
    disk.files[FIRST].content[log.segments[-1].end + PAGE] ^= 1
    log, flusher = complete(filling(disk))
    assert log.record.cutting == len(disk.files[FIRST].content) < 16 * PAGE
    assert not flusher.unproven, "there is no room to prove anything, and no need"
    run(flusher.plan(Flush(3, entries=grow(log.last, 100, 100, term=2))))
    assert (len(log.segments), log.record.cutting) == (2, 0)
    return disk, log, flusher


@pytest.mark.parametrize("free", [0, 5 * PAGE, 100 * PAGE])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_segment_that_stayed_short_promises_no_room(
    first: int, restarted: bool, free: int
) -> None:
    """It is known from the length of the file: the header says how long it was made."""
    disk, log, flusher = short()
    if restarted:
        log, flusher = open_disk(disk, 16 * PAGE)
    assert log.segments[0].room == 0
    disk.capacity += free
    more = grow(log.position(Index(first - 1)), flusher.room - HEADER_BYTES, term=3)
    run(flusher.plan(Flush(4, truncate_from=Index(first), entries=more)))
    for segment in log.segments:
        size = len(disk.files[segment_name(segment.number)].content)
        assert pages(size) == segment.capacity
    assert entries(log) == found(disk) == (*LOG[: first - 1], *more)


# -- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", [KEPT, LOST, TORN, TORN << 1, 0xFFFE])
@pytest.mark.parametrize("first", [2, 3, 4, 5])
def test_zeros_behind_a_cut_that_was_decided_are_no_damage(first: int, fate: Fate) -> None:
    """Some pages were zeroed before the power failed, and blocks call durable what stood there."""
    disk, _, flusher = two_segments()
    run(flusher.plan(Flush(2, truncate_from=Index(first))), until="erase")
    power_cut(disk, [fate])
    assert found(disk) == LOG[: first - 1]


@pytest.mark.parametrize("first", range(1, 8))
def test_whatever_stands_behind_a_cut_counts_for_nothing(first: int) -> None:
    random = Random(first)
    for attempt in range(20):
        disk = decided(first)
        record = newest_vote([disk.files["vote-a"].content], IDENTITY)
        assert record is not None
        name, size = segment_name(record.segment), 8 * PAGE
        for _ in range(attempt):
            place = random.randrange(record.cutting, size)
            length = random.choice((1, 64, PAGE))
            data = random.choice((bytes(length), random.randbytes(length)))
            disk.spoil(name, place, data[: size - place])
        if record.segment == 1:
            disk.spoil(SECOND, PAGE + random.randrange(PAGE), random.randbytes(100))
        log, flusher = open_disk(disk)
        assert (log.damage, log.record.unsure, entries(log)) == ([], False, LOG[: first - 1])
        more = grow(log.last, 4_000, term=2)
        run(flusher.plan(Flush(1, entries=more)))
        power_cut(disk)
        assert found(disk) == (*LOG[: first - 1], *more)


def test_a_cut_is_carried_out_again_however_often_the_power_fails() -> None:
    disk, _, _ = two_segments()
    for crash in crash_states(disk, cutting, masks=(0xFFFE,)):
        for again in crash_states(crash.disk, opening, masks=(0xFFFE,)):
            if again.how is POWER_CUT:
                assert found(again.disk) in (LOG, LOG[:2])


def cutting(disk: SimulatedDisk) -> Generator[str, None, None]:
    _, flusher = open_disk(disk)
    yield from flusher.plan(Flush(2, truncate_from=Index(3)))


# -- the page that a cut falls into ------------------------------------------------------------


@pytest.mark.parametrize("data", [bytes(PAGE), b"\xa5" * PAGE], ids=["zeros", "garbage"])
@pytest.mark.parametrize("killed_at", ["erase", "open"])
@pytest.mark.parametrize("first", [2, 3, 4])
def test_a_page_that_a_cut_tears_as_a_whole_is_a_loss_that_is_noticed(
    first: int, killed_at: str, data: bytes
) -> None:
    """Zeros are written from the middle of a page that holds durable entries, and a power cut may
    spoil all of it. The record names the cut, so what stood before it is known to be lost."""
    disk, _, flusher = two_segments()
    run(flusher.plan(Flush(2, truncate_from=Index(first))), until="erase")
    if killed_at == "open":
        run(opening(disk), until=f"truncate {FIRST}")
    power_cut(disk, [LOST, LOST])
    disk.spoil(FIRST, PAGE, data)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last, log.record.unsure) == (ORIGIN, True), crash
    log, _ = open_disk(disk)
    lost = [(one.file, one.start, one.first, one.last) for one in log.damage if one.entries]
    assert lost == [(FIRST, PAGE, 1, first - 1)]


def test_a_page_in_front_of_the_one_that_a_cut_falls_into_is_not_touched() -> None:
    disk, _, flusher = two_segments()
    before = bytes(disk.durable[FIRST][: 2 * PAGE])
    run(flusher.plan(Flush(2, truncate_from=Index(5))), until="erase")
    written = [change for change in disk.files[FIRST].pending if isinstance(change, FileWrite)]
    assert min(change.position for change in written) >= 2 * PAGE
    power_cut(disk, [KEPT])
    assert bytes(disk.durable[FIRST][: 2 * PAGE]) == before


# -- damage ------------------------------------------------------------------------------------


def test_what_is_bad_before_a_cut_is_damage() -> None:
    """Nothing but the record proves the last block durable: what named it so is cut off. The record
    will name no cut soon, so the entry goes and the record says that the node is unsure."""
    disk = decided(5)
    disk.spoil(FIRST, 2 * PAGE + 64 + 64 + 7, b"rot")
    log, _ = open_disk(disk)
    assert [(one.first, one.last, one.what) for one in log.damage] == [
        (4, 4, "the body is bad"),
        (4, 4, "entries are lost"),
    ]
    assert (log.last, log.record.unsure) == (LOG[2].position, True)


def test_what_is_bad_before_a_cut_and_proved_by_a_block_is_damage_and_no_loss_of_the_end() -> None:
    disk = decided(5)
    disk.spoil(FIRST, PAGE + 64 + 64 + 7, b"rot")
    log, _ = open_disk(disk)
    assert [(one.first, one.last, one.what) for one in log.damage] == [(1, 1, "the body is bad")]
    assert (log.last, log.record.unsure) == (LOG[3].position, False)


@pytest.mark.parametrize("kind", ["zeros", "rubbish", "short"])
def test_what_a_cut_left_must_reach_up_to_it(kind: str) -> None:
    disk = decided(5)
    if kind == "short":
        disk.shorten(FIRST, 2 * PAGE + 100)
    else:
        disk.spoil(FIRST, 2 * PAGE, bytes(PAGE) if kind == "zeros" else b"rot" * 1000)
    log, flusher = open_disk(disk)
    assert (4, 4, "entries are lost") in {(one.first, one.last, one.what) for one in log.damage}
    assert (log.last, log.record.unsure) == (LOG[2].position, True)
    more = grow(log.last, 100, term=2)
    run(flusher.plan(Flush(1, entries=more)))
    power_cut(disk)
    log, _ = open_disk(disk)
    assert (log.damage, entries(log), log.record.unsure) == ([], (*LOG[:3], *more), True)


def test_the_segment_of_a_cut_may_have_lost_its_header() -> None:
    """Its frames are believed by their chain, and none behind the cut."""
    disk = decided(3)
    disk.spoil(FIRST, 0, b"rot")
    log, flusher = open_disk(disk)
    assert (log.damage[0].what, log.damage[0].entries) == ("the segment's header is bad", 0)
    assert (entries(log), log.record.unsure) == (LOG[:2], True)
    more = grow(log.last, 100, term=2)
    run(flusher.plan(Flush(1, entries=more)))
    power_cut(disk)
    log, _ = open_disk(disk)
    assert entries(log) == (*LOG[:2], *more)


def test_of_a_trimmed_log_whose_first_header_is_bad_only_what_was_there_is_lost() -> None:
    disk, _, flusher = two_segments()
    run(flusher.chores(Index(5)))
    run(flusher.plan(Flush(2, entries=grow(LOG[-1].position, 20_000, 100))))
    run(flusher.trim(Index(6)))
    log, _ = open_disk(disk)
    assert (log.first, log.last.index, len(log.segments)) == (6, 9, 2)
    disk.spoil(SECOND, 0, b"rot")
    log, _ = open_disk(disk)
    assert log.first == 6
    assert {(one.first, one.last) for one in log.damage if one.entries} == {(6, 7)}
    with pytest.raises(Damaged, match="entries 6 to 7"):
        Recovered.of(log)


# -- a cut whose own segment is lost ---------------------------------------------------------------


def killed_amid_a_cut() -> SimulatedDisk:
    """Each segment holds one entry. The record says that the second one is cut at its beginning,
    and the third one is still there."""
    disk = SimulatedDisk()
    log, flusher = open_disk(disk)
    for entry in grow(ORIGIN, 30, 20_000, 20_000):
        run(flusher.plan(Flush(1, (Term(1), NodeId("n1")), None, (entry,))))
    for step in flusher.plan(Flush(2, (Term(2), NodeId("n2")), Index(2))):
        if log.record.cutting and step == "sync vote-b":
            break
    assert (log.record.segment, log.record.cutting) == (2, PAGE)
    assert segment_name(3) in disk.names()
    return disk


@pytest.mark.parametrize("lost", [(2,), (1, 2)], ids=["its segment", "all before it"])
def test_an_open_that_crashes_does_not_forget_a_cut_whose_segment_is_lost(
    lost: tuple[int, ...],
) -> None:
    disk = killed_amid_a_cut()
    for number in lost:
        disk.lose(segment_name(number))
    last = Index(2 - len(lost))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.last.index, log.record.unsure) == (last, True), crash
        assert log.record.cutting == 0, crash
        assert segment_name(3) not in crash.disk.names(), crash


def test_a_cut_whose_segment_is_lost_drops_no_byte_behind_a_bad_header() -> None:
    disk = killed_amid_a_cut()
    disk.lose(segment_name(2))
    disk.spoil(segment_name(1), 0, b"\xa5" * PAGE)
    disk.spoil(segment_name(1), PAGE, b"\xa5" * PAGE)
    before = bytes(disk.files[segment_name(1)].content)
    log, _ = open_disk(disk)
    assert (log.last, log.record.unsure) == (ORIGIN, True)
    assert bytes(disk.files[segment_name(1)].content) == before
