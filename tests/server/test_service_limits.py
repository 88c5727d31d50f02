"""What waits for an answer is bounded: for all clients together, and for each of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from server_rig import Cluster, WireClient, create, error_code, in_loop, until

from quorate.config import Server
from quorate.errors import LogNotFound

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from quorate.server.logs.replicas import HostedLog
    from quorate.server.sessions.service import Service

APPENDS = 8
# No node has it, so that appends to it wait until the catalog says so.
UNKNOWN = 77


def small_cluster(path: Path, **limits: int) -> AbstractAsyncContextManager[Cluster]:
    return Cluster.started(path, 1, server=Server(client_appends=APPENDS, **limits))


def service_of(cluster: Cluster) -> Service:
    return cluster.nodes["n1"].service


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nothing is known of a log that is not here until this is set."""
    event = asyncio.Event()

    async def hosted(_: object, incarnation: int) -> HostedLog:
        await event.wait()
        raise LogNotFound("as told")

    monkeypatch.setattr("quorate.server.logs.catalog_service.CatalogService.hosted", hosted)
    return event


@in_loop
async def test_one_client_gets_half_of_the_appends_that_may_wait(
    tmp_path: Path, asked: asyncio.Event
) -> None:
    async with small_cluster(tmp_path) as cluster:
        log = await create(cluster, "orders")
        async with (
            WireClient.to(cluster.address("n1")) as greedy,
            WireClient.to(cluster.address("n1")) as modest,
        ):
            waiting = [greedy.begin_append(UNKNOWN, [b"a"]) for _ in range(3 * APPENDS)]
            # More than half is BUSY at once. The others have no answer yet.
            await until(lambda: sum(one.done() for one in waiting) >= 3 * APPENDS - APPENDS)
            assert await modest.append(log, b"b") == 0
            asked.set()
            codes = [
                error_code(one) for one in await asyncio.gather(*waiting, return_exceptions=True)
            ]
            assert codes.count("LOG_NOT_FOUND") == APPENDS // 2 + 1
            assert codes.count("BUSY") == 3 * APPENDS - APPENDS // 2 - 1


@in_loop
async def test_appends_that_came_together_count_against_the_limit_of_all(
    tmp_path: Path, asked: asyncio.Event
) -> None:
    async with small_cluster(tmp_path) as cluster:
        log = await create(cluster, "orders")
        async with (
            WireClient.to(cluster.address("n1")) as first,
            WireClient.to(cluster.address("n1")) as second,
            WireClient.to(cluster.address("n1")) as third,
        ):
            waiting = [
                client.begin_append(UNKNOWN, [b"a"])
                for client in (first, second)
                for _ in range(APPENDS // 2)
            ]
            await until(lambda: service_of(cluster).limits.total.appends == APPENDS)
            together = [third.begin_append(log, [b"b"]) for _ in range(3)]
            answers = await asyncio.gather(*together, return_exceptions=True)
            assert [error_code(one) for one in answers] == ["BUSY"] * 3
            asked.set()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert await third.append(log, b"c") == 0


@in_loop
async def test_what_is_granted_in_one_pass_of_the_loop_has_an_end(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, pass_frames=5) as cluster:
        node = service_of(cluster).share
        for _ in range(2):
            assert [node.grants(1) for _ in range(7)] == [True] * 5 + [False] * 2
            await until(lambda: node.frames_left)
        assert node.grants(Server().pass_bytes)
        assert not node.grants(1)
