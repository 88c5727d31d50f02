"""Priorities: the voter with the highest one is chosen to lead, a voter of priority 0 leads only
while no other voter can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import append_many, assert_same, happened, led, raft_state
from core_rig import ELECTION_TICKS
from quorate.errors import InvalidArgument
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.raft.output import EventKind, MembersChanged, Transferred
from quorate.types import NodeId

if TYPE_CHECKING:
    from verification.hand import HandCluster

PATIENT = 12 * ELECTION_TICKS


def led_with(*, seed: int = 0, **priorities: int) -> HandCluster:
    """n1 leads a log of three nodes with these priorities."""
    cluster = led(seed=seed)
    names = tuple(NodeId(name) for name in cluster.names)
    set_ = tuple(sorted((NodeId(node), number) for node, number in priorities.items()))
    token = cluster.change("n1", MemberChange(Membership(names, priorities=set_)))
    cluster.run(3)
    assert isinstance(cluster.answers[token], MembersChanged)
    return cluster


def test_a_transfer_without_a_target_goes_to_the_highest_priority() -> None:
    cluster = led_with(n2=101)
    token = cluster.transfer("n1")
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))


def test_a_voter_that_lacks_many_entries_is_not_chosen_for_its_priority() -> None:
    cluster = led_with(n2=101)
    cluster.isolate("n2")
    window = cluster.config.limits.window_messages
    append_many(cluster, "n1", 3 * window)
    # n2 is heard again, and has not caught up.
    core = cluster.engine("n1").core
    assert core.leader is not None
    core.leader.peer_heard(NodeId("n2"))
    cluster.transfer("n1")
    assert core.transfers.target == "n3"


def test_a_named_target_of_priority_0_is_refused() -> None:
    cluster = led_with(n3=0)
    answer = cluster.answers[cluster.transfer("n1", "n3")]
    assert isinstance(answer, InvalidArgument)
    assert str(answer) == "n3 has priority 0 in this log: it leads only while no other voter can"


def test_a_node_of_priority_0_does_not_campaign_while_others_may_win() -> None:
    for seed in range(5):
        cluster = led_with(seed=seed, n3=0)
        cluster.crash("n1")
        cluster.run(3 * ELECTION_TICKS)
        assert cluster.leader() == "n2"
        assert not happened(cluster, "n3", EventKind.PRE_CAMPAIGNS)


def test_a_node_of_priority_0_leads_if_only_it_has_all_and_gives_way_soon() -> None:
    """One of three is lost for ever, and another one lacks an acknowledged entry: without the vote
    for n3 no node could ever lead."""
    cluster = led_with(n3=0)
    cluster.isolate("n2")
    append_many(cluster, "n1", 2)
    cluster.crash("n1")
    cluster.heal()
    cluster.run(PATIENT)
    # n2 was fed and leads: the entries that only n3 had are there.
    assert happened(cluster, "n3", EventKind.LEADS)
    assert [event.peer for event in happened(cluster, "n3", EventKind.TRANSFERRED)] == ["n2"]
    assert cluster.leader() == "n2"
    assert raft_state(cluster, "n2").applied == raft_state(cluster, "n3").applied


def test_a_leader_of_priority_0_without_another_live_voter_leads_on() -> None:
    cluster = led_with(n3=0)
    cluster.isolate("n2")
    append_many(cluster, "n1", 2)
    cluster.crash("n1")
    cluster.heal()
    cluster.run(PATIENT)
    cluster.crash("n2")
    cluster.restart("n1")
    cluster.run(PATIENT)
    assert cluster.leader() == "n1"
    append_many(cluster, "n1", 1)
    cluster.restart("n2")
    cluster.run(PATIENT)
    assert_same(cluster)


# -- the voter that is to lead -------------------------------------------------------------------


def preferred(cluster: HandCluster) -> NodeId | None:
    core = cluster.engine("n1").core
    assert core.leader is not None
    return core.transfers.preferred(core.leader)


def test_the_voter_with_the_highest_priority_above_its_own_is_preferred_by_a_leader() -> None:
    assert preferred(led_with(n2=101)) == "n2"
    assert preferred(led_with(n2=101, n3=102)) == "n3"
    assert preferred(led_with(n1=102, n2=101)) is None
    assert preferred(led_with(n1=101, n2=101)) is None


def test_a_voter_that_lags_or_is_silent_is_not_preferred() -> None:
    cluster = led_with(n3=102)
    cluster.isolate("n3")
    window = cluster.config.limits.window_messages
    append_many(cluster, "n1", 3 * window)
    core = cluster.engine("n1").core
    assert core.leader is not None
    core.leader.peer_heard(NodeId("n3"))  # it is heard again, and has not caught up
    assert preferred(cluster) is None
    cluster.run(ELECTION_TICKS // 2)
    assert preferred(cluster) is None
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert preferred(cluster) == "n3"


def test_no_voter_is_preferred_during_a_transfer() -> None:
    cluster = led_with(n2=101)
    cluster.cut("n3", "n1")
    cluster.propose("n1", b"not acknowledged by n3")
    cluster.transfer("n1", "n3")
    assert preferred(cluster) is None
