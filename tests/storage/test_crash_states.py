"""Flush plans and opening, with a crash between any two steps and every fate of what was written.

The promise: what a node finds is never older than what it had answered with, and a node that could
be opened once can be opened again, however often opening itself is interrupted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_rig import chain, end
from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    BLOCK_BYTES,
    PAGE,
    VOTE_BYTES,
    VOTE_COPIES,
    encode_vote,
    newest_vote,
    segment_name,
    vote_place,
)
from quorate.types import Index, NodeId, Role, Term, VoteRecord
from verification.disk.crashes import KILLED, crash_states, power_cut
from verification.disk.enumerate import (
    SCENARIOS,
    BrokenPromise,
    Kept,
    Promise,
    enumerate_all,
    grow,
    main,
    open_disk,
    opening,
)
from verification.disk.inode import KEPT, LOST
from verification.disk.lives import LIVES
from verification.disk.rot import Rot, Spoiled, Unnoticed, spoil_all
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import IDENTITY
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from verification.disk.enumerate import CrashScenario
    from verification.disk.lives import Life

    Open = tuple[SegmentLog, Flusher]

OLD_LOG = chain(1, 1, 2)
OLD_VOTE = (Term(4), NodeId("n1"))
NEW_VOTE = (Term(5), NodeId("n2"))
NEW = VoteRecord(9, *NEW_VOTE, 3)
OLDER = VoteRecord(7, Term(4), NodeId("n3"), 3)
VOTE_STEPS = ["write vote-a", "sync vote-a", "write vote-b", "sync vote-b"]
SEGMENT = segment_name(1)


def run(plan: Iterable[str], until: str = "") -> list[str]:
    """Carry out ``plan``, or its steps up to the one that begins with ``until``."""
    done = []
    for step in plan:
        done.append(step)
        if until and step.startswith(until):
            break
    return done


def old_disk() -> SimulatedDisk:
    """A disk that a node has worked with."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=OLD_VOTE, entries=OLD_LOG)))
    return disk


def entries(log: SegmentLog) -> tuple[Entry, ...]:
    return tuple(log.entries(log.first, Index(log.last.index + 1)))


def found(disk: SimulatedDisk) -> tuple[tuple[Term, NodeId | None], tuple[Entry, ...]]:
    """The vote and the log that an open finds, whole and sure."""
    log, _ = open_disk(disk)
    assert (log.damage, log.record.unsure) == ([], False)
    return (log.record.term, log.record.vote), entries(log)


def voting(disk: SimulatedDisk) -> Generator[str, None, Open]:
    """A new process changes its vote."""

    def plan() -> Generator[str, None, Open]:
        yield from opened[1].plan(Flush(1, vote=NEW_VOTE))
        return opened

    opened = open_disk(disk)
    return plan()


def put_votes(disk: SimulatedDisk, *copies: VoteRecord | None) -> None:
    """Make these the two copies of the vote record, durably; None for one that is not whole. Those
    that are name the newest segment, as the copies before did."""
    before = newest_vote((bytes(disk.files[name].content) for name in VOTE_COPIES), IDENTITY)
    assert before is not None
    for name, copy in zip(VOTE_COPIES, copies, strict=True):
        disk.spoil(name, 0, bytes(VOTE_BYTES))
        if copy is not None:
            record = replace(copy, segment=before.segment, nonce=before.nonce)
            disk.spoil(name, vote_place(copy.number), encode_vote(record, IDENTITY))


# -- the order of steps ------------------------------------------------------------------------


def test_a_vote_goes_into_one_copy_after_the_other() -> None:
    _, flusher = open_disk(old_disk())
    assert run(flusher.plan(Flush(1, vote=NEW_VOTE))) == VOTE_STEPS


def test_the_vote_comes_first_and_a_cut_is_durable_before_anything_is_written_over_it() -> None:
    _, flusher = open_disk(old_disk())
    flush = Flush(1, vote=NEW_VOTE, truncate_from=Index(1), entries=chain(5))
    steps = run(flusher.plan(flush))
    assert steps[:4] == VOTE_STEPS
    cut = steps.index(f"erase {SEGMENT} from {PAGE}")
    over = steps.index(f"write block at {PAGE}")
    assert f"sync {SEGMENT}" in steps[cut:over]
    assert steps[over + 1 :] == [f"sync block at {PAGE}", *VOTE_STEPS]


