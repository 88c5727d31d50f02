"""A producer over real sockets, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from session_rig import LATER, SOON, cluster, log_of, on_loop

from quorate.client.node_connection import NodeConnection
from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.errors import (
    Busy,
    Duplicate,
    Fenced,
    InvalidArgument,
    LogNotFound,
    LogRecreated,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    Timeout,
    TooLarge,
    UnknownProducer,
)
from quorate.types import NodeId
from quorate.wire.calls import FindLog
from quorate.wire.requests import AppendRequest
from scripted_node import DROP, SILENCE, ScriptedNode, found

if TYPE_CHECKING:
    from quorate.client.produce.producer import AsyncProducer
    from quorate.client.session import Session


class Leader:
    """Takes a producer's batches as a leader does: only the next, each once."""

    def __init__(self, last_sequence: int = 0) -> None:
        self.last_sequence = last_sequence
        self.offset = 0
        self.places: dict[int, Receipt] = {}
        # What it does instead, once each.
        self.instead: list[Any] = []
        # Batches as they were taken.
        self.taken: list[bytes] = []

    def answer(self, append: AppendRequest) -> Any:
        if self.instead:
            answer = self.instead.pop(0)
            if answer is not None:
                return answer
        return self.judge(append)

    def judge(self, append: AppendRequest) -> Any:
        assert append.producer is not None
        sequence = append.producer.sequence
        if sequence in self.places:
            return self.places[sequence]
        if sequence != self.last_sequence + 1:
            return OutOfSequence(f"goes on with {self.last_sequence + 1}")
        count = int.from_bytes(append.batch[12:16], "little")
        self.places[sequence] = Receipt(self.offset, count, 5, 1, 2)
        self.last_sequence += count
        self.offset += count
        self.taken.append(append.batch)
        return self.places[sequence]


class Mute:
    """Takes what comes, and says nothing."""

    def __init__(self, awaited: int = 1) -> None:
        self._awaited = awaited
        # So many appends came.
        self.reached = asyncio.Event()

    def answer(self, _: AppendRequest) -> str:
        self._awaited -= 1
        if self._awaited == 0:
            self.reached.set()
        return SILENCE


def lead(node: ScriptedNode, leader: Leader) -> None:
    node.will(OpenProducer, ProducerOpened(5, leader.last_sequence))
    node.will(AppendRequest, leader.answer)


async def opened(session: Session, **options: Any) -> AsyncProducer:
    return await (await log_of(session)).producer("loader", **({"linger_ms": 0} | options))


def appends(*nodes: ScriptedNode) -> list[AppendRequest]:
    return [one for node in nodes for one in node.asked if isinstance(one, AppendRequest)]


@on_loop
async def test_records_travel_together() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader(last_sequence=40))
        producer = await opened(session, linger_ms=1000)
        assert producer.last_sequence == 40
        deliveries = [await producer.send(b"%d" % number) for number in range(10)]
        assert not deliveries[0].done()
        await producer.flush()
        assert [(await one).offset for one in deliveries] == list(range(10))
        assert (await deliveries[3]) == Receipt(3, 1, 5, 1, 2)
        [append] = appends(node)
        assert append.producer == ("loader", 5, 41)
        assert producer.last_sequence == 50
        await producer.close()


@on_loop
async def test_linger_is_long_enough() -> None:
    """Nobody flushes."""
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        producer = await opened(session, linger_ms=20)
        deliveries = [await producer.send(b"v") for _ in range(5)]
        assert [(await one).offset for one in deliveries] == list(range(5))
        assert len(appends(node)) == 1
        await producer.close()


@on_loop
async def test_batches_do_not_wait_for_each_other() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        mute = Mute(5)
        node.will(AppendRequest, mute.answer)
        producer = await opened(session)
        for _ in range(5):
            await producer.send_batch([b"a", b"b"])
        await mute.reached.wait()
        assert [one.producer and one.producer.sequence for one in appends(node)] == [1, 3, 5, 7, 9]


@on_loop
async def test_the_window_has_an_end() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        producer = await opened(session)
        [asked] = [one for one in node.asked if isinstance(one, OpenProducer)]
        mute = Mute(asked.window)
        node.will(AppendRequest, mute.answer)
        for _ in range(asked.window + 5):
            await producer.send_batch([b"v"])
        await mute.reached.wait()
        await log_of(session)  # over the same connection: whatever was sent before has come
        assert len(appends(node)) == asked.window


@pytest.mark.parametrize(
    "trouble", [DROP, Busy("full"), OutcomeUnknown("deposed"), OutOfSequence("goes on with 1")]
)
@on_loop
async def test_everything_goes_again_in_order_and_unchanged(trouble: Any) -> None:
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        leader.instead = [None, trouble]
        lead(node, leader)
        async with await opened(session) as producer:
            deliveries = [await producer.send_batch([b"%d" % n] * (n + 1)) for n in range(5)]
        assert [(await one)[:2] for one in deliveries] == [(0, 1), (1, 2), (3, 3), (6, 4), (10, 5)]
        first = {one.producer: one.batch for one in appends(node)}
        assert all(one.batch == first[one.producer] for one in appends(node))
        assert len(leader.taken) == 5
        assert producer.last_sequence == 15


