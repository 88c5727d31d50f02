"""Changes of the members while nodes die, disks fill and messages come late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_full_disk_elections import filled
from test_last_resort import resort, stopped

from changes_rig import change, led_by_voters, members, nodes, refused, run_until
from cluster_rig import append_many, happened, led, raft_state
from core_rig import ELECTION_TICKS
from quorate.commands import Receipt
from quorate.errors import (
    CatchingUp,
    InvalidArgument,
    NoQuorum,
    OutcomeUnknown,
    QuorateError,
)
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.raft.messages import Ack, Append, Compare, PreVote, TransferRefused, Vote
from quorate.raft.output import EventKind, MembersChanged
from quorate.replica.engine_io import ChangeMembers, Room
from quorate.types import Index, NodeId, Role
from verification.hand import HandCluster

if TYPE_CHECKING:
    from quorate.raft.leader import Leader


def leadership(cluster: HandCluster, name: str) -> Leader:
    leader = cluster.engine(name).core.leader
    assert leader is not None
    return leader


# -- answers -----------------------------------------------------------------------------------


def test_a_change_whose_time_is_over_at_once_is_answered() -> None:
    """Its new members are not in the log yet, so the leader knows nothing of them."""
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([1, 2, 4]), patience_ms=0)
    cluster.run(3)
    assert isinstance(cluster.answers[token], CatchingUp | OutcomeUnknown)


def test_a_change_waits_in_vain_for_the_first_entry_of_a_leader() -> None:
    cluster = HandCluster(4, voters=3)
    cluster.auto_flush = False
    while cluster.leader() is None:
        cluster.tick()
        for name in cluster.names:
            cluster.flush(name)
        cluster.deliver_all()
    # The disks of the others hang, and they answer heartbeats.
    leader = cluster.leader()
    assert leader is not None
    other = next(name for name in cluster.voters if name != leader)
    wanted = Membership((leader, other, NodeId("n4")))
    token = cluster.change(leader, MemberChange(wanted, patience_ms=300))
    for _ in range(ELECTION_TICKS):
        cluster.tick()
        cluster.flush(leader)
        cluster.deliver_all()
    assert "n4 cannot vote yet: it is no member yet" in refused(cluster, token, CatchingUp)


def test_a_change_whose_final_entry_is_late_has_an_unknown_outcome() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    token = change(cluster, members([1, 2, 4]), patience_ms=200)
    run_until(cluster, lambda: raft_state(cluster, "n1").memberships.newest == members([1, 2, 4]))
    cluster.table.clear()
    for _ in range(30):
        cluster.tick()
        cluster.take(lambda one: isinstance(one.message, Ack))
        cluster.deliver_all()
        cluster.take(lambda one: isinstance(one.message, Ack))
    refused(cluster, token, OutcomeUnknown)
    cluster.run(3 * ELECTION_TICKS)
    raft = raft_state(cluster, "n1")
    assert raft.applied >= raft.memberships.index
    assert raft.memberships.newest == members([1, 2, 4])


def test_a_change_by_way_of_too_many_members_is_refused() -> None:
    cluster = led_by_voters(3, voters=3)
    many = tuple(NodeId(f"x{number}") for number in range(61))
    token = change(cluster, Membership(nodes(4, 5, 6), many))
    assert "members before and after the change are 67, limit 64" in refused(
        cluster, token, InvalidArgument
    )


def test_a_leader_on_its_way_out_may_be_added_again() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    change(cluster, members([1, 3, 4]))
    run_until(
        cluster,
        lambda: (
            raft_state(cluster, "n1").memberships.newest.joint
            and raft_state(cluster, "n2").log.last == raft_state(cluster, "n1").log.last
        ),
    )
    cluster.crash("n1")

    def leads_on_its_way_out() -> bool:
        cluster.take(lambda one: isinstance(one.message, PreVote) and one.source != "n2")
        raft = raft_state(cluster, "n2")
        return cluster.leader() == "n2" and raft.memberships.newest == members([1, 3, 4])

    run_until(cluster, leads_on_its_way_out, 100_000)
    token = cluster.change("n2", MemberChange(members([2, 3, 4])))
    assert token not in cluster.answers
    cluster.run(5 * ELECTION_TICKS)
    assert token in cluster.answers


def test_a_leader_that_cannot_apply_takes_no_turn_for_a_change() -> None:
    cluster = stopped()
    leader = resort(cluster)
    cluster.run(5)
    engine = cluster.engine(leader)
    effects = engine.turn([ChangeMembers(77, MemberChange(members([1, 2, 3], intent=1)))], 0)
    turns = 0
    while effects.more and turns < 100:
        effects, turns = engine.turn([], 0), turns + 1
    assert turns < 100


def test_a_record_of_one_disk_is_not_said_to_be_on_two() -> None:
    cluster = led_by_voters(3, voters=1)
    change(cluster, members([1], [2, 3]))
    cluster.run(2 * ELECTION_TICKS)
    cluster.propose("n1", b"r")
    for _ in range(3):
        for one in cluster.take(lambda one: one.source == "n1"):
            cluster.deliver(one)
    change(cluster, members([1, 2, 3]))
    token = cluster.propose("n1", b"e")
    answer = cluster.answers[token]
    assert isinstance(answer, Receipt)
    cluster.take(lambda one: one.source == "n1")
    for one in cluster.take(lambda one: isinstance(one.message, Ack)):
        cluster.deliver(one)
    assert raft_state(cluster, "n1").memberships.newest.joint
    assert [name for name in cluster.names if raft_state(cluster, name).persisted >= answer.index]
    assert leadership(cluster, "n1").synced(Index(answer.index)) == 1


# -- nodes that are gone -----------------------------------------------------------------------


def test_a_new_leader_takes_no_dead_node_for_alive() -> None:
    """R6: it has heard none of them, and takes each for alive until an election timeout passed."""
    cluster = HandCluster(5)
    cluster.run(5)
    assert cluster.leader() == "n1"
    for name in ("n4", "n5", "n1"):
        cluster.crash(name)
    cluster.run(1)
    cluster.restart("n1")
    while cluster.leader() is None:
        cluster.run(1)
    leader = cluster.leader()
    assert leader is not None
    while not leadership(cluster, leader).ready:
        cluster.run(1)
    wanted = Membership((leader, *nodes(4, 5)))
    token = cluster.change(leader, MemberChange(wanted, patience_ms=1000))
    cluster.run(20 * ELECTION_TICKS)
    assert "n4, n5 do not" in refused(cluster, token, NoQuorum)
    assert cluster.leader() is not None


def test_a_learner_with_the_longest_log_leads_at_last() -> None:
    """It refuses its vote to the voter that counts it, and that voter refuses the other one."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(2 * ELECTION_TICKS)
    # n1 alone has the joint membership in which n4 votes.
    cluster.isolate("n1")
    change(cluster, members([1, 2, 4]))
    cluster.run(3)
    assert raft_state(cluster, "n1").memberships.newest.joint

    def leads_with_the_learner() -> bool:
        cluster.take(lambda one: one.source == "n3" and isinstance(one.message, PreVote))
        cluster.take(
            lambda one: (
                (one.source, one.target) == ("n2", "n3")
                and isinstance(one.message, Append | Compare)
            )
        )
        own, learner = raft_state(cluster, "n2"), raft_state(cluster, "n4")
        return cluster.leader() == "n2" and learner.log.last.term == own.term

    run_until(cluster, leads_with_the_learner, 100_000)
    assert raft_state(cluster, "n2").committed < raft_state(cluster, "n2").log.last_index
    # n2 is lost for good; both majorities are alive.
    cluster.crash("n2")
    cluster.table.clear()
    cluster.heal()
    cluster.run(20 * ELECTION_TICKS)
    assert happened(cluster, "n4", EventKind.LEADS)
    # It gives the leadership to a voter.
    assert cluster.leader() in ("n1", "n3")
    append_many(cluster, str(cluster.leader()), 1)


