"""Changes of the members that meet a second fault: a learner with the longest log, voters that are
not sure, a request that is made again, disks that fill up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from changes_rig import change, led_by_voters, members, nodes, refused, run_until
from cluster_rig import raft_state
from core_rig import ELECTION_TICKS
from quorate.errors import NoQuorum, OutcomeUnknown
from quorate.raft.changes import MemberChange
from quorate.raft.messages import Ack, PreVote, ReadIndexReply
from quorate.raft.output import MembersChanged
from quorate.replica.engine_io import Flushed, ReadAnswer, Room
from quorate.types import Index, NodeId

if TYPE_CHECKING:
    from quorate.membership import Membership
    from quorate.raft.messages import Envelope, Message
    from verification.hand import HandCluster

LONG = 20 * ELECTION_TICKS


def test_a_learner_whose_removal_is_not_committed_campaigns_as_a_last_resort() -> None:
    """It has the longest log, n1 counts it as a voter, and n2, which removed it, is gone."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(2 * ELECTION_TICKS)
    cluster.isolate("n1")
    change(cluster, members([1, 2, 4]))
    cluster.run(3)
    assert raft_state(cluster, "n1").memberships.newest.joint
    # The disk of n2 is full for a while, so n2 begins to lead without an entry.
    cluster.turn("n2", [Room(100, "full")])

    def n2_leads() -> bool:
        cluster.take(lambda one: one.source == "n3" and isinstance(one.message, PreVote))
        return cluster.leader() == "n2"

    run_until(cluster, n2_leads, 100_000)
    cluster.turn("n2", [Room(1 << 40)])
    cluster.run(30)
    cluster.cut("n2", "n3")
    request = _request(members([1, 2, 3]))
    cluster.change("n2", request)
    cluster.run(6)
    assert raft_state(cluster, "n4").memberships.newest == members([1, 2, 3])
    cluster.crash("n2")
    cluster.table.clear()
    cluster.heal()
    cluster.run(LONG)
    assert cluster.leader() is not None


def _request(wanted: Membership, *, forced: bool = False) -> MemberChange:
    return MemberChange(wanted, forced=forced)


def unsure(cluster: HandCluster, *names: str) -> None:
    """Restart these nodes as nodes that lost entries, and have n1 hear it: their questions for what
    is committed are lost for now."""
    for name in names:
        cluster.crash(name)
        cluster.restart(name)
        raft_state(cluster, name).sure = False
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    while not all(leader.progress[NodeId(name)].unfit for name in names):
        cluster.tick()
        for _ in range(5):
            cluster.take(lambda one: isinstance(one.message, ReadIndexReply))
            cluster.deliver_all()


@pytest.mark.parametrize(
    ("down", "wanted"), [(("n4", "n5"), [1, 4, 5]), (("n4",), [4]), (("n2",), [2])]
)
def test_no_joint_membership_begins_with_a_majority_that_is_not_sure(
    down: tuple[str, ...], wanted: list[int]
) -> None:
    """If the leader died then, no node could be elected."""
    cluster = led_by_voters(5, voters=5)
    unsure(cluster, *down)
    token = change(cluster, members(wanted), forced=True, patience_ms=10)
    for _ in range(3):
        cluster.tick()
        cluster.take(lambda one: isinstance(one.message, ReadIndexReply))
        cluster.deliver_all()
    told = refused(cluster, token, NoQuorum)
    assert f"{', '.join(down)} do not answer, stop, or are not sure of their entries" in told
    assert not raft_state(cluster, "n1").memberships.newest.joint
    cluster.run(ELECTION_TICKS)
    token = change(cluster, members(wanted), forced=True)
    cluster.run(LONG)
    assert isinstance(cluster.answers[token], MembersChanged)
    assert cluster.leader() is not None


def logged_in_vain(
    cluster: HandCluster, wanted: Membership, patience_ms: int
) -> tuple[int, list[Envelope]]:
    """n1 logs ``wanted``, no node hears of it, and the caller gives up and asks again. Returns the
    second request, and the messages that are late."""
    first = change(cluster, wanted, patience_ms=100)
    late: list[Envelope] = []
    for _ in range(13):
        late += cluster.take(lambda one: one.source == "n1")
        cluster.tick("n1")
        cluster.flush("n1")
    late += cluster.take(lambda one: one.source == "n1")
    refused(cluster, first, OutcomeUnknown)
    assert raft_state(cluster, "n1").memberships.newest == wanted
    return change(cluster, wanted, patience_ms=patience_ms), late


