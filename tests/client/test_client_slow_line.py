"""A line on which bytes take long: what moves is waited for, what stands still is not."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from session_rig import LATER, QUICK, all_of, cluster, log_of, on_loop

from quorate.batch import encode_batch
from quorate.client.administration import find_log
from quorate.client.asynchronous import AsyncLog
from quorate.client.routing import Routing
from quorate.client.session import Session
from quorate.client.silence import LOOKS, Quiet, Silence
from quorate.client.staging import Chunk, stage
from quorate.wire.calls import ChunkStaged, StageChunk
from quorate.wire.requests import Fetch
from scripted_node import SILENCE, Found, entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scripted_node import ScriptedNode

# The node's patience on such a line, and how long the longest request or answer takes on it.
ANSWER_S, WHOLE_S = 0.4, 1.2
LONG = 900_000
PIECE = 16 << 10


# -- without a line ------------------------------------------------------------------------------


def test_silence_counts_from_when_something_moved_last() -> None:
    quiet = Quiet(4.0, now=100.0)
    assert quiet.due == 101.0
    # What moved until the first look is what the systems' buffers took.
    assert quiet.look(101.0, moved=500) == 104.0
    assert quiet.look(102.0, moved=900) == 106.0
    assert quiet.look(103.0, moved=900) == 106.0
    assert quiet.look(105.5, moved=900) == 106.0
    assert quiet.due == 106.0
    quiet.begin(110.0)
    assert quiet.look(111.0, moved=1000) == 114.0


@on_loop
async def test_a_wait_goes_on_while_something_moves() -> None:
    came = asyncio.Event()

    class Moving:
        looks = count(1)

        @property
        def moved(self) -> int:
            look = next(self.looks)
            if look == 5 * LOOKS:
                came.set()
            return look

    moving: Any = Moving()
    async with Silence(moving, 0.02):
        await came.wait()


@on_loop
async def test_a_wait_ends_when_nothing_moves() -> None:
    class Still:
        moved = 7

    still: Any = Still()
    with pytest.raises(TimeoutError):
        async with Silence(still, 0.02):
            await asyncio.Event().wait()


# -- over one ------------------------------------------------------------------------------------


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(WHOLE_S * len(data) / LONG)
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def slow_line(node: ScriptedNode) -> AsyncIterator[str]:
    """Another way to ``node``, on which a long frame takes WHOLE_S."""
    host, port = node.address.split(":")
    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        back, forth = await asyncio.open_connection(host, int(port), limit=PIECE)
        await asyncio.gather(_pump(reader, forth), _pump(back, writer))

    listening = socket.socket()
    # A line holds little.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * PIECE)
    while True:
        try:
            listening.bind(("127.0.0.1", random.randrange(20_000, 32_768)))
            break
        except OSError:
            continue
    server = await asyncio.start_server(serve, sock=listening, limit=PIECE)
    try:
        yield "{}:{}".format(*listening.getsockname())
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*serving)


@asynccontextmanager
async def slow_log() -> AsyncIterator[tuple[Session, ScriptedNode, AsyncLog]]:
    async with cluster("n1") as (_, [node]), slow_line(node) as address:
        node.nodes["n1"] = address
        session = Session(Routing((address,)), LATER, replace(QUICK, answer_s=ANSWER_S))
        try:
            yield session, node, AsyncLog(session, await find_log(session, "orders"))
        finally:
            await session.close()


@on_loop
async def test_an_answer_that_takes_longer_than_the_patience_is_waited_for() -> None:
    async with slow_log() as (_, node, log):
        node.will(Fetch, Found(0, 1, entries([bytes(LONG)])))
        assert [record.offset for record in await all_of(log.read(0))] == [0]
        assert node.count(Fetch) == 1


@on_loop
async def test_a_request_that_takes_longer_than_the_patience_is_sent_once() -> None:
    async with slow_log() as (session, node, log):
        node.will(StageChunk, ChunkStaged(index=2, published=False))
        chunk = Chunk("app", bytes(16), 1, 0, bytes(16), 0)
        assert await stage(session, log._route, chunk, encode_batch([bytes(LONG)], times=0))
        assert node.count(StageChunk) == 1


# -- a replica that says nothing -----------------------------------------------------------------


@on_loop
async def test_a_replica_that_says_nothing_leaves_time_for_another() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        log = await log_of(session)
        whole = entries([b"a"], [b"b"])
        nodes[0].will(Fetch, Found(0, 2, whole[:1]), Found(0, 2, whole[1:]))
        nodes[1].will(Fetch, SILENCE)
        # Longer than all the time there is.
        session.patience = replace(session.patience, answer_s=LATER)
        session.timeout = 1.0
        log._route.turn = 0  # the next replica is n2
        assert [record.value for record in await all_of(log.read(0))] == [b"a", b"b"]
        assert [node.count(Fetch) for node in nodes] == [2, 1]
