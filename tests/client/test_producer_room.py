"""Producers and room: in memory, and on the one connection that several of them share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from session_rig import cluster, log_of, on_loop

from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.config import NetworkLimits
from quorate.errors import Fenced, OutOfSequence
from quorate.wire.requests import AppendRequest
from scripted_node import SILENCE

if TYPE_CHECKING:
    from quorate.client.session import Session
    from quorate.errors import QuorateError
    from scripted_node import ScriptedNode

# A connection that has enough of little: it pauses, and ends, long before the machine is full.
NARROW = NetworkLimits(
    write_pause_bytes=64 << 10, write_buffer_bytes=1 << 20, peer_buffer_bytes=64 << 10
)
PRODUCERS = 6
BATCHES = 16
BATCH = [bytes(256 << 10)]


class Leader:
    """Takes the batches of many producers, of each only the next."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = {}
        self.appends = 0

    def answer(self, append: AppendRequest) -> Receipt | QuorateError:
        assert append.producer is not None
        name, _, sequence = append.producer
        self.appends += 1
        if sequence != self.sequences.get(name, 0) + 1:
            return OutOfSequence(f"{name} goes on with {self.sequences.get(name, 0) + 1}")
        self.sequences[name] = sequence
        return Receipt(self.appends - 1, 1, 5, 1, 2)


def narrowed(session: Session, node: ScriptedNode) -> None:
    """As if the client had been started with these limits."""
    at = session.pool.connected(node.address)
    assert at is not None
    at._connection._network = NARROW
    at._connection._transport.set_write_buffer_limits(high=NARROW.write_pause_bytes)


@on_loop
async def test_producers_that_share_a_connection_wait_for_each_other() -> None:
    """Together they have far more to send than a connection keeps: none of it is sent twice."""
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, leader.answer)
        log = await log_of(session)
        names = [f"loader-{number}" for number in range(PRODUCERS)]
        producers = [await log.producer(name, linger_ms=0) for name in names]
        narrowed(session, node)
        at = session.pool.connected(node.address)

        async def load(number: int) -> None:
            for _ in range(BATCHES):
                await producers[number].send_batch(BATCH)
            await producers[number].close()

        await asyncio.gather(*map(load, range(PRODUCERS)))
        assert leader.sequences == dict.fromkeys(names, BATCHES)
        assert leader.appends == PRODUCERS * BATCHES
        assert session.pool.connected(node.address) is at


@on_loop
async def test_no_round_begins_on_a_connection_that_has_ended() -> None:
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, leader.answer)
        async with await (await log_of(session)).producer("loader", linger_ms=0) as producer:
            await producer.send_and_wait(b"first")
            at = session.pool.connected(node.address)
            assert at is not None
            # The sender still means to use it.
            at._connection.abort()
            assert (await producer.send_and_wait(b"second")).offset == 1
        assert leader.sequences == {"loader": 2}


@on_loop
async def test_who_waits_for_room_learns_that_the_producer_has_ended() -> None:
    """The first batch still holds its memory when the second is refused for good."""
    async with cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, SILENCE, Fenced("epoch 9"))
        log = await log_of(session)
        producer = await log.producer("loader", linger_ms=0, memory_bytes=1000)
        await producer.send(bytes(600))
        await node.until(AppendRequest)
        await producer.send(bytes(100))
        with pytest.raises(Fenced, match="open it again"):
            await producer.send(bytes(400))
