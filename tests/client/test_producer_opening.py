"""Opening a producer: whoever had it open before is fenced, so it never fails after it was done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from session_rig import cluster, log_of, on_loop

from quorate.client.retries import Unreachable
from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.errors import InvalidArgument, TooLarge
from quorate.wire.requests import AppendRequest
from scripted_node import DROP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.node_connection import NodeConnection


@on_loop
async def test_an_opening_that_was_answered_is_done_though_no_node_can_be_reached_then() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        reach = session.pool.reach

        async def unreachable(_: Sequence[str]) -> NodeConnection:
            raise Unreachable("no node could be reached")

        def opened(_: OpenProducer) -> ProducerOpened:
            session.pool.reach = unreachable  # type: ignore[method-assign,assignment]
            return ProducerOpened(7, 40)

        node.will(OpenProducer, opened)
        node.will(AppendRequest, Receipt(0, 1, 2, 1, 2))
        producer = await log.producer("loader", linger_ms=0)
        assert producer.last_sequence == 40
        session.pool.reach = reach  # type: ignore[method-assign]
        assert (await producer.send_and_wait(b"v")).offset == 0
        await producer.close()


@on_loop
async def test_a_producer_that_is_opened_while_the_client_closes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client tells its producers first: it would not tell one that comes after."""
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(OpenProducer, ProducerOpened(7, 0))
        opening = asyncio.create_task(log.producer("loader", linger_ms=0))
        await node.until(OpenProducer)
        end_submissions = session.submitter.close

        async def close_late() -> None:
            await asyncio.wait([opening])
            await end_submissions()

        monkeypatch.setattr(session.submitter, "close", close_late)
        assert not opening.done()
        await session.close()
        with pytest.raises(InvalidArgument, match="the client is closed"):
            await opening


@on_loop
async def test_its_limits_are_those_of_the_node_that_opened_it() -> None:
    async with cluster("n1") as (session, [node]):
        node.batch_bytes = 1000
        node.will(OpenProducer, ProducerOpened(7, 0))
        async with await (await log_of(session)).producer("loader") as producer:
            with pytest.raises(TooLarge, match="n1"):
                await producer.send(bytes(1001))


@on_loop
async def test_an_opening_names_the_epoch_of_the_instance_that_it_replaces() -> None:
    """Two other clients open the name meanwhile; a repeat after a loss begins from the start."""
    async with cluster("n1") as (session, [node]):
        node.will(
            OpenProducer,
            ProducerOpened(5, 0, held=True),
            DROP,
            ProducerOpened(5, 0, held=True),
            ProducerOpened(7, 2, held=True),
            ProducerOpened(9, 3),
        )
        producer = await (await log_of(session)).producer("loader")
        assert producer.last_sequence == 3
        asked = [one for one in node.asked if isinstance(one, OpenProducer)]
        assert [one.known for one in asked] == [0, 5, 0, 5, 7]
        assert len({one.instance for one in asked}) == 1
        await producer.close()
