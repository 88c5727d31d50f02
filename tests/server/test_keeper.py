"""In step with the catalog: while a disk is full, after a start, and without growing for ever."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from server_rig import (
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

from quorate.errors import LogNotFound, NotLeader, OutcomeUnknown
from quorate.server.keeper import Keeper, _values
from quorate.storage.directory import LOGS, log_name
from quorate.storage.layout import SPARE
from quorate.wire.calls import CreateLog, DeleteLog, FindLog, ListLogs, Status

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.replicas import Replicas


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
            assert not (tmp_path / full / LOGS / log_name(old)).exists()
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
            assert (await client.call(Status())).logs == []
        assert len(list((tmp_path / leader / LOGS).iterdir())) == 1


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


# -- after a start -----------------------------------------------------------------------------


@in_loop
async def test_a_deleted_log_is_not_found_in_a_table_that_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        await delete(cluster, "orders", log)
        await cluster.stop("n1")
        follow, more = Keeper.follow, asyncio.Event()

        async def in_two_steps(keeper: Keeper) -> None:
            fetched = await keeper._replica.fetch(0, 1 << 20, 10.0, 0)
            made, _ = _values(fetched, 0)
            keeper.carrier.put(keeper.catalog.apply(made))
            await more.wait()
            await follow(keeper)

        monkeypatch.setattr(Keeper, "follow", in_two_steps)
        await cluster.start("n1")
        keeper = cluster.nodes["n1"]._keeper
        await until(lambda: keeper.catalog.named("orders"))
        async with WireClient.to(cluster.address("n1")) as client:
            asking = asyncio.create_task(client.call(FindLog("orders")))
            await client.call(Status())
            more.set()
            with pytest.raises(LogNotFound):
                await asking


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
