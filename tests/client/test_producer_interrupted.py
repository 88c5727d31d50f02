"""A caller of a producer is interrupted, as by Ctrl-C, before each byte code: no record that was
taken is forgotten, and no later call waits for ever."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from interruption_rig import each_interruption
from session_rig import cluster, log_of, on_loop

from quorate.batch import Batch
from quorate.client.node_connection import NodeConnection
from quorate.client.produce import accumulator, sender, tickets
from quorate.client.produce.accumulator import Accumulator, BatchLimits
from quorate.client.produce.settings import ProducerSettings
from quorate.client.produce.tickets import Delivery, Ticket
from quorate.client.produce.window import Window
from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.errors import InvalidArgument
from quorate.wire.requests import AppendRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from quorate.client.produce.producer import AsyncProducer

LIMITS = BatchLimits("n1", record_bytes=5_000, batch_bytes=1_000)
DONE = Receipt(0, 1, 2, 1, 2)
# A test that would hang fails after this long.
HANG_S = 20.0


class Taker:
    """An accumulator, and what its taker knows of it."""

    def __init__(self, batch_bytes: int) -> None:
        # When the taker would look again; None if it would not.
        self.due: float | None = None
        settings = ProducerSettings(5, batch_bytes, 1 << 20)
        self.records = Accumulator(settings, LIMITS, lambda: 100.0, self.wake)

    def wake(self) -> None:
        self.due = self.records.due

    def take_all(self) -> list[bytes]:
        """The values of all batches, each of which gets its outcome."""
        values: list[bytes] = []
        for ticket in self.records.tickets:
            assert self.records.take(1000.0) is ticket
            batch = list(Batch.parse(ticket.data))
            assert len(batch) == ticket.count
            assert all(record.key in (None, b"key of " + record.value) for record in batch)
            values += [record.value for record in batch]
            ticket.resolve(DONE)
        assert self.records.take(1000.0) is None
        return values


def add(records: Accumulator, value: bytes) -> tuple[Ticket, int] | None:
    return records.add(value, b"key of " + value, [("h", b"1")], 7)


def add_two(records: Accumulator) -> object:
    return records.add_batch([b"now", b"now too"], None, None, 7)


@pytest.mark.parametrize(
    ("batch_bytes", "before", "action", "sent"),
    [
        (1 << 20, [], lambda records: add(records, b"now"), [b"now"]),
        (1 << 20, [b"old"], lambda records: add(records, b"now"), [b"now"]),
        (1 << 20, [b"x" * 300], lambda records: add(records, b"n" * 300), [b"n" * 300]),
        (300, [b"old"], lambda records: add(records, b"now"), [b"now"]),
        (1, [], lambda records: add(records, b"now"), [b"now"]),
        (1 << 20, [], add_two, [b"now", b"now too"]),
        (1 << 20, [b"old"], add_two, [b"now", b"now too"]),
    ],
    ids=["begins", "joins", "no-room", "fills", "alone", "batch", "batch-behind-records"],
)
def test_an_interrupted_record_is_taken_or_not_and_no_other_is_lost(
    batch_bytes: int, before: list[bytes], action: Any, sent: list[bytes]
) -> None:
    for interruption in each_interruption(accumulator, tickets):
        taker = Taker(batch_bytes)
        records = taker.records
        for value in before:
            add(records, value)
        interruption.during(partial(action, records), records._lock)
        assert not records._held_here(), interruption.where
        added = add(records, b"later")
        assert added is not None
        assert taker.due == records.due, interruption.where
        assert added[0] in records.tickets
        values = taker.take_all()
        assert values in ([*before, b"later"], [*before, *sent, b"later"]), interruption.where
        assert records._held == 0, interruption.where


def test_an_interrupted_end_of_lingering_leaves_the_records_as_they_are() -> None:
    for interruption in each_interruption(accumulator):
        taker = Taker(1 << 20)
        add(taker.records, b"now")
        interruption.during(taker.records.end_linger, taker.records._lock)
        add(taker.records, b"later")
        assert taker.due == taker.records.due, interruption.where
        assert taker.take_all() == [b"now", b"later"]


def test_a_wait_that_is_interrupted_spoils_no_other() -> None:
    for interruption in each_interruption(tickets, threading):
        ticket = Ticket()
        delivery = Delivery(ticket, 0)
        # It cannot be known yet: the wait ends at once.
        interruption.during(partial(_result, delivery, 0.0))
        later: list[Receipt] = []
        threads = [
            threading.Thread(target=work, daemon=True)
            for work in (
                partial(_result, delivery, HANG_S, later),
                # As the loop does: it must not wait for the caller that was interrupted.
                partial(ticket.resolve, DONE),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert later == [DONE], interruption.where


def _result(delivery: Delivery, timeout: float, results: list[Receipt] | None = None) -> None:
    with suppress(TimeoutError):
        receipt = delivery.result(timeout)
        if results is not None:
            results.append(receipt)


async def idle(producer: AsyncProducer) -> None:
    """Wait until the producer has no task: one that runs would find records without being woken."""
    while (task := producer._sender._task) is not None and not task.done():
        await asyncio.wait([task])


@asynccontextmanager
async def opened() -> AsyncIterator[AsyncProducer]:
    async with asyncio.timeout(HANG_S), cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, lambda append: Receipt(append.producer.sequence - 1, 1, 5, 1, 2))
        async with await (await log_of(session)).producer("loader", linger_ms=0) as producer:
            yield producer


@on_loop
async def test_a_flush_sends_records_for_which_the_loop_was_not_woken() -> None:
    async with opened() as producer:
        records = producer._records
        for interruption in each_interruption(sender):
            interruption.during(lambda: add(records, b"now"))
            before = producer.last_sequence
            await producer.flush()
            assert producer.last_sequence == before + 1, interruption.where
            await idle(producer)


@on_loop
async def test_a_record_after_an_interrupted_one_is_sent_without_a_flush() -> None:
    async with opened() as producer:
        records = producer._records
        for interruption in each_interruption(sender, accumulator):
            interruption.during(lambda: add(records, b"now"), records._lock)
            await (await producer.send(b"later"))
            assert not records.tickets, interruption.where
            await idle(producer)


@on_loop
async def test_a_flush_does_not_rely_on_a_call_to_the_loop() -> None:
    """A second signal may come while the first is handled: then the call is only believed made."""
    async with opened() as producer:
        producer._sender._wake_requested = True
        add(producer._records, b"now")
        await producer.flush()
        assert producer.last_sequence == 1


class InterruptedLoop:
    """A loop at which a thread is interrupted ``times`` times before its call is made."""

    def __init__(self, times: int, meanwhile: Callable[[], None]) -> None:
        self.calls: list[Callable[[], None]] = []
        self._times = times
        self._meanwhile = meanwhile

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        if self._times:
            self._times -= 1
            self._meanwhile()
            raise KeyboardInterrupt
        self.calls.append(call)


def in_another_thread(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(HANG_S)


@on_loop
async def test_a_thread_that_relies_on_an_interrupted_wake_is_not_forgotten() -> None:
    async with opened() as producer:
        waking, real = producer._sender, producer._sender._loop
        for times in (1, 2):
            # What another thread does while the first one is interrupted: it finds the loop called.
            loop = InterruptedLoop(times, partial(in_another_thread, waking.wake))
            waking._loop = loop  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                waking.wake()
            if times == 2:  # the thread was interrupted again: the next send calls the loop
                waking.wake()
            assert loop.calls == [waking._on_wake]
            loop.calls.pop()()
        waking._loop = real


@on_loop
async def test_a_close_that_was_cancelled_lets_no_later_call_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All batches in the window have an outcome, and a record behind them waits for a node."""
    async with asyncio.timeout(HANG_S), cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, DONE)
        producer = await (await log_of(session)).producer("loader", linger_ms=0)
        answers: asyncio.Queue[tuple[asyncio.Future[Receipt], asyncio.Future[Receipt]]]
        answers = asyncio.Queue()
        dialled, reach, begin = asyncio.Event(), session.pool.reach, NodeConnection.append

        def answered_late(at: NodeConnection, append: AppendRequest) -> asyncio.Future[Receipt]:
            late = asyncio.get_running_loop().create_future()
            answers.put_nowait((begin(at, append), late))
            return late

        async def dial(addresses: object) -> NodeConnection:
            dialled.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

        monkeypatch.setattr(NodeConnection, "append", answered_late)
        first = await producer.send(b"first")
        answer, late = await answers.get()
        monkeypatch.setattr(session.pool, "reach", dial)
        await dialled.wait()  # the node was silent for too long, and another one is dialled
        late.set_result(await answer)
        assert await first == DONE
        lost = await producer.send(b"lost")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.wait([closing])
        monkeypatch.setattr(session.pool, "reach", reach)
        with pytest.raises(InvalidArgument, match="is closed"):
            await lost
        for call in (producer.flush, producer.close):
            with pytest.raises(InvalidArgument, match="is closed"):
                await call()


@on_loop
async def test_a_producer_whose_task_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may be in neither list then: its sequence must not go to another record."""
    async with asyncio.timeout(HANG_S), cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        node.will(AppendRequest, DONE)
        producer = await (await log_of(session)).producer("loader", linger_ms=0)

        def interrupted(*_: object) -> None:
            raise Interrupted

        monkeypatch.setattr(Window, "add", interrupted)
        await producer.send(b"first")
        await asyncio.sleep(0)  # the loop calls the producer's task into being
        await asyncio.wait([_task(producer)])
        monkeypatch.undo()
        for call in (producer.flush, producer.close):
            with pytest.raises(InvalidArgument, match="is broken"):
                await call()
        assert isinstance(_task(producer).exception(), Interrupted)


class Interrupted(BaseException):
    """What a signal handler raises: no Exception, like KeyboardInterrupt, which ends the loop."""


def _task(producer: AsyncProducer) -> asyncio.Task[None]:
    task = producer._sender._task
    assert task is not None
    return task
