"""What a reader is shown, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from session_rig import all_of, cluster, log_of, on_loop

from quorate.client.read.reading import Reader
from quorate.commands import Receipt
from quorate.errors import Behind, Corrupt, InvalidArgument, NotLeader
from quorate.types import NodeId
from quorate.wire.calls import Ends, ReadEnds
from quorate.wire.handshake import Hello
from quorate.wire.requests import AppendRequest, Fetch
from scripted_node import DROP, SILENCE, Found, ScriptedNode, entries


@on_loop
async def test_a_read_gives_the_range_and_skips_what_comes_before_it() -> None:
    stored = entries([b"a", b"b", b"c"], [b"d"], [b"e", b"f"])
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Fetch, Found(0, 6, stored))
        records = await all_of(log.read(1, 5))
        assert [(one.offset, one.value) for one in records] == [
            (1, b"b"), (2, b"c"), (3, b"d"), (4, b"e"),
        ]  # fmt: skip
        assert [(one.timestamp, one.append_time) for one in records] == [
            (1000, 2000), (1000, 2000), (1001, 2001), (1002, 2002),
        ]  # fmt: skip
        assert (records[0].key, records[0].headers) == (None, [])


@on_loop
async def test_a_read_ends_where_the_log_ended_at_the_beginning() -> None:
    stored = entries([b"a"], [b"b"], [b"c"])
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Fetch, Found(0, 2, stored[:1]), Found(0, 3, stored[1:]))
        assert [record.value async for record in log.read()] == [b"a", b"b"]


def sizes(node: ScriptedNode) -> list[int]:
    """What the answers were to bring."""
    return [one.bytes_max for one in node.asked if isinstance(one, Fetch)]


@on_loop
async def test_answers_grow_longer_until_the_rest_is_short() -> None:
    stored = entries(*([bytes(100_000)] for _ in range(50)))
    async with cluster("n1") as (session, [node]):
        # Each comes at once.
        session.clock = lambda: 0.0  # type: ignore[method-assign]
        log = await log_of(session)
        found = [(stored[:1], 1), (stored[1:6], 6), (stored[6:47], 47), (stored[47:48], 48)]
        node.will(Fetch, *(Found(0, 50, some) for some, _ in found))
        assert len(await all_of(log.read(stop=48))) == 48
        assert [one.offset for one in node.asked if isinstance(one, Fetch)] == [0, 1, 6, 47]
        *first, last = sizes(node)
        assert first == [64 << 10, 512 << 10, 4 << 20]
        assert 100_000 <= last < 110_000


@on_loop
async def test_answers_that_take_long_grow_shorter() -> None:
    stored = entries(*([b"value"] for _ in range(8)))
    # When each is asked for, and when it came.
    moments = iter([0, 0.1, 1, 1.1, 2, 4, 5, 5.5, 6, 8, 9, 11, 12, 12.1, 13, 13.1])
    async with cluster("n1") as (session, [node]):
        reader = Reader((await log_of(session))._route)
        session.clock = lambda: next(moments)  # type: ignore[method-assign]
        node.will(Fetch, *(Found(0, 1 << 30, [one]) for one in stored))
        for offset in range(len(stored)):
            await reader.next(session, offset, session.timeout)
        assert [size >> 10 for size in sizes(node)] == [64, 512, 4096, 512, 512, 64, 64, 512]


@on_loop
async def test_an_answer_that_did_not_come_is_asked_for_shorter() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        reader = Reader(log._route)
        reader._bytes = 4 << 20
        node.will(Fetch, SILENCE, Found(0, 1, entries([b"a"])))
        assert await reader.next(session, 0, session.timeout) is not None
        assert sizes(node) == [4 << 20, 512 << 10]


@on_loop
async def test_an_empty_log_has_nothing_to_read() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 0, []))
        assert await all_of((await log_of(session)).read()) == []


@pytest.mark.parametrize(
    ("start", "values"),
    [("earliest", [b"c", b"d", b"e"]), (-2, [b"d", b"e"]), (-9, [b"c", b"d", b"e"]),
     ("latest", [])],
)  # fmt: skip
@on_loop
async def test_a_start_may_be_a_word_or_count_from_the_end(start: int, values: list[bytes]) -> None:
    stored = entries([b"c", b"d", b"e"], offset=2)
    async with cluster("n1") as (session, [node]):
        node.will(ReadEnds, Ends(2, 5, 9))
        node.will(Fetch, Found(2, 5, stored))
        log = await log_of(session)
        assert [record.value async for record in log.read(start)] == values
        assert [one.barrier for one in node.asked if isinstance(one, ReadEnds)] == [False]


@pytest.mark.parametrize("arguments", [("newest",), (None,), (0, -1)])
@on_loop
async def test_a_range_that_cannot_be_is_refused_at_once(arguments: tuple[Any, ...]) -> None:
    async with cluster("n1") as (session, _):
        log = await log_of(session)
        with pytest.raises(InvalidArgument):
            log.read(*arguments)


@on_loop
async def test_a_linearizable_read_asks_once_where_the_log_ends() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(ReadEnds, Ends(0, 2, 9))
        node.will(Fetch, Found(0, 7, entries([b"a"], [b"b"], [b"c"])))
        log = await log_of(session)
        assert [one.value async for one in log.read(linearizable=True)] == [b"a", b"b"]
        assert [one.barrier for one in node.asked if isinstance(one, ReadEnds)] == [True]


@on_loop
async def test_a_follower_waits_for_more() -> None:
    stored = entries([b"a"], [b"b"])
    async with cluster("n1") as (session, [node]):
        node.will(
            Fetch,
            Found(0, 0, []),
            Found(0, 1, stored[:1]),
            Found(0, 1, []),
            Found(0, 2, stored[1:]),
        )
        log = await log_of(session)
        assert [one.value async for one in log.read(0, 2, follow=True)] == [b"a", b"b"]
        assert all(one.wait_ms > 0 for one in node.asked if isinstance(one, Fetch))


@pytest.mark.parametrize(
    "failure",
    [
        DROP,
        SILENCE,
        Behind("ends with 0"),
        Corrupt("entry 3"),
        NotLeader("leader: n2", leader=NodeId("n2")),
        NotLeader("not I"),
        NotLeader("leader: n1", leader=NodeId("n1")),
    ],
)
@on_loop
async def test_a_read_goes_to_another_replica(failure: object) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(Fetch, failure)
        nodes[1].will(Fetch, Found(0, 1, entries([b"a"])))
        assert [one.value async for one in (await log_of(session)).read()] == [b"a"]


@on_loop
async def test_what_every_replica_has_damaged_is_an_error() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        for node in nodes:
            node.will(Fetch, Corrupt(f"entry 3 is damaged on {node.name}"))
        log = await log_of(session)
        with pytest.raises(Corrupt):
            await all_of(log.read())
        assert [node.count(Fetch) for node in nodes] == [1, 1]


@on_loop
async def test_a_spoilt_entry_is_not_believed_and_costs_nobody_else() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        whole = entries([b"a", b"b"])
        spoilt = [replace(whole[0], body=whole[0].body[:-8] + b"spoilt!!")]
        nodes[0].will(Fetch, Found(0, 2, spoilt))
        nodes[1].will(Fetch, Found(0, 2, whole))
        nodes[0].will(AppendRequest, lambda _: Receipt(2, 1, 3, 1, 2))
        log = await log_of(session)
        append, read = await asyncio.gather(log.append(b"v"), all_of(log.read(0, 2)))
        assert append.offset == 2
        assert [record.value for record in read] == [b"a", b"b"]
        assert nodes[0].count(Hello) == 1, "the connection is as good as before"


@pytest.mark.parametrize("offset", [1, 3])
@on_loop
async def test_an_answer_with_a_gap_is_not_believed(offset: int) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(Fetch, Found(0, 5, [*entries([b"a"]), *entries([b"d"], offset=offset + 1)]))
        nodes[1].will(Fetch, Found(0, 2, entries([b"a", b"b"])))
        assert [one.value async for one in (await log_of(session)).read()] == [b"a", b"b"]


@on_loop
async def test_reads_carry_what_the_client_was_shown_and_what_it_appended() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Fetch, Found(0, 3, entries([b"a", b"b", b"c"])))
        node.will(AppendRequest, Receipt(10, 2, 2, 1, 2))
        await all_of(log.read())
        await log.append_batch([b"x", b"y"])
        node.will(Fetch, Found(0, 12, entries([b"a"] * 12)))
        await all_of(log.read())
        assert [one.session_end for one in node.asked if isinstance(one, Fetch)] == [0, 12]


@on_loop
async def test_an_end_below_what_was_seen_is_not_taken() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(AppendRequest, Receipt(10, 2, 2, 1, 2))
        nodes[0].will(ReadEnds, Ends(0, 4, 1))
        nodes[1].will(ReadEnds, Ends(0, 12, 3))
        log = await log_of(session)
        await log.append_batch([b"x", b"y"])
        assert await log.end_offset() == 12
