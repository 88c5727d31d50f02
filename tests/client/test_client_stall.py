"""Nodes that take what is sent and say nothing: who notices it, and what becomes of the others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from session_rig import QUICK, RECEIPT, cluster, log_of, on_loop

from quorate.batch import encode_batch
from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.errors import OutcomeUnknown, QuorateError, Timeout
from quorate.wire.calls import Ends, NodeStatus, ReadEnds, Status
from quorate.wire.requests import AppendRequest
from scripted_node import SILENCE, ScriptedNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quorate.client.node_connection import NodeConnection
    from quorate.client.routing import Route
    from quorate.client.session import Session

# A node is given up after this long, and every operation after the second.
ANSWER_S, WHOLE_S = 0.2, 5.0
# Of what others ask meanwhile, each after so long.
BETWEEN_S = ANSWER_S / 20
BATCH = encode_batch([b"v"], times=0)


def hasten(session: Session) -> None:
    session.retry_limits = replace(QUICK, answer_s=ANSWER_S)
    session.timeout = WHOLE_S


def status_of(node: ScriptedNode) -> NodeStatus:
    return NodeStatus(node.name, node.address, node.nodes, [])


@asynccontextmanager
async def others_at_work(at: NodeConnection) -> AsyncIterator[None]:
    """Somebody else asks over the same connection all the time."""
    asked: list[asyncio.Task[Any]] = []

    async def ask_all_the_time() -> None:
        while True:
            asked.append(asyncio.create_task(at.call(Status())))
            await asyncio.sleep(BETWEEN_S)

    asking = asyncio.create_task(ask_all_the_time())
    try:
        yield
    finally:
        for task in (asking, *asked):
            task.cancel()
        await asyncio.gather(asking, *asked, return_exceptions=True)


def once_stalled(session: Session) -> asyncio.Event:
    """Set when the session has noticed that a node is silent."""
    noticed, stalled = asyncio.Event(), session.stalled

    def tell(route: Route, at: NodeConnection, heard: int) -> None:
        stalled(route, at, heard)
        noticed.set()

    session.stalled = tell  # type: ignore[method-assign]  # it goes on as it is
    return noticed


# -- while others use the same connection --------------------------------------------------------


@pytest.mark.parametrize("others_are_answered", [False, True])
@on_loop
async def test_a_read_goes_elsewhere_whatever_others_ask(others_are_answered: bool) -> None:
    """The system of a node that is stopped takes what others send; one that hangs in a single log
    answers the others."""
    async with cluster("n1", "n2") as (session, nodes):
        hasten(session)
        nodes[0].will(ReadEnds, SILENCE)
        nodes[0].will(Status, status_of(nodes[0]) if others_are_answered else SILENCE)
        nodes[1].will(ReadEnds, Ends(0, 5, 1))
        log = await log_of(session)
        async with others_at_work(await session.pool.connect(nodes[0].address)):
            assert await log.end_offset() == 5
        assert [node.count(ReadEnds) for node in nodes] == [1, 1]


@pytest.mark.parametrize("others_are_answered", [False, True])
@on_loop
async def test_a_producer_goes_elsewhere_whatever_others_ask(others_are_answered: bool) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        hasten(session)
        nodes[0].will(OpenProducer, ProducerOpened(1, 0))
        nodes[0].will(AppendRequest, SILENCE)
        nodes[0].will(Status, status_of(nodes[0]) if others_are_answered else SILENCE)
        nodes[1].will(
            AppendRequest, lambda append: Receipt(append.producer.sequence - 1, 1, 2, 1, 2)
        )
        producer = await (await log_of(session)).producer("loader", linger_ms=0)
        async with others_at_work(await session.pool.connect(nodes[0].address)):
            assert (await producer.send_and_wait(b"v")).offset == 0
        await producer.close()


@on_loop
async def test_a_producers_own_batches_do_not_hide_that_none_is_answered() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        hasten(session)
        nodes[0].will(OpenProducer, ProducerOpened(1, 0))
        nodes[0].will(AppendRequest, SILENCE)
        nodes[1].will(
            AppendRequest, lambda append: Receipt(append.producer.sequence - 1, 1, 2, 1, 2)
        )
        producer = await (await log_of(session)).producer("loader", linger_ms=0)
        # As many as may be under way at once, and no look without a new one before it.
        while not nodes[1].count(AppendRequest) and nodes[0].count(AppendRequest) < 16:
            await producer.send_batch([b"v"])
            await asyncio.sleep(ANSWER_S / 5)
        assert nodes[1].count(AppendRequest)
        await producer.close()


@on_loop
async def test_what_is_behind_a_mark_has_not_arrived_for_it() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Status, status_of(node))
        at = await session.pool.connect(node.address)
        await at.call(Status())
        mark = at.queued
        before = at.progress(mark)
        await at.call(Status())
        after = at.progress(mark)
        assert (before.arrived, after.arrived) == (mark, mark)
        assert after.answers == before.answers + 1
        assert after.coming == 0
        assert at.progress(None).arrived == at.queued > mark


# -- those that come next ------------------------------------------------------------------------


@on_loop
async def test_an_append_whose_time_was_up_sends_the_next_elsewhere() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(AppendRequest, SILENCE)
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        session.timeout = QUICK.answer_s / 4
        with pytest.raises(OutcomeUnknown):
            await session.submitter.append(log._route, BATCH)
        session.timeout = WHOLE_S
        assert await session.submitter.append(log._route, BATCH) == RECEIPT
        assert [node.count(AppendRequest) for node in nodes] == [1, 1]


@on_loop
async def test_a_read_whose_time_was_up_sends_the_next_elsewhere() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(ReadEnds, SILENCE)
        nodes[1].will(ReadEnds, Ends(0, 5, 1))
        log = await log_of(session)
        session.timeout = QUICK.answer_s / 4
        with pytest.raises(Timeout):
            await log.end_offset()
        session.timeout = WHOLE_S
        assert await log.end_offset() == 5
        assert [node.count(ReadEnds) for node in nodes] == [1, 1]


@pytest.mark.parametrize("expect_offset", [None, 0])
@on_loop
async def test_an_append_that_waits_sends_the_next_elsewhere(expect_offset: int | None) -> None:
    """It must not be sent twice, so it waits on; what comes after it need not."""
    async with cluster("n1", "n2") as (session, nodes):
        hasten(session)
        nodes[0].will(AppendRequest, RECEIPT, SILENCE)
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        noticed = once_stalled(session)
        await log.append(b"n1 is known to lead")
        waiting = asyncio.create_task(log.append(b"v", expect_offset=expect_offset))
        await noticed.wait()
        assert await log.append(b"v") == RECEIPT
        assert await log.append(b"v", expect_offset=1) == RECEIPT
        assert not waiting.done()
        assert [node.count(AppendRequest) for node in nodes] == [2, 2]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@on_loop
async def test_who_waits_behind_one_that_gets_no_answer_tries_for_himself() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        session.retry_limits = replace(QUICK, dial_s=ANSWER_S, answer_s=ANSWER_S)
        nodes[0].will(AppendRequest, SILENCE)
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        log._route.leader = None
        first, *others = [log.submit([b"v"]) for _ in range(4)]
        assert [await one for one in others] == [RECEIPT] * 3
        assert not first.done()
        assert [node.count(AppendRequest) for node in nodes] == [1, 3]


@on_loop
async def test_a_submission_is_looked_after_as_long_as_any_is_under_way() -> None:
    async with cluster("n1") as (session, [node]):
        hasten(session)
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"n1 is known to lead")
        for _ in range(2):
            await asyncio.gather(*(log.append(b"v") for _ in range(100)))
            [watch] = session.submitter._watches.values()
            watch._look()
            assert not session.submitter._watches
            watch.stop()


# -- a node that comes last ----------------------------------------------------------------------


@on_loop
async def test_a_silent_node_comes_last_until_it_says_something() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(Status, status_of(nodes[0]))
        places = [node.address for node in nodes]
        at = await session.pool.connect(places[0])
        session.pool.stalled(at, at.received)
        assert session.pool.connected(places[0]) is None
        assert (await session.pool.reach(places)).node == "n2"
        await at.call(Status())
        assert session.pool.connected(places[0]) is at
        assert (await session.pool.reach(places)).node == "n1"


@on_loop
async def test_a_node_that_answers_others_does_not_come_last() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Status, status_of(node))
        at = await session.pool.connect(node.address)
        heard = at.received
        await at.call(Status())
        session.pool.stalled(at, heard)
        assert session.pool.connected(node.address) is at


@on_loop
async def test_an_answer_that_comes_late_is_believed() -> None:
    """The node was slow, not dead: who leads is known again, and nobody is kept from it."""
    async with cluster("n1", "n2") as (session, nodes):
        hasten(session)
        log = await log_of(session)
        noticed = once_stalled(session)
        node, take = nodes[0], ScriptedNode._take
        late: list[tuple[Any, Any]] = []
        node._take = lambda *given: late.append(given)  # type: ignore[method-assign]
        waiting = asyncio.create_task(session.submitter.append(log._route, BATCH))
        await noticed.wait()
        assert log._route.leader is None
        del node._take
        node.will(AppendRequest, RECEIPT)
        for given in late:
            take(node, *given)
        assert await waiting == RECEIPT
        assert await log.append(b"v") == RECEIPT
        assert [one.count(AppendRequest) for one in nodes] == [2, 0]


@on_loop
async def test_what_was_never_sent_did_not_happen_and_the_next_begins_elsewhere() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        at = await session.pool.connect(nodes[0].address)
        at.writable(False)
        session.timeout = QUICK.answer_s / 4
        with pytest.raises(QuorateError) as raised:
            await session.submitter.append(log._route, BATCH)
        assert isinstance(raised.value, Timeout)
        session.timeout = WHOLE_S
        assert await session.submitter.append(log._route, BATCH) == RECEIPT
        assert [node.count(AppendRequest) for node in nodes] == [0, 1]
        at.writable(True)
