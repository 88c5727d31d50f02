"""Producers and a real cluster: leaders die, names are taken over, threads share."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

import quorate
from quorate.errors import Fenced, InvalidArgument, LogRecreated, OutcomeUnknown, Timeout, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev_rig import DevCluster


@pytest.fixture(scope="module")
def client(cluster: DevCluster) -> Iterator[quorate.Client]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def log(client: quorate.Client, request: pytest.FixtureRequest) -> quorate.Log:
    """A log of the test's own."""
    name: str = request.node.name
    return client.create_log("".join(letter if letter.isalnum() else "-" for letter in name))


def values_of(log: quorate.Log) -> list[bytes]:
    return [record.value for record in log.read(linearizable=True)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# -- sending -------------------------------------------------------------------------------------


def test_every_record_has_its_own_receipt(log: quorate.Log) -> None:
    with log.producer("loader-7", linger_ms=5) as producer:
        deliveries = [producer.send(value) for value in numbers(1000)]
        producer.flush()
        assert producer.last_sequence == 1000
    receipts = [delivery.result(10) for delivery in deliveries]
    assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert {receipt.count for receipt in receipts} == {1}
    assert {receipt.synced for receipt in receipts} <= {2, 3}
    assert values_of(log) == numbers(1000)


def test_columns_arrive(log: quorate.Log) -> None:
    with log.producer("loader") as producer:
        producer.send(b"v", key=b"k", headers=[("h", b"1")], timestamp=12)
        producer.send(b"w")
        whole = producer.send_batch([b"x", b"y"], keys=[b"kx", None])
        alone = producer.send_and_wait(b"z")
    assert whole.result()[:2] == (2, 2)
    assert alone.offset == 4
    first, second, third, fourth, fifth = log.read()
    assert (first.key, first.headers, first.timestamp) == (b"k", [("h", b"1")], 12)
    assert (second.key, second.headers) == (None, [])
    assert second.timestamp is not None
    assert (third.key, fourth.key) == (b"kx", None)
    assert fifth.value == b"z"


def test_opened_again_it_goes_on_where_it_was(log: quorate.Log) -> None:
    lines = numbers(100)
    with log.producer("loader") as producer:
        for line in lines[:60]:
            producer.send(line)
    with log.producer("loader") as producer:
        assert producer.last_sequence == 60
        for line in lines[producer.last_sequence :]:
            producer.send(line)
    assert values_of(log) == lines


def test_the_one_who_was_replaced_is_told(log: quorate.Log) -> None:
    first = log.producer("loader")
    first.send_and_wait(b"1")
    second = log.producer("loader")
    delivery = first.send(b"2")
    with pytest.raises(Fenced):
        first.flush()
    with pytest.raises(Fenced):
        delivery.result(30)
    with pytest.raises(Fenced, match="open it again"):
        first.send(b"3")
    with pytest.raises(Fenced):
        first.close()
    assert second.last_sequence == 1
    assert second.send_and_wait(b"2").offset == 1
    second.close()
    assert values_of(log) == [b"1", b"2"]


def test_threads_share_a_producer(log: quorate.Log) -> None:
    def send(thread: int) -> None:
        for number in range(500):
            deliveries[thread].append(producer.send(b"%d-%d" % (thread, number)))
            if number % 100 == 99:
                deliveries[thread][-1].result(30)

    deliveries: list[list[quorate.Delivery]] = [[] for _ in range(4)]
    with log.producer("shared", memory_bytes=20_000, batch_bytes=2000) as producer:
        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = values_of(log)
    assert len(values) == len(set(values)) == 2000
    for number, mine in enumerate(deliveries):
        offsets = [delivery.result(30).offset for delivery in mine]
        assert offsets == sorted(offsets)
        assert [values[offset] for offset in offsets] == [
            b"%d-%d" % (number, n) for n in range(500)
        ]


def test_what_waits_has_a_limit(log: quorate.Log) -> None:
    """More than fits is sent, piece by piece, by a caller who waits."""
    with log.producer("full", memory_bytes=10_000) as producer:
        deliveries = [producer.send(bytes(3000)) for _ in range(100)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(100))


def test_a_result_can_be_waited_for_a_while(log: quorate.Log) -> None:
    with log.producer("slow", linger_ms=60_000) as producer:
        delivery = producer.send(b"v")
        with pytest.raises(TimeoutError, match="still on its way"):
            delivery.result(0)
        assert not delivery.done()
        producer.flush()
        assert delivery.done()
        assert delivery.result(0).offset == 0


def test_too_large_spoils_nothing(log: quorate.Log) -> None:
    with log.producer("large") as producer:
        producer.send(b"before")
        with pytest.raises(TooLarge):
            producer.send(bytes(64 << 20))
        with pytest.raises(TooLarge):
            producer.send_batch([bytes(64 << 20)])
        producer.send(b"after")
    assert values_of(log) == [b"before", b"after"]


def test_a_fence_keeps_a_producer_out(log: quorate.Log) -> None:
    log.set_fence("writer-1")
    with log.producer("loader", fence="writer-1") as producer:
        producer.send(b"v")
    with pytest.raises(Fenced, match="writer-1"), log.producer("loader") as producer:
        producer.send(b"w")
    assert values_of(log) == [b"v"]


def test_the_log_was_made_again(client: quorate.Client) -> None:
    old = client.create_log("short-lived-producer")
    producer = old.producer("loader")
    producer.send_and_wait(b"v")
    client.delete_log("short-lived-producer")
    client.create_log("short-lived-producer")
    with pytest.raises(LogRecreated), producer:
        producer.send(b"w")


# -- ends ----------------------------------------------------------------------------------------


def test_an_error_of_the_body_comes_through(log: quorate.Log) -> None:
    with pytest.raises(ZeroDivisionError), log.producer("loader", linger_ms=1000) as producer:
        producer.send(b"v")
        raise ZeroDivisionError
    assert values_of(log) == [b"v"], "what was sent before is delivered all the same"


def test_a_closed_producer_says_so(log: quorate.Log) -> None:
    with log.producer("loader") as producer:
        producer.send(b"v")
    with pytest.raises(InvalidArgument, match="is closed"):
        producer.send(b"w")
    producer.close()


def test_a_client_that_is_closed_leaves_nobody_waiting(
    cluster: DevCluster, log: quorate.Log
) -> None:
    with cluster.client() as client:
        producer = client.log(log.name).producer("loader", linger_ms=60_000)
        delivery = producer.send(b"v")
    with pytest.raises(InvalidArgument, match="the client is closed"):
        delivery.result(30)
    with pytest.raises(InvalidArgument):
        producer.send(b"v")
    with pytest.raises(InvalidArgument):
        producer.flush()
    assert values_of(log) == []


def in_a_fork(act: Callable[[], None]) -> int:
    """The status of a forked process that does ``act`` and nothing else."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_producer_does_not_outlive_a_fork(log: quorate.Log) -> None:
    """Parent and child would use the same sequences for different records."""
    producer = log.producer("loader", linger_ms=60_000)
    delivery = producer.send(b"parent")

    def use() -> None:
        for act in (lambda: producer.send(b"v"), producer.flush, producer.close, delivery.result):
            with pytest.raises(InvalidArgument, match="before the fork"):
                act()

    assert in_a_fork(use) == 0
    producer.close()
    assert delivery.result(0).offset == 0


# -- trouble -------------------------------------------------------------------------------------


def test_a_leader_dies_in_the_middle(cluster: DevCluster, log: quorate.Log) -> None:
    total = 6000
    deliveries = []
    leader = cluster.leader(log.name)
    with log.producer("exact", batch_bytes=2000, linger_ms=1) as producer:
        for number, value in enumerate(numbers(total)):
            deliveries.append(producer.send(value))
            if number == total // 2:
                cluster.signal(leader, signal.SIGKILL)
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(total))
    assert producer.last_sequence == total
    assert values_of(log) == numbers(total)


def test_a_leader_that_is_paused_is_left(cluster: DevCluster, log: quorate.Log) -> None:
    with log.producer("exact", batch_bytes=500) as producer:
        deliveries = [producer.send(value) for value in numbers(200)]
        producer.flush()
        paused = cluster.leader(log.name)
        cluster.signal(paused, signal.SIGSTOP)
        try:
            deliveries += [producer.send(b"%d" % number) for number in range(200, 400)]
            producer.flush()
        finally:
            cluster.signal(paused, signal.SIGCONT)
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(400))
    assert values_of(log) == numbers(400)


def test_without_a_majority_the_time_is_up(cluster: DevCluster, log: quorate.Log) -> None:
    """What ended as unknown is counted by last_sequence when the producer is opened again."""
    with cluster.client(timeout=2.0) as client:
        producer = client.log(log.name).producer("unclear", memory_bytes=2000)
        producer.send_and_wait(b"0")
        nodes = ("n1", "n2", "n3")
        for node in nodes:
            cluster.signal(node, signal.SIGSTOP)
        try:
            deliveries = [producer.send(bytes(900)), producer.send(bytes(900))]
            with pytest.raises((Timeout, InvalidArgument)):
                producer.send(bytes(900))
            for delivery in deliveries:
                with pytest.raises(OutcomeUnknown):
                    delivery.result(30)
            with pytest.raises(InvalidArgument, match="open it again"):
                producer.send(b"v")
            with pytest.raises(OutcomeUnknown):
                producer.close()
        finally:
            for node in nodes:
                cluster.signal(node, signal.SIGCONT)
    with log.producer("unclear") as producer:
        there = producer.last_sequence
        producer.send(b"next")
    values = values_of(log)
    assert len(values) == there + 1
    assert values[-1] == b"next"


# -- asyncio -------------------------------------------------------------------------------------


def test_the_same_with_asyncio(cluster: DevCluster, log: quorate.Log) -> None:
    async def use() -> None:
        async with quorate.AsyncClient(cluster.endpoints) as client:
            other = await client.log(log.name)
            async with await other.producer("async", memory_bytes=20_000) as producer:
                deliveries = [await producer.send(value) for value in numbers(1000)]
                await producer.flush()
                offsets = [receipt.offset for receipt in await asyncio.gather(*deliveries)]
                assert offsets == list(range(1000))
                assert (await (await producer.send_batch([b"a", b"b"]))).count == 2
                assert (await producer.send_and_wait(b"c")).offset == 1002
            assert producer.last_sequence == 1003
            with pytest.raises(InvalidArgument, match="is closed"):
                await producer.send(b"d")

    asyncio.run(use())
    assert values_of(log) == [*numbers(1000), b"a", b"b", b"c"]


def test_whoever_stops_waiting_stops_nothing(cluster: DevCluster, log: quorate.Log) -> None:
    async def use() -> None:
        async with quorate.AsyncClient(cluster.endpoints) as client:
            producer = await (await client.log(log.name)).producer("async", linger_ms=60_000)
            delivery = await producer.send(b"v")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(delivery, 0.01)
            await producer.flush()
            assert (await delivery).offset == 0

    asyncio.run(use())
