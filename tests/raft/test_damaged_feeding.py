"""Damaged bodies of old entries: who may lead, which peers are fed, and what a replay does."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_many,
    assert_same,
    elect,
    envelope,
    happened,
    led,
    progress,
    raft_state,
    read_answer,
    receipt,
    run_until,
)
from core_rig import ELECTION_TICKS, WATCHDOG_TICKS, CoreRig, config
from quorate.commands import OpenProducer
from quorate.errors import Corrupt
from quorate.raft.messages import Mismatch
from quorate.raft.output import EventKind
from quorate.raft.progress import ProgressState
from quorate.raft.step_down import StepDown
from quorate.replica.engine_io import Operate, Room
from quorate.replica.status import status_of
from quorate.storage.layout import PAGE, segment_name
from quorate.types import Index, NodeId, Role, Term
from verification.disk.simulated import SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.types import Position
    from verification.disk.simulated import SimulatedDisk
    from verification.hand import HandCluster

ENTRIES = 30


def lagging(
    size: int = 3, away: tuple[str, ...] = ("n3",), entries: int = ENTRIES, seed: int = 0
) -> HandCluster:
    """n1 leads and keeps nothing in memory; ``away`` lack all but the noop."""
    cluster = led(size, config(log_memory_bytes=0), seed=seed)
    for name in away:
        cluster.isolate(name)
    append_many(cluster, "n1", entries)
    cluster.run(3)
    return cluster


def flip(cluster: HandCluster, name: str, index: int) -> None:
    """Flip one bit of a body on a disk. A second call takes it back."""
    store = cluster.nodes[NodeId(name)].store
    assert store.log is not None
    segment = store.log.segment(Index(index))
    _, end = segment.rows.frame(Index(index))
    file = segment_name(segment.number)
    store.disk.spoil(file, end - 1, bytes([store.disk.files[file].content[end - 1] ^ 1]))


def page_of(cluster: HandCluster, name: str, index: int) -> tuple[SimulatedDisk, str, int]:
    """The disk, the file and the page under the header of an entry."""
    store = cluster.nodes[NodeId(name)].store
    assert store.log is not None
    segment = store.log.segment(Index(index))
    start, _ = segment.rows.frame(Index(index))
    return store.disk, segment_name(segment.number), start - start % PAGE


def lose(cluster: HandCluster, name: str, index: int) -> None:
    """The page under an entry is zeros."""
    disk, file, page = page_of(cluster, name, index)
    disk.spoil(file, page, bytes(PAGE))


class Refusals:
    """Pages that the disks of a cluster do not give back."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._pages: list[tuple[SimulatedDisk, str, int]] = []
        self._usual = SimulatedFile.read
        patched.setattr(SimulatedFile, "read", lambda *call: self._read(*call))

    def refuse(self, cluster: HandCluster, name: str, index: int) -> None:
        self._pages.append(page_of(cluster, name, index))

    def _read(self, file: SimulatedFile, position: int, length: int) -> bytes:
        for disk, name, page in self._pages:
            inside = position < page + PAGE and page < position + length
            if inside and (file._disk, file._name) == (disk, name):
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return self._usual(file, position, length)


@pytest.fixture(params=["body", "page", "read"])
def harm(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[HandCluster, str, int], None]:
    """Ways to lose an entry: its body, its header with it, or a disk that does not read it."""
    return {"body": flip, "page": lose, "read": Refusals(monkeypatch).refuse}[request.param]


def leaderships(cluster: HandCluster) -> int:
    return sum(len(happened(cluster, name, EventKind.LEADS)) for name in cluster.voters)


def serves(cluster: HandCluster) -> None:
    """The cluster acknowledges an append and answers a linearizable read."""
    leader = cluster.leader()
    assert leader is not None
    token, read = cluster.propose(leader, b"new"), cluster.read(leader)
    cluster.run(20)
    receipt(cluster, token)
    read_answer(cluster, read)


def positions(cluster: HandCluster, name: str) -> list[Position]:
    log = raft_state(cluster, name).log
    return [log.position(Index(index)) for index in range(1, log.last_index + 1)]


