"""A node whose logs are being opened: it serves the others, and each step waits for its own log."""

from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from server_rig import (
    Cluster,
    SlowOpening,
    WireClient,
    create,
    in_loop,
    leader_of,
    new_log,
    number,
    on_any,
    until,
)

from quorate.errors import DiskFailed, LogNotFound, NoQuorum, NotLeader, OutcomeUnknown
from quorate.replica.opening import plan_opening
from quorate.replica.writer import THREADS
from quorate.storage.directory import LOGS, log_name
from quorate.storage.layout import CLEAN
from quorate.wire.calls import CreateLog, DeleteLog, ListLogs, ReadEnds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

    from quorate.server.logs.replicas import Replicas
    from quorate.storage.directory import DataDirectory


ResultT = TypeVar("ResultT")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.server.logs.catalog_service.MAKING_S", 0.05)


def replicas_of(cluster: Cluster, node: str = "n1") -> Replicas:
    return cluster.nodes[node].service.replicas


def wire(log: int) -> bytes:
    return log.to_bytes(16, "little")


async def delete(cluster: Cluster, name: str, log: int, timeout_ms: int = 10_000) -> None:
    call = DeleteLog(name, wire(log), timeout_ms)
    await on_any(cluster, lambda client: client.call(call))


async def begun(cluster: Cluster, opening: SlowOpening, other: int) -> None:
    """Start the only node: one log is being opened, the other one is open, the catalog is led."""
    cluster.begin("n1")
    await until(lambda: opening.began and replicas_of(cluster).get(other))
    await until(lambda: replicas_of(cluster).catalog.serves)


async def ask_starting(
    cluster: Cluster, ask: Callable[[WireClient], Awaitable[ResultT]]
) -> ResultT:
    """The answer of n1, once there are leaders."""
    while True:
        async with WireClient.to(cluster.address("n1")) as client:
            with suppress(NotLeader, NoQuorum):
                return await ask(client)
        await asyncio.sleep(0.01)


@in_loop
async def test_a_node_serves_all_other_logs_while_one_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        slow, other = await create(cluster, "slow"), await create(cluster, "other")
        gone = await create(cluster, "gone")
        await cluster.stop("n1")
        opening = SlowOpening(monkeypatch, slow)
        await begun(cluster, opening, other)
        node = cluster.nodes["n1"]
        async with leader_of(cluster, "other") as client:
            assert await client.append(other, b"a") == 0
            for ask in (
                client.append(slow, b"a"),
                client.fetch(slow, 0),
                client.call(ReadEnds(wire(slow))),
            ):
                with pytest.raises(NotLeader, match=r"^n1 has not opened this log yet$"):
                    await ask
            # The catalog is led, read and changed.
            made = await create(cluster, "new")
            assert await client.append(made, b"a") == 0
            await delete(cluster, "gone", gone)
            assert not (tmp_path / "n1" / LOGS / log_name(gone)).exists()
            listed = (await client.call(ListLogs())).logs
            assert [one.name for one in listed] == ["new", "other", "slow"]
            # A node is ready when all of its logs are open.
            page = node._readyz()
            assert (page.status, page.body) == (503, b"n1 opens its logs: slow not open yet\n")
            asked = asyncio.create_task(on_any(cluster, lambda any_: any_.append(slow, b"b")))
            opening.let_go()
            assert await asked == 0
            await until(lambda: node._readyz().status == 200)


@in_loop
async def test_a_request_waits_a_moment_for_a_log_that_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.server.logs.catalog_service.MAKING_S", 30.0)
    async with Cluster.started(tmp_path, 1) as cluster:
        slow, other = await create(cluster, "slow"), await create(cluster, "other")
        await cluster.stop("n1")
        opening = SlowOpening(monkeypatch, slow)
        await begun(cluster, opening, other)
        catalog_service = cluster.nodes["n1"]._catalog_service
        await until(lambda: catalog_service.catalog.applied == 2)
        waiting = asyncio.create_task(catalog_service.hosted(slow))
        await until(lambda: catalog_service._waiting)
        opening.let_go()
        assert (await waiting).name == "slow"


