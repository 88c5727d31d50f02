"""Answers that grow with the number of logs are bounded in memory, too, if no client reads them."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from server_rig import Cluster, WireClient, create, error_code, in_loop, tasks_of, until

from quorate.config import KIB, MIB, NetworkLimits, Server
from quorate.wire.calls import ListLogs, Status, encode_result

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.sessions.service import Service
    from quorate.wire.calls import Call

# A connection keeps much before no more is taken from it.
WIDE = NetworkLimits(write_pause_bytes=16 * MIB)
LIMIT = 512 * KIB
LOGS = 12
# Each connection asks as often: all answers together are some megabytes.
ASKED = 200
DEAF = 3


async def connect_deaf(stack: AsyncExitStack, serving: Service, address: str) -> WireClient:
    """A client that reads nothing until it is told to."""
    before = set(serving.answers.buffers)
    deaf = await stack.enter_async_context(WireClient.to(address))
    [buffer] = serving.answers.buffers - before
    with socket.socket(fileno=os.dup(buffer.connection.descriptor)) as shared:
        # The system keeps less of the answers than the test wants to see unsent.
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    deaf.connection.pause_reading()
    return deaf


def unsent(serving: Service) -> int:
    return sum(one.unsent for one in serving.answers.buffers)


@pytest.mark.parametrize("call", [Status(), ListLogs()], ids=["status", "logs"])
@in_loop
async def test_long_answers_that_are_not_read_have_a_common_limit(
    call: Call[Any], tmp_path: Path
) -> None:
    server = Server(unsent_busy_bytes=LIMIT)
    async with (
        Cluster.started(tmp_path, 1, network=WIDE, server=server) as cluster,
        AsyncExitStack() as stack,
    ):
        for number in range(LOGS):
            await create(cluster, f"{number:0200d}")
        serving, address = cluster.nodes["n1"].service, cluster.address("n1")
        other = await stack.enter_async_context(WireClient.to(address))
        longest = len(encode_result(1, await other.call(call)))
        assert longest * ASKED * DEAF > 3 * LIMIT
        deaf = [await connect_deaf(stack, serving, address) for _ in range(DEAF)]
        asked = [asyncio.create_task(one.call(call)) for one in deaf for _ in range(ASKED)]
        await until(lambda: unsent(serving) > LIMIT)
        await until(lambda: not any(map(tasks_of, serving.answers.buffers)))
        # Above the limit come only refusals, and answers of connections below their share.
        assert unsent(serving) < 2 * LIMIT
        assert error_code(await other.call(call)) == "OK"
        for one in deaf:
            one.connection.resume_reading()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert set(map(error_code, outcomes)) == {"OK", "BUSY"}
        assert error_code(await deaf[0].call(call)) == "OK"


@in_loop
async def test_a_change_is_answered_however_much_is_unsent(tmp_path: Path) -> None:
    """BUSY would say that nothing was done."""
    server = Server(unsent_busy_bytes=1)
    async with Cluster.started(tmp_path, 1, network=WIDE, server=server) as cluster:
        cluster.nodes["n1"].service.answers.most_bytes = 2
        assert await create(cluster, "orders")
