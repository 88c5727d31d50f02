"""The simulated disk: synced is safe, the rest is as the power cut pleases."""

from __future__ import annotations

import errno
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_rig import FUZZ, chain, end
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE
from quorate.storage.vfs import File, RealVfs, Vfs
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import FAILED, KILLED, POWER_CUT, crash_states, power_cut
from verification.disk.inode import GRAIN, KEPT, LOST, TORN
from verification.disk.simulated import SimulatedDisk
from verification.disk.store import Store

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from verification.disk.inode import Fate

OLD = b"old " * 32
NEW = b"new " * 32
MORE = b"more" * 32


def written(*names: str) -> SimulatedDisk:
    """Files that hold OLD, all synced."""
    disk = SimulatedDisk()
    for name in names:
        file = disk.create(name)
        file.write(0, [OLD])
        file.sync()
    disk.sync_directory()
    return disk


def content(disk: SimulatedDisk, name: str) -> bytes:
    return disk.open(name).read(0, 1 << 20)


# -- files -------------------------------------------------------------------------------------


def test_what_is_written_can_be_read_before_it_is_synced() -> None:
    disk = SimulatedDisk()
    file = disk.create("a")
    file.write(0, [b"one ", b"two"])
    assert (content(disk, "a"), file.size()) == (b"one two", 7)
    assert (disk.names(), disk.durable, disk.unsynced) == (["a"], {}, 2)


def test_a_sync_makes_one_file_durable() -> None:
    disk = written("a", "b")
    for name in ("a", "b"):
        disk.open(name).write(0, [NEW])
    disk.open("a").sync()
    assert disk.durable == {"a": NEW, "b": OLD}
    assert (disk.unsynced, disk.unsynced_in(["a", "b", "c"])) == (1, 1)


@pytest.mark.parametrize("fate", [KEPT, LOST, TORN])
def test_what_is_synced_outlives_any_power_cut(fate: Fate) -> None:
    disk = written("a")
    disk.power_cut(lambda: fate)
    assert content(disk, "a") == OLD


@pytest.mark.parametrize(
    ("fate", "found"),
    [
        (KEPT, NEW),
        (LOST, OLD),
        (TORN, NEW[:GRAIN] + OLD[GRAIN:]),
        (TORN << 1, OLD[:GRAIN] + NEW[GRAIN:]),
    ],
    ids=["kept", "lost", "torn", "torn the other way"],
)
def test_what_is_not_synced_is_kept_lost_or_torn(fate: Fate, found: bytes) -> None:
    disk = written("a")
    disk.open("a").write(0, [NEW])
    power_cut(disk, [fate])
    assert (content(disk, "a"), disk.unsynced) == (found, 0)
    assert disk.durable == {"a": found}


def test_a_hole_is_left_where_an_earlier_write_was_lost() -> None:
    disk = written("a")
    file = disk.open("a")
    file.write(128, [NEW])
    file.write(256, [MORE])
    power_cut(disk, [LOST, KEPT])
    assert content(disk, "a") == OLD + bytes(128) + MORE


def test_writing_the_same_bytes_again_cannot_tear_them() -> None:
    disk = written("a")
    disk.open("a").write(0, [OLD])
    power_cut(disk, [TORN])
    assert content(disk, "a") == OLD


@pytest.mark.parametrize(("fate", "size"), [(LOST, 128), (KEPT, 10)])
def test_a_truncation_that_is_not_synced_may_be_undone(fate: Fate, size: int) -> None:
    disk = written("a")
    disk.open("a").truncate(10)
    assert (len(content(disk, "a")), len(disk.durable["a"])) == (10, 128)
    power_cut(disk, [fate])
    assert content(disk, "a") == OLD[:size]


@pytest.mark.parametrize(
    ("fate", "zeroed"),
    [
        (0xFFFE, range(3)),
        (TORN << 1, (0, 2)),
        (0b1000, (2,)),
        (0x8000, ()),
    ],
    ids=["all", "every other grain", "one grain", "a grain that is not there"],
)
def test_a_truncation_may_zero_the_rest_of_its_page_and_leave_the_length(
    fate: Fate, zeroed: Sequence[int]
) -> None:
    """As ext4 does: the page goes to the disk, and the journal with the length does not."""
    disk = SimulatedDisk()
    file = disk.create("a")
    file.write(0, [b"x" * (PAGE + 100)])
    file.sync()
    disk.sync_directory()
    size = PAGE - 2 * GRAIN - 5
    file.truncate(size)
    power_cut(disk, [fate])
    expected = bytearray(b"x" * (PAGE + 100))
    for grain in zeroed:
        start = size + grain * GRAIN
        expected[start : min(start + GRAIN, PAGE)] = bytes(min(GRAIN, PAGE - start))
    assert content(disk, "a") == expected


