"""Who is a node, and who only says so: names, disks, directories and addresses."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
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
    until,
)

from quorate.config import NetworkLimits
from quorate.errors import Busy, InvalidArgument, WrongCluster, WrongDirectory
from quorate.net.dialling import dial, parse_address
from quorate.server.identity import meeting
from quorate.types import NodeId
from quorate.wire.calls import Status
from quorate.wire.handshake import Hello, Seen

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.node import Node


@in_loop
async def test_a_wiped_disk_is_not_its_old_self(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        await create(cluster, "orders")
        await cluster.stop("n3")
        (tmp_path / "n3").rename(tmp_path / "aside")
        opened = cluster.begin("n3")
        with caplog.at_level("WARNING"):
            await until(lambda: told(caplog, "link down peer=n1", "peer=n2"))
        assert told(caplog, "a wiped or copied disk is not its old self")
        # It says who refuses it, and not that it waits for them.
        roster = cluster.nodes["n3"]._members.roster
        await until(lambda: roster.refusal.startswith("n1 and n2 refuse this node: "))
        with pytest.raises(Busy, match=r"n1 and n2 refuse this node: .* leave n3 stopped"):
            await dial(cluster.address("n3"), Hello("client"), timeout=5, limits=ROOM)
        # The others go on without it, and it does not take part.
        running = cluster.running.pop("n3")
        await create(cluster, "more")
        cluster.running["n3"] = running
        assert not opened.is_set()
        await cluster.stop("n3")


def told(caplog: pytest.LogCaptureFixture, *parts: str) -> bool:
    return all(part in caplog.text for part in parts)


@in_loop
async def test_a_first_start_waits_for_every_node_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "FORMING_TELL_S", 0.0)
    monkeypatch.setattr(meeting, "FORMING_PATIENCE_S", 0.0)
    http = free_address()
    cluster = Cluster(tmp_path)
    settings = cluster.settings[NodeId("n1")]
    cluster.settings[NodeId("n1")] = replace(settings, http=http)
    waiting = [cluster.begin("n1"), cluster.begin("n2")]
    with caplog.at_level("WARNING"):
        await until(lambda: told(caplog, "it needs every node once nodes=n3"))
    with pytest.raises(Busy, match="n1 waits for its first start: it needs n3 once"):
        await dial(cluster.address("n1"), Hello("client"), timeout=5, limits=ROOM)
    assert await page(http, "/readyz") == (
        "503 Service Unavailable",
        "n1 waits for its first start: it needs n3 once\n",
    )
    assert not any(opened.is_set() for opened in waiting)
    # What was met is not forgotten, and who waits can be stopped.
    await cluster.stop("n1")
    waiting[0] = cluster.begin("n1")
    waiting.append(cluster.begin("n3"))
    for opened in waiting:
        await opened.wait()
    await create(cluster, "orders")
    # Later starts need no one.
    for node in ("n1", "n2", "n3"):
        await cluster.stop(node)
    await cluster.start("n2")
    await cluster.stop("n2")


async def page(address: str, path: str) -> tuple[str, str]:
    """The status and the body of a page."""
    host, port = parse_address(address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head.partition("\r\n")[0].removeprefix("HTTP/1.1 "), body


@in_loop
async def test_an_older_copy_of_a_directory_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        await create(cluster, "orders")
        await cluster.stop("n3")
        shutil.copytree(tmp_path / "n3", tmp_path / "backup")
        for _ in range(2):
            await cluster.start("n3")
            await until(lambda: all_linked(cluster))
            await cluster.stop("n3")
        (tmp_path / "n3").rename(tmp_path / "aside")
        (tmp_path / "backup").rename(tmp_path / "n3")
        for node in ("n1", "n2"):
            await cluster.stop(node)
            await cluster.start(node)
        with caplog.at_level("WARNING"):
            await cluster.start("n3")
            await until(lambda: told(caplog, "n3 is at start 2, n1 knows of its start 3"))
            await until(lambda: told(caplog, "n3 is at start 2, n2 knows of its start 3"))


@in_loop
async def test_links_of_a_peer_end_when_a_later_start_of_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        await until(lambda: all_linked(cluster))
        told_by = cluster.nodes["n2"]._members.roster.introduce()
        seen = told_by.known["n3"]
        told_by.known["n3"] = Seen(seen.storage, seen.start + 1, 7)
        hello = Hello("bulk", cluster=CLUSTER, node="n2", target="n1", introduction=told_by)
        with caplog.at_level("WARNING"):
            connection, _ = await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)
            connection.close()
            await until(lambda: told(caplog, "n3 is at start 1, n1 knows of its start 2"))
        links = cluster.nodes["n1"]._links
        await until(lambda: not links.connected(NodeId("n3")))
        assert links.connected(NodeId("n2"))


@in_loop
async def test_nodes_with_different_lists_say_so_and_form_once_the_lists_are_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    http = {NodeId(node): free_address() for node in ("n1", "n3")}
    cluster = Cluster(tmp_path)
    n1 = NodeId("n1")
    for node, address in http.items():
        cluster.settings[node] = replace(cluster.settings[node], http=address)
    right = cluster.settings[n1]
    short = {node: right.nodes[node] for node in right.nodes if node != "n3"}
    cluster.settings[n1] = replace(right, nodes=short)
    opened = [cluster.begin(node) for node in ("n1", "n2", "n3")]
    lists = "[cluster.nodes] of n1 has n1, n2, that of n3 has n1, n2, n3"
    with caplog.at_level("WARNING"):
        await until(lambda: told(caplog, "link down peer=n2", "peer refused peer=n1"))
    assert not any(event.is_set() for event in opened)
    # n1 does not dial n3, which it does not know: n3 learns it from what n1 answers.
    for node, text in ((n1, "n2 refuses this node: [cl"), (NodeId("n3"), "n1 refuses this node")):
        await until(partial(says, cluster.nodes[node], text))
        status, body = await page(http[node], "/readyz")
        assert status == "503 Service Unavailable"
        assert text in body
    assert "[cluster.nodes] of n3 has n1, n2, n3, that of n1 has n1, n2" in caplog.text
    assert lists in caplog.text or "[cluster.nodes] of n1 has n1, n2, that of n2" in caplog.text
    await cluster.stop("n1")
    cluster.settings[n1] = right
    opened[0] = cluster.begin("n1")
    for event in opened:
        await event.wait()
    await create(cluster, "orders")
    for name in ("n1", "n2", "n3"):
        await cluster.stop(name)


def says(node: Node, text: str) -> bool:
    return text in node._starting()


QUICK_PEERS = NetworkLimits(peer_keepalive_ms=50, redial_max_ms=50)


@in_loop
async def test_a_restart_waits_for_the_end_of_a_link_whose_other_end_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine of n3 lost its power: n1 still has a link to the process before."""
    async with Cluster.started(tmp_path, network=QUICK_PEERS) as cluster:
        await until(lambda: all_linked(cluster))
        before = cluster.nodes["n3"]._members.roster.introduce()
        await cluster.stop("n3")
        hello = Hello("bulk", cluster=CLUSTER, node="n3", target="n1", introduction=before)
        with caplog.at_level("WARNING"):
            mute, _ = await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)
            mute.pause_reading()
            await cluster.start("n3")
            await until(lambda: told(caplog, "n1 has a link to start 1 of n3, and this is start 2"))
            await until(lambda: all_linked(cluster))
        mute.abort()
        assert cluster.nodes["n1"]._stored.manifest.nodes[NodeId("n3")].start == 2