def test_a_plan_holds_only_what_changed() -> None:
    _, flusher = open_disk(old_disk())
    assert run(flusher.plan(Flush(1))) == []
    steps = run(flusher.plan(Flush(2, entries=chain(2, after=end(OLD_LOG)))))
    assert steps == [f"write block at {2 * PAGE}", f"sync block at {2 * PAGE}"]
    steps = run(flusher.plan(Flush(3, truncate_from=Index(4))))
    assert not [step for step in steps if step.startswith("write block")]


# -- every crash -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_while_the_log_is_written_leaves_a_log_that_was_there(
    scenario: CrashScenario,
) -> None:
    """Never a mix of two logs, never less than the part that stays; and so it is when the open
    after it crashes, here over some of the disks: ``verification.disk.enumerate`` takes all."""
    # The first open leaves few disks, and the next open is crashed over all of them.
    outcome = enumerate_all(scenario, every=1 if scenario.name == "first open" else 11)
    assert outcome.states > 20
    assert outcome.problems == []


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_no_crash_of_an_open_makes_a_rotten_log_forget_what_was_durable(life: Life) -> None:
    """A proved entry is there, is reported, or its node is unsure; nothing that is whole counts as
    damaged. Some of the ways to spoil a disk: ``verification.disk.enumerate`` takes all."""
    outcome = spoil_all(life, every=29, rots_every=7)
    assert outcome.crashed > 100
    assert outcome.crashed_again > 20
    assert outcome.problems == []


def test_a_crash_while_a_vote_is_written_leaves_the_old_or_the_new_one() -> None:
    for crash in crash_states(old_disk(), voting):
        log, _ = open_disk(crash.disk)
        pair = (log.record.term, log.record.vote)
        assert pair in (OLD_VOTE, NEW_VOTE)
        if crash.ended:  # only now is it answered
            assert pair == NEW_VOTE
        assert log.record.boot > 2


def test_a_node_that_crashes_again_while_it_opens_can_still_be_opened() -> None:
    """At any moment one copy is whole: opening must not begin with the only whole one."""
    for crash in crash_states(old_disk(), voting):
        for again in crash_states(crash.disk, opening):
            vote, log = found(again.disk)
            assert vote in (OLD_VOTE, NEW_VOTE)
            assert log == OLD_LOG


def test_a_boot_number_is_never_spoken_with_twice() -> None:
    disk = old_disk()
    spoken = {1}
    for _ in range(3):
        for crash in crash_states(disk, opening):
            heard = spoken | ({crash.result[0].record.boot} if crash.result else set())
            assert open_disk(crash.disk)[0].record.boot not in heard
        spoken.add(open_disk(disk)[0].record.boot)
    assert len(spoken) == 4


@pytest.mark.parametrize("written", range(6))
def test_a_kill_and_a_power_cut_while_opening_leave_one_whole_copy(written: int) -> None:
    """The process is killed after ``written`` steps of a vote and the power fails at any step of
    the next open: what was answered before is found again, whatever each write met."""
    killed = [crash for crash in crash_states(old_disk(), voting) if crash.how is KILLED]
    answered = killed[written].ended
    assert answered == (written == 5)
    for crash in crash_states(killed[written].disk, opening):
        vote, _ = found(crash.disk)
        assert vote == NEW_VOTE or (vote == OLD_VOTE and not answered)


def test_a_killed_process_leaves_writes_that_only_opening_makes_durable() -> None:
    disk = old_disk()
    _, flusher = open_disk(disk)
    more = chain(4, after=end(OLD_LOG))
    run(flusher.plan(Flush(1, entries=more)), until="write block")
    run(flusher.plan(Flush(2, vote=NEW_VOTE)), until="write vote-a")
    before = disk.copy()
    power_cut(before)
    assert found(before) == (OLD_VOTE, OLD_LOG)
    assert found(disk) == (NEW_VOTE, (*OLD_LOG, *more))
    power_cut(disk)
    assert found(disk) == (NEW_VOTE, (*OLD_LOG, *more))


# -- what opening finds ------------------------------------------------------------------------