@pytest.mark.parametrize("end", ["time", "transfer", "leadership"])
def test_a_request_that_is_made_again_is_not_called_failed_while_its_entry_may_be_committed(
    end: str,
) -> None:
    cluster = led_by_voters(4, voters=3)
    wanted = members([1, 2, 3], [4], intent=7)
    again, late = logged_in_vain(cluster, wanted, 50 if end == "time" else 60_000)
    if end == "time":
        for _ in range(8):
            cluster.tick("n1")
            cluster.take(lambda one: one.source == "n1")
    elif end == "transfer":
        cluster.transfer("n1", "n2")
        assert again not in cluster.answers
    else:
        for name in ("n2", "n3", "n4"):
            cluster.cut(name, "n1")
        cluster.table += late
        cluster.run(3 * ELECTION_TICKS)
        cluster.heal()
    cluster.run(5 * ELECTION_TICKS)
    assert isinstance(cluster.answers[again], OutcomeUnknown | MembersChanged)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).memberships.newest == wanted


def test_followers_read_by_a_leader_that_an_entry_removes_until_that_is_committed() -> None:
    cluster = led_by_voters(3, voters=3)
    change(cluster, members([2, 3]), forced=True)
    run_until(cluster, lambda: raft_state(cluster, "n2").memberships.newest == members([2, 3]))
    # The disk of n3 hangs at the final entry; n3 answers heartbeats.
    cluster.take(lambda one: one.source == "n3" and isinstance(one.message, Ack))
    tokens = []
    for tick in range(3 * ELECTION_TICKS):
        cluster.tick()
        for _ in range(5):
            cluster.take(lambda one: one.source == "n3" and isinstance(one.message, Ack))
            cluster.deliver_all()
        if tick % ELECTION_TICKS == 0:
            tokens += [cluster.read("n2"), cluster.read("n3")]
    assert raft_state(cluster, "n1").committed < raft_state(cluster, "n1").memberships.index
    assert cluster.leader() == "n1"
    assert all(isinstance(cluster.answers[token], ReadAnswer) for token in tokens)


def test_a_removed_leader_tells_the_commit_before_it_leaves() -> None:
    """On disks that fill up amid the change the others may not begin to lead without knowing it."""
    cluster = led_by_voters(3, voters=3)
    cluster.auto_flush = False
    room = dict.fromkeys(cluster.names, 130_000)

    def flush(name: NodeId) -> None:
        node = cluster.nodes[name]
        plan, node.flush = node.flush, None
        if plan is not None:
            for _ in node.store.plan(plan):
                pass
            room[name] -= sum(entry.size for entry in plan.entries)
            cluster.turn(name, [Flushed(plan.number, room[name])])

    def settle(hold: list[type[Message]]) -> None:
        for _ in range(10):
            held.extend(cluster.take(lambda one: type(one.message) in hold))
            for name in cluster.names:
                flush(name)
            held.extend(cluster.take(lambda one: type(one.message) in hold))
            cluster.deliver_all()

    held: list[Envelope] = []
    for name in cluster.names:
        cluster.turn(name, [Room(room[name])])
    for _ in range(15):
        cluster.tick()
        settle([])
    change(cluster, members([2, 3]), forced=True)
    log = raft_state(cluster, "n1").log
    size = log.entries(log.last_index, Index(log.last_index + 1))[0].size
    for follower in nodes(2, 3):
        room[follower] = 2 * size + 40
        cluster.turn(follower, [Room(room[follower], "disk full")])
    for _ in range(25):  # acks are slow, heartbeats are not
        cluster.tick()
        settle([Ack])
    cluster.table += held
    settle([])
    cluster.turn("n1", [])
    settle([])
    for _ in range(LONG):
        cluster.tick()
        settle([])
    assert cluster.leader() in ("n2", "n3")
