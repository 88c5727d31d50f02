"""Opening a producer: whoever had it open before is fenced, so it never fails after it was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from session_rig import cluster, log_of, on_loop

from quorate.client.results import Receipt
from quorate.client.retries import Unreachable
from quorate.errors import TooLarge
from quorate.wire.calls import OpenProducer, ProducerOpened
from quorate.wire.requests import Append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.requests import Requests


@on_loop
async def test_an_opening_that_was_answered_is_done_though_no_node_can_be_reached_then() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        reach = session.pool.reach

        async def unreachable(_: Sequence[str]) -> Requests:
            raise Unreachable("no node could be reached")

        def opened(_: OpenProducer) -> ProducerOpened:
            session.pool.reach = unreachable  # type: ignore[method-assign,assignment]
            return ProducerOpened(7, 40)

        node.will(OpenProducer, opened)
        node.will(Append, Receipt(0, 1, 2, 1, 2))
        producer = await log.producer("loader", linger_ms=0)
        assert producer.last_sequence == 40
        session.pool.reach = reach  # type: ignore[method-assign]
        assert (await producer.send_and_wait(b"v")).offset == 0
        await producer.close()


@on_loop
async def test_its_limits_are_those_of_the_node_that_opened_it() -> None:
    async with cluster("n1") as (session, [node]):
        node.batch_bytes = 1000
        node.will(OpenProducer, ProducerOpened(7, 0))
        async with await (await log_of(session)).producer("loader") as producer:
            with pytest.raises(TooLarge, match="n1"):
                await producer.send(bytes(1001))