@on_loop
async def test_a_new_leader_is_followed() -> None:
    async with cluster("n1", "n2") as (session, [old, new]):
        leader = Leader()
        leader.instead = [None, None, NotLeader("another leads, leader: n2", leader=NodeId("n2"))]
        lead(old, leader)
        lead(new, leader)
        async with await opened(session) as producer:
            await producer.send_batch([b"v"])
            await producer.flush()
            await producer.send_batch([b"v"])
            await producer.flush()
            old.will(AppendRequest, NotLeader("another leads, leader: n2", leader=NodeId("n2")))
            for _ in range(5):
                await producer.send_batch([b"v"])
        assert len(leader.taken) == 7
        assert {one.producer and one.producer.sequence for one in appends(new)} == {3, 4, 5, 6, 7}


@on_loop
async def test_a_silent_leader_is_given_up() -> None:
    async with cluster("n1", "n2") as (session, [silent, other]):
        leader = Leader()
        lead(silent, leader)
        lead(other, leader)
        silent.will(AppendRequest, SILENCE)
        async with await opened(session) as producer:
            delivery = await producer.send(b"v")
        assert (await delivery).offset == 0
        assert appends(other)


@on_loop
async def test_an_opening_is_repeated_as_the_same() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(OpenProducer, DROP, ProducerOpened(5, 40))
        nodes[1].will(OpenProducer, NotLeader("leader: n1", leader=NodeId("n1")))
        assert (await opened(session)).last_sequence == 40
        asked = [one for node in nodes for one in node.asked if isinstance(one, OpenProducer)]
        assert len(asked) >= 2
        assert len({one.instance for one in asked}) == 1, "a repeat is known by its instance"


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Fenced("epoch 9"), UnknownProducer("idle for too long")])
@on_loop
async def test_a_final_refusal_ends_the_producer(error: QuorateError) -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, error)
        producer = await opened(session)
        deliveries = [await producer.send_batch([b"v"]) for _ in range(3)]
        with pytest.raises(type(error)):
            await producer.flush()
        for delivery in deliveries:
            with pytest.raises(type(error), match=str(error)):
                await delivery
        with pytest.raises(type(error), match="open it again"):
            await producer.send(b"v")
        with pytest.raises(type(error)):
            await producer.close()


@on_loop
async def test_a_refusal_after_a_lost_attempt() -> None:
    """FENCED does not say what became of the first attempt."""
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, DROP, Fenced("epoch 9"))
        producer = await opened(session)
        with pytest.raises(OutcomeUnknown, match="FENCED: epoch 9"):
            await producer.send_and_wait(b"a")
        with pytest.raises(InvalidArgument, match="open it again"):
            await producer.send(b"b")


@on_loop
async def test_a_duplicate_is_delivered_without_a_place() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, DROP, Duplicate("its offset is no longer kept"))
        async with await opened(session) as producer:
            delivery = await producer.send(b"a")
        with pytest.raises(Duplicate, match="no longer kept"):
            await delivery
        assert producer.last_sequence == 1


@on_loop
async def test_a_batch_that_waited_too_long_at_a_node_is_sent_again_before_those_after_it() -> None:
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        leader.instead = [None, Timeout("waited"), Timeout("waited")]
        lead(node, leader)
        async with await opened(session) as producer:
            deliveries = [await producer.send_batch([b"%d" % place]) for place in range(4)]
        assert [(await one).offset for one in deliveries] == [0, 1, 2, 3]
        assert len(leader.taken) == 4


@pytest.mark.parametrize(
    "trouble", [DROP, Busy("full"), SILENCE, NotLeader("nobody leads"), Timeout("waited")]
)
@on_loop
async def test_when_the_time_is_up_all_that_waits_is_unknown(trouble: Any) -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, trouble)
        producer = await opened(session, linger_ms=60_000)
        session.timeout = SOON
        sent = await producer.send_batch([b"a"])
        later = await producer.send_batch([b"b"])
        waits = await producer.send(b"c")
        for delivery in (sent, later, waits):
            with pytest.raises(OutcomeUnknown, match="open it again"):
                await delivery
        count = len(appends(node))
        with pytest.raises(InvalidArgument, match="open it again"):
            await producer.send(b"d")
        assert len(appends(node)) == count
        with pytest.raises(OutcomeUnknown):
            await producer.close()


@on_loop
async def test_no_node_at_all() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        producer = await opened(session)
        await node.stop()
        session.timeout = SOON
        with pytest.raises(OutcomeUnknown):
            await producer.send_and_wait(b"v")
        await node.start()


@pytest.mark.parametrize("incarnation", [None, 77])
@on_loop
async def test_the_log_is_gone(incarnation: int | None) -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        producer = await opened(session)
        node.will(AppendRequest, LogNotFound("no such log"))
        gone = LogNotFound("no such log")
        node.will(FindLog, gone if incarnation is None else found(node, "n1", incarnation))
        expected = LogNotFound if incarnation is None else LogRecreated
        with pytest.raises(expected):
            await producer.send_and_wait(b"v")