def test_a_truncation_at_the_end_of_a_page_zeroes_nothing() -> None:
    disk = written("a")
    file = disk.open("a")
    file.allocate(3 * PAGE)
    file.write(PAGE, [b"x" * PAGE])
    file.sync()
    file.truncate(PAGE)
    power_cut(disk, [0xFFFE])
    assert content(disk, "a")[PAGE : 2 * PAGE] == b"x" * PAGE


@pytest.mark.parametrize(("fate", "size"), [(LOST, 128), (KEPT, 500)])
def test_an_allocation_reads_as_zeros_and_may_be_undone(fate: Fate, size: int) -> None:
    disk = written("a")
    disk.open("a").allocate(500)
    disk.open("a").allocate(100)  # never makes a file shorter
    assert content(disk, "a") == OLD + bytes(372)
    power_cut(disk, [fate])
    assert content(disk, "a") == OLD + bytes(size - 128)


def test_an_allocation_beyond_the_capacity_finds_no_room() -> None:
    disk = SimulatedDisk(1000)
    disk.create("a").allocate(600)
    file = disk.create("b")
    with pytest.raises(OSError, match="No space") as caught:
        file.allocate(401)
    assert caught.value.errno == errno.ENOSPC
    assert (file.size(), disk.space()) == (400, (0, 1000))  # what there was of it is taken
    file.allocate(400)
    file.truncate(0)
    assert disk.space() == (400, 1000)


def test_a_file_without_a_name_is_still_open() -> None:
    disk = written("a")
    file = disk.open("a")
    disk.unlink("a")
    file.write(0, [NEW])
    assert (file.read(0, 128), disk.names()) == (NEW, [])


# -- the directory -----------------------------------------------------------------------------


def test_a_new_file_has_no_name_before_the_directory_is_synced() -> None:
    disk = SimulatedDisk()
    file = disk.create("a")
    file.write(0, [NEW])
    file.sync()
    for fates, found in (([LOST], {}), ([KEPT], {"a": NEW})):
        twin = disk.copy()
        power_cut(twin, fates)
        assert twin.durable == found
    disk.sync_directory()
    power_cut(disk)
    assert content(disk, "a") == NEW


@pytest.mark.parametrize(
    ("fate", "found"), [(LOST, {"a": OLD, "b": OLD}), (KEPT, {"b": OLD})], ids=["lost", "kept"]
)
def test_a_rename_that_is_not_synced_may_be_undone(fate: Fate, found: dict[str, bytes]) -> None:
    disk = written("a", "b")
    disk.rename("a", "b")
    assert disk.names() == ["b"]
    power_cut(disk, [fate])
    assert disk.durable == found


@pytest.mark.parametrize(("fate", "found"), [(LOST, ["a"]), (KEPT, [])])
def test_a_removal_that_is_not_synced_may_be_undone(fate: Fate, found: list[str]) -> None:
    disk = written("a")
    disk.unlink("a")
    power_cut(disk, [fate])
    assert disk.names() == found


def test_files_that_exist_are_not_created_and_others_not_opened() -> None:
    disk = written("a")
    with pytest.raises(FileExistsError):
        disk.create("a")
    with pytest.raises(FileNotFoundError):
        disk.open("b")


# -- failures, copies --------------------------------------------------------------------------


def test_a_failed_sync_leaves_pages_that_no_later_sync_makes_durable() -> None:
    disk = written("a")
    file = disk.open("a")
    file.write(0, [NEW])
    disk.error = errno.EIO
    with pytest.raises(OSError, match="sync a"):
        file.sync()
    file.sync()
    assert content(disk, "a") == NEW
    assert disk.durable["a"] == OLD
    file.write(0, [NEW])
    file.sync()
    assert disk.durable["a"] == NEW


def test_a_copy_goes_its_own_way() -> None:
    disk = written("a")
    disk.open("a").write(0, [NEW])
    disk.create("b")
    twin = disk.copy()
    power_cut(twin)
    twin.open("a").write(0, [MORE])
    assert (twin.names(), content(twin, "a")) == (["a"], MORE)
    assert (disk.names(), content(disk, "a"), disk.unsynced) == (["a", "b"], NEW, 2)


MOVES = ("create", "open", "write", "truncate", "allocate", "rename", "unlink", "sync")


def move(vfs: Vfs, files: dict[str, File], name: str, which: str, number: int) -> object:
    """One call; what came of it."""
    other = "abc"[number % 3]
    try:
        if name == "create":
            files[which] = vfs.create(which)
        elif name == "open":
            files[which] = vfs.open(which)
        elif name == "rename" and which in vfs.names():
            vfs.rename(which, other)
        elif name == "unlink" and which in vfs.names():
            vfs.unlink(which)
        elif name == "write" and which in files:
            files[which].write(number, [b"x" * (number % 7), b"yz"])
        elif name == "truncate" and which in files:
            files[which].truncate(number)
        elif name == "allocate" and which in files:
            files[which].allocate(number + 1)
        elif name == "sync" and which in files:
            files[which].sync()
            vfs.sync_directory()
    except OSError as error:
        return error.errno
    opened = [(name, file.size(), file.read(1, 30)) for name, file in sorted(files.items())]
    return vfs.names(), opened


