"""Where a client goes next: without a socket."""

from __future__ import annotations

import pytest

from quorate.client.routing import Route, Routing, parse_endpoints
from quorate.errors import InvalidArgument, NotLeader
from quorate.types import NodeId
from quorate.wire.calls import LogFound
from quorate.wire.handshake import PROTOCOL, Introduction, Welcome

PLACES = {"n1": "h:1", "n2": "h:2", "n3": "h:3"}


def welcome(node: str, cluster: str = "test") -> Welcome:
    return Welcome(
        cluster=cluster, node=node, introduction=Introduction(bytes(16), 1, 1, {}, True, {}),
        protocol=PROTOCOL, features=1, record_bytes=1, batch_bytes=1, nodes=PLACES,
    )  # fmt: skip


def route(leader: str | None = None) -> Route:
    return Route("orders", 7, ["n1", "n2", "n3"], leader)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("h:1", ("h:1",)),
        ("h:1, h:2,", ("h:1", "h:2")),
        (["h:1", "h:2"], ("h:1", "h:2")),
        ("h:1,h:1", ("h:1",)),
        ("[::1]:7401", ("[::1]:7401",)),
    ],
)
def test_endpoints_are_a_string_or_a_list(given: str | list[str], parsed: tuple[str, ...]) -> None:
    assert parse_endpoints(given) == parsed


@pytest.mark.parametrize("given", ["", " , ", [], "localhost", "h:port", "h:99999"])
def test_endpoints_that_cannot_be_are_named(given: str | list[str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_endpoints(given)


# -- a log ---------------------------------------------------------------------------------------


def test_the_leader_is_asked_first() -> None:
    assert route("n2").to_write() == ["n2", "n1", "n3"]
    assert route("n2").to_read() == ["n2", "n1", "n3"]


def test_a_refusal_names_the_leader() -> None:
    log = route("n1")
    assert log.redirected("n1", "n3")
    assert log.to_write()[0] == "n3"


def test_a_text_that_names_a_node_names_no_leader() -> None:
    log = route("n1")
    assert not log.learn("n1", NotLeader("n1 does not lead; leader: n3"))
    assert log.learn("n1", NotLeader("none, or so it seems", leader=NodeId("n3")))
    assert log.to_write()[0] == "n3"


@pytest.mark.parametrize("named", [None, "n1", "n9"])
def test_without_a_name_the_next_node_is_asked(named: str | None) -> None:
    log = route("n1")
    assert not log.redirected("n1", named)
    assert log.leader is None
    assert log.to_write() == ["n2", "n3", "n1"]
    assert not log.redirected("n2", named if named != "n1" else None)
    assert log.to_write() == ["n3", "n1", "n2"]


def test_a_name_that_is_no_news_is_not_followed_at_once() -> None:
    """It was asked first and could not be reached, so another one answered."""
    log = route("n1")
    assert not log.redirected("n2", "n1")
    assert log.to_write() == ["n1", "n3", "n2"]


def test_a_reader_goes_round_and_comes_back_to_a_new_leader() -> None:
    log = route("n1")
    log.failed_to_read("n1")
    assert log.to_read()[0] == "n2"
    log.failed_to_read("n2")
    assert log.to_read()[0] != "n2"
    assert log.redirected("n1", "n3")
    assert log.to_read()[0] == "n3"


def test_a_single_replica_is_asked_again() -> None:
    log = Route("orders", 7, ["n1"], "n1")
    log.failed_to_read("n1")
    log.failed_to_write("n1")
    assert log.to_read() == log.to_write() == ["n1"]


def test_what_was_seen_never_falls() -> None:
    log = route()
    for end in (5, 9, 3):
        log.saw(end)
    assert log.session_end == 9


# -- the cluster ---------------------------------------------------------------------------------


def test_nodes_are_learnt_from_the_first_one_that_answers() -> None:
    routing = Routing(("door:9",))
    assert routing.addresses(routing.catalog.to_write()) == ["door:9"]
    routing.welcomed("door:9", welcome("n2"))
    assert routing.cluster == "test"
    assert sorted(routing.catalog.nodes) == ["n1", "n2", "n3"]
    assert routing.addresses(["n1"]) == ["h:1", "door:9"]


def test_a_node_that_was_met_elsewhere_is_looked_for_there_first() -> None:
    routing = Routing(("door:9",))
    routing.welcomed("door:9", welcome("n2"))
    assert routing.addresses(["n2"]) == ["door:9", "h:2"]
    # Another node stands behind that door now.
    routing.welcomed("door:9", welcome("n3"))
    assert routing.addresses(["n2"]) == ["h:2", "door:9"]


def test_a_log_keeps_what_was_seen_of_it_when_it_is_found_again() -> None:
    routing = Routing(("h:1",))
    found = LogFound("orders", (7).to_bytes(16, "little"), "n2", PLACES)
    log = routing.found(found)
    log.saw(12)
    assert routing.found(found) is log
    assert (log.incarnation, log.leader, log.session_end) == (7, "n2", 12)


def test_a_log_without_a_leader_does_not_forget_the_one_that_is_known() -> None:
    routing = Routing(("h:1",))
    log = routing.found(LogFound("orders", (7).to_bytes(16, "little"), "n2", PLACES))
    routing.found(LogFound("orders", (7).to_bytes(16, "little"), None, PLACES))
    assert log.leader == "n2"