@in_loop
async def test_a_copy_of_a_node_that_runs_is_refused_and_halts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: halted.append(context.get("exception")))
    async with Cluster.started(tmp_path, network=QUICK_PEERS) as cluster:
        await until(lambda: all_linked(cluster))
        shutil.copytree(tmp_path / "n3", tmp_path / "copy")
        copies = Cluster(tmp_path)
        http = free_address()
        copies.settings[NodeId("n3")] = replace(
            cluster.settings[NodeId("n3")], data_dir=tmp_path / "copy", listen=free_address(),
            http=http,
        )  # fmt: skip
        with caplog.at_level("WARNING"):
            copies.begin("n3")
            await until(lambda: told(caplog, "n1 has a link to start 1 of n3, and this is start 2"))
            await until(lambda: bool(halted))
        assert isinstance(halted[0], WrongDirectory)
        assert "is a copy of one on which n3 runs: " in str(halted[0])
        status, why = await page(http, "/readyz")
        assert status == "503 Service Unavailable"
        assert "refuse this node: BUSY: " in why
        await copies.stop("n3")
        # The node goes on, is known by its own start, and its next start is let in.
        assert all_linked(cluster)
        await create(cluster, "orders")
        await cluster.stop("n3")
        await cluster.start("n3")
        await until(lambda: all_linked(cluster))
        assert cluster.nodes["n3"]._stored.manifest.outdated is None


def all_linked(cluster: Cluster) -> bool:
    """Each node that runs has dialled each other."""
    names = list(cluster.running)
    return all(
        cluster.nodes[source]._links.connected(NodeId(target))
        for source in names
        for target in names
        if source != target
    )


STRANGERS = [
    (Hello("client", cluster="other"), "cluster other was asked for, n1 is of shop"),
    (Hello("control", cluster="other", node="n2", target="n1"), "cluster other was asked for"),
    (Hello("control", node="n2", target="n1"), "a peer names its cluster"),
    (Hello("bulk", cluster=CLUSTER, node="n2", target="n3"), "node n3 was dialled"),
    (Hello("bulk", cluster=CLUSTER, node="n9", target="n1"), "node n9 does not say on which disk"),
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