def test_a_new_disk_starts_at_nothing() -> None:
    log, _ = open_disk(SimulatedDisk())
    assert (log.record, entries(log)) == (VoteRecord(1, Term(0), None, 1), ())


def test_a_first_opening_that_was_interrupted_starts_at_nothing_again() -> None:
    for crash in crash_states(SimulatedDisk(), opening):
        assert found(crash.disk) == ((0, None), ())


@pytest.mark.parametrize("copies", [(NEW, None), (None, NEW)])
def test_one_whole_copy_is_enough(copies: tuple[VoteRecord | None, ...]) -> None:
    disk = old_disk()
    put_votes(disk, *copies)
    record = open_disk(disk)[0].record
    assert (record.number, record.term, record.vote, record.boot) == (10, 5, "n2", 4)


@pytest.mark.parametrize("copies", [(NEW, OLDER), (OLDER, NEW)])
def test_of_two_whole_copies_the_newer_counts(copies: tuple[VoteRecord, VoteRecord]) -> None:
    disk = old_disk()
    put_votes(disk, *copies)
    assert found(disk)[0] == NEW_VOTE


def test_two_bad_copies_refuse_to_start() -> None:
    disk = old_disk()
    put_votes(disk, None, None)
    with pytest.raises(Damaged, match="no copy of the vote record"):
        open_disk(disk)


@pytest.mark.parametrize("left", [[], ["vote-a"], ["vote-b"]])
def test_a_log_without_a_vote_record_is_not_a_new_node(left: list[str]) -> None:
    disk = old_disk()
    put_votes(disk, None, None)
    for name in set(VOTE_COPIES) - set(left):
        disk.lose(name)
    with pytest.raises(Damaged, match="no copy of the vote record"):
        open_disk(disk)
    disk.lose(SEGMENT)
    if "vote-b" in left:  # it is never made alone
        with pytest.raises(Damaged, match="no copy of the vote record"):
            open_disk(disk)
    else:
        assert found(disk) == ((0, None), ())


def test_the_term_is_at_least_that_of_the_last_entry() -> None:
    """And a vote of an earlier term is none in the later one."""
    disk = old_disk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=chain(4, after=end(OLD_LOG)))))
    assert found(disk)[0] == OLD_VOTE
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=chain(7, after=end(chain(4, after=end(OLD_LOG)))))))
    assert found(disk)[0] == (7, None)


@pytest.mark.parametrize("torn", range(3))
def test_a_log_ends_before_its_first_torn_entry(torn: int) -> None:
    disk = old_disk()
    _, flusher = open_disk(disk)
    more = chain(4, 4, 4, after=end(OLD_LOG))
    run(flusher.plan(Flush(1, entries=more)), until="write block")
    # The spare keeps its name. The first grain is the head of the block, the others an entry each.
    power_cut(disk, [KEPT, 0xFFFF & ~(2 << torn)])
    steps = run(opening(disk.copy()))
    assert [step for step in steps if step.startswith(f"truncate {SEGMENT}")]
    assert found(disk)[1] == (*OLD_LOG, *more[:torn])


