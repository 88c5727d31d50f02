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
from quorate.client.retries import Idempotency
from quorate.client.routing import Routing
from quorate.client.session import Session
from quorate.client.stall import (
    LOOKS,
    OTHERS_MAX,
    SIGN_BYTES,
    RequestProgress,
    StallClock,
    StallTimeout,
)
from quorate.commands import ChunkLabel, ChunkStaged, OpenProducer, ProducerOpened, Receipt
from quorate.wire.calls import Ends, LogCall, ReadEnds
from quorate.wire.requests import AppendRequest, Fetch
from scripted_node import SILENCE, Found, entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scripted_node import ScriptedNode

# How long the node waits on such a line, and how long the longest request or answer takes on it.
ANSWER_S, WHOLE_S = 0.4, 1.2
LONG = 900_000
PIECE = 16 << 10
# Of an answer that is coming: more than signs of life.
PART = 10_000


# -- without a line ------------------------------------------------------------------------------


def sent(arrived: int) -> RequestProgress:
    return RequestProgress(arrived, answers=3, coming=0)


def test_silence_counts_from_when_something_moved_last() -> None:
    clock = StallClock(4.0, now=100.0)
    assert clock.due == 101.0
    # What moved until the first look is what the systems' buffers took.
    assert clock.look(101.0, sent(500)) == 104.0
    assert clock.look(102.0, sent(900)) == 106.0
    assert clock.look(103.0, sent(900)) == 106.0
    assert clock.look(105.5, sent(900)) == 106.0
    assert clock.due == 106.0
    clock.begin(110.0)
    assert clock.look(111.0, sent(1000)) == 114.0


def test_a_ping_that_has_not_arrived_moves_nothing() -> None:
    clock = StallClock(4.0, now=100.0)
    clock.look(101.0, sent(900))
    assert clock.look(102.0, sent(880)) == 104.0
    assert clock.look(103.0, sent(900)) == 104.0


def test_answers_to_others_do_not_prolong_the_wait() -> None:
    clock = StallClock(4.0, now=100.0)
    ends = {
        clock.look(100.0 + look, RequestProgress(900, answers=look, coming=0))
        for look in range(1, 4)
    }
    assert ends == {104.0}


def test_signs_of_life_do_not_prolong_the_wait() -> None:
    clock = StallClock(4.0, now=100.0)
    clock.look(101.0, RequestProgress(900, answers=3, coming=0))
    assert clock.look(102.0, RequestProgress(900, answers=3, coming=SIGN_BYTES)) == 104.0


def test_an_answer_that_is_coming_is_waited_for_however_long() -> None:
    clock = StallClock(4.0, now=100.0)
    for look in range(1, 1000):
        end = clock.look(100.0 + look, RequestProgress(900, answers=3, coming=look * PART))
    assert end == 100.0 + 999 + 4.0


def test_what_is_coming_may_turn_out_to_be_anothers_so_often() -> None:
    """On a slow line one waits behind others' answers; on a fast one something always comes."""
    clock = StallClock(4.0, now=100.0)
    ends = [
        clock.look(100.0 + look, RequestProgress(900, answers=look, coming=PART))
        for look in range(1, 3 * OTHERS_MAX)
    ]
    assert ends[OTHERS_MAX] == 101.0 + OTHERS_MAX + 4.0
    assert {*ends[OTHERS_MAX:]} == {ends[OTHERS_MAX]}


class Line:
    """Takes the place of a connection; ``progress`` is told up to which mark it is asked."""

    def __init__(self, moved: Callable[[int | None], RequestProgress]) -> None:
        self.progress = moved
        self.queued = 500


@on_loop
async def test_a_wait_goes_on_while_something_moves() -> None:
    came = asyncio.Event()
    looks = count(1)

    def moved(_: int | None) -> RequestProgress:
        look = next(looks)
        if look == 5 * LOOKS:
            came.set()
        return sent(look)

    line: Any = Line(moved)
    async with StallTimeout(line, 0.02):
        await came.wait()