def test_a_removed_peer_that_restarts_stays_removed() -> None:
    cluster = led_by_voters(4, voters=3)
    cluster.crash("n3")
    change(cluster, members([1, 2, 4]))
    cluster.run(3 * ELECTION_TICKS)
    leader = leadership(cluster, "n1")
    assert "n3" in leader.progress
    cluster.restart("n3")
    cluster.cut("n1", "n3")  # its questions arrive, and it hears nothing
    cluster.run(20 * ELECTION_TICKS)
    assert cluster.engine("n1").core.leader is leader
    assert "n3" not in leader.progress


def test_a_removed_peer_hears_of_it_although_a_message_is_lost() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    change(cluster, members([1, 2, 4]))
    raft = raft_state(cluster, "n1")
    run_until(cluster, lambda: raft.memberships.newest == members([1, 2, 4]))
    run_until(cluster, lambda: raft.committed >= raft.memberships.index)
    cluster.take(lambda one: one.target == "n3")
    cluster.cut("n1", "n3")
    cluster.run(3)
    cluster.heal()
    cluster.run(30 * ELECTION_TICKS)
    assert not happened(cluster, "n3", EventKind.PRE_CAMPAIGNS)


# -- full disks --------------------------------------------------------------------------------


def test_changes_on_full_disks_cost_no_leader_and_halt_no_node() -> None:
    cluster = filled()
    leader = str(cluster.leader())
    term = raft_state(cluster, leader).term
    for intent in range(1, 20):
        token = cluster.change(leader, MemberChange(members([1, 2, 3], intent=intent)))
        cluster.run(5)
        assert isinstance(cluster.answers[token], QuorateError)
    assert raft_state(cluster, leader).term == term
    assert all(node.halted is None for node in cluster.nodes.values())


