"""A disk without room: appends are refused in time, everything else goes on, and it heals."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from cluster_rig import append_many, elect, happened, led, raft_state, refused, settle_losing
from core_rig import ELECTION_TICKS, chain
from quorate.commands import Part, Publish, Receipt
from quorate.config import Config, Limits, Storage
from quorate.errors import Busy, DiskFull, TooLarge
from quorate.raft.messages import Ack, Append, Heartbeat, HeartbeatReply
from quorate.raft.output import EventKind, Refusal
from quorate.replica.engine_io import Deliver, Flushed, Operate, ReadAnswer, Room
from quorate.storage.flusher import Flush
from quorate.storage.layout import LogId
from quorate.storage.recovery.open import open_log
from quorate.types import Index, NodeId, Term
from verification.disk.inode import LOST
from verification.disk.simulated import UNLIMITED, SimulatedDisk
from verification.disk.store import SEGMENT_BYTES, complete

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorate.raft.messages import Envelope
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from verification.hand import HandCluster

RESERVE = 64 * 1024


def room(cluster: HandCluster, name: str, size: int | None) -> None:
    """No more than that is to be had; None: as much as anybody wants."""
    shortage = "" if size is None else "No space left on device"
    cluster.turn(name, [Room(size, shortage)])


# -- the replica -------------------------------------------------------------------------------


def test_a_leader_without_room_refuses_appends_and_goes_on_reading() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 2)
    for name in cluster.voters:
        room(cluster, name, RESERVE + 100)
    cluster.run(20)
    told = refused(cluster, cluster.propose("n1", b"x" * 50), DiskFull)
    assert "no room for 50 bytes" in told
    read = cluster.read("n1")
    cluster.run(20)
    assert isinstance(cluster.answers[read], ReadAnswer)
    assert cluster.leader() == "n1"


def test_appends_are_taken_again_as_soon_as_there_is_room() -> None:
    cluster = led(1)
    room(cluster, "n1", RESERVE)
    refused(cluster, cluster.propose("n1", b"x"), DiskFull)
    room(cluster, "n1", RESERVE + 1000)
    token = cluster.propose("n1", b"x")
    cluster.settle()
    assert isinstance(cluster.answers[token], Receipt)


def test_what_is_on_its_way_to_the_disk_makes_others_wait() -> None:
    """The disk is not full: as soon as the flush is done there is room again."""
    cluster = led(1)
    room(cluster, "n1", RESERVE + 1000)
    cluster.auto_flush = False
    first = cluster.propose("n1", b"x" * 500)
    told = refused(cluster, cluster.propose("n1", b"x" * 500), Busy)
    assert told == "what is on its way to the disk of n1 leaves no room for 500 bytes"
    # What would never fit is told so at once.
    refused(cluster, cluster.propose("n1", b"x" * 1000), DiskFull)
    cluster.auto_flush = True
    cluster.settle()
    assert isinstance(cluster.answers[first], Receipt)
    room(cluster, "n1", RESERVE + 1000)
    again = cluster.propose("n1", b"x" * 500)
    cluster.settle()
    assert isinstance(cluster.answers[again], Receipt)


def test_a_refusal_names_who_has_no_room_and_why() -> None:
    cluster = led(3)
    cluster.turn("n1", [Room(RESERVE, "97 % of the disk are in use")])
    room(cluster, "n3", 0)
    cluster.run(20)
    told = refused(cluster, cluster.propose("n1", b"x" * 50), DiskFull)
    assert told == (
        "no room for 50 bytes on n1 (97 % of the disk are in use), n3; free some space there, or "
        "raise storage.disk_usage_max"
    )


def test_a_leader_without_room_hands_over_to_those_who_have_it() -> None:
    cluster = led(3)
    room(cluster, "n1", 0)
    cluster.run(ELECTION_TICKS)
    assert not happened(cluster, "n1", EventKind.DISK_FULL)  # it may pass
    cluster.run(10)
    assert happened(cluster, "n1", EventKind.DISK_FULL)
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


def test_without_room_on_a_majority_there_is_no_append() -> None:
    cluster = led(3)
    for name in ("n2", "n3"):
        room(cluster, name, 0)
    cluster.run(20)
    refused(cluster, cluster.propose("n1", b"x"), DiskFull)
    room(cluster, "n3", None)
    cluster.run(20)
    token = cluster.propose("n1", b"x")
    cluster.run(20)
    assert isinstance(cluster.answers[token], Receipt)


def test_a_follower_takes_what_fits_and_acks_no_more() -> None:
    cluster = led(3)
    cluster.isolate("n3")
    append_many(cluster, "n1", 5)
    entry = raft_state(cluster, "n1").log.entries(Index(2), Index(3))[0]
    room(cluster, "n3", RESERVE + 3 * entry.size - 1)
    cluster.heal()
    cluster.auto_flush = False  # what is on its way to the disk takes room as well
    for _ in range(200):
        cluster.tick()
        cluster.deliver_all()
    assert raft_state(cluster, "n3").log.last_index == 3
    assert cluster.leader() == "n1"
    cluster.auto_flush = True
    room(cluster, "n3", None)
    cluster.run(100)
    assert raft_state(cluster, "n3").log.last_index == 6


def test_appends_that_come_in_one_turn_share_the_room() -> None:
    """A leader streams them, and a frame brings several: the node would halt on a full disk."""
    cluster = led(3)
    streamed: list[Envelope] = []
    for _ in range(5):
        cluster.propose("n1", b"x")
        streamed += cluster.take(lambda one: one.target == "n3" and type(one.message) is Append)
        cluster.settle()
    assert len(streamed) == 5
    entry = raft_state(cluster, "n1").log.entries(Index(2), Index(3))[0]
    cluster.auto_flush = False
    room(cluster, "n3", RESERVE + 3 * entry.size - 1)
    cluster.turn("n3", [Deliver(one) for one in streamed])
    assert raft_state(cluster, "n3").log.last_index == 3


def test_a_follower_that_turns_down_an_entry_is_full_until_there_is_room_for_it() -> None:
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    token = cluster.propose("n1", bytes(3 * RESERVE))
    cluster.run(20)
    assert isinstance(cluster.answers[token], Receipt)
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    assert raft_state(cluster, "n3").full
    assert [peer.full for peer in leader.progress.values()] == [False, True]
    room(cluster, "n3", 5 * RESERVE)
    cluster.run(200)
    assert not raft_state(cluster, "n3").full
    assert raft_state(cluster, "n3").log.last_index == raft_state(cluster, "n1").log.last_index
    assert [peer.full for peer in leader.progress.values()] == [False, False]


def test_an_entry_that_found_no_room_is_forgotten_with_the_leader_that_sent_it() -> None:
    """It may never come again. The next leader begins without an entry, so none takes its place."""
    cluster = led(3)
    for name in ("n2", "n3"):
        room(cluster, name, 2 * RESERVE)
    cluster.propose("n1", bytes(3 * RESERVE))
    cluster.run(20)
    assert raft_state(cluster, "n2").full
    assert raft_state(cluster, "n3").full
    cluster.crash("n1")
    cluster.run(6 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader in ("n2", "n3")
    assert not raft_state(cluster, "n2").full
    assert not raft_state(cluster, "n3").full
    token = cluster.propose(leader, b"small")
    cluster.run(20)
    assert isinstance(cluster.answers[token], Receipt)


def test_an_old_leaders_append_says_nothing_about_the_room_for_the_present_one() -> None:
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    cluster.propose("n1", bytes(3 * RESERVE))
    sent = cluster.take(lambda one: type(one.message) is Append)
    late = [one for one in sent if one.target == "n3"]
    cluster.crash("n1")
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() is not None
    for one in late:
        cluster.deliver(one)
    assert raft_state(cluster, "n3").refused[Refusal.STALE_TERM] == len(late) > 0
    cluster.tick("n3")
    assert not raft_state(cluster, "n3").full


def test_an_old_leaders_append_does_not_make_the_present_leaders_entry_forgotten() -> None:
    """A follower that forgot it would seem to have room until the leader sends the entry again."""
    cluster = led(3)
    room(cluster, "n3", 2 * RESERVE)
    cluster.propose("n1", b"small")
    sent = cluster.take(lambda one: type(one.message) is Append)
    late = [one for one in sent if one.target == "n3"]
    cluster.crash("n1")
    elect(cluster, "n2")
    cluster.restart("n1")
    cluster.run(20)
    cluster.propose("n2", bytes(3 * RESERVE))
    cluster.run(20)
    assert raft_state(cluster, "n3").full
    for one in late:
        cluster.deliver(one)
    assert raft_state(cluster, "n3").refused[Refusal.STALE_TERM] == len(late) > 0
    assert raft_state(cluster, "n3").full


def test_the_reserve_of_a_follower_is_not_for_what_clients_append() -> None:
    """Whatever its leader believes about its room."""
    cluster = led(3)
    cluster.crash("n3")
    room(cluster, "n2", RESERVE + 1000)
    cluster.auto_flush = False
    for _ in range(2):
        cluster.propose("n1", bytes(600))
    settle_losing(cluster, lambda one: type(one.message) is HeartbeatReply, hung=("n2",))
    assert raft_state(cluster, "n1").log.last_index == 3
    assert raft_state(cluster, "n2").log.last_index == 2
    assert raft_state(cluster, "n2").refused[Refusal.NO_SPACE] == 1


def test_what_a_new_leader_finds_in_its_log_may_take_the_reserve() -> None:
    """Without it the leader cannot begin, and the third node is down."""
    cluster = led(3)
    cluster.crash("n3")
    room(cluster, "n2", RESERVE + 500)
    cluster.propose("n1", bytes(600))
    cluster.run(20)
    assert raft_state(cluster, "n2").log.last_index == 1
    cluster.crash("n1")
    cluster.restart("n1")
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n2").committed == 3
    read = cluster.read("n1")
    cluster.run(5)
    assert isinstance(cluster.answers[read], ReadAnswer)


def test_the_room_that_is_told_is_what_is_left_of_all_that_is_acknowledged() -> None:
    """The leader takes what it has no ack for off the room that a follower tells."""
    cluster = led(3)
    room(cluster, "n3", RESERVE + 5000)
    cluster.auto_flush = False
    cluster.propose("n1", bytes(100))
    cluster.tick("n1", 20)
    sent = [one for one in cluster.table if one.target == "n3"]
    appends = [one for one in sent if type(one.message) is Append]
    beats = [one for one in sent if type(one.message) is Heartbeat]
    cluster.table.clear()
    cluster.turn("n3", [Deliver(one) for one in appends])
    flush = cluster.nodes[NodeId("n3")].flush
    assert flush is not None
    cluster.turn("n3", [Flushed(flush.number, RESERVE + 900), Deliver(beats[-1])])
    told = [type(one.message) for one in cluster.table]
    assert told == [Ack, HeartbeatReply]
    assert cluster.table[1].message == HeartbeatReply(Term(1), 0, RESERVE + 900)


def test_a_follower_that_has_to_wait_for_a_spare_takes_what_fits_meanwhile() -> None:
    """More can be allocated, so this is no full disk."""
    cluster = led(3)
    cluster.turn("n3", [Room(RESERVE)])
    append_many(cluster, "n1", 2)
    assert raft_state(cluster, "n3").log.last_index == 3


def test_a_node_that_is_down_refuses_nothing_while_the_others_have_room() -> None:
    cluster = led(3)
    cluster.crash("n3")
    for _ in range(8):
        token = cluster.propose("n1", b"x")
        cluster.run(ELECTION_TICKS // 2)
        assert isinstance(cluster.answers[token], Receipt)
    cluster.crash("n1")
    cluster.restart("n1")
    while cluster.leader() is None:
        cluster.tick()
        cluster.settle()
    token = cluster.propose(cluster.leader() or "", b"to a leader that knows of no disk yet")
    cluster.run(20)
    assert isinstance(cluster.answers[token], Receipt)


def test_a_refusal_names_the_nodes_that_are_full_and_those_that_do_not_answer() -> None:
    cluster = led(3)
    cluster.crash("n3")
    room(cluster, "n2", RESERVE)
    cluster.run(2 * ELECTION_TICKS)
    told = refused(cluster, cluster.propose("n1", b"x"), DiskFull)
    assert "no room for 1 bytes on n2, and no answer from n3; free some space there" in told


def test_room_that_is_about_to_be_allocated_is_worth_a_wait() -> None:
    """Between a segment that is full and the next spare nothing is wrong with the disk."""
    cluster = led(1)
    cluster.turn("n1", [Room(RESERVE)])
    assert not raft_state(cluster, "n1").full
    told = refused(cluster, cluster.propose("n1", b"x"), Busy)
    assert told == "n1 is about to allocate the room for 1 bytes"


def test_what_no_segment_takes_is_not_worth_a_wait() -> None:
    segment_bytes = 256 * 1024
    small = Storage(segment_bytes=segment_bytes, reserve_bytes=0)
    cluster = led(1, Config(limits=Limits(batch_bytes=1000), storage=small))
    cluster.turn("n1", [Room(segment_bytes // 2)])
    parts = [(Part(0, bytes(16), chunks, chunks),) for chunks in (20_000, 10_000)]
    for token, one in enumerate(parts, 1000):
        publish = Publish("app", 1, one, bytes(32))
        cluster.turn("n1", [Operate(token, publish)])
    assert "storage.segment_bytes" in refused(cluster, 1000, TooLarge)
    refused(cluster, 1001, Busy)


def test_a_follower_without_any_room_takes_nothing_and_says_nothing() -> None:
    cluster = led(3)
    room(cluster, "n3", 0)
    append_many(cluster, "n1", 2)
    cluster.run(20)
    assert raft_state(cluster, "n3").log.last_index == 1
    assert raft_state(cluster, "n3").refused[Refusal.NO_SPACE] > 0
    assert raft_state(cluster, "n1").committed == 3


def test_the_reserve_lets_a_new_leader_begin_its_term() -> None:
    """Nobody but the old one knew whether its last entry is committed."""
    cluster = led(3)
    for name in cluster.voters:
        room(cluster, name, 2 * RESERVE)
    cluster.propose("n1", b"x")
    cluster.deliver_all()
    cluster.table.clear()
    for name in cluster.voters:
        room(cluster, name, RESERVE)
    cluster.crash("n1")
    cluster.run(4 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).committed == raft_state(cluster, leader).log.last_index == 3


# -- the disk ----------------------------------------------------------------------------------


def opened(disk: SimulatedDisk, usage_max: int = 100) -> tuple[SegmentLog, Flusher]:
    return complete(open_log(disk, LogId(1, bytes(16)), SEGMENT_BYTES, lambda: 1, usage_max))


def run(flusher: Flusher, flush: Flush) -> None:
    for _ in (*flusher.plan(flush), *flusher.chores(Index(0))):
        pass


def test_room_is_what_was_allocated_ahead() -> None:
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    assert 0 < flusher.room < SEGMENT_BYTES
    run(flusher, Flush(1, entries=chain(1)))
    disk.capacity = 0  # somebody else took the rest
    while flusher.room > 1000:
        run(flusher, Flush(2, entries=chain(1, after=log.last)))
    assert len(log.segments) == 2  # the spare is in use and there is no other
    assert "spare" not in disk.files


def test_without_a_spare_room_falls_to_nothing_and_comes_back_by_itself() -> None:
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    run(flusher, Flush(1, entries=chain(1)))
    disk.unlink("spare")
    log, flusher = opened(disk)
    disk.capacity = 0
    chores(flusher)
    while flusher.room:
        more = chain(1, after=log.last)
        run(flusher, Flush(2, entries=more))
    disk.capacity = UNLIMITED
    chores(flusher)
    assert flusher.room > 0


def chores(flusher: Flusher) -> None:
    for _ in flusher.chores(Index(0)):
        pass


def test_no_more_is_allocated_than_the_share_of_the_disk_that_may_be_used() -> None:
    disk = SimulatedDisk(capacity=4 * SEGMENT_BYTES)
    _, flusher = opened(disk, usage_max=40)
    assert disk.files["spare"].content  # the first of them is within it
    run(flusher, Flush(1, entries=chain(1)))
    assert "spare" not in disk.files


def test_a_cut_that_cannot_be_made_good_takes_nothing_more_and_is_no_damage() -> None:
    disk, log, flusher = without_room()
    newest = log.segments[-1]
    assert newest.room == 0
    assert log.record.cutting == newest.file.size() == newest.rows.ends[-1]
    for _ in flusher.prove(Index(0)):
        raise AssertionError("there is no room for a block")
    disk.capacity = UNLIMITED
    log, flusher = opened(disk)
    assert (log.damage, log.record.unsure, log.record.cutting) == ([], False, 0)
    run(flusher, Flush(3, entries=chain(2, after=log.last)))
    assert log.last.index == 2


def without_room() -> tuple[SimulatedDisk, SegmentLog, Flusher]:
    """A log that an open cut to one entry, and that could not be made long again.

    A running node keeps the room of what it cuts. The one here was killed while it did.
    """
    disk = SimulatedDisk()
    log, flusher = opened(disk)
    run(flusher, Flush(1, entries=chain(1, 1, 1)))
    for step in flusher.plan(Flush(2, truncate_from=Index(2))):
        if step.startswith("erase"):
            break
    log, flusher = complete(filling(disk))
    return disk, log, flusher


def filling(disk: SimulatedDisk) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
    """An open, while somebody else takes what it gives back."""
    opening = open_log(disk, LogId(1, bytes(16)), SEGMENT_BYTES, lambda: 1)
    while True:
        try:
            step = next(opening)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returned
        if step.startswith("truncate"):
            disk.capacity -= disk.space()[0]
        yield step


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_what_is_written_after_a_cut_without_room_is_not_cut_off_at_the_next_open(
    restarts: int,
) -> None:
    """It goes into the next segment, whose record ends the cut."""
    disk, log, flusher = without_room()
    for _ in range(restarts):
        log, flusher = opened(disk)
        assert log.record.cutting
    more = chain(2, 2, after=log.last)
    run(flusher, Flush(3, entries=more))
    assert (log.record.segment, log.record.cutting) == (2, 0)
    disk.power_cut(lambda: LOST)
    log, flusher = opened(disk)
    assert (log.damage, log.record.unsure) == ([], False)
    assert tuple(log.entries(Index(2), Index(4))) == more


def test_a_segment_that_was_cut_without_room_takes_more_once_a_cut_finds_it() -> None:
    disk, log, flusher = without_room()
    disk.capacity = UNLIMITED
    more = chain(3, 3)
    run(flusher, Flush(3, truncate_from=Index(1), entries=more))
    assert (len(log.segments), log.record.cutting) == (1, 0)
    disk.power_cut(lambda: LOST)
    log, _ = opened(disk)
    assert (log.damage, log.record.unsure) == ([], False)
    assert tuple(log.entries(Index(1), Index(3))) == more


def test_a_segment_that_has_no_room_for_its_footer_is_sealed_later() -> None:
    disk, log, flusher = without_room()
    run(flusher, Flush(3, entries=chain(2, after=log.last)))
    assert not sealed(log, flusher)
    disk.capacity = UNLIMITED
    assert sealed(log, flusher)
    disk.power_cut(lambda: LOST)
    log, _ = opened(disk)
    assert (log.damage, log.last.index) == ([], 2)


def sealed(log: SegmentLog, flusher: Flusher) -> bool:
    """Whether the first segment is, once its time has come."""
    for _ in flusher.chores(Index(1)):
        pass
    return log.segments[0].footer is not None


def test_a_spare_that_cannot_be_opened_is_had_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files are open for a moment: nothing is wrong with the disk."""
    log, flusher = without_spare(SimulatedDisk())
    assert not flusher.spare.bytes

    def refuse(_: SimulatedDisk, name: str) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedDisk, "create", refuse)
        chores(flusher)
        assert flusher.spare.shortage == os.strerror(errno.EMFILE)
    chores(flusher)
    assert (flusher.spare.bytes > 0, flusher.spare.shortage) == (True, "")
    assert log.damage == []


def test_other_errors_of_an_allocation_are_not_lack_of_room() -> None:
    disk = SimulatedDisk()
    _, flusher = without_spare(disk)
    disk.error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        chores(flusher)


def without_spare(disk: SimulatedDisk) -> tuple[SegmentLog, Flusher]:
    """The last roll took it, and the next one is still to be allocated."""
    log, flusher = opened(disk)
    run(flusher, Flush(1, entries=chain(1)))
    while "spare" in disk.files:
        run(flusher, Flush(2, entries=chain(1, after=log.last)))
        disk.capacity = 0
    disk.capacity = UNLIMITED
    return log, flusher
