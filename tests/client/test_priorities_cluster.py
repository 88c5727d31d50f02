"""Priorities of real nodes: the preferred one leads, and leads again after it was down."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

import quorate
from quorate.errors import InvalidArgument, LogNotFound, QuorateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.client.blocking import Client
    from quorate.testing import Cluster

LOG = "orders"
PATIENCE_S = 40.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    # A voter settles in 0.1 s, and was up for long enough after 0.6.
    settings = {"timing": {"settle_ms": 100}}
    with quorate.testing.cluster(nodes=3, logs=[LOG], settings=settings) as running:
        yield running


@pytest.fixture
def client(nodes: Cluster) -> Iterator[Client]:
    with nodes.client() as opened:
        yield opened


def wait_until_leads(nodes: Cluster, node: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while nodes.leader(LOG) != node:
        assert time.monotonic() < deadline, f"{node} does not lead"
        time.sleep(0.05)


def test_the_leadership_moves_under_load_without_an_error(nodes: Cluster, client: Client) -> None:
    stop, errors, acked = Event(), list[QuorateError](), list[int]()

    def load() -> None:
        with nodes.client() as own:
            log = own.log(LOG)
            while not stop.is_set():
                try:
                    acked.append(log.append(b"x").offset)
                except QuorateError as error:
                    errors.append(error)

    loading = Thread(target=load)
    loading.start()
    try:
        for node in ("n1", "n2", "n3"):
            others = {other: 50 for other in nodes.nodes if other != node}
            client.set_log(LOG, priorities={node: 150, **others})
            wait_until_leads(nodes, node)
    finally:
        stop.set()
        loading.join()
    assert errors == []
    assert acked == sorted(set(acked))


def test_the_preferred_node_leads_again_after_it_was_killed(nodes: Cluster, client: Client) -> None:
    client.set_log(LOG, priorities={"n1": 200})
    wait_until_leads(nodes, "n1")
    nodes.kill("n1")
    log = client.log(LOG)
    log.append(b"while n1 is down")
    nodes.restart("n1")
    wait_until_leads(nodes, "n1")
    log.append(b"and after")


def test_what_cannot_be_set_is_refused_by_name(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="n9 has no replica of log orders: its nodes are n1"):
        client.set_log(LOG, priorities={"n9": 1})
    with pytest.raises(InvalidArgument, match="every voter has priority 0"):
        client.set_log(LOG, priorities={"n1": 0, "n2": 0, "n3": 0})
    with pytest.raises(InvalidArgument, match="priority of n1 = 256 is not 0 to 255"):
        client.set_log(LOG, priorities={"n1": 256})
    with pytest.raises(LogNotFound, match="log elsewhere does not exist"):
        client.set_log("elsewhere", priorities={"n1": 1})
