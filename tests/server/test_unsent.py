"""What waits in a node's memory for its clients is bounded, and only those who wait pay for it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from server_rig import Cluster, WireClient, create, error_code, in_loop, tasks_of, until

from quorate.commands import Part, Publish
from quorate.config import KIB, MIB, NetworkLimits, Server
from quorate.errors import Busy, LogNotFound
from quorate.wire.calls import LogCall, Status, encode_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from quorate.server.logs.replicas import HostedLog
    from quorate.server.sessions.service import Service

# One keeps little for a connection before it takes no more from it, the other much.
NARROW = NetworkLimits(
    write_pause_bytes=64 * KIB, write_buffer_bytes=32 * MIB, peer_buffer_bytes=64 * KIB
)
WIDE = NetworkLimits(write_pause_bytes=16 * MIB)
# Of all that is unsent: less than one answer that is not read, and a few for one who reads.
LIMIT = 512 * KIB


class Stage:
    """A node, a client that asks for much and reads nothing, and one that reads."""

    def __init__(self, cluster: Cluster, log: int, deaf: WireClient, other: WireClient) -> None:
        self.log = log
        self.deaf = deaf
        self.other = other
        self.service: Service = cluster.nodes["n1"].service
        self.reads = [asyncio.create_task(deaf.fetch(log, 0)) for _ in range(100)]

    @property
    def unsent(self) -> int:
        return sum(one.unsent for one in self.service.answers.buffers)

    async def codes(self) -> set[str]:
        self.deaf.connection.resume_reading()
        return set(map(error_code, await asyncio.gather(*self.reads, return_exceptions=True)))


@asynccontextmanager
async def set_up(path: Path, network: NetworkLimits) -> AsyncIterator[Stage]:
    server = Server(unsent_busy_bytes=LIMIT)
    async with Cluster.started(path, 1, network=network, server=server) as cluster:
        log, address = await create(cluster, "orders"), cluster.address("n1")
        async with WireClient.to(address) as other:
            for _ in range(20):
                await other.append(log, b"x" * 50_000)
            buffers = cluster.nodes["n1"].service.answers.buffers
            before = set(buffers)
            async with WireClient.to(address) as deaf:
                [buffer] = buffers - before
                with socket.socket(fileno=os.dup(buffer.connection.descriptor)) as shared:
                    # The system keeps less of an answer than a test wants to see unsent.
                    shared.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
                deaf.connection.pause_reading()
                yield Stage(cluster, log, deaf, other)


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [NARROW, WIDE], ids=["narrow", "wide"])
@in_loop
async def test_those_who_read_do_not_wait_for_those_who_do_not(
    network: NetworkLimits, tmp_path: Path
) -> None:
    async with set_up(tmp_path, network) as stage:
        await until(lambda: stage.unsent > LIMIT)
        for _ in range(3):
            together = [stage.other.fetch(stage.log, 0, 50_000) for _ in range(4)]
            assert [one.end_offset for one in await asyncio.gather(*together)] == [20] * 4
        assert await stage.codes() == {"OK", "BUSY"}
        assert (await stage.deaf.fetch(stage.log, 0)).end_offset == 20


@in_loop
async def test_what_is_unsent_counts_long_before_a_connection_is_clogged(tmp_path: Path) -> None:
    async with set_up(tmp_path, WIDE) as stage:
        await until(lambda: stage.unsent > LIMIT)
        await until(lambda: not any(map(tasks_of, stage.service.answers.buffers)))
        assert stage.unsent < 2 * MIB, "one answer more than the limit, at most"
        assert not any(one.clogged for one in stage.service.answers.buffers)
        assert await stage.codes() == {"OK", "BUSY"}


@in_loop
async def test_whoever_has_most_unread_is_let_go_for_those_who_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with set_up(tmp_path, WIDE) as stage:
        await until(lambda: stage.unsent > LIMIT)
        answers = stage.service.answers
        limits = replace(answers.limits, unsent_close_bytes=LIMIT)
        monkeypatch.setattr(answers, "limits", limits)
        assert len((await stage.other.fetch(stage.log, 0)).rows) == 20
        stage.deaf.connection.resume_reading()
        await stage.deaf.ended
        await asyncio.gather(*stage.reads, return_exceptions=True)
        assert len(stage.service.answers.buffers) == 1


# -- requests ----------------------------------------------------------------------------------


@in_loop
async def test_long_calls_count_while_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = tuple(Part(number, bytes(16), 1, 1) for number in range(500))
    publish = LogCall(bytes(16), Publish("app", 1, parts, bytes(32)))
    size = len(encode_call(1, publish))
    server = Server(call_bytes=3 * size, control_bytes=3 * size // 2)
    async with Cluster.started(tmp_path, 1, server=server) as cluster:
        serving, found = cluster.nodes["n1"].service, asyncio.Event()

        async def hosted(incarnation: int) -> HostedLog:
            await found.wait()
            raise LogNotFound("as told")

        monkeypatch.setattr(serving.catalog_service, "hosted", hosted)
        address = cluster.address("n1")
        async with (
            WireClient.to(address) as one,
            WireClient.to(address) as two,
            WireClient.to(address) as three,
        ):
            waiting = [asyncio.create_task(one.call(publish))]
            await until(lambda: serving.limits.total.call_bytes)
            with pytest.raises(Busy, match="of this connection"):
                await one.call(publish)
            waiting.append(asyncio.create_task(two.call(publish)))
            await until(lambda: serving.limits.total.call_bytes > size)
            waiting.append(asyncio.create_task(three.call(publish)))
            await until(lambda: serving.limits.total.call_bytes > 2 * size)
            async with WireClient.to(address) as four:
                with pytest.raises(Busy, match="bytes of calls wait already"):
                    await four.call(publish)
                assert (await four.call(Status())).id == "n1"
            found.set()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert set(map(error_code, outcomes)) == {"LOG_NOT_FOUND"}
            found.clear()
            waiting = [asyncio.create_task(one.call(publish))]
            await until(lambda: serving.limits.total.call_bytes)
        # What one waits for who is gone is given up.
        await until(lambda: not serving.limits.total.call_bytes)
        await asyncio.gather(*waiting, return_exceptions=True)
