"""Which peers do not answer, as a refusal tells it."""

from __future__ import annotations

from quorate.errors import Busy, NoQuorum, NotLeader
from quorate.server.identity.reachability import Reachability
from quorate.types import NodeId

N2, N3 = NodeId("n2"), NodeId("n3")


class Clock:
    """Stands where it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_majority_that_is_away_is_named_with_how_long() -> None:
    clock = Clock()
    reachability = Reachability([N2, N3], clock)
    reachability.reached(N2)
    reachability.reached(N3)
    clock.now = 110.0
    reachability.lost(N2)
    clock.now = 115.0
    reachability.lost(N3)
    reachability.lost(N2)  # it was away before
    clock.now = 122.0
    told = reachability.explain(NoQuorum("no leader confirmed the read in 2000 ms"))
    assert isinstance(told, NoQuorum)
    assert str(told) == (
        "no leader confirmed the read in 2000 ms; 2 of 3 nodes do not answer this one: "
        "n2 for 12 s, n3 for 7 s"
    )


def test_nobody_leads_where_no_majority_is() -> None:
    clock = Clock()
    reachability = Reachability([N2, N3], clock)
    clock.now = 103.0
    told = reachability.explain(NotLeader("n1 does not lead; leader: none"))
    assert isinstance(told, NoQuorum)
    assert str(told) == (
        "n1 does not lead; leader: none; 2 of 3 nodes do not answer this one: "
        "n2 for 3 s, n3 for 3 s"
    )


def test_what_has_another_reason_is_left_as_it_is() -> None:
    reachability = Reachability([N2, N3])
    for error in (Busy("wait"), NotLeader("n1 does not lead; leader: n2", leader=N2)):
        assert reachability.explain(error) is error
    reachability.reached(N2)
    assert reachability.majority
    leaderless = NotLeader("n1 does not lead; leader: none")
    assert reachability.explain(leaderless) is leaderless


def test_the_leader_is_known_by_the_field_and_not_by_the_text() -> None:
    reachability = Reachability([N2, N3])
    named = NotLeader("n1 does not lead", leader=N2)
    assert reachability.explain(named) is named
    assert isinstance(reachability.explain(NotLeader("leader: n2")), NoQuorum)


def test_a_node_is_up_since_the_first_link_to_it_without_a_gap() -> None:
    clock = Clock()
    reachability = Reachability([N2, N3], clock)
    assert reachability.up_s(N2) == 0
    reachability.reached(N2)
    clock.now += 5
    reachability.reached(N2)  # its second link
    assert (reachability.up_s(N2), reachability.up_s(N3)) == (5, 0)
    reachability.lost(N2)
    assert reachability.up_s(N2) == 0
    clock.now += 5
    reachability.reached(N2)
    clock.now += 1
    assert reachability.up_s(N2) == 1


def test_a_node_alone_is_a_majority() -> None:
    assert Reachability([]).majority
    assert not Reachability([N2]).majority
