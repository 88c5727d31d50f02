"""Many logs on the same nodes: each has its leader, and a node stays small."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from faults_rig import MIB, until

from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.client.results import LogSummary
    from quorate.testing.processes import Cluster

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOGS = [f"log-{number:02}" for number in range(24)]
SETTINGS = {"limits": {"batch_bytes": 128 << 10}, "storage": {"segment_bytes": 1 * MIB}}
IDLE_BYTES = 80 * MIB


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("many")
    with cluster(logs=LOGS, directory=directory, settings=SETTINGS) as running:
        yield running


def leaders(nodes: Cluster) -> Counter[str | None]:
    with nodes.client() as client:
        return Counter(log["leader"] for log in client.status()["logs"])


def test_leaders_are_spread_over_all_nodes(nodes: Cluster) -> None:
    until(lambda: None not in leaders(nodes), "every log has a leader")
    spread = leaders(nodes)
    assert spread.total() == len(LOGS)
    assert spread.keys() == nodes.nodes.keys()
    assert max(spread.values()) < len(LOGS) * 2 / 3


def test_a_node_with_many_logs_is_small(nodes: Cluster) -> None:
    with nodes.client() as client:
        for log in LOGS:
            client.log(log).append(b"one record")
    for node in nodes.nodes.values():
        assert node.memory_bytes <= IDLE_BYTES


def test_all_logs_survive_the_loss_of_a_node(nodes: Cluster) -> None:
    victim = "n1"
    nodes.kill(victim)
    with nodes.client() as client:
        for log in LOGS:
            client.log(log).append(b"without it")
        assert victim not in leaders(nodes)
        nodes.begin(victim)
        until(lambda: all(_whole(log) for log in client.status()["logs"]), "it has everything")
        for log in LOGS:
            assert client.log(log).end_offset() >= 1


def _whole(log: LogSummary) -> bool:
    return all(one["lag"] == 0 and one["state"] != "down" for one in log["replicas"])