# -- leading with damage -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_two_old_damaged_entries_on_two_nodes_leave_a_leader_and_a_third_node_that_is_fed(
    seed: int, harm: Callable[[HandCluster, str, int], None]
) -> None:
    """Each entry is whole on the other node, and the third one needs both."""
    cluster = lagging(seed=seed)
    harm(cluster, "n1", 8)
    harm(cluster, "n2", 12)
    cluster.heal()
    cluster.run(20 * ELECTION_TICKS)
    serves(cluster)
    assert cluster.engine("n1").state.digest() == cluster.engine("n3").state.digest()
    assert raft_state(cluster, "n1").log.last == raft_state(cluster, "n3").log.last
    assert cluster.engine("n3").applied == raft_state(cluster, "n3").log.last_index
    for name, index in (("n1", 8), ("n2", 12)):
        (blocked,) = happened(cluster, name, EventKind.PEER_BLOCKED)
        assert (blocked.peer, blocked.index) == ("n3", index)
    assert leaderships(cluster) == 3  # each of the two gave up once, for the other's entry


def test_a_leader_that_lost_where_a_peer_ends_blocks_that_peer_and_lets_another_feed_it() -> None:
    """n3 has entry 1 and n1 does not know it any more: it cannot ask whether n3 has the same."""
    cluster = lagging()
    lose(cluster, "n1", 1)
    cluster.heal()
    cluster.run(ELECTION_TICKS // 2)
    (blocked,) = happened(cluster, "n1", EventKind.PEER_BLOCKED)
    assert (blocked.peer, blocked.index) == ("n3", 1)
    assert raft_state(cluster, "n1").without_body == {1}
    cluster.run(10 * ELECTION_TICKS)
    serves(cluster)
    assert raft_state(cluster, "n3").log.last == raft_state(cluster, "n2").log.last


def test_a_leader_finds_where_logs_agree_also_if_it_lost_an_entry_of_the_term_in_question() -> None:
    """n3 has entries of an earlier term that no other node has. The leader looks up its own terms
    by halves, and one of the entries there is lost."""
    cluster = led(3, config(log_memory_bytes=0))
    append_many(cluster, "n1", 3)
    cluster.crash("n1")
    elect(cluster, "n2")
    cluster.restart("n1")
    cluster.run(ELECTION_TICKS)
    cluster.isolate("n3")
    append_many(cluster, "n2", ENTRIES)
    cluster.run(3)
    before = raft_state(cluster, "n2").log.last_index
    assert raft_state(cluster, "n2").log.first_in_memory == before + 1
    leader = cluster.engine("n2").core.leader
    assert leader is not None
    for index in range(6, 26):
        lose(cluster, "n2", index)
    peer = leader.progress[NodeId("n3")]
    peer.number, peer.match = 9, Index(0)
    reply = Mismatch(raft_state(cluster, "n2").term, 9, before, Index(30), Term(1))
    cluster.heal()
    cluster.deliver(envelope(cluster, "n3", "n2", reply))
    assert cluster.nodes[NodeId("n2")].halted is None
    assert (peer.state, peer.next) == (ProgressState.COMPARE, 30)


def test_a_damaged_entry_and_a_crashed_node_with_a_longer_log_leave_a_leader_in_the_end() -> None:
    cluster = lagging()
    flip(cluster, "n2", 8)
    cluster.cut("n2", "n1")
    cluster.propose("n1", b"only n1 has this")
    cluster.settle()
    cluster.crash("n1")
    cluster.heal()
    cluster.run(10 * ELECTION_TICKS)
    # n3 cannot get entry 8 from n2, so nothing can be committed. Nothing flaps either.
    assert cluster.leader() == "n2"
    assert leaderships(cluster) == 2
    assert progress(cluster, "n3").state is ProgressState.BLOCKED
    cluster.restart("n1")
    cluster.run(20 * ELECTION_TICKS)
    serves(cluster)
    assert positions(cluster, "n3") == positions(cluster, "n1")


def test_a_leader_goes_on_with_one_peer_while_another_cannot_be_fed() -> None:
    """The same entry is damaged on both nodes that have it."""
    cluster = lagging()
    flip(cluster, "n1", 8)
    flip(cluster, "n2", 8)
    cluster.heal()
    cluster.run(8 * ELECTION_TICKS)
    serves(cluster)
    leader = cluster.leader()
    assert leader is not None
    assert progress(cluster, "n3").state is ProgressState.BLOCKED
    assert raft_state(cluster, "n3").log.last_index == 7
    (blocked,) = (event for event in happened(cluster, leader, EventKind.PEER_BLOCKED)[-1:])
    assert (blocked.peer, blocked.index) == ("n3", 8)
    states = {peer.node: peer.state for peer in status_of(cluster.engine(leader), 0).peers}
    assert states[NodeId("n3")] == "blocked"


def test_leaders_that_cannot_feed_a_peer_hand_over_less_and_less_often() -> None:
    cluster = lagging()
    flip(cluster, "n1", 8)
    flip(cluster, "n2", 8)
    cluster.heal()
    cluster.run(8 * ELECTION_TICKS)
    counts = []
    for elections in (20, 40, 80):
        before = leaderships(cluster)
        cluster.run(elections * ELECTION_TICKS)
        counts.append(leaderships(cluster) - before)
    assert max(counts) <= 3, counts
    assert sum(counts) > 0, counts


def test_many_entries_that_are_damaged_here_and_there_leave_a_leader_most_of_the_time() -> None:
    """Each leader can feed the third node one more entry, and has to let the other go on."""
    cluster = lagging(entries=60)
    for index in range(10, 50):
        flip(cluster, "n1" if index % 2 else "n2", index)
    cluster.heal()
    without = 0
    elections = 150
    for _ in range(elections * ELECTION_TICKS):
        cluster.run(1)
        without += all(cluster.engine(name).core.leader is None for name in cluster.voters)
    assert leaderships(cluster) <= 10
    assert without <= elections * ELECTION_TICKS // 6
    fed = raft_state(cluster, "n3").log.last_index
    assert fed >= 15
    cluster.run(elections * ELECTION_TICKS)
    assert raft_state(cluster, "n3").log.last_index > fed  # it does not stop either
    serves(cluster)


def test_a_leader_gives_up_for_damaged_entries_less_and_less_often_and_never_stops() -> None:
    rig = CoreRig()
    patience, raft = rig.core._election.damage_patience, rig.raft
    begin = raft.clock = 5
    given_up = []
    for _ in range(500 * ELECTION_TICKS):
        if patience.ends():
            given_up.append((raft.clock - begin) // ELECTION_TICKS)
        raft.clock += 1
    assert given_up == [0, 10, 30, 70, 150, 310, 470]
    raft.clock += 500 * ELECTION_TICKS  # nothing was damaged for long
    assert patience.ends()
    raft.clock += 10 * ELECTION_TICKS
    assert patience.ends()


@pytest.mark.parametrize("reason", ["disk_too_slow", "others_have_room", "others_can_begin"])
def test_a_leader_gives_up_less_and_less_often_if_no_other_can_lead(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the others has an entry that it cannot apply."""
    cluster = led(3)
    append_many(cluster, "n1", ENTRIES)
    for name, index in (("n2", 8), ("n3", 12)):
        cluster.crash(name)
        flip(cluster, name, index)
        cluster.restart(name)
        cluster.run(ELECTION_TICKS // 2)
        assert not raft_state(cluster, name).may_lead
    monkeypatch.setattr(StepDown, reason, lambda _, **__: True)
    cluster.run(65 * ELECTION_TICKS)
    # At first, and after ten and thirty timeouts.
    assert len(happened(cluster, "n1", EventKind.STEPS_DOWN)) == 3
    assert cluster.leader() == "n1"
    cluster.run(100 * ELECTION_TICKS)
    assert len(happened(cluster, "n1", EventKind.STEPS_DOWN)) == 5  # it does not stop either


def test_a_leader_whose_place_was_taken_gives_up_at_once_the_next_time() -> None:
    cluster = led(3)
    cluster.turn("n1", [Room(0, "No space left on device")])
    for times in (1, 2, 3):
        run_until(cluster, lambda: cluster.leader() != "n1", 8 * ELECTION_TICKS)
        assert len(happened(cluster, "n1", EventKind.STEPS_DOWN)) == times
        run_until(cluster, lambda: cluster.leader() in ("n2", "n3"), 8 * ELECTION_TICKS)
        cluster.run(5)
        leader = cluster.leader()
        assert leader is not None
        cluster.crash(leader)
        elect(cluster, "n1")
        cluster.restart(leader)


def test_a_leader_reports_a_blocked_peer_once_and_feeds_it_when_the_entry_can_be_read_again() -> (
    None
):
    cluster = lagging()
    cluster.isolate("n2")  # nobody could take over
    cluster.cuts -= {pair for pair in cluster.cuts if "n3" in pair and "n2" not in pair}
    flip(cluster, "n1", 8)
    cluster.run(3 * WATCHDOG_TICKS)
    assert cluster.leader() == "n1"
    assert len(happened(cluster, "n1", EventKind.PEER_BLOCKED)) == 1
    assert not happened(cluster, "n1", EventKind.PEER_STALLED)
    flip(cluster, "n1", 8)
    log = cluster.nodes[NodeId("n1")].store.log
    assert log is not None
    log.segment(Index(8)).without_body.clear()
    run_until(cluster, lambda: raft_state(cluster, "n3").log.last_index == ENTRIES + 1, 600)


def test_a_leader_whose_only_live_peer_needs_a_damaged_entry_keeps_leading_and_reading() -> None:
    """Nothing can be committed without the third node, and nobody else could do better."""
    cluster = lagging()
    flip(cluster, "n1", 8)
    cluster.heal()
    cluster.crash("n2")
    cluster.run(10 * ELECTION_TICKS)
    assert (cluster.leader(), leaderships(cluster)) == ("n1", 1)
    read = cluster.read("n1")
    token = cluster.propose("n1", b"waits for n2")
    cluster.run(20)
    read_answer(cluster, read)
    assert token not in cluster.answers
    cluster.restart("n2")
    cluster.run(10 * ELECTION_TICKS)
    receipt(cluster, token)
    assert positions(cluster, "n3") == positions(cluster, "n2")


def test_of_five_nodes_the_one_that_can_feed_the_others_takes_over_when_commits_need_them() -> None:
    cluster = lagging(5, away=("n3", "n4", "n5"))
    assert raft_state(cluster, "n1").committed == 1
    # n3 has everything up to here as well, so that it is committed.
    cluster.cuts -= {
        pair for pair in cluster.cuts if "n3" in pair and {"n4", "n5"}.isdisjoint(pair)
    }
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n1").committed == ENTRIES + 1
    flip(cluster, "n1", 8)
    flip(cluster, "n3", 8)
    cluster.heal()
    cluster.crash("n5")
    cluster.run(20 * ELECTION_TICKS)
    serves(cluster)
    assert positions(cluster, "n4") == positions(cluster, "n2")


# -- replaying ---------------------------------------------------------------------------------


def sealed() -> HandCluster:
    """n2 has sealed segments that no checkpoint covers."""
    cluster = led(3)
    cluster.turn("n1", [Operate(9999, OpenProducer("writer", b"i" * 16, 5, 10**9))])
    cluster.run(3)
    for _ in range(60):
        cluster.propose("n1", bytes(2000))
        cluster.run(2)
    node = cluster.nodes[NodeId("n2")]
    assert node.store.flusher is not None
    for _ in range(6):
        for _ in node.store.flusher.chores(cluster.engine("n2").settled):
            pass
    assert node.store.log is not None
    assert node.store.log.sealed > 10
    return cluster


@pytest.mark.parametrize("damaged", [2, 5], ids=["a producer's entry", "a batch"])
def test_a_replay_stops_before_the_first_damaged_entry_and_the_node_follows(
    damaged: int, harm: Callable[[HandCluster, str, int], None]
) -> None:
    """Sealed segments are not read at open, so the replay is the first to find the damage."""
    cluster = sealed()
    cluster.crash("n2")
    harm(cluster, "n2", damaged)
    cluster.restart("n2")
    assert cluster.engine("n2").applied == damaged - 1
    assert raft_state(cluster, "n2").without_body == {damaged}
    assert not raft_state(cluster, "n2").may_lead
    cluster.isolate("n3")  # every commit needs n2
    token = cluster.propose("n1", b"x")
    cluster.run(20)
    receipt(cluster, token)
    read = cluster.read("n2")
    assert isinstance(cluster.answers[read], Corrupt)
    assert f"entry {damaged}" in str(cluster.answers[read])
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    cluster.crash("n1")
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() == "n3"
    assert raft_state(cluster, "n2").role is Role.FOLLOWER
    cluster.run(2)
    assert cluster.engine("n2").applied == damaged - 1


def test_a_replay_of_whole_entries_applies_all_that_the_disk_proves_to_be_committed() -> None:
    cluster = sealed()
    cluster.crash("n2")
    cluster.restart("n2")
    assert cluster.engine("n2").applied == raft_state(cluster, "n2").committed > 10
    cluster.run(ELECTION_TICKS)
    assert_same(cluster)
