"""A test suite against a real cluster: what becomes of a shop's orders when nodes fail.

Run it with ``pytest examples/test_orders.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import quorate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Starting one takes a second or two, so the tests share it, and each has a log of its own."""
    with quorate.testing.cluster(nodes=3) as running:
        yield running


@pytest.fixture
def orders(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[quorate.Log]:
    yield cluster.client().create_log(request.node.name)
    cluster.heal()
    for name, node in cluster.nodes.items():
        cluster.resume(name)
        if not node.running:
            cluster.restart(name)


def place(orders: quorate.Log, *items: bytes) -> None:
    """The code under test: every item is in the log once, whatever happens."""
    with orders.producer("shop") as producer:
        for item in items:
            producer.send(item)


def placed(orders: quorate.Log) -> list[bytes]:
    return [record.value for record in orders.read(linearizable=True)]


def test_orders_survive_the_leader(cluster: Cluster, orders: quorate.Log) -> None:
    place(orders, b"apples")
    leader = cluster.wait_leader(orders.name)
    cluster.kill(leader)
    place(orders, b"pears")
    assert cluster.wait_leader(orders.name) != leader
    assert placed(orders) == [b"apples", b"pears"]


def test_a_leader_that_is_cut_off_is_replaced(cluster: Cluster, orders: quorate.Log) -> None:
    place(orders, b"apples")
    leader = cluster.wait_leader(orders.name)
    cluster.partition([leader], cluster.others(leader))
    assert cluster.wait_leader(orders.name) != leader
    place(orders, b"pears")
    cluster.heal()
    assert placed(orders) == [b"apples", b"pears"]


def test_orders_survive_a_restart_of_every_node(cluster: Cluster, orders: quorate.Log) -> None:
    place(orders, b"apples", b"pears")
    for name in cluster.nodes:
        cluster.restart(name)
    assert placed(orders) == [b"apples", b"pears"]


def test_without_a_majority_nothing_is_promised(cluster: Cluster, orders: quorate.Log) -> None:
    hasty = cluster.client(timeout=1.0).log(orders.name)
    leader = cluster.wait_leader(orders.name)
    for name in cluster.others(leader):
        cluster.pause(name)
    with pytest.raises(quorate.QuorateError) as refused:
        hasty.append(b"figs")
    for name in cluster.others(leader):
        cluster.resume(name)
    # A refusal is final. What is unknown may arrive now that there is a majority again.
    unknown = refused.value.code == "OUTCOME_UNKNOWN"
    assert placed(orders) in ([[], [b"figs"]] if unknown else [[]])
