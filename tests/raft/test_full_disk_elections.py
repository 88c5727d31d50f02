"""Leaders change on full disks: each must be able to begin, and to answer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_many,
    elect,
    happened,
    led,
    progress,
    raft_state,
    read_answer,
    receipt,
    refused,
    run_until,
)
from core_rig import ELECTION_TICKS, CoreRig, leading, pick
from quorate.commands import Receipt
from quorate.config import Config, Limits, Storage
from quorate.errors import Busy, DiskFull, NoQuorum
from quorate.raft.messages import (
    ROOM_UNBOUNDED,
    Append,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    VoteReply,
)
from quorate.raft.output import EventKind
from quorate.replica.engine_io import Flushed, Room
from quorate.storage.layout import PAGE
from quorate.types import EntryKind, Index, NodeId, Role, Term
from verification.disk.simulated import UNLIMITED
from verification.disk.store import Store
from verification.hand import HandCluster

if TYPE_CHECKING:
    from quorate.storage.flusher import Flusher

RESERVE = 64 * 1024
SEGMENT = 256 * 1024
SHORTAGE = "95 % of the disk are in use"
CONFIG = Config(
    limits=Limits(batch_bytes=100_000, pending_bytes=100_000, uncommitted_bytes=100_000),
    storage=Storage(segment_bytes=2 * SEGMENT, reserve_bytes=RESERVE),
)


class DiskCluster(HandCluster):
    """Nodes that tell the room on their disks, and tend them as a running node does."""

    def __init__(self, size: int, *, proves: bool = True) -> None:
        # Without this all crash before they have written that everything is committed.
        self.proves = proves
        super().__init__(size, CONFIG)
        for name in self.voters:
            self.nodes[name].store = Store(name, SEGMENT, reserve_bytes=RESERVE)
            self.restart(name)

    def flusher(self, name: str) -> Flusher:
        flusher = self.nodes[NodeId(name)].store.flusher
        assert flusher is not None
        return flusher

    def restart(self, name: str) -> None:
        super().restart(name)
        self.tell_room(name)

    def tell_room(self, name: str) -> None:
        flusher = self.flusher(name)
        self.turn(name, [Room(flusher.room, flusher.spare.shortage)])

    def flush(self, name: str, steps: int | None = None) -> None:
        node = self.nodes[NodeId(name)]
        if node.flush is None or node.engine is None:
            return
        flush, node.flush = node.flush, None
        for _ in node.store.plan(flush):
            pass
        for _ in self.flusher(name).chores(node.engine.settled):
            pass
        self.turn(name, [Flushed(flush.number, self.flusher(name).room)])
        self.tell_room(name)

    def tick(self, name: str | None = None, ticks: int = 1) -> None:
        super().tick(name, ticks)
        for each in self.voters if self.proves else ():
            engine = self.nodes[each].engine
            if engine is not None and self.flusher(each).wants_proof(engine.settled):
                for _ in self.flusher(each).prove(engine.settled):
                    pass
                self.tell_room(each)


def filled(*, proves: bool = True) -> DiskCluster:
    """Every disk has just the reserve left, and appends are refused."""
    cluster = DiskCluster(3, proves=proves)
    run_until(cluster, lambda: cluster.leader() is not None, 4 * ELECTION_TICKS)
    cluster.run(20)
    for name in cluster.voters:
        disk = cluster.nodes[name].store.disk
        disk.capacity -= disk.space()[0]
    leader = cluster.leader()
    assert leader is not None
    for _ in range(500):
        token = cluster.propose(leader, bytes(3000))
        cluster.run(2)
        if isinstance(cluster.answers[token], DiskFull):
            break
    assert isinstance(cluster.answers[token], DiskFull)
    cluster.run(20)
    assert all(raft_state(cluster, name).full for name in cluster.voters)
    return cluster


def answers_a_read(cluster: DiskCluster) -> None:
    run_until(cluster, lambda: cluster.leader() is not None, 8 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    read = cluster.read(leader)
    cluster.run(20)
    read_answer(cluster, read)


def test_however_often_leaders_die_on_full_disks_another_one_answers_reads() -> None:
    cluster = filled()
    room = [cluster.flusher(name).room for name in cluster.voters]
    for _ in range(60):
        leader = cluster.leader()
        assert leader is not None
        cluster.crash(leader)
        answers_a_read(cluster)
        cluster.restart(leader)
        cluster.run(20)
    left = [cluster.flusher(name).room for name in cluster.voters]
    assert left == room  # such a change takes nothing of any disk


def test_however_often_all_nodes_restart_on_full_disks_a_leader_answers_reads() -> None:
    """They know only what their disks say to be committed."""
    cluster = filled()
    for _ in range(60):
        crash_all(cluster)
        answers_a_read(cluster)
    # The first leader after the first restart may have to log an entry, and each disk to prove it.
    assert all(raft_state(cluster, name).room > RESERVE // 2 for name in cluster.voters)


def test_the_reserve_outlasts_eight_crashes_of_all_nodes_at_the_moment_of_a_commit() -> None:
    """Nobody knows then whether the last entry is committed, so each leader has to log one."""
    cluster = filled(proves=False)
    before = max(raft_state(cluster, name).log.last_index for name in cluster.voters)
    for _ in range(8):
        crash_all(cluster)
        run_until(cluster, lambda: is_ready(cluster), 8 * ELECTION_TICKS)
    answers_a_read(cluster)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).log.last_index == before + 8


def crash_all(cluster: DiskCluster) -> None:
    """Kill all nodes and start them again; what was on its way is lost."""
    for name in cluster.voters:
        cluster.crash(name)
    cluster.table.clear()
    for name in cluster.voters:
        cluster.restart(name)


def is_ready(cluster: DiskCluster) -> bool:
    leader = cluster.leader()
    leading = cluster.engine(leader).core.leader if leader is not None else None
    return leading is not None and leading.ready


def test_a_node_without_any_room_leads_if_all_of_its_log_is_committed() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 2)
    cluster.run(5)
    for name in cluster.voters:
        cluster.turn(name, [Room(0, SHORTAGE)])
    cluster.crash("n1")
    cluster.run(6 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).log.last_index == 3  # no entry was logged
    read = cluster.read(leader)
    cluster.run(5)
    assert read_answer(cluster, read).index == 3
    for peer in ("n2", "n3"):
        cluster.turn(peer, [Room(None)])
    cluster.run(20)
    token = cluster.propose(leader, b"room again")
    cluster.run(5)
    assert receipt(cluster, token).term == raft_state(cluster, leader).term


def test_a_node_without_any_room_does_not_lead_while_an_entry_may_not_be_committed() -> None:
    cluster = led(3)
    cluster.isolate("n1")
    cluster.propose("n1", b"not committed")
    cluster.settle()
    cluster.crash("n1")
    cluster.restart("n1")
    cluster.turn("n1", [Room(0, SHORTAGE)])
    assert not raft_state(cluster, "n1").may_lead
    read = cluster.read("n1")
    cluster.tick("n1", 3 * ELECTION_TICKS)
    told = refused(cluster, read, NoQuorum)
    assert told.endswith("free some space, or raise storage.disk_usage_max")
    cluster.heal()
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
def test_a_leader_spares_its_first_entry_if_a_voters_disk_is_full(full: bool) -> None:
    """It has room itself, and knows all of its log to be committed."""
    rig = leading()
    last = rig.raft.log.last_index
    rig.tick(2 * ELECTION_TICKS)
    assert rig.role() is Role.FOLLOWER
    rig.campaign()
    rig.persist()
    rig.hear("n2", VoteReply(rig.raft.term, granted=True, full=full))
    assert rig.role() is Role.LEADER
    assert rig.raft.log.last_index == (last if full else last + 1)
    assert rig.leader.ready is full


def test_a_leader_logs_its_first_entry_if_any_may_not_be_committed() -> None:
    """However full the disks: without it nobody knows what is committed (Raft § 8)."""
    rig = leading(settled=False)
    rig.tick(2 * ELECTION_TICKS)
    rig.campaign()
    rig.persist()
    last = rig.raft.log.last_index
    assert rig.raft.committed < last
    rig.hear("n2", VoteReply(rig.raft.term, granted=True, full=True))
    assert rig.raft.log.last_index == last + 1
    assert not rig.leader.ready


# -- entries that others have no room for ------------------------------------------------------


def test_a_leader_behind_an_entry_that_no_peer_can_take_leaves_leading_to_others() -> None:
    cluster = led(3)
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(RESERVE, SHORTAGE)])
    cluster.propose("n1", bytes(90_000))  # n1 has not heard yet that they are full
    cluster.run(20)
    assert (raft_state(cluster, "n1").log.last_index, raft_state(cluster, "n1").committed) == (2, 1)
    cluster.crash("n1")
    cluster.table.clear()
    cluster.restart("n1")
    cluster.turn("n1", [Room(RESERVE, SHORTAGE)])
    cluster.cut("n2", "n3")
    cluster.cut("n3", "n2")
    run_until(cluster, lambda: cluster.leader() == "n1", 10 * ELECTION_TICKS)
    cluster.heal()
    cluster.run(8 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader in ("n2", "n3")
    read = cluster.read(leader)
    cluster.run(10)
    read_answer(cluster, read)
    terms = raft_state(cluster, leader).term
    cluster.run(20 * ELECTION_TICKS)
    assert raft_state(cluster, leader).term == terms


def test_a_leader_stays_if_the_others_are_no_majority_without_it() -> None:
    """n3 is down and may have the entry: nobody may take another one for it."""
    cluster = led(3)
    cluster.turn("n2", [Room(RESERVE, SHORTAGE)])
    cluster.propose("n1", bytes(90_000))
    cluster.run(20)
    cluster.crash("n3")
    cluster.crash("n1")
    cluster.table.clear()
    cluster.restart("n1")
    run_until(cluster, lambda: cluster.leader() == "n1", 10 * ELECTION_TICKS)
    before = len(happened(cluster, "n1", EventKind.LEADS))
    cluster.run(20 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert len(happened(cluster, "n1", EventKind.LEADS)) == before
    cluster.restart("n3")
    cluster.run(10 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).committed == raft_state(cluster, leader).log.last_index


def test_a_leader_logs_nothing_that_no_majority_can_take() -> None:
    cluster = led(3)
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(RESERVE + 50_000, SHORTAGE)])
    cluster.run(20)
    token = cluster.propose("n1", bytes(90_000))
    assert isinstance(cluster.answers[token], DiskFull)
    assert "no room for 90000 bytes on n2, n3" in str(cluster.answers[token])
    assert raft_state(cluster, "n1").log.last_index == 1
    token = cluster.propose("n1", bytes(40_000))
    cluster.run(5)
    receipt(cluster, token)


def test_what_is_on_its_way_to_peers_takes_their_room() -> None:
    cluster = led(3)
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(RESERVE + 50_000, SHORTAGE)])
    cluster.run(20)
    first = cluster.propose("n1", bytes(30_000))
    second = cluster.propose("n1", bytes(30_000))
    assert isinstance(cluster.answers[second], Busy)
    assert "on its way to the disks of peers" in str(cluster.answers[second])
    cluster.run(5)
    receipt(cluster, first)


def test_what_is_logged_and_not_sent_takes_the_room_of_peers() -> None:
    """No peer has answered yet where its log agrees, so none is sent anything."""
    rig = CoreRig()
    rig.lead()
    for peer in rig.peers:
        rig.hear(peer, HeartbeatReply(rig.raft.term, 0, room=10_000))
    rig.leader.append(EntryKind.DATA, bytes(6000), 1)
    assert all(peer.since_told == 0 for peer in rig.leader.progress.values())
    assert rig.leader.has_room(5000)
    assert not rig.leader.has_room_now(5000)
    assert rig.leader.has_room_now(3000)


def test_a_follower_tells_its_room_and_no_bound_while_more_can_be_allocated() -> None:
    cluster = led(3)
    for room, told in ((Room(5000), ROOM_UNBOUNDED), (Room(5000, SHORTAGE), 5000)):
        cluster.turn("n2", [room])
        cluster.tick("n1", 20)
        cluster.table = [one for one in cluster.table if one.target == "n2"]
        cluster.deliver_all()
        said = [one.message for one in cluster.table if isinstance(one.message, HeartbeatReply)]
        assert said
        assert {(one.room, one.full) for one in said} == {(told, told == 5000)}
        cluster.table.clear()


def test_room_that_comes_back_is_used_after_many_leader_changes() -> None:
    cluster = filled()
    for _ in range(5):
        leader = cluster.leader()
        assert leader is not None
        cluster.crash(leader)
        answers_a_read(cluster)
        cluster.restart(leader)
        cluster.run(20)
    for name in cluster.voters:
        cluster.nodes[name].store.disk.capacity = UNLIMITED
        for _ in cluster.flusher(name).chores(Index(0)):
            pass
        cluster.tell_room(name)
    cluster.run(20)
    leader = cluster.leader()
    assert leader is not None
    token = cluster.propose(leader, bytes(1000))
    cluster.run(5)
    assert receipt(cluster, token).term == raft_state(cluster, leader).term > Term(5)


def test_appends_stop_before_the_reserve_of_a_full_disk_while_a_third_node_is_down() -> None:
    cluster = DiskCluster(3)
    run_until(cluster, lambda: cluster.leader() is not None, 4 * ELECTION_TICKS)
    cluster.run(20)
    leader = cluster.leader()
    assert leader is not None
    full, down = (name for name in cluster.voters if name != leader)
    cluster.crash(down)
    cluster.run(3 * ELECTION_TICKS)
    disk = cluster.nodes[full].store.disk
    disk.capacity -= disk.space()[0]
    tokens = []
    for _ in range(300):
        tokens += [cluster.propose(leader, bytes(3000)) for _ in range(2)]
        cluster.run(1)
    assert isinstance(cluster.answers[tokens[-1]], DiskFull)
    kinds = {type(cluster.answers.get(token)) for token in tokens}
    assert kinds == {Receipt, Busy, DiskFull}  # none waits for the node that is down
    assert cluster.flusher(full).room > RESERVE - 2 * PAGE
    answers_a_read(cluster)


def test_peers_without_any_room_take_over_from_a_leader_behind_an_entry_that_they_cannot_take() -> (
    None
):
    """All that they have is committed, so they need no entry to begin."""
    cluster = led(3)
    behind_a_big_entry(cluster)
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(0, SHORTAGE)])
    cluster.run(10 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader in ("n2", "n3")
    read = cluster.read(leader)
    cluster.run(10)
    read_answer(cluster, read)


def test_a_leader_stays_if_its_peers_have_no_room_for_the_entry_that_they_would_need() -> None:
    """They have one that may not be committed."""
    cluster = led(3)
    cluster.propose("n1", b"on all disks, and committed in no term")
    cluster.deliver_all()
    cluster.table.clear()
    assert raft_state(cluster, "n2").log.last_index == 2
    assert raft_state(cluster, "n2").committed == 1
    behind_a_big_entry(cluster)
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(0, SHORTAGE)])
    before = len(happened(cluster, "n1", EventKind.LEADS))
    cluster.run(20 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert len(happened(cluster, "n1", EventKind.LEADS)) == before
    assert raft_state(cluster, "n1").committed == 1


def behind_a_big_entry(cluster: HandCluster) -> None:
    """n1 leads again, after it logged an entry for which the others have no room."""
    for name in ("n2", "n3"):
        cluster.turn(name, [Room(RESERVE, SHORTAGE)])
    cluster.take(lambda one: True)
    cluster.propose("n1", bytes(90_000))
    cluster.table.clear()
    cluster.crash("n1")
    cluster.restart("n1")
    elect(cluster, "n1", lose=lambda one: isinstance(one.message, Append))


def test_a_leader_knows_the_room_of_its_voters_before_their_first_answers() -> None:
    rig = leading()
    rig.tick(2 * ELECTION_TICKS)
    rig.campaign()
    rig.persist()
    rig.hear("n2", VoteReply(rig.raft.term, granted=True, room=5000, full=True))
    assert {peer.node: (peer.room, peer.full) for peer in rig.leader.progress.values()} == {
        "n2": (5000, True),
        "n3": (ROOM_UNBOUNDED, None),
    }
    rig.tick(ELECTION_TICKS)  # n3 was not heard yet
    rig.hear("n2", HeartbeatReply(rig.raft.term, 0))
    assert rig.leader.has_room()


def test_a_vote_tells_how_much_room_there_is() -> None:
    cluster = led(3)
    cluster.crash("n1")
    cluster.turn("n2", [Room(RESERVE + 5000, SHORTAGE)])
    elect(cluster, "n3", lose=lambda one: isinstance(one.message, HeartbeatReply))
    told = progress(cluster, "n2")
    assert (told.room, told.full) == (RESERVE + 5000, False)


def test_a_campaign_forgets_who_was_full_in_the_one_before() -> None:
    rig = leading()
    last = rig.raft.log.last_index
    rig.tick(2 * ELECTION_TICKS)
    rig.campaign()
    rig.hear("n2", VoteReply(rig.raft.term, granted=True, full=True))  # before its own vote
    while rig.role() is Role.CANDIDATE:
        asked = pick(rig.tick(), PreVote)
    rig.hear("n2", PreVoteReply(rig.raft.term, asked[0].request, granted=True))
    rig.persist()
    rig.hear("n3", VoteReply(rig.raft.term, granted=True, full=False))
    assert rig.role() is Role.LEADER
    assert rig.raft.log.last_index == last + 1
