"""One damaged log on one node: its other logs go on there, and clients go on with it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults_rig import SMALL, Writer, lag_free, page, until

from quorate.client.blocking import Client
from quorate.storage.directory import LOGS
from quorate.storage.layout import VOTE_COPIES
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.testing.processes import Cluster

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

BAD, WELL = "orders", "bills"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(logs=[BAD, WELL], directory=tmp_path, settings=SMALL) as running:
        yield running


def place_of(nodes: Cluster, name: str, log: str) -> Path:
    found = nodes.look(log)
    assert found is not None
    return nodes.data(name) / LOGS / found["incarnation"]


def replica_of(nodes: Cluster, name: str, log: str) -> tuple[str, str | None]:
    found = nodes.look(log)
    assert found is not None
    (replica,) = [one for one in found["replicas"] if one["node"] == name]
    return replica["state"], replica["halted"]


def test_a_node_with_one_damaged_log_serves_all_others(nodes: Cluster) -> None:
    client = nodes.client()
    until(lambda: lag_free(nodes, BAD) and lag_free(nodes, WELL), "all nodes have everything")
    # Whoever leads the damaged log: its clients know only that node.
    victim = nodes.wait_leader(BAD)
    bad = place_of(nodes, victim, BAD)
    with Writer(client, BAD) as writer:
        writer.goes_on()
        assert nodes.stop(victim) == 0
        for copy in VOTE_COPIES:
            (bad / copy).write_bytes(b"rot" * 50)
        said = len(nodes.nodes[victim].said)
        nodes.begin(victim)
        until(lambda: page(nodes, victim, "/readyz")[0] == 200, "it is ready")
        until(lambda: lag_free(nodes, WELL), "the other log has its replica again")
        writer.goes_on()
        assert replica_of(nodes, victim, WELL)[1] is None
        state, why = replica_of(nodes, victim, BAD)
        assert state == "down"
        assert why is not None
        assert why.startswith("DAMAGED: no copy of the vote record can be read")
        assert 'event="replica halts" log=orders' in nodes.nodes[victim].said[said:]
        metrics = page(nodes, victim, "/metrics")[1]
        assert f'quorate_replica_halted{{log="{BAD}"}} 1.0' in metrics
        assert f'quorate_replica_halted{{log="{WELL}"}} 0.0' in metrics
        assert nodes.nodes[victim].running
    writer.check()
    # Clients that know only this node get to the log all the same.
    with Client(nodes.address(victim)) as alone:
        assert alone.log(BAD).append(b"x").synced == 2
        assert [one.value for one in alone.log(BAD).read(linearizable=True)][-1] == b"x"
    client.delete_log(BAD)
    until(lambda: not bad.exists(), "the damaged copy is removed, too")
    client.create_log(BAD).append(b"anew")
    until(lambda: lag_free(nodes, BAD), "it is made again, on all nodes")
