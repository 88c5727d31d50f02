"""What peers answer instead of WELCOME: who is told, and when a second process halts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from quorate.config import NetworkLimits
from quorate.errors import WrongDirectory
from quorate.server.identity.refusals import Refusals
from quorate.types import NodeId
from quorate.wire.handshake import HandshakeRefusal, NodeIdentity

if TYPE_CHECKING:
    from quorate.server.identity.members import Members

N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))
WRONG = HandshakeRefusal("WRONG_CLUSTER", "its data directory was rolled back")
# Fifteen times the second after which a silent link is looked at.
HALT_S = 15.0
SECOND = HandshakeRefusal("BUSY", "n1 has a link to start 1 of n3", linked=True)


class Three:
    """As much of the members as is asked for."""

    own = NodeIdentity("shop", "n3", bytes(16), 7)
    ids = (N1, N2, N3)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refusals(clock: Clock | None = None, network: NetworkLimits | None = None) -> Refusals:
    return Refusals(cast("Members", Three()), network or NetworkLimits(), clock or Clock())


def test_a_node_that_a_majority_refuses_is_told_of_it() -> None:
    found = refusals()
    why = f"WRONG_CLUSTER: {WRONG.message}"
    assert (found.text, found.by_majority) == ("", False)
    found.take(N1, WRONG)
    assert (found.text, found.by_majority) == (f"n1 refuses this node: {why}", False)
    found.take(N2, WRONG)
    assert (found.text, found.by_majority) == (f"n1 and n2 refuse this node: {why}", True)
    found.let_in(N1)
    assert (found.text, found.by_majority) == (f"n2 refuses this node: {why}", False)


def test_a_peer_that_is_gone_refuses_nobody() -> None:
    found = refusals()
    found.take(N1, WRONG)
    found.take(N2, WRONG)
    found.forget(N2)
    assert found.text.startswith("n1 refuses this node: ")
    assert not found.by_majority
    found.forget(N1)
    assert found.text == ""


def test_a_process_halts_whose_predecessor_keeps_its_link() -> None:
    clock = Clock()
    found = refusals(clock)
    for second in range(int(HALT_S)):
        clock.now = float(second)
        found.take(N1, SECOND)
    clock.now = HALT_S - 0.1
    found.take(N1, SECOND)
    found.take(N2, SECOND)
    clock.now = HALT_S
    found.take(N2, SECOND)
    with pytest.raises(WrongDirectory, match="is a copy of one on which n3 runs: n1 has had a li"):
        found.take(N1, SECOND)


@pytest.mark.parametrize(
    ("keepalive_ms", "redial_max_ms", "halt_s"),
    [(1000, 1000, 15), (10, 1000, 15), (100, 1000, 15), (2000, 1000, 30), (1000, 10_000, 60),
     (10, 600_000, 3600)],
)  # fmt: skip
def test_a_process_halts_with_all_legal_times(
    keepalive_ms: int, redial_max_ms: int, halt_s: int
) -> None:
    clock = Clock()
    network = NetworkLimits(peer_keepalive_ms=keepalive_ms, redial_max_ms=redial_max_ms)
    found = refusals(clock, network)
    halted = False
    while not halted and clock.now < 2 * halt_s:
        try:
            found.take(N1, SECOND)
        except WrongDirectory:
            halted = True
        else:
            clock.now += redial_max_ms / 1000
    assert halted
    assert clock.now == halt_s


@pytest.mark.parametrize("let_in", [True, False])
def test_a_process_that_was_let_in_is_not_told_to_remove_its_directory(let_in: bool) -> None:
    """It may have acknowledged what no other directory of the node has."""
    clock = Clock()
    found = refusals(clock)
    if let_in:
        found.let_in(N2)
    for second in range(int(HALT_S)):
        clock.now = float(second)
        found.take(N1, SECOND)
    clock.now = HALT_S
    advice = "keep both directories; stop n3 where else" if let_in else "Remove this copy"
    with pytest.raises(WrongDirectory, match=advice):
        found.take(N1, SECOND)


def test_a_process_that_stood_still_between_two_refusals_goes_on() -> None:
    """The second one may have lain in its socket, and the link may have ended meanwhile."""
    clock = Clock()
    found = refusals(clock)
    found.take(N1, SECOND)
    clock.now = 2 * HALT_S
    found.take(N1, SECOND)
    found.take(N1, SECOND)


@pytest.mark.parametrize("let_in", [True, False])
def test_a_link_that_ended_meanwhile_proves_nothing(let_in: bool) -> None:
    clock = Clock()
    found = refusals(clock)
    found.take(N1, SECOND)
    if let_in:
        found.let_in(N1)
    else:
        found.take(N1, HandshakeRefusal("BUSY", "n1 cannot write down who n3 is"))
    clock.now = HALT_S
    found.take(N1, SECOND)
