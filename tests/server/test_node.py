"""Nodes together: logs are made and deleted, found and served, and outlive restarts."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from server_rig import (
    CLUSTER,
    Cluster,
    WireClient,
    create,
    error_code,
    find,
    in_loop,
    leader_of,
    new_log,
    on_any,
    until,
)

from quorate.batch import Batch
from quorate.commands import OpenProducer, ProducerStamp, SetFence
from quorate.errors import (
    Fenced,
    InvalidArgument,
    InvariantBroken,
    LogExists,
    LogNotFound,
    LogRecreated,
    NotLeader,
    OffsetMismatch,
    OutcomeUnknown,
)
from quorate.server import manifest as manifests
from quorate.server.logs.catalog import catalog_incarnation
from quorate.storage.directory import LOGS, log_name
from quorate.storage.manifest import MANIFEST, LogState, Manifest
from quorate.types import NodeId
from quorate.wire.calls import (
    CreateLog,
    DeleteLog,
    FindLog,
    ListLogs,
    LogCall,
    OffsetAt,
    ReadEnds,
    Status,
)

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.directory import DataDirectory
    from quorate.storage.vfs import Vfs
    from quorate.wire.requests import Records


def values(records: Records) -> list[bytes]:
    return [
        record.value
        for _, _, entry in records.rows
        for batch, _ in entry.batches()
        for record in Batch.parse(batch)
    ]


async def read_all(client: WireClient, log: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        records = await client.fetch(log, len(found))
        if not records.rows:
            return found
        found += values(records)


# -- logs --------------------------------------------------------------------------------------


@in_loop
async def test_what_is_appended_is_read_from_every_node(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"a", b"b") == 0
            assert await client.append(log, b"c") == 2
        for node in cluster.nodes:
            async with WireClient.to(cluster.address(node)) as client:
                ends = await client.call(ReadEnds(log.to_bytes(16, "little")))
                assert (ends.first, ends.end) == (0, 3)
                assert await read_all(client, log) == [b"a", b"b", b"c"]


@in_loop
async def test_creating_is_for_the_leader_and_a_repeat_is_a_success(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        incarnation = new_log()
        call = CreateLog("orders", incarnation, 10_000)
        first = await on_any(cluster, lambda client: client.call(call))
        again = await on_any(cluster, lambda client: client.call(call))
        assert first.incarnation == again.incarnation == incarnation
        assert first.leader is not None
        assert first.nodes == {node: cluster.address(node) for node in cluster.nodes}
        with pytest.raises(LogExists, match="log orders exists"):
            await create(cluster, "orders")
        refused = 0
        for node in cluster.nodes:
            async with WireClient.to(cluster.address(node)) as client:
                try:
                    await client.call(call)
                except NotLeader as error:
                    assert error.leader in cluster.nodes
                    assert str(error).endswith(f"; leader: {error.leader}")
                    refused += 1
        assert refused == 2


@in_loop
async def test_a_deleted_log_is_gone_everywhere_and_its_name_is_free(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        delete = DeleteLog("orders", log.to_bytes(16, "little"), 10_000)
        for _ in range(2):
            await on_any(cluster, lambda client: client.call(delete))
        await until(
            lambda: not any(one.service.replicas.get(log) for one in cluster.nodes.values())
        )
        for node in cluster.nodes:
            async with WireClient.to(cluster.address(node)) as client:
                assert (await client.call(ListLogs())).logs == []
                outcomes = await asyncio.gather(
                    client.call(FindLog("orders")),
                    client.append(log, b"a"),
                    client.fetch(log, 0),
                    return_exceptions=True,
                )
                assert [error_code(one) for one in outcomes] == ["LOG_NOT_FOUND"] * 3
        second = await create(cluster, "orders")
        assert second != log
        with pytest.raises(LogRecreated):
            stale = DeleteLog("orders", new_log(), 10_000)
            await on_any(cluster, lambda client: client.call(stale))
        with pytest.raises(LogNotFound):
            late = CreateLog("later", log.to_bytes(16, "little"), 10_000)
            await on_any(cluster, lambda client: client.call(late))
    for node in cluster.settings:
        left = {path.name for path in (tmp_path / node / LOGS).iterdir()}
        assert left == {log_name(second), log_name(catalog_incarnation(CLUSTER))}


@in_loop
async def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        with pytest.raises(InvalidArgument, match="the name of a log is 1 to 249 letters"):
            await create(cluster, "a/b")


@in_loop
async def test_nobody_takes_the_catalog_for_a_log(tmp_path: Path) -> None:
    """Its incarnation is no secret; a client draws those of logs."""
    catalog = catalog_incarnation(CLUSTER)
    own = catalog.to_bytes(16, "little")
    async with Cluster.started(tmp_path, 1) as cluster:
        replicas = cluster.nodes["n1"]._replicas
        before = replicas.catalog
        async with WireClient.to(cluster.address("n1")) as client:
            with pytest.raises(InvalidArgument, match="is that of the catalog: draw another one"):
                await client.call(CreateLog("evil", own, 2000))
            with pytest.raises(InvalidArgument, match="is that of the catalog: draw another one"):
                await client.call(DeleteLog("evil", own, 2000))
        assert replicas.catalog is before
        with pytest.raises(InvariantBroken, match="with which /catalog is open"):
            await replicas.open(catalog, "evil", (NodeId("n1"),))
        await create(cluster, "orders")
    assert (tmp_path / "n1" / LOGS / log_name(catalog)).is_dir()


@in_loop
async def test_who_gives_up_waiting_for_the_catalog_is_forgotten(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        catalog_service = cluster.nodes["n1"]._catalog_service
        waiting = asyncio.create_task(catalog_service.reach(catalog_service.catalog.applied + 1000))
        await until(lambda: catalog_service._waiting)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert catalog_service._waiting == set()


@in_loop
async def test_a_peer_is_there_if_its_control_link_is(tmp_path: Path) -> None:
    """The bulk link may be up, or come back first: votes and heartbeats do not use it."""
    async with Cluster.started(tmp_path) as cluster:
        node, peers = cluster.nodes["n1"], [NodeId("n2"), NodeId("n3")]
        await until(lambda: node._reachability.majority)
        welcome = cluster.nodes["n2"]._members.welcome()
        for peer in peers:
            node.link_closed(peer)
        assert not node._reachability.majority
        assert node.welcomed(peers[0], welcome) is None
        assert not node._reachability.majority
        node.link_opened(peers[0])
        assert node._reachability.majority


@in_loop
async def test_many_logs_have_leaders_on_all_nodes(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        names = [f"log-{number}" for number in range(24)]
        for name in names:
            await create(cluster, name)
        leaders = [(await find(cluster, name)).leader for name in names]
        # By chance one node has none of them once in 5,600 times: each is drawn from three.
        assert set(leaders) == set(cluster.nodes)
        listed = await on_any(cluster, lambda client: client.call(ListLogs()))
        assert sorted(log.name for log in listed.logs) == sorted(names)


@in_loop
async def test_one_node_is_a_cluster(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"a") == 0


# -- what else may be asked --------------------------------------------------------------------


@in_loop
async def test_producers_fences_and_times(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        name = log.to_bytes(16, "little")
        async with leader_of(cluster, "orders") as client:
            opening = LogCall(name, OpenProducer("loader", bytes(16), 10, 60_000_000))
            opened = await client.call(opening)
            assert opened.last_sequence == 0
            stamp = ProducerStamp("loader", opened.epoch, 1)
            assert await client.append(log, b"a", producer=stamp) == 0
            assert await client.append(log, b"a", producer=stamp) == 0
            fence = LogCall(name, SetFence("writer-1", None))
            assert (await client.call(fence)).index > 0
            with pytest.raises(Fenced):
                await client.append(log, b"b")
            assert await client.append(log, b"b", fence="writer-1") == 1
            with pytest.raises(OffsetMismatch):
                await client.append(log, b"c", fence="writer-1", expect_offset=1)
            assert (await client.call(OffsetAt(name, 0))).offset == 0
            assert (await client.call(OffsetAt(name, 1 << 60))).offset == 2


@in_loop
async def test_status_says_who_leads_and_who_has_what(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"a")
            while True:
                status = await client.call(Status())
                [one] = status.logs
                if all(peer.match == one.last for peer in one.peers):
                    break
                await asyncio.sleep(0.01)
        assert (one.name, one.role, one.leader) == ("orders", "leader", status.id)
        assert (one.first_offset, one.end_offset) == (0, 1)
        assert {peer.node for peer in one.peers} == set(cluster.nodes) - {status.id}
        assert status.nodes == {node: cluster.address(node) for node in cluster.nodes}


# -- restarts ----------------------------------------------------------------------------------


@in_loop
async def test_everything_outlives_a_restart_of_all(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.gather(*map(cluster.start, cluster.settings))
    log, gone = await create(cluster, "orders"), await create(cluster, "gone")
    async with leader_of(cluster, "orders") as client:
        await client.append(log, b"a")
    delete = DeleteLog("gone", gone.to_bytes(16, "little"), 10_000)
    await on_any(cluster, lambda client: client.call(delete))
    await asyncio.gather(*map(cluster.stop, list(cluster.running)))
    await asyncio.gather(*map(cluster.start, cluster.settings))
    async with leader_of(cluster, "orders") as client:
        assert await client.append(log, b"b") == 1
        assert await read_all(client, log) == [b"a", b"b"]
        with pytest.raises(LogNotFound):
            await client.fetch(gone, 0)
    await asyncio.gather(*map(cluster.stop, list(cluster.running)))


@in_loop
async def test_who_was_away_makes_up_for_it(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        old = await create(cluster, "old")
        await cluster.stop("n3")
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"a")
        delete = DeleteLog("old", old.to_bytes(16, "little"), 10_000)
        await on_any(cluster, lambda client: client.call(delete))
        await cluster.start("n3")
        async with WireClient.to(cluster.address("n3")) as client:
            listed = await client.call(ListLogs())
            assert [one.name for one in listed.logs] == ["orders"]
            with pytest.raises(LogNotFound):
                await client.call(FindLog("old"))
            await until(lambda: cluster.nodes["n3"].service.replicas.get(log))
            assert (await client.call(ReadEnds(log.to_bytes(16, "little")))).end == 1


@in_loop
async def test_a_deletion_that_was_cut_off_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(directory: DataDirectory, incarnation: int) -> None:
        raise OSError(errno.ENOSPC, "as told")

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log, other = await create(cluster, "orders"), await create(cluster, "bills")
    monkeypatch.setattr("quorate.server.logs.log_lifecycle.remove_log", cut_off)
    with pytest.raises(OutcomeUnknown):
        delete = DeleteLog("orders", log.to_bytes(16, "little"), 200)
        await on_any(cluster, lambda client: client.call(delete))
    await cluster.stop("n1")
    monkeypatch.undo()
    # As a crash leaves it after the first file was removed.
    manifest = Manifest.decode((tmp_path / "n1" / MANIFEST).read_bytes())
    assert manifest is not None
    assert manifest.logs[log].state is LogState.DELETING
    logs = tmp_path / "n1" / LOGS
    min((logs / log_name(log)).iterdir()).unlink()
    await cluster.start("n1")
    assert not (logs / log_name(log)).exists()
    async with leader_of(cluster, "bills") as client:
        assert await client.append(other, b"a") == 0
    await cluster.stop("n1")


@in_loop
async def test_a_log_that_was_made_in_part_is_finished(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        await cluster.stop("n3")
        log = await create(cluster, "orders")
        # As a crash leaves it before the manifest was written.
        (tmp_path / "n3" / LOGS / log_name(log)).mkdir(0o700)
        await cluster.start("n3")
        async with WireClient.to(cluster.address("n3")) as client:
            assert [one.name for one in (await client.call(ListLogs())).logs] == ["orders"]
            await until(lambda: cluster.nodes["n3"].service.replicas.get(log))
            assert [one.name for one in (await client.call(Status())).logs] == ["orders"]


@in_loop
async def test_a_full_disk_holds_the_catalog_up_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        refusals = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE]

        def full(vfs: Vfs, data: bytes) -> None:
            if refusals:
                raise OSError(refusals.pop(), "as told")
            replace_file(vfs, data)

        replace_file = manifests.replace_manifest
        monkeypatch.setattr(manifests, "replace_manifest", full)
        log = await create(cluster, "orders")
        assert refusals == []
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"a") == 0


@in_loop
async def test_whoever_waits_when_a_node_stops_is_answered(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            waiting = asyncio.create_task(client.fetch(log, 0, wait_ms=60_000))
            await client.call(Status())
            await cluster.stop("n1")
            with pytest.raises(NotLeader, match=r"^n1 is stopping$"):
                await waiting
            assert await client.ended is None
