"""A node that is told to stop: its last answers, and a leadership that it is about to win."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from server_rig import Cluster, create, find, in_loop, leader_of, until

from quorate.errors import Busy, NotLeader
from quorate.raft.messages import VoteReply
from quorate.server.logs.handover import give_up_leaderships
from quorate.types import NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quorate.raft.messages import Envelope
    from quorate.replica.replica import Replica
    from quorate.server.logs.replicas import Replicas


def replica_of(cluster: Cluster, node: str, log: int) -> Replica:
    hosted = cluster.nodes[node].service.replicas.get(log)
    assert hosted is not None
    return hosted.replica


async def create_everywhere(cluster: Cluster, name: str) -> int:
    """Make a log, and wait until each node has a replica of it."""
    log = await create(cluster, name)
    nodes = cluster.nodes.values()
    await until(lambda: all(node.service.replicas.get(log) for node in nodes))
    return log


def serving(cluster: Cluster, nodes: Iterable[str], log: int) -> str | None:
    """The one of ``nodes`` that leads the log and takes appends."""
    return next((node for node in nodes if replica_of(cluster, node, log).serves), None)


@in_loop
async def test_a_node_that_gave_its_leaderships_away_tells_clients_who_leads(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create_everywhere(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"a")
            before = (await find(cluster, "orders")).leader
            assert before is not None
            others = [node for node in cluster.running if node != before]
            stopping = asyncio.create_task(cluster.stop(before))
            await until(lambda: serving(cluster, others, log))
            with pytest.raises(NotLeader) as refusal:
                await client.append(log, b"b")
            assert refusal.value.leader == serving(cluster, others, log)
            await stopping


@in_loop
async def test_a_node_that_wins_a_vote_while_it_stops_gives_that_leadership_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The votes arrive when the node has looked at what it leads."""
    async with Cluster.started(tmp_path) as cluster:
        log = await create_everywhere(cluster, "orders")
        before = (await find(cluster, "orders")).leader
        assert before is not None
        target = next(node for node in cluster.running if node != before)
        held: list[Envelope]
        replicas, held = cluster.nodes[target].service.replicas, []
        deliver = replicas.deliver

        def hold_votes(envelopes: Iterable[Envelope]) -> None:
            for one in envelopes:
                if isinstance(one.message, VoteReply):
                    held.append(one)
                else:
                    deliver([one])

        monkeypatch.setattr(replicas, "deliver", hold_votes)
        await until(lambda: replica_of(cluster, before, log).serves)
        moved = asyncio.create_task(replica_of(cluster, before, log).transfer(NodeId(target)))
        core = replica_of(cluster, target, log).engine.core
        await until(lambda: held and core.raft.role is Role.CANDIDATE)
        stopping = asyncio.create_task(cluster.stop(target))
        await until(lambda: core.raft.stopping)
        monkeypatch.undo()
        deliver(held)
        assert (await moved).leader == target
        await stopping
        assert "node stops as the leader" not in caplog.text
        assert core.raft.role is Role.FOLLOWER


class _Led:
    """A replica as a stop sees it; ``refusals`` are what a transfer gets before it succeeds."""

    def __init__(self, role: Role, *refusals: Exception) -> None:
        self.engine = SimpleNamespace(role=role)
        self.refusals = [*refusals]
        self.moved = False

    def give(self, item: object) -> None:
        pass

    async def transfer(self, target: NodeId | None) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.moved = True
        self.engine.role = Role.FOLLOWER


async def stop_with(orders: _Led, catalog: _Led, timeout_s: float) -> None:
    logs = [
        SimpleNamespace(replica=catalog, incarnation=1, name="catalog"),
        SimpleNamespace(replica=orders, incarnation=7, name="orders"),
    ]
    replicas: Any = SimpleNamespace(everything=logs, catalog_incarnation=1)
    await give_up_leaderships(cast("Replicas", replicas), timeout_s)


@in_loop
async def test_a_log_without_a_leader_leaves_time_for_the_catalog() -> None:
    orders, catalog = _Led(Role.CANDIDATE), _Led(Role.LEADER)
    async with asyncio.timeout(10):
        await stop_with(orders, catalog, 0.2)
    assert catalog.moved
    assert not orders.moved


@in_loop
async def test_a_log_whose_members_change_is_given_up_when_that_has_ended() -> None:
    orders, catalog = _Led(Role.LEADER, Busy("a change is under way")), _Led(Role.LEADER)
    await stop_with(orders, catalog, 60)
    assert orders.moved
    assert catalog.moved
