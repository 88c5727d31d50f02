"""Which peers do not answer, as a refusal tells it."""

from __future__ import annotations

from quorate.errors import Busy, NoQuorum, NotLeader
from quorate.server.presence import Presence
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
    presence = Presence([N2, N3], clock)
    presence.reached(N2)
    presence.reached(N3)
    clock.now = 110.0
    presence.lost(N2)
    clock.now = 115.0
    presence.lost(N3)
    presence.lost(N2)  # it was away before
    clock.now = 122.0
    told = presence.explain(NoQuorum("no leader confirmed the read in 2000 ms"))
    assert isinstance(told, NoQuorum)
    assert str(told) == (
        "no leader confirmed the read in 2000 ms; 2 of 3 nodes do not answer this one: "
        "n2 for 12 s, n3 for 7 s"
    )


def test_nobody_leads_where_no_majority_is() -> None:
    clock = Clock()
    presence = Presence([N2, N3], clock)
    clock.now = 103.0
    told = presence.explain(NotLeader("n1 does not lead; leader: none"))
    assert isinstance(told, NoQuorum)
    assert str(told) == (
        "n1 does not lead; 2 of 3 nodes do not answer this one: n2 for 3 s, n3 for 3 s"
    )


def test_what_has_another_reason_is_left_as_it_is() -> None:
    presence = Presence([N2, N3])
    for error in (Busy("wait"), NotLeader("n1 does not lead; leader: n2")):
        assert presence.explain(error) is error
    presence.reached(N2)
    assert presence.majority
    nobody = NotLeader("n1 does not lead; leader: none")
    assert presence.explain(nobody) is nobody


def test_a_node_alone_is_a_majority() -> None:
    assert Presence([]).majority
    assert not Presence([N2]).majority
