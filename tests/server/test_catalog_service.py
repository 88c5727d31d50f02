"""In step with the catalog: while a disk is full, after a start, and without growing for ever."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from server_rig import (
    CONFIG,
    Cluster,
    WireClient,
    create,
    in_loop,
    leader_of,
    new_log,
    number,
    on_any,
    until,
)

from quorate.config import KIB, MIB, Config, Storage
from quorate.errors import Damaged, LogNotFound, NotLeader, OutcomeUnknown
from quorate.server.logs.catalog_service import CatalogService, _values
from quorate.server.logs.replicas import Replicas, catalog_config
from quorate.storage.directory import LOGS, log_name
from quorate.storage.layout import SPARE
from quorate.wire.calls import CreateLog, DeleteLog, FindLog, ListLogs, ReadEnds, Status

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.replica.engine_io import ReadAnswer
    from quorate.types import NodeId


def replicas_of(cluster: Cluster, node: str) -> Replicas:
    return cluster.nodes[node].service.replicas


async def catalog_leader(cluster: Cluster) -> str:
    def leader() -> str | None:
        return replicas_of(cluster, "n1").catalog.leader

    await until(leader)
    return str(leader())


async def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "as told")


async def delete(cluster: Cluster, name: str, log: int) -> None:
    call = DeleteLog(name, log.to_bytes(16, "little"), 10_000)
    await on_any(cluster, lambda client: client.call(call))


# -- a disk without room -----------------------------------------------------------------------


@in_loop
async def test_a_log_without_room_waits_and_what_comes_after_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        old = await create(cluster, "old")
        leader = await catalog_leader(cluster)
        full = next(node for node in cluster.nodes if node != leader)
        with monkeypatch.context() as disk:
            disk.setattr(replicas_of(cluster, full), "make_directory", no_room)
            log = await create(cluster, "new")
            await delete(cluster, "old", old)
            async with WireClient.to(cluster.address(full)) as client:
                assert [one.name for one in (await client.call(ListLogs())).logs] == ["new"]
                assert (await client.call(FindLog("new"))).leader is None
                with pytest.raises(NotLeader, match="no room for this log yet"):
                    await client.append(log, b"a")
            await until(lambda: not (tmp_path / full / LOGS / log_name(old)).exists())
            # The next start finds it again.
            await cluster.stop(full)
            await cluster.start(full)
        await until(lambda: replicas_of(cluster, full).get(log))


@in_loop
async def test_a_catalog_is_led_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of it is judged by what is known, not by what could be done here."""
    async with Cluster.started(tmp_path) as cluster:
        old = await create(cluster, "old")
        leader = await catalog_leader(cluster)
        incarnation = new_log()
        async with WireClient.to(cluster.address(leader)) as client:
            with monkeypatch.context() as disk:
                disk.setattr(replicas_of(cluster, leader), "make_directory", no_room)
                with pytest.raises(OutcomeUnknown):
                    await client.call(CreateLog("new", incarnation, 1000))
                for name, log in (("new", number(incarnation)), ("old", old)):
                    call = DeleteLog(name, log.to_bytes(16, "little"), 20_000)
                    await client.call(call)
                    await client.call(call)
            assert (await client.call(ListLogs())).logs == []
            await until(lambda: len(list((tmp_path / leader / LOGS).iterdir())) == 1)
            assert (await client.call(Status())).logs == []


@in_loop
async def test_a_deletion_that_cannot_be_written_down_holds_up_its_node_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        logs = {name: await create(cluster, name) for name in ("one", "two")}
        leader = await catalog_leader(cluster)
        place, stored = tmp_path / leader / LOGS, cluster.nodes[leader]._stored
        save, full = stored.save, asyncio.Event()

        async def save_if_there_is_room() -> None:
            await (no_room() if full.is_set() else save())

        monkeypatch.setattr(stored, "save", save_if_there_is_room)
        full.set()
        for name, log in logs.items():
            await delete(cluster, name, log)
        assert (place / log_name(logs["two"])).exists()
        full.clear()
        await until(lambda: not any((place / log_name(log)).exists() for log in logs.values()))