@on_loop
async def test_a_wait_ends_when_nothing_moves() -> None:
    line: Any = Line(lambda _: sent(7))
    with pytest.raises(TimeoutError):
        async with StallTimeout(line, 0.02):
            await asyncio.Event().wait()


@on_loop
async def test_what_is_sent_after_a_request_is_not_its_own() -> None:
    marks: list[int | None] = []

    def moved(mark: int | None) -> RequestProgress:
        marks.append(mark)
        line.queued += 100
        return sent(7)

    line: Any = Line(moved)
    stall = StallTimeout(line, LATER)
    stall._look()
    stall.asked()
    asked = line.queued
    stall._look()
    stall._look()
    assert marks == [None, asked, asked]


@on_loop
async def test_a_silence_that_is_only_to_be_noticed_ends_no_wait() -> None:
    line: Any = Line(lambda _: sent(7))
    noticed = asyncio.Event()
    async with StallTimeout(line, 0.02, noticed.set):
        await noticed.wait()


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
async def test_who_waits_behind_others_long_answers_asks_once() -> None:
    async with slow_log() as (_, node, log):
        node.will(Fetch, Found(0, 1, entries([bytes(LONG)])))
        node.will(ReadEnds, Ends(0, 1, 1))
        reads = [asyncio.create_task(all_of(log.read(0))) for _ in range(2)]
        await node.until(Fetch, 2)
        assert await log.end_offset() == 1
        assert [len(records) for records in await asyncio.gather(*reads)] == [1, 1]
        assert [node.count(Fetch), node.count(ReadEnds)] == [2, 1]


@on_loop
async def test_a_request_that_takes_longer_than_the_patience_is_sent_once() -> None:
    async with slow_log() as (session, node, log):
        node.will(ChunkLabel, ChunkStaged(index=2, published=False))
        chunk = ChunkLabel("app", bytes(16), 1, 0, bytes(16), 0)
        call, batch = LogCall(log._route.wire, chunk), encode_batch([bytes(LONG)], times=0)
        idempotent = Idempotency.IDEMPOTENT
        staged = await session.change(log._route, "stage", call, idempotent, batch=batch)
        assert staged == ChunkStaged(index=2, published=False)
        assert node.count(ChunkLabel) == 1


@on_loop
async def test_batches_that_take_longer_than_the_patience_are_sent_once() -> None:
    """The later ones wait for room while the bytes of the earlier ones move."""
    async with slow_log() as (session, node, log):
        node.will(OpenProducer, ProducerOpened(1, 0))
        node.will(AppendRequest, lambda append: Receipt(append.producer.sequence - 1, 1, 2, 1, 2))
        at = await session.pool.connect(session.routing.endpoints[0])
        # Or the system takes them all at once.
        sock = at._connection._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PIECE)
        async with await log.producer("loader", linger_ms=0) as producer:
            for _ in range(3):
                await producer.send_batch([bytes(LONG)])
        stamps = [one.producer for one in node.asked if isinstance(one, AppendRequest)]
        assert [stamp and stamp.sequence for stamp in stamps] == [1, 2, 3]


# -- a replica that says nothing -----------------------------------------------------------------


@on_loop
async def test_a_replica_that_says_nothing_leaves_time_for_another() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        log = await log_of(session)
        whole = entries([b"a"], [b"b"])
        nodes[0].will(Fetch, Found(0, 2, whole[:1]), Found(0, 2, whole[1:]))
        nodes[1].will(Fetch, SILENCE)
        # Longer than all the time there is.
        session.retry_limits = replace(session.retry_limits, answer_s=LATER)
        session.timeout = 1.0
        log._route.turn = 0  # the next replica is n2
        assert [record.value for record in await all_of(log.read(0))] == [b"a", b"b"]
        assert [node.count(Fetch) for node in nodes] == [2, 1]