def test_a_change_ends_although_all_disks_fill_amid_it() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    token = change(cluster, members([1, 2, 4]))
    last = raft_state(cluster, "n1").log
    run_until(
        cluster,
        lambda: (
            raft_state(cluster, "n1").memberships.newest.joint
            and all(raft_state(cluster, name).log.last == last.last for name in cluster.names)
        ),
    )
    for name in cluster.names:
        cluster.turn(name, [Room(60_000, "95 % of the disk are in use")])
    cluster.run(5 * ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)
    assert raft_state(cluster, "n1").memberships.newest == members([1, 2, 4])


# -- transfers ---------------------------------------------------------------------------------


def test_a_late_refusal_ends_no_later_transfer() -> None:
    """The target of the later one campaigns: what the leader logged then would be lost to it."""
    cluster = led()
    cluster.run(ELECTION_TICKS)
    core = cluster.engine("n2").core
    core._election._barred_until = core.raft.clock + 5
    first = cluster.transfer("n1", "n2")
    run_until(
        cluster, lambda: any(isinstance(one.message, TransferRefused) for one in cluster.table)
    )
    (late,) = cluster.take(lambda one: isinstance(one.message, TransferRefused))
    cluster.run(3 * ELECTION_TICKS)
    assert isinstance(cluster.answers[first], QuorateError)
    assert cluster.leader() == "n1"
    # The target of the second transfer campaigns, and its disk needs a moment for the vote.
    cluster.auto_flush = False
    cluster.transfer("n1", "n2")

    def campaigns() -> bool:
        for name in ("n1", "n3"):
            cluster.flush(name)
        return raft_state(cluster, "n2").role is Role.CANDIDATE

    run_until(cluster, campaigns)
    waits = cluster.propose("n1", b"waits for the end of the transfer")
    cluster.deliver(late)
    cluster.tick("n1")
    cluster.flush("n1")
    # n3 votes before it hears of anything that n1 logged since.
    cluster.flush("n2")
    (vote,) = cluster.take(lambda one: isinstance(one.message, Vote) and one.target == "n3")
    cluster.deliver(vote)
    for _ in range(ELECTION_TICKS):
        for name in cluster.names:
            cluster.flush(name)
        cluster.deliver_all()
        if not cluster.table:
            cluster.tick()
    assert cluster.leader() == "n2"
    assert not isinstance(cluster.answers.get(waits), OutcomeUnknown)


@pytest.mark.parametrize("seed", range(3))
def test_a_candidate_that_stops_gives_up_in_time(seed: int) -> None:
    cluster = led(seed=seed)
    cluster.crash("n1")
    candidate = None
    for _ in range(20 * ELECTION_TICKS):
        cluster.tick()
        cluster.take(lambda one: isinstance(one.message, Vote))
        cluster.deliver_all()
        cluster.take(lambda one: isinstance(one.message, Vote))
        waiting = [name for name in ("n2", "n3") if cluster.engine(name).role is Role.CANDIDATE]
        if waiting:
            candidate = waiting[0]
            break
    assert candidate is not None
    cluster.stop(candidate)
    cluster.crash("n3" if candidate == "n2" else "n2")
    cluster.run(3 * ELECTION_TICKS)
    assert cluster.engine(candidate).role is Role.FOLLOWER