@in_loop
async def test_what_a_deleted_log_took_ahead_is_room_for_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        spare = tmp_path / "n1" / LOGS / log_name(log) / SPARE
        await until(spare.exists)
        stored = cluster.nodes["n1"]._stored
        save = stored.save

        async def save_if_there_is_room() -> None:
            await (no_room() if spare.exists() else save())

        monkeypatch.setattr(stored, "save", save_if_there_is_room)
        await delete(cluster, "orders", log)
        assert not spare.parent.exists()


@in_loop
async def test_a_deletion_that_waits_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.server.logs.catalog_service.MAKING_S", 0.05)
    async with Cluster.started(tmp_path) as cluster:
        old, well = [await create(cluster, name) for name in ("old", "well")]
        leader = await catalog_leader(cluster)
        full = next(node for node in cluster.nodes if node != leader)
        with monkeypatch.context() as disk:
            disk.setattr(cluster.nodes[full]._stored, "save", no_room)
            await delete(cluster, "old", old)
            new = await create(cluster, "new")
            async with WireClient.to(cluster.address(full)) as client:
                found = (await client.call(ListLogs())).logs
                assert [one.name for one in found] == ["new", "well"]
                assert found[0].leader is None
                for ask in (
                    client.append(new, b"a"),
                    client.fetch(new, 0),
                    client.call(ReadEnds(new.to_bytes(16, "little"))),
                ):
                    with pytest.raises(NotLeader, match=f"{full} has no room for this log yet"):
                        await ask
                with pytest.raises(LogNotFound):
                    await client.fetch(old, 0)
                assert (await client.fetch(well, 0)).rows == []
        await until(lambda: replicas_of(cluster, full).get(new))


@in_loop
async def test_what_is_deleted_next_makes_room_for_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        logs = {name: await create(cluster, name) for name in ("one", "two", "kept")}
        place = tmp_path / "n1" / LOGS
        spares = {name: place / log_name(log) / SPARE for name, log in logs.items()}
        await until(lambda: all(spare.exists() for spare in spares.values()))
        stored = cluster.nodes["n1"]._stored
        save = stored.save

        async def save_if_there_is_room() -> None:
            await (no_room() if spares["two"].exists() else save())

        monkeypatch.setattr(stored, "save", save_if_there_is_room)
        await asyncio.gather(*(delete(cluster, name, logs[name]) for name in ("one", "two")))
        assert not any((place / log_name(logs[name])).exists() for name in ("one", "two"))
        assert spares["kept"].exists()


# -- after a start -----------------------------------------------------------------------------


@in_loop
async def test_what_was_deleted_behind_a_log_without_room_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, make, made = new_log(), Replicas.make_directory, list[tuple[str, int]]()

    async def make_but_the_late_one(replicas: Replicas, incarnation: int) -> None:
        if replicas.directory.identity.node == full and incarnation == number(late):
            await no_room()
        made.append((replicas.directory.identity.node, incarnation))
        await make(replicas, incarnation)

    async with Cluster.started(tmp_path) as cluster:
        leader = await catalog_leader(cluster)
        full = next(node for node in cluster.nodes if node != leader)
        monkeypatch.setattr(Replicas, "make_directory", make_but_the_late_one)
        await on_any(cluster, lambda client: client.call(CreateLog("late", late, 10_000)))
        log = await create(cluster, "orders")
        left = tmp_path / full / LOGS / log_name(log)
        await until(lambda: replicas_of(cluster, full).get(log))
        await delete(cluster, "orders", log)
        await until(lambda: not left.exists())
        await cluster.stop(full)
        made.clear()
        # As far as a node gets that crashes before it writes its manifest.
        left.mkdir()
        await cluster.start(full)
        catalog_service = cluster.nodes[full]._catalog_service
        await until(
            lambda: (
                catalog_service.lifecycle.why_late(number(late))
                and catalog_service.lifecycle.carried == 3
            )
        )
        assert made == []
        assert not left.exists()
        monkeypatch.undo()
        await until(lambda: replicas_of(cluster, full).get(number(late)))


