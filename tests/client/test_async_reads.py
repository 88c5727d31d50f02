"""A reader on asyncio whose caller is cancelled, impatient or gone: it misses nothing."""

from __future__ import annotations

import asyncio

import pytest
from session_rig import cluster, log_of, on_loop

from quorate.errors import InvalidArgument, Trimmed
from quorate.wire.requests import Fetch
from scripted_node import SILENCE, Found, entries

STORED = entries(*([b"%d" % number] for number in range(3)))


@on_loop
async def test_who_gave_up_waiting_for_the_next_record_may_ask_again() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 1, STORED[:1]), SILENCE)
        records = (await log_of(session)).read(follow=True)
        assert (await anext(records)).value == b"0"
        for _ in range(2):
            waiting = asyncio.ensure_future(anext(records))
            await node.until(Fetch, 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        # The one who is asked next, after the silent one was given up.
        node.will(Fetch, Found(0, 3, STORED[1:]), SILENCE)
        assert [(await anext(records)).value for _ in range(2)] == [b"1", b"2"]


@on_loop
async def test_a_record_is_waited_for_by_one_caller_at_a_time() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, SILENCE)
        records = (await log_of(session)).read(follow=True)
        first = asyncio.ensure_future(anext(records))
        await node.until(Fetch)
        with pytest.raises(InvalidArgument, match="waited for already"):
            await anext(records)
        assert not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@on_loop
async def test_nothing_follows_an_error() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 3, STORED[:1]), Trimmed("offset 1 is gone"))
        records = (await log_of(session)).read()
        assert (await anext(records)).value == b"0"
        with pytest.raises(Trimmed):
            await anext(records)
        with pytest.raises(StopAsyncIteration):
            await anext(records)


@on_loop
async def test_a_reader_that_was_closed_has_ended() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 3, STORED))
        records = (await log_of(session)).read()
        assert (await anext(records)).value == b"0"
        await records.aclose()  # type: ignore[attr-defined]  # it has one
        assert [record async for record in records] == []