def test_a_log_ends_where_its_chain_breaks() -> None:
    """The tail of an overwritten log is whole entry by entry and still not this log's."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    other = chain(1, 1, 2, 2, stamp=9)
    run(flusher.plan(Flush(1, entries=(*OLD_LOG[:2], *other[2:]))))
    assert found(disk)[1] == OLD_LOG[:2]


# -- crashes that were once not survived -------------------------------------------------------


def test_a_segment_whose_header_only_a_killed_process_saw_is_not_counted_on() -> None:
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=OLD_LOG)), until="write header")
    assert found(disk)[1] == ()
    power_cut(disk)
    assert found(disk)[1] == ()


def test_entries_behind_a_header_whose_sync_failed_are_not_lost() -> None:
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    plan = flusher.plan(Flush(1, entries=OLD_LOG))
    run(plan, until="write header")
    disk.error = 5
    with pytest.raises(OSError, match="sync"):
        next(plan)
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=OLD_LOG)))
    power_cut(disk)
    assert found(disk)[1] == OLD_LOG


@pytest.mark.parametrize("fails", [False, True], ids=["killed", "failed"])
@pytest.mark.parametrize("first", [1, 4])
def test_zeros_that_were_written_and_not_synced_are_not_damage(first: int, fails: bool) -> None:
    disk = old_disk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=chain(4, after=end(OLD_LOG)))))
    plan = flusher.plan(Flush(2, truncate_from=Index(first)))
    run(plan, until="erase")
    if fails:
        disk.error = 5
        with pytest.raises(OSError, match="sync"):
            next(plan)
    assert found(disk)[1] == OLD_LOG[: first - 1]
    power_cut(disk)
    assert found(disk)[1] == OLD_LOG[: first - 1]


def test_a_block_whose_first_page_was_lost_leaves_no_hole() -> None:
    disk = old_disk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=grow(end(OLD_LOG), 9_000, term=4))), until="write block")
    power_cut(disk, [KEPT, LOST, KEPT, KEPT])  # the name of the spare, and three pages
    _, flusher = open_disk(disk)
    more = chain(4, after=end(OLD_LOG))
    run(flusher.plan(Flush(1, entries=more)))
    assert found(disk)[1] == (*OLD_LOG, *more)


def test_opening_takes_the_same_steps_in_every_process() -> None:
    """A simulation that cannot be repeated proves nothing."""
    program = (
        "from verification.disk.enumerate import SCENARIOS, opening\n"
        "print(list(opening(SCENARIOS[1].disk()[0])))"
    )
    steps = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "1234"
    }
    assert len(steps) == 1


# -- the enumeration itself --------------------------------------------------------------------


def test_a_promise_that_is_broken_is_noticed() -> None:
    old = Kept(OLD_LOG, Index(1), *OLD_VOTE)
    new = Kept(chain(1, 1, 4), Index(1), *NEW_VOTE)
    spoken = open_disk(old_disk())[0].record.boot
    for promise, problem in (
        (Promise(old, old, spoken - 1, ended=True), None),
        (Promise(old, new, spoken - 1), None),
        (Promise(old, old, spoken), "boot 2 after 2"),
        (Promise(old, new, spoken - 1, ended=True), "the vote is"),
        (Promise(old, old._replace(entries=OLD_LOG[:2]), ended=True), "is not all"),
        (Promise(old._replace(entries=chain(9)), old._replace(entries=chain(9))), "no log ever"),
        (Promise(old._replace(first=Index(2)), old._replace(first=Index(2))), "begins at 1"),
    ):
        if problem is None:
            promise.check(old_disk())
        else:
            with pytest.raises(BrokenPromise, match=problem):
                promise.check(old_disk())


def test_an_entry_that_is_forgotten_is_noticed() -> None:
    """Here everything from the second block on is gone, and the judge knows nothing of it."""
    life = next(life for life in LIVES if life.name == "killed")
    disk, _ = life.disk()
    spoiled = Spoiled(life, disk, Rot("nothing", lambda _: None))
    spoiled.check(disk.copy())
    disk.spoil(SEGMENT, 2 * PAGE, bytes(6 * PAGE))
    with pytest.raises(Unnoticed, match="1 is the last of 4"):
        spoiled.check(disk)


def test_a_whole_log_that_is_called_damaged_is_noticed() -> None:
    life = next(life for life in LIVES if life.name == "killed")
    disk, _ = life.disk()
    spoiled = Spoiled(life, disk, Rot("nothing", lambda _: None))
    disk.spoil(SEGMENT, PAGE, bytes(BLOCK_BYTES))
    with pytest.raises(Unnoticed, match="whole bytes count as damage"):
        spoiled.check(disk)


def test_an_entry_that_an_open_destroys_is_noticed() -> None:
    life = next(life for life in LIVES if life.name == "killed")
    disk, _ = life.disk()
    spoiled = Spoiled(life, disk, Rot("nothing", lambda _: None))
    log, _ = open_disk(disk)
    start, _ = log.segments[0].rows.frame(Index(2))
    disk.spoil(SEGMENT, start, bytes(8))
    with pytest.raises(Unnoticed, match="entry 2 was whole, and the open destroyed it"):
        spoiled.judge(log)


def test_the_command_counts_states_and_says_how_many_are_bad(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "vote", "--every", "30"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("crash states: ")
    assert shown[-1].endswith(", bad: 0")
    assert main(["--only", "votes"]) == 2
    assert "no scenario votes" in capsys.readouterr().err


# -- a slow disk -------------------------------------------------------------------------------


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
