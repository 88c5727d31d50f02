"""Opening a disk that was not closed: whatever crash comes next, one whole vote copy is left."""

from __future__ import annotations

from itertools import product

import pytest

from quorate.entry import make_entry
from quorate.errors import DiskFailed
from quorate.storage.flusher import plan_vote
from quorate.storage.recovery import Image, plan_open, recover
from quorate.storage.steps import File
from quorate.testing.hand import HandCluster
from quorate.testing.sim.disk import Disk
from quorate.types import ORIGIN, EntryKind, NodeId, Role, Term, VoteRecord

FATES = ("kept", "lost", "torn")


def opened_disk() -> tuple[Disk, VoteRecord]:
    disk = Disk()
    recovered = recover(disk.image())
    for step in plan_open(recovered):
        disk.run(step)
    return disk, recovered.record


@pytest.mark.parametrize("written", range(5))
@pytest.mark.parametrize("opened", range(7))
def test_a_kill_and_a_power_cut_while_opening_leave_one_whole_copy(
    written: int, opened: int
) -> None:
    """The process is killed after ``written`` steps of a vote, the power fails after ``opened``
    steps of the next open: what was answered before is found again, whatever each write met."""
    for fates in product(FATES, repeat=3):
        disk, record = opened_disk()
        newer = VoteRecord(record.number + 1, Term(1), NodeId("n2"), record.boot)
        for step in list(plan_vote(newer))[:written]:
            disk.run(step)
        for step in list(plan_open(recover(disk.image())))[:opened]:
            disk.run(step)
        outcomes = iter([*fates, *["torn"] * 10])
        disk.power_cut(lambda outcomes=outcomes: next(outcomes))  # type: ignore[misc]
        found = recover(disk.image()).record
        assert found.boot > record.boot
        if written == 4:  # both copies were synced, and the vote was answered
            assert (found.term, found.vote) == (1, "n2")


@pytest.mark.parametrize("votes", [{}, {File.VOTE_A: None}, {File.VOTE_B: None}])
def test_a_log_without_a_vote_record_is_not_a_new_node(
    votes: dict[File, VoteRecord | None],
) -> None:
    entry = make_entry(ORIGIN, Term(5), EntryKind.NOOP)
    with pytest.raises(DiskFailed, match="no copy of the vote record"):
        recover(Image(votes, (entry,)))
    assert recover(Image(votes, ())).record.term == 0


def test_a_slow_disk_does_not_make_every_campaign_too_late() -> None:
    """A candidate whose vote takes longer than an election timeout to reach its disk still waits
    for the answers: they were asked for only when it did."""
    cluster = HandCluster(3, auto_flush=False)
    timing = cluster.config.timing
    cluster.tick("n1")
    cluster.deliver_all()
    cluster.deliver_all()
    assert cluster.engine("n1").role is Role.CANDIDATE
    cluster.tick("n1", timing.ticks(timing.election_ms) - 1)
    cluster.flush("n1")
    cluster.tick("n1", timing.ticks(timing.election_ms) - 1)
    assert cluster.engine("n1").role is Role.CANDIDATE
    cluster.settle()
    assert cluster.leader() == "n1"