@given(
    st.lists(
        st.tuples(st.sampled_from(MOVES), st.sampled_from("abc"), st.integers(0, 40)),
        min_size=5,
        max_size=40,
    )
)
@settings(FUZZ, max_examples=60)
def test_it_answers_as_a_real_directory_does(moves: list[tuple[str, str, int]]) -> None:
    with TemporaryDirectory() as folder:
        real, simulated = RealVfs(Path(folder)), SimulatedDisk()
        real_files: dict[str, File] = {}
        simulated_files: dict[str, File] = {}
        opened: list[File] = []
        for name, which, number in moves:
            expected = move(real, real_files, name, which, number)
            opened += [file for file in real_files.values() if file not in opened]
            assert move(simulated, simulated_files, name, which, number) == expected
        for file in opened:
            file.close()
        real.close()


# -- every crash -------------------------------------------------------------------------------


def test_fates_that_are_not_given_are_lost() -> None:
    disk = written("a", "b")
    for name in ("a", "b"):
        disk.open(name).write(0, [NEW])
    power_cut(disk, [KEPT])
    assert disk.durable == {"a": NEW, "b": OLD}


def test_every_combination_of_fates_is_met_once() -> None:
    """A creation, a write of two pages and a removal: each meets every fate beside every other."""

    def plan(disk: SimulatedDisk) -> Generator[str, None, str]:
        file = disk.create("b")
        file.write(0, [b"1" * PAGE, b"2" * PAGE])
        disk.unlink("a")
        yield "all of it"
        return "done"

    disk = written("a")
    before = dict(disk.durable)
    states = list(crash_states(disk, plan, masks=(TORN,)))
    cuts = [crash for crash in states if crash.how is POWER_CUT and crash.step and not crash.ended]
    # Without its creation, nobody asks what became of the new file.
    assert len({crash.fates for crash in cuts}) == len(cuts) == 2 * (1 + 3 * 3) - 1
    torn = bytearray(b"2" * PAGE)
    for grain in range(1, PAGE // GRAIN, 2):
        torn[grain * GRAIN : (grain + 1) * GRAIN] = bytes(GRAIN)
    wanted = {"a": OLD, "b": bytes(PAGE) + bytes(torn)[: PAGE - GRAIN]}
    assert wanted in [crash.disk.durable for crash in cuts]
    assert {crash.result for crash in states if crash.ended} == {"done"}
    assert disk.durable == before


def test_a_crash_is_a_kill_a_failure_or_a_power_cut_at_any_boundary() -> None:
    def plan(disk: SimulatedDisk) -> Generator[str, None, None]:
        file = disk.open("a")
        file.write(0, [NEW])
        yield "write"
        file.sync()
        yield "sync"

    states = list(crash_states(written("a"), plan, masks=(TORN,)))
    assert [(crash.how, crash.step, crash.ended, content(crash.disk, "a")) for crash in states] == [
        (KILLED, "", False, OLD),
        (KILLED, "write", False, NEW),
        (POWER_CUT, "write", False, NEW),
        (POWER_CUT, "write", False, NEW[:GRAIN] + OLD[GRAIN:]),
        (FAILED, "write", False, NEW),  # and never durable
        (KILLED, "sync", True, NEW),
    ]


def test_with_many_changes_each_stands_out_alone() -> None:
    def plan(disk: SimulatedDisk) -> Generator[str, None, None]:
        file = disk.open("a")
        for number in range(10):
            file.write(number * PAGE, [b"%d" % number * GRAIN])
        yield "write"

    kept = [
        [crash.disk.durable["a"][place * PAGE :][:1].isdigit() for place in range(10)]
        for crash in crash_states(written("a"), plan)
        if crash.how is POWER_CUT and not crash.ended
    ]
    for alone, number in product((True, False), range(10)):
        assert [(place == number) == alone for place in range(10)] in kept
    assert [True] * 10 in kept
    assert [False] * 10 not in kept  # that is the disk before the first step


# -- what is durable ---------------------------------------------------------------------------


def test_the_newest_durable_vote_is_the_one() -> None:
    store = Store("n1")
    store.open()
    plan = store.plan(Flush(1, vote=(Term(4), NodeId("n2"))))
    terms = []
    for _ in plan:
        assert store.durable.vote is not None
        terms.append(store.durable.vote.term)
    assert terms == [0, 4, 4, 4]


def test_positions_of_what_is_not_there() -> None:
    store = Store("n1")
    store.open()
    entries = chain(1, 1, 2)
    store.write(Flush(1, entries=entries))
    assert store.durable.last == 3
    assert store.durable.position(Index(0)) == ORIGIN
    assert store.durable.position(Index(3)) == end(entries)
    assert store.durable.position(Index(4)) is None