@on_loop
async def test_too_large_concerns_nobody_else() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        async with await opened(session) as producer:
            await producer.send(b"before")
            with pytest.raises(TooLarge):
                await producer.send(bytes(node.batch_bytes + 1))
            delivery = await producer.send(b"after")
        assert (await delivery).offset == 1
        assert producer.last_sequence == 2


@on_loop
async def test_a_fence_is_shown() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        async with await opened(session, fence="writer-3") as producer:
            await producer.send(b"v")
        assert [one.fence for one in appends(node)] == ["writer-3"]


# -- memory --------------------------------------------------------------------------------------


@on_loop
async def test_sending_waits_for_room() -> None:
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        lead(node, leader)
        async with await opened(session, memory_bytes=1000) as producer:
            for _ in range(50):
                await producer.send(bytes(400))
        assert leader.last_sequence == 50


@on_loop
async def test_no_room_in_time_is_a_timeout_and_nothing_happened() -> None:
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        lead(node, leader)
        mute = Mute()
        node.will(AppendRequest, mute.answer)
        producer = await opened(session, memory_bytes=1000)
        first = await producer.send(bytes(900))
        await mute.reached.wait()
        session.timeout = SOON
        with pytest.raises(Timeout, match="memory_bytes"):
            await producer.send(bytes(900))
        session.timeout = LATER
        node.will(AppendRequest, leader.answer)
        assert (await first).offset == 0
        assert (await producer.send_and_wait(b"v")).offset == 1
        await producer.close()


# -- closing -------------------------------------------------------------------------------------


@on_loop
async def test_a_closed_producer_takes_nothing() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        producer = await opened(session)
        async with producer:
            delivery = await producer.send(b"v")
        assert delivery.done()
        with pytest.raises(InvalidArgument, match="is closed"):
            await producer.send(b"v")
        await producer.close()


@on_loop
async def test_a_producer_that_is_closing_takes_nothing_and_leaves_nothing_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread sends while a close waits for the receipt of an earlier batch."""
    async with cluster("n1") as (session, [node]):
        leader = Leader()
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, leader.answer)
        producer = await (await log_of(session)).producer("loader", linger_ms=0)
        begin = NodeConnection.append
        begun: list[tuple[asyncio.Future[Receipt], asyncio.Future[Receipt]]] = []

        def answered_late(at: NodeConnection, append: AppendRequest) -> asyncio.Future[Receipt]:
            late: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            begun.append((begin(at, append), late))
            return late

        monkeypatch.setattr(NodeConnection, "append", answered_late)
        first = await producer.send(b"first")
        await node.until(AppendRequest, 1)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        # As another thread does: nothing runs on the loop between the two.
        with pytest.raises(InvalidArgument, match="is closed"):
            producer._records.add(b"second", None, None, None)
        answer, late = begun[0]
        late.set_result(await answer)
        await closing
        assert await first == Receipt(0, 1, 5, 1, 2)
        assert node.count(AppendRequest) == len(begun) == 1
        # Who waits for room, or sends now, learns the same.
        with pytest.raises(InvalidArgument, match="is closed"):
            await producer.send(b"third")


@on_loop
async def test_leaving_raises_what_was_not_delivered() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, Fenced("epoch 9"))
        with pytest.raises(Fenced):
            async with await opened(session) as producer:
                await producer.send(b"v")


@on_loop
async def test_an_error_of_the_body_is_not_hidden() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        node.will(AppendRequest, Fenced("epoch 9"))
        with pytest.raises(ZeroDivisionError) as caught:
            async with await opened(session) as producer:
                await producer.send(b"v")
                raise ZeroDivisionError
        assert "FENCED: epoch 9" in caught.value.__notes__[0]


@on_loop
async def test_a_client_that_is_closed_leaves_nobody_waiting() -> None:
    async with cluster("n1") as (session, [node]):
        lead(node, Leader())
        mute = Mute()
        node.will(AppendRequest, mute.answer)
        producer = await opened(session)
        sent = await producer.send_batch([b"a"])
        await mute.reached.wait()
        await session.close()
        with pytest.raises(OutcomeUnknown):
            await sent
        with pytest.raises(QuorateError):
            await producer.send_and_wait(b"b")


@on_loop
async def test_what_is_sent_while_the_client_closes_is_refused_and_nobody_waits_for_ever() -> None:
    """A task made on a loop that is about to stop runs none of its code."""
    async with cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, SILENCE)
        log = await log_of(session)
        producer = await log.producer("loader")
        under_way = await producer.send(b"under way")
        await node.until(AppendRequest)
        lingering = await producer.send(b"lingering")
        await session.close()
        with pytest.raises(OutcomeUnknown):
            await under_way
        with pytest.raises(QuorateError):
            await lingering
        with pytest.raises(InvalidArgument, match="the client is closed"):
            await producer.send(b"too late")
