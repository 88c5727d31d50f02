"""Flush plans and opening, with a crash between any two steps and every fate of what was written.

The promise: what a node finds is never older than what it had answered with, and a node that could
be opened once can be opened again, however often opening itself is interrupted.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import TYPE_CHECKING

import pytest

from core_rig import chain, end
from quorate.errors import DiskFailed
from quorate.storage.flusher import plan_flush, plan_vote
from quorate.storage.recovery import Image, Recovered, plan_open, recover
from quorate.storage.steps import File, Step, Sync, Truncate, WriteEntries, WriteVote
from quorate.testing.sim.disk import Disk
from quorate.types import Index, NodeId, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry

FATES = ("kept", "lost", "torn")
OLD_LOG = chain(1, 1, 2)
NEW = VoteRecord(9, Term(5), NodeId("n2"), 3)


def run(disk: Disk, steps: Iterable[Step]) -> Disk:
    for step in steps:
        disk.run(step)
    return disk


def reopen(disk: Disk) -> Recovered:
    """Open as a node does; what it then may speak with."""
    recovered = recover(disk.image())
    run(disk, plan_open(recovered))
    return recovered


def old_disk() -> tuple[Disk, VoteRecord]:
    """A disk that a node has worked with, and the record on it."""
    disk = Disk()
    reopen(disk)
    record = VoteRecord(8, Term(4), NodeId("n1"), 2)
    run(disk, plan_flush(record, None, OLD_LOG))
    return disk, record


def crashes(disk: Disk, steps: list[Step]) -> Iterator[tuple[int, Disk]]:
    """``disk`` after a power cut at every boundary of ``steps``, with every mix of fates."""
    for count in range(len(steps) + 1):
        written = run(deepcopy(disk), steps[:count])
        # More draws than writes that are not synced at any boundary; the same mixes come twice.
        for fates in product(FATES, repeat=min(3, written.unsynced * 3)):
            crashed = deepcopy(written)
            drawn = iter(fates)
            crashed.power_cut(lambda drawn=drawn: next(drawn, "lost"))  # type: ignore[misc]
            yield count, crashed


# -- the order of steps ------------------------------------------------------------------------


def test_a_vote_goes_into_one_copy_after_the_other() -> None:
    assert list(plan_vote(NEW)) == [
        WriteVote(File.VOTE_A, NEW),
        Sync(File.VOTE_A),
        WriteVote(File.VOTE_B, NEW),
        Sync(File.VOTE_B),
    ]


def test_the_vote_comes_first_and_a_cut_is_durable_before_anything_is_written_over_it() -> None:
    entries = chain(3)
    plan = list(plan_flush(NEW, Index(1), entries))
    assert plan[:4] == list(plan_vote(NEW))
    assert plan[4:] == [
        Truncate(Index(1)),
        Sync(File.LOG),
        WriteEntries(entries),
        Sync(File.LOG),
    ]


def test_a_plan_holds_only_what_changed() -> None:
    assert list(plan_flush(None, None, ())) == []
    assert list(plan_flush(None, None, chain(1))) == [WriteEntries(chain(1)), Sync(File.LOG)]
    assert list(plan_flush(None, Index(2), ())) == [Truncate(Index(2)), Sync(File.LOG)]


# -- crashes while a vote is written -----------------------------------------------------------


def test_a_crash_while_a_vote_is_written_leaves_the_old_or_the_new_one() -> None:
    disk, old = old_disk()
    plan = list(plan_vote(NEW))
    for count, crashed in crashes(disk, plan):
        found = recover(crashed.image()).record
        pair = (found.term, found.vote)
        assert pair in ((old.term, old.vote), (NEW.term, NEW.vote))
        if count == len(plan):  # only now is it answered
            assert pair == (NEW.term, NEW.vote)
        assert found.boot > max(old.boot, 2)
        assert found.number > old.number


def test_a_node_that_crashes_again_while_it_opens_can_still_be_opened() -> None:
    """At any moment one copy is whole: opening must not begin with the only whole one."""
    disk, old = old_disk()
    for _, crashed in crashes(disk, list(plan_vote(NEW))):
        opening = list(plan_open(recover(crashed.image())))
        for _, again in crashes(crashed, opening[:4]):
            found = reopen(again)
            assert (found.record.term, found.record.vote) in (
                (old.term, old.vote),
                (NEW.term, NEW.vote),
            )
            assert found.entries == OLD_LOG


def test_a_boot_number_is_never_spoken_with_twice() -> None:
    disk, _ = old_disk()
    spoken = set()
    for _ in range(3):
        for _, crashed in crashes(disk, list(plan_open(recover(disk.image())))[:4]):
            assert recover(crashed.image()).record.boot not in spoken
        spoken.add(reopen(disk).record.boot)
    assert len(spoken) == 3


# -- crashes while the log is written ----------------------------------------------------------


@pytest.mark.parametrize(
    ("truncate", "entries"),
    [
        (None, chain(4, 4, after=end(OLD_LOG))),
        (Index(3), chain(4, 4, after=end(OLD_LOG[:2]))),
        (Index(1), chain(4, stamp=9)),
        (Index(2), ()),
    ],
    ids=["append", "cut and append", "replace all", "cut"],
)
def test_a_crash_while_the_log_is_written_leaves_a_log_that_was_there(
    truncate: Index | None, entries: tuple[Entry, ...]
) -> None:
    """Never a mix of two logs, never less than the part that stays."""
    disk, _ = old_disk()
    plan = list(plan_flush(None, truncate, entries))
    stays = OLD_LOG if truncate is None else OLD_LOG[: truncate - 1]
    goal = (*stays, *entries)
    for count, crashed in crashes(disk, plan):
        found = reopen(crashed).entries
        assert found == goal[: len(found)] or found == OLD_LOG[: len(found)]
        assert len(found) >= len(stays)
        if count == len(plan):
            assert found == goal
        crashed.power_cut(lambda: "lost")  # what was opened is durable
        assert recover(crashed.image()).entries == found


def test_a_killed_process_leaves_writes_that_only_opening_makes_durable() -> None:
    disk, old = old_disk()
    more = chain(4, after=end(OLD_LOG))
    run(disk, [WriteVote(File.VOTE_A, NEW), WriteEntries(more)])  # and no sync
    assert disk.unsynced == 2
    before = deepcopy(disk)
    before.power_cut(lambda: "lost")
    assert recover(before.image()).record.term == old.term
    found = reopen(disk)
    assert (found.record.term, found.entries) == (NEW.term, (*OLD_LOG, *more))
    assert disk.unsynced == 0
    disk.power_cut(lambda: "lost")
    after = recover(disk.image())
    assert (after.record.term, after.record.vote) == (NEW.term, NEW.vote)
    assert after.entries == (*OLD_LOG, *more)


# -- what opening finds ------------------------------------------------------------------------


def test_a_new_disk_starts_at_nothing() -> None:
    found = recover(Disk().image())
    assert found == Recovered(VoteRecord(1, Term(0), None, 1), (), None)


def test_a_first_opening_that_was_interrupted_starts_at_nothing_again() -> None:
    first = list(plan_open(recover(Disk().image())))
    for _, crashed in crashes(Disk(), first):
        found = reopen(crashed).record
        assert (found.term, found.vote) == (0, None)


@pytest.mark.parametrize("whole", [File.VOTE_A, File.VOTE_B])
def test_one_whole_copy_is_enough(whole: File) -> None:
    votes: dict[File, VoteRecord | None] = {File.VOTE_A: None, File.VOTE_B: None, whole: NEW}
    found = recover(Image(votes, ())).record
    assert (found.number, found.term, found.vote, found.boot) == (10, 5, "n2", 4)


@pytest.mark.parametrize("newer", [File.VOTE_A, File.VOTE_B])
def test_of_two_whole_copies_the_newer_counts(newer: File) -> None:
    older = VoteRecord(7, Term(4), NodeId("n3"), 3)
    found = recover(Image({File.VOTE_A: older, File.VOTE_B: older, newer: NEW}, ())).record
    assert (found.term, found.vote) == (5, "n2")


def test_two_bad_copies_refuse_to_start() -> None:
    with pytest.raises(DiskFailed, match="no copy of the vote record"):
        recover(Image({File.VOTE_A: None, File.VOTE_B: None}, OLD_LOG))


def test_the_term_is_at_least_that_of_the_last_entry() -> None:
    """And a vote of an earlier term is none in the later one."""
    found = recover(Image({File.VOTE_A: NEW, File.VOTE_B: NEW}, chain(1, 7)))
    assert (found.record.term, found.record.vote) == (7, None)
    same = recover(Image({File.VOTE_A: NEW, File.VOTE_B: NEW}, chain(1, 5)))
    assert (same.record.term, same.record.vote) == (5, "n2")


@pytest.mark.parametrize("torn", range(3))
def test_a_log_ends_before_its_first_torn_entry(torn: int) -> None:
    slots: list[Entry | None] = list(OLD_LOG)
    slots[torn] = None
    found = recover(Image({File.VOTE_A: NEW, File.VOTE_B: NEW}, slots))
    assert (found.entries, found.torn_from) == (OLD_LOG[:torn], torn + 1)
    assert Truncate(Index(torn + 1)) in list(plan_open(found))


def test_a_log_ends_where_its_chain_breaks() -> None:
    """The tail of an overwritten log is whole entry by entry and still not this log's."""
    other = chain(1, 1, 2, 2, stamp=9)
    found = recover(Image({File.VOTE_A: NEW, File.VOTE_B: NEW}, [*OLD_LOG[:2], *other[2:]]))
    assert (found.entries, found.torn_from) == (OLD_LOG[:2], 3)
