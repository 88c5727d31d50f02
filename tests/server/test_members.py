"""Who is a node, and who only says so: names, disks, directories and addresses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from server_rig import (
    CLUSTER,
    ROOM,
    Cluster,
    WireClient,
    create,
    find,
    free_address,
    in_loop,
    number,
)

from quorate.errors import InvalidArgument, WrongCluster, WrongDirectory
from quorate.net.dialling import dial
from quorate.types import NodeId
from quorate.wire.calls import Status
from quorate.wire.handshake import Hello

if TYPE_CHECKING:
    from pathlib import Path


@in_loop
async def test_a_wiped_disk_is_not_its_old_self(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        await create(cluster, "orders")
        await cluster.stop("n3")
        (tmp_path / "n3").rename(tmp_path / "aside")
        await cluster.start("n3")
        hello = Hello(
            "control", cluster=CLUSTER, node="n3", target="n1", storage=bytes(range(16)), boot=1
        )
        with pytest.raises(WrongCluster, match="a wiped or copied disk is not its old self"):
            await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)
        # The others go on without it.
        await create(cluster, "more")


STRANGERS = [
    (Hello("client", cluster="other"), "cluster other was asked for, n1 is of shop"),
    (Hello("control", cluster="other", node="n2", target="n1"), "cluster other was asked for"),
    (Hello("control", node="n2", target="n1"), "a peer names its cluster"),
    (Hello("bulk", cluster=CLUSTER, node="n2", target="n3"), "node n3 was dialled"),
    (Hello("bulk", cluster=CLUSTER, node="n9", target="n1"), "node n9 is not a peer of n1"),
    (Hello("bulk", cluster=CLUSTER, node="n1", target="n1"), "node n1 is not a peer of n1"),
]


@in_loop
async def test_a_stranger_is_told_why(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        for hello, message in STRANGERS:
            with pytest.raises(WrongCluster, match=message):
                await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)


@in_loop
async def test_a_client_that_calls_itself_a_node_is_still_a_client(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        hello = Hello("client", node="n9")
        connection, welcome = await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)
        client = WireClient(connection)
        assert (welcome.node, welcome.cluster) == ("n1", CLUSTER)
        assert (await client.call(Status())).id == "n1"
        connection.close()
        await client.ended


@in_loop
async def test_a_directory_in_use_or_of_another_is_refused(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        twin = Cluster(tmp_path, 1)
        with pytest.raises(WrongDirectory, match="is in use by process"):
            await twin.start("n1")
        await cluster.stop("n1")
        other = Cluster(tmp_path, 1, cluster="other")
        with pytest.raises(WrongDirectory, match="belongs to node n1 of cluster shop"):
            await other.start("n1")


@in_loop
async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        address = cluster.address("n1")
        other = Cluster(tmp_path / "..", 1, listen=address, data_dir=tmp_path / "other")
        with pytest.raises(InvalidArgument, match=f"listen.*{address}.*in use"):
            await other.start("n1")


@in_loop
async def test_addresses_may_change_between_starts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.gather(*map(cluster.start, cluster.settings))
    log = await create(cluster, "orders")
    await asyncio.gather(*map(cluster.stop, list(cluster.running)))
    async with Cluster.started(tmp_path) as moved:
        found = await find(moved, "orders")
        assert found.nodes == {node: moved.address(node) for node in moved.nodes}
        assert number(found.incarnation) == log
        assert {NodeId(node) for node in moved.nodes} == set(moved.settings)


@in_loop
async def test_a_node_listens_at_its_own_address_and_not_where_clients_are_told_to_go(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        address = cluster.address("n1")
        await cluster.stop("n1")
        told = replace(
            cluster.settings[NodeId("n1")], nodes={}, listen=None, advertise="n1.example:7401"
        )
        cluster.settings[NodeId("n1")] = told
        await cluster.start("n1")
        async with WireClient.to(address) as client:
            assert (await client.call(Status())).address == "n1.example:7401"


@in_loop
async def test_an_address_that_the_directory_remembers_is_no_way_around(tmp_path: Path) -> None:
    address = free_address().replace("127.0.0.1", "0.0.0.0")
    cluster, node = Cluster(tmp_path, 1, listen=None), NodeId("n1")
    settings = cluster.settings[node]
    cluster.settings[node] = replace(settings, nodes={node: address}, insecure=True)
    await cluster.start("n1")
    await cluster.stop("n1")
    cluster.settings[node] = replace(settings, nodes={})
    with pytest.raises(InvalidArgument, match=f"listen = {address} is open to other machines"):
        await cluster.start("n1")
