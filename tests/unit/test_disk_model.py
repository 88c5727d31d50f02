"""The simulated disk: synced is safe, the rest is as the power cut pleases."""

from __future__ import annotations

import pytest

from core_rig import chain, end
from quorate.storage.steps import File, Sync, Truncate, WriteEntries, WriteVote
from quorate.testing.sim.disk import Disk
from quorate.types import ORIGIN, Index, NodeId, Term, VoteRecord

RECORD = VoteRecord(1, Term(1), NodeId("n1"), 1)
LATER = VoteRecord(2, Term(2), None, 1)
ENTRIES = chain(1, 1, 2)


def written() -> Disk:
    """Three entries and one copy of a vote, all synced."""
    disk = Disk()
    for step in (
        WriteVote(File.VOTE_A, RECORD),
        Sync(File.VOTE_A),
        WriteEntries(ENTRIES),
        Sync(File.LOG),
    ):
        disk.run(step)
    return disk


def test_what_is_written_can_be_read_before_it_is_synced() -> None:
    disk = Disk()
    disk.run(WriteVote(File.VOTE_A, RECORD))
    disk.run(WriteEntries(ENTRIES))
    image = disk.image()
    assert (image.votes, image.entries) == ({File.VOTE_A: RECORD}, ENTRIES)
    assert (disk.durable_vote, disk.durable_last, disk.unsynced) == (None, 0, 2)


def test_a_sync_makes_one_file_durable() -> None:
    disk = Disk()
    disk.run(WriteVote(File.VOTE_A, RECORD))
    disk.run(WriteEntries(ENTRIES))
    disk.run(Sync(File.LOG))
    assert (disk.durable_vote, disk.durable_last, disk.unsynced) == (None, 3, 1)
    disk.run(Sync(File.VOTE_A))
    assert (disk.durable_vote, disk.unsynced) == (RECORD, 0)


def test_syncing_a_file_that_was_never_written_makes_none() -> None:
    disk = Disk()
    disk.run(Sync(File.VOTE_B))
    assert disk.image().votes == {}


def test_the_newer_of_two_durable_votes_is_the_one() -> None:
    disk = written()
    disk.run(WriteVote(File.VOTE_B, LATER))
    disk.run(Sync(File.VOTE_B))
    assert disk.durable_vote == LATER


def test_what_is_synced_outlives_any_power_cut() -> None:
    for fate in ("kept", "lost", "torn"):
        disk = written()
        disk.power_cut(lambda fate=fate: fate)  # type: ignore[misc]  # bound at once
        image = disk.image()
        assert (image.votes, image.entries) == ({File.VOTE_A: RECORD}, ENTRIES)


@pytest.mark.parametrize(
    ("fate", "vote", "last"), [("kept", LATER, 4), ("lost", RECORD, 3), ("torn", None, 4)]
)
def test_what_is_not_synced_is_kept_lost_or_torn(
    fate: str, vote: VoteRecord | None, last: int
) -> None:
    disk = written()
    more = chain(2, after=end(ENTRIES))
    disk.run(WriteVote(File.VOTE_A, LATER))
    disk.run(WriteEntries(more))
    disk.power_cut(lambda: fate)
    assert disk.image().votes == {File.VOTE_A: vote}
    assert disk.durable_last == len(disk.image().entries) == last
    assert disk.durable_position(Index(4)) == (end(more) if fate == "kept" else None)
    assert disk.unsynced == 0


def test_a_hole_is_left_where_an_earlier_write_was_lost() -> None:
    disk = written()
    disk.run(WriteEntries(chain(2, 2, after=end(ENTRIES))))
    fates = iter(["lost", "kept"])
    disk.power_cut(lambda: next(fates))
    assert [entry is None for entry in disk.image().entries] == [False, False, False, True, False]


def test_writing_the_same_entry_again_cannot_tear_it() -> None:
    disk = written()
    disk.run(WriteEntries(ENTRIES))
    disk.power_cut(lambda: "torn")
    assert disk.image().entries == ENTRIES


def test_a_truncation_that_is_not_synced_may_be_undone() -> None:
    for fate, last in (("lost", 3), ("kept", 1)):
        disk = written()
        disk.run(Truncate(Index(2)))
        assert len(disk.image().entries) == 1
        assert disk.durable_last == 3
        disk.power_cut(lambda fate=fate: fate)  # type: ignore[misc]  # bound at once
        assert disk.durable_last == last


def test_positions_of_what_is_not_there() -> None:
    disk = written()
    assert disk.durable_position(Index(0)) == ORIGIN
    assert disk.durable_position(Index(3)) == end(ENTRIES)
    assert disk.durable_position(Index(4)) is None


def test_a_planted_entry_is_durable_and_ends_the_log() -> None:
    disk = written()
    (other,) = chain(9, after=end(ENTRIES[:1]))
    disk.plant(other)
    disk.power_cut(lambda: "lost")
    assert disk.image().entries == (ENTRIES[0], other)
