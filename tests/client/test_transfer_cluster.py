"""The transfer of a leadership between real nodes, under load and by a stop in order."""

from __future__ import annotations

import signal
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

import quorate
from quorate.cli.main import main
from quorate.errors import CatchingUp, InvalidArgument, LogNotFound, QuorateError
from verification.chaos import handover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.client.blocking import Client
    from quorate.testing import Cluster

LOG = "orders"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with quorate.testing.cluster(nodes=3, logs=[LOG]) as running:
        yield running


@pytest.fixture
def client(nodes: Cluster) -> Iterator[Client]:
    with nodes.client() as opened:
        yield opened


def other(nodes: Cluster) -> str:
    leader = nodes.wait_leader(LOG)
    return next(name for name in nodes.nodes if name != leader)


def test_the_target_leads_when_the_call_returns(nodes: Cluster, client: Client) -> None:
    target = other(nodes)
    assert client.transfer(LOG, target) == target
    assert nodes.wait_leader(LOG) == target
    assert client.transfer(LOG, target) == target  # it leads already


def test_without_a_target_another_node_leads(nodes: Cluster, client: Client) -> None:
    before = nodes.wait_leader(LOG)
    assert client.transfer(LOG) not in (None, before)


def test_a_node_or_log_that_is_not_there_is_refused_by_name(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="n9 is no voter of this log; its voters are n1, n2"):
        client.transfer(LOG, "n9")
    with pytest.raises(LogNotFound, match="log elsewhere does not exist"):
        client.transfer("elsewhere", "n1")
    with pytest.raises(InvalidArgument, match="node"):
        client.transfer(LOG, 7)  # type: ignore[arg-type]  # what the test is about


def test_a_node_that_is_down_is_named_when_the_time_is_over(nodes: Cluster) -> None:
    target = other(nodes)
    nodes.kill(target)
    try:
        with nodes.client(timeout=2) as client, pytest.raises(CatchingUp, match=target):
            client.transfer(LOG, target)
    finally:
        nodes.begin(target)


def test_the_command_says_who_leads(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    target = other(nodes)
    assert main(["log", "transfer", LOG, target, "--endpoints", nodes.endpoints]) == 0
    assert capsys.readouterr().out == f"{target} leads {LOG}\n"


def test_appends_of_many_transfers_are_all_there_once_and_in_order(nodes: Cluster) -> None:
    """No call fails and no outcome is unknown (R15); each record is in the log once."""
    ended, failed, sent = Event(), list[QuorateError](), 0

    def append() -> None:
        nonlocal sent
        with nodes.client() as client:
            log = client.log(LOG)
            while not ended.is_set():
                try:
                    log.append(b"%d" % sent, key=b"counted")
                except QuorateError as error:
                    failed.append(error)
                sent += 1

    thread = Thread(target=append)
    thread.start()
    try:
        for _ in range(8):
            nodes.transfer(LOG, other(nodes))
    finally:
        ended.set()
        thread.join()
    assert not failed
    with nodes.client() as client:
        found = [one.value for one in client.log(LOG).read(0) if one.key == b"counted"]
    assert found == [b"%d" % number for number in range(sent)]


def test_nodes_that_are_stopped_in_turn_give_their_leaderships_away() -> None:
    """SIGTERM to each node, one after the other, while callers append: no call fails."""
    found = handover.measure(transfers=1, restarts=1)
    assert found["errors"] == 0, found
    assert isinstance(found["appends"], int)
    assert found["appends"] > 0


def test_the_last_node_stops_although_no_other_can_lead() -> None:
    with quorate.testing.cluster(nodes=3, logs=[LOG], cuttable=False) as nodes:
        leader = nodes.wait_leader(LOG)
        for name in nodes.nodes:
            if name != leader:
                nodes.nodes[name].signal(signal.SIGTERM)
        for name in nodes.nodes:
            if name != leader:
                nodes.nodes[name].wait(20)
        assert nodes.stop(leader) == 0
        assert "no other node took over" in nodes.nodes[leader].said