@in_loop
async def test_a_deleted_log_is_not_found_in_a_table_that_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        await delete(cluster, "orders", log)
        await cluster.stop("n1")
        follow, more = CatalogService.follow, asyncio.Event()

        async def in_two_steps(catalog_service: CatalogService) -> None:
            fetched = await catalog_service._replica.fetch(0, 1 << 20, 10.0, 0)
            made, _ = _values(fetched, 0)
            catalog_service.lifecycle.apply(made)
            await more.wait()
            await follow(catalog_service)

        monkeypatch.setattr(CatalogService, "follow", in_two_steps)
        await cluster.start("n1")
        catalog_service = cluster.nodes["n1"]._catalog_service
        await until(lambda: catalog_service.catalog.named("orders"))
        async with WireClient.to(cluster.address("n1")) as client:
            asking = asyncio.create_task(client.call(FindLog("orders")))
            await client.call(Status())
            more.set()
            with pytest.raises(LogNotFound):
                await asking


@in_loop
async def test_a_node_that_was_not_asked_has_not_deleted_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        catalog_service, ask = cluster.nodes["n1"]._catalog_service, CatalogService._ask

        async def ask_only_itself(one: CatalogService, node: NodeId, *rest: Any) -> None:
            if node != "n1":
                raise RuntimeError("as told")
            await ask(one, node, *rest)

        monkeypatch.setattr(CatalogService, "_ask", ask_only_itself)
        with pytest.raises(RuntimeError, match="as told"):
            await catalog_service._majority(catalog_service.catalog.applied + 1000, 10.0)


# -- what is left ------------------------------------------------------------------------------


@in_loop
async def test_nothing_is_remembered_of_logs_that_were_deleted(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        metrics = cluster.nodes["n1"].metrics
        kept = await create(cluster, "kept")
        for _ in range(3):
            log = await create(cluster, "orders")
            async with leader_of(cluster, "orders") as client:
                await client.append(log, b"a")
                await client.fetch(log, 0)
                await client.fetch(kept, 0)
            await delete(cluster, "orders", log)
        assert replicas_of(cluster, "n1").readable == {kept}
        assert "orders" not in metrics.appended_records
        assert "orders" not in metrics.elections


@in_loop
async def test_a_log_that_halts_behind_its_barrier_is_not_remembered_as_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        hosted = replicas_of(cluster, "n1").get(log)
        assert hosted is not None
        barrier = hosted.replica.barrier

        async def pass_and_halt() -> ReadAnswer:
            answer = await barrier()
            hosted.replica._halt(Damaged("as told"))
            return answer

        monkeypatch.setattr(hosted.replica, "barrier", pass_and_halt)
        await cluster.nodes["n1"]._catalog_service.readable(log)
        await delete(cluster, "orders", log)
        assert replicas_of(cluster, "n1").readable == set()


# -- a large reserve ---------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", [0, 64 * KIB, 448 * KIB, 448 * KIB + 1, MIB, 1024 * MIB])
def test_the_catalog_is_opened_with_any_reserve_that_the_settings_may_name(reserve: int) -> None:
    config = Config(storage=Storage(segment_bytes=4096 * MIB, reserve_bytes=reserve))
    catalog = catalog_config(config)
    assert catalog.storage.reserve_bytes == reserve
    assert (catalog.storage.segment_bytes == MIB) is (reserve <= 448 * KIB)


@in_loop
async def test_nodes_with_a_large_reserve_make_logs(tmp_path: Path) -> None:
    storage = Storage(segment_bytes=4 * MIB, reserve_bytes=512 * KIB)
    async with Cluster.started(tmp_path, config=replace(CONFIG, storage=storage)) as cluster:
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"first") == 0