@in_loop
async def test_a_starting_node_serves_the_logs_that_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas take part as soon as they are open, and the other nodes send clients to it."""
    async with Cluster.started(tmp_path) as cluster:
        slow, other = await create(cluster, "slow"), await create(cluster, "other")
        await asyncio.gather(*map(cluster.stop, list(cluster.running)))
        opening = SlowOpening(monkeypatch, slow, "n1")
        cluster.begin("n1")
        await cluster.start("n2")
        await until(lambda: opening.began and replicas_of(cluster).get(other))
        # With n3 away each of the two is needed, and leads at times.
        assert await on_any(cluster, lambda client: client.append(other, b"a")) == 0
        records = await ask_starting(cluster, lambda client: client.fetch(other, 0))
        assert len(records.rows) == 1
        found = await ask_starting(cluster, lambda client: client.call(ListLogs()))
        assert [one.name for one in found.logs] == ["other", "slow"]
        assert cluster.nodes["n1"]._readyz().status == 503
        opening.let_go()
        assert await on_any(cluster, lambda client: client.append(slow, b"a")) == 0
        await until(lambda: cluster.nodes["n1"]._readyz().status == 200)


# -- many long logs ----------------------------------------------------------------------------


@in_loop
async def test_logs_that_take_long_to_open_hold_up_no_log_that_is_made_or_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there are more of them than threads that open logs."""
    release, began = threading.Event(), list[int]()
    slow = set[int]()

    def read_long(directory: DataDirectory, group: Any, *rest: Any) -> Generator[str, None, Any]:
        if group.incarnation in slow:
            began.append(group.incarnation)
            release.wait()
        return (yield from plan_opening(directory, group, *rest))

    async with Cluster.started(tmp_path, 1) as cluster:
        slow |= {await create(cluster, f"slow-{one}") for one in range(THREADS + 1)}
        await cluster.stop("n1")
        monkeypatch.setattr("quorate.replica.opening.plan_opening", read_long)
        cluster.begin("n1")
        try:
            await until(lambda: len(began) == THREADS - 1)
            async with asyncio.timeout(10):
                log = await create(cluster, "new")
                async with leader_of(cluster, "new") as client:
                    assert await client.append(log, b"a") == 0
                await delete(cluster, "new", log)
            assert not (tmp_path / "n1" / LOGS / log_name(log)).exists()
            assert len(began) == THREADS - 1
        finally:
            release.set()
        await until(lambda: cluster.nodes["n1"]._readyz().status == 200)
        assert len(began) == THREADS + 1


@in_loop
async def test_a_new_log_that_waits_for_files_holds_up_no_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion gives files back."""
    async with Cluster.started(tmp_path, 1) as cluster:
        other, log = await create(cluster, "other"), new_log()
        opening = SlowOpening(monkeypatch, number(log))
        call = CreateLog("new", log, 10_000)
        making = asyncio.create_task(on_any(cluster, lambda client: client.call(call)))
        await until(lambda: opening.began)
        try:
            await delete(cluster, "other", other, 5000)
            assert not (tmp_path / "n1" / LOGS / log_name(other)).exists()
            assert not making.done()
        finally:
            opening.let_go()
            await making


# -- deletions ---------------------------------------------------------------------------------


@in_loop
async def test_a_log_that_is_deleted_while_it_is_opened_is_removed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        slow, other = await create(cluster, "slow"), await create(cluster, "other")
        place = tmp_path / "n1" / LOGS / log_name(slow)
        await cluster.stop("n1")
        opening = SlowOpening(monkeypatch, slow)
        await begun(cluster, opening, other)
        before = sorted(path.name for path in place.iterdir())
        with pytest.raises(OutcomeUnknown):
            await delete(cluster, "slow", slow, 200)
        async with leader_of(cluster, "other") as client:
            with pytest.raises(LogNotFound):
                await client.append(slow, b"a")
            # No file is touched beneath the opening; the name is free all the same.
            assert sorted(path.name for path in place.iterdir()) == before
            again = await create(cluster, "slow")
            assert await client.append(again, b"a") == 0
            opening.let_go()
            await delete(cluster, "slow", again)
            await until(lambda: not place.exists())
            assert await client.append(other, b"a") == 0
        await until(lambda: cluster.nodes["n1"]._readyz().status == 200)
        assert replicas_of(cluster).get(slow) is None


@in_loop
async def test_a_deletion_outlives_a_stop_amid_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    slow, other = await create(cluster, "slow"), await create(cluster, "other")
    await cluster.stop("n1")
    with monkeypatch.context() as patched:
        opening = SlowOpening(patched, slow)
        await begun(cluster, opening, other)
        with pytest.raises(OutcomeUnknown):
            await delete(cluster, "slow", slow, 200)
        await cluster.stop("n1")
    place = tmp_path / "n1" / LOGS
    # All others are closed in good order.
    assert (place / log_name(other) / CLEAN).exists()
    await cluster.start("n1")
    await until(lambda: not (place / log_name(slow)).exists())
    await until(lambda: cluster.nodes["n1"]._readyz().status == 200)
    await cluster.stop("n1")


# -- failures ----------------------------------------------------------------------------------


@in_loop
async def test_a_disk_that_fails_amid_one_opening_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The halt says what failed, and the openings beside it end with the node."""
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    slow, bad = await create(cluster, "slow"), await create(cluster, "bad")
    await cluster.stop("n1")
    opening = SlowOpening(monkeypatch, slow)

    def failing(directory: DataDirectory, group: Any, *rest: Any) -> Generator[str, None, Any]:
        if group.incarnation == bad:
            while not opening.began:
                yield "wait for the other opening"
            raise OSError(errno.EIO, "as told")
        return (yield from opening.plan(directory, group, *rest))

    monkeypatch.setattr("quorate.replica.opening.plan_opening", failing)
    cluster.begin("n1")
    with pytest.raises(DiskFailed, match=f"n1 cannot open log {bad:032x}: .*as told"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")
