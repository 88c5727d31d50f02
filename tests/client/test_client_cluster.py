"""The client against a real cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import quorate
from dev_rig import wait_until
from quorate.errors import (
    EmptyBatch,
    Fenced,
    InvalidArgument,
    LogExists,
    LogNotFound,
    LogRecreated,
    OffsetMismatch,
    OffsetOutOfRange,
    OutcomeUnknown,
    QuorateError,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev_rig import DevCluster


@pytest.fixture(scope="module")
def client(cluster: DevCluster) -> Iterator[quorate.Client]:
    with cluster.client() as made:
        yield made


@pytest.fixture
def log(client: quorate.Client, request: pytest.FixtureRequest) -> quorate.Log:
    """A log of the test's own."""
    name: str = request.node.name
    return client.create_log("".join(letter if letter.isalnum() else "-" for letter in name))


# -- records -------------------------------------------------------------------------------------


def test_what_is_appended_is_read(log: quorate.Log) -> None:
    before = time.time_ns() // 1000
    receipt = log.append(b"v", key=b"k", headers=[("h", b"1"), ("h", b"2")])
    assert (receipt.offset, receipt.count) == (0, 1)
    assert receipt.synced >= 2, "a majority has it on disk"
    [record] = log.read()
    assert (record.offset, record.key, record.value) == (0, b"k", b"v")
    assert record.headers == [("h", b"1"), ("h", b"2")]
    assert record.timestamp is not None
    assert before <= record.timestamp <= time.time_ns() // 1000


def test_a_timestamp_is_kept_as_it_was_given(log: quorate.Log) -> None:
    log.append(b"a", timestamp=-5)
    log.append_batch([b"b", b"c"], timestamps=[1, 2])
    log.append_batch([b"d", b"e"], timestamps=9)
    assert [record.timestamp for record in log.read()] == [-5, 1, 2, 9, 9]


def test_a_batch_takes_consecutive_offsets(log: quorate.Log) -> None:
    assert log.append_batch([b"a", b"b"])[:2] == (0, 2)
    assert log.append_batch([b"c"], keys=[None])[:2] == (2, 1)
    assert log.append_batch([b"", b"d"], keys=[b"", None])[:2] == (3, 2)
    assert [(one.offset, one.key, one.value) for one in log.read()] == [
        (0, None, b"a"), (1, None, b"b"), (2, None, b"c"), (3, b"", b""), (4, None, b"d"),
    ]  # fmt: skip


def test_bad_input_is_named_and_changes_nothing(log: quorate.Log) -> None:
    with pytest.raises(EmptyBatch):
        log.append_batch([])
    with pytest.raises(InvalidArgument, match=r"values\[0\]"):
        log.append("text")  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(InvalidArgument, match="keys has 1 items for 2 records"):
        log.append_batch([b"a", b"b"], keys=[b"k"])
    with pytest.raises(TooLarge, match="limits"):
        log.append(bytes(64 << 20))
    with pytest.raises(InvalidArgument, match="name"):
        log.append(b"v", fence="")
    assert log.end_offset() == 0


def test_a_range_is_read(log: quorate.Log) -> None:
    for first in range(0, 100, 10):
        log.append_batch([b"%d" % number for number in range(first, first + 10)])

    def offsets(*arguments: object, **options: object) -> list[int]:
        records = list(log.read(*arguments, **options))  # type: ignore[arg-type]  # as given below
        assert all(record.value == b"%d" % record.offset for record in records)
        return [record.offset for record in records]

    assert offsets() == offsets("earliest") == list(range(100))
    assert offsets(15, 42) == list(range(15, 42))
    assert offsets(95, 1000) == offsets(-5) == list(range(95, 100))
    assert offsets(-1000) == list(range(100))
    assert offsets(100) == offsets("latest") == offsets(50, 50) == offsets(50, 10) == []
    assert offsets(0, linearizable=True) == list(range(100))
    for linearizable in (False, True):
        with pytest.raises(OffsetOutOfRange):
            offsets(101, linearizable=linearizable)


def test_many_megabytes_are_read_as_they_were_appended(log: quorate.Log) -> None:
    values = [bytes([number]) * (700 << 10) for number in range(10)]
    for value in values:
        log.append(value)
    assert [record.value for record in log.read()] == values


def test_an_offset_is_found_by_time(log: quorate.Log) -> None:
    for value in (b"a", b"b", b"c"):
        log.append(value)
    records = list(log.read())
    assert log.offset_at(0) == 0
    for record in records:
        found = log.offset_at(record.append_time)
        assert records[found].append_time == record.append_time
    assert log.offset_at(records[-1].append_time + 1) == log.end_offset() == 3
    assert log.first_offset() == 0


def test_a_reader_that_follows_sees_what_comes(cluster: DevCluster, log: quorate.Log) -> None:
    log.append(b"0")
    values: list[bytes] = []

    def follow() -> None:
        with cluster.client() as reader:
            records = reader.log(log.name).read(0, 50, follow=True)
            values.extend(record.value for record in records)

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, 50):
        log.append(b"%d" % number)
    thread.join()
    assert values == [b"%d" % number for number in range(50)]


# -- conditions ----------------------------------------------------------------------------------


def test_an_append_may_expect_its_offset(log: quorate.Log) -> None:
    assert log.append(b"a", expect_offset=0).offset == 0
    with pytest.raises(OffsetMismatch):
        log.append(b"b", expect_offset=0)
    assert log.append(b"b", expect_offset=1).offset == 1
    assert log.end_offset() == 2


def test_a_fence_keeps_older_writers_out(log: quorate.Log) -> None:
    log.set_fence("w1", expect=None)
    with pytest.raises(Fenced):
        log.append(b"none")
    assert log.append(b"w1", fence="w1").offset == 0
    with pytest.raises(Fenced):
        log.set_fence("w3", expect="w2")
    log.set_fence("w2", expect="w1")
    with pytest.raises(Fenced):
        log.append(b"w1", fence="w1")
    assert log.append(b"w2", fence="w2").offset == 1
    log.set_fence(None, expect="w2")
    assert log.append(b"anybody").offset == 2


# -- logs ----------------------------------------------------------------------------------------


def test_a_log_is_made_found_and_deleted(client: quorate.Client) -> None:
    with pytest.raises(LogNotFound):
        client.log("short-lived")
    made = client.log("short-lived", create=True)
    assert client.log("short-lived", create=True).incarnation == made.incarnation
    assert "short-lived" in client.logs()
    with pytest.raises(LogExists):
        client.create_log("short-lived")
    made.append(b"old")
    client.delete_log("short-lived")
    assert "short-lived" not in client.logs()
    for lost in (made.end_offset, lambda: made.append(b"v"), lambda: list(made.read())):
        with pytest.raises(LogNotFound):
            lost()
    with pytest.raises(LogNotFound):
        client.delete_log("short-lived")
    again = client.create_log("short-lived")
    assert again.incarnation != made.incarnation
    for recreated in (made.end_offset, lambda: made.append(b"v"), lambda: list(made.read())):
        with pytest.raises(LogRecreated):
            recreated()
    assert again.append(b"new").offset == 0
    assert [record.value for record in again.read()] == [b"new"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 300])
def test_a_name_that_cannot_be_is_refused(client: quorate.Client, name: str) -> None:
    with pytest.raises(InvalidArgument):
        client.create_log(name)


def test_status_shows_nodes_logs_and_replicas(client: quorate.Client, log: quorate.Log) -> None:
    log.append_batch([b"a", b"b", b"c"])
    status = client.status()
    assert [(node["id"], node["up"]) for node in status["nodes"]] == [
        ("n1", True), ("n2", True), ("n3", True),
    ]  # fmt: skip
    [found] = [one for one in status["logs"] if one["name"] == log.name]
    assert found["incarnation"] == log.incarnation
    assert (found["first_offset"], found["end_offset"]) == (0, 3)
    roles = {one["node"]: one["role"] for one in found["replicas"]}
    assert sorted(roles.values()) == ["follower", "follower", "leader"]
    assert found["leader"] is not None
    assert roles[found["leader"]] == "leader"


# -- threads, processes, loops -------------------------------------------------------------------


def test_many_threads_share_a_client(log: quorate.Log) -> None:
    with ThreadPoolExecutor(16) as threads:
        receipts = list(threads.map(lambda number: log.append(b"%d" % number), range(400)))
    assert sorted(receipt.offset for receipt in receipts) == list(range(400))
    values = [record.value for record in log.read()]
    assert all(values[one.offset] == b"%d" % number for number, one in enumerate(receipts))


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
def test_a_forked_process_has_connections_of_its_own(log: quorate.Log) -> None:
    log.append(b"before")
    records = iter(log.read(0, 3, follow=True))
    assert next(records).value == b"before"

    def use() -> None:
        assert log.append(b"child").offset == 1
        assert [record.value for record in log.read()] == [b"before", b"child"]
        assert next(records).value == b"child"

    assert in_a_fork(use) == 0
    assert log.append(b"parent").offset == 2
    assert [record.value for record in records] == [b"child", b"parent"]


def test_a_closed_client_says_so(cluster: DevCluster, log: quorate.Log) -> None:
    with cluster.client() as client:
        other = client.log(log.name)
    with pytest.raises(InvalidArgument, match="the client is closed"):
        other.append(b"v")
    client.close()


def test_the_same_with_asyncio(cluster: DevCluster, log: quorate.Log) -> None:
    async def use() -> None:
        async with quorate.AsyncClient(cluster.endpoints.split(",")) as client:
            assert log.name in await client.logs()
            other = await client.log(log.name)
            receipts = await asyncio.gather(*(other.append(b"%d" % n) for n in range(200)))
            values = [record.value async for record in other.read()]
            assert [values[receipt.offset] for receipt in receipts] == [
                b"%d" % number for number in range(200)
            ]
            assert await other.end_offset() == 200

    asyncio.run(use())


# -- when nodes die ------------------------------------------------------------------------------


def append_for_a_while(
    log: quorate.Log, writer: int, outcomes: dict[bytes, str], stop: threading.Event
) -> None:
    number = 0
    while not stop.is_set():
        value = b"%d-%d" % (writer, number)
        number += 1
        try:
            log.append(value)
            outcomes[value] = "acked"
        except OutcomeUnknown:
            outcomes[value] = "unknown"
        except QuorateError:
            outcomes[value] = "failed"


def test_a_killed_leader_loses_nothing_and_doubles_nothing(
    cluster: DevCluster, log: quorate.Log
) -> None:
    outcomes: dict[bytes, str] = {}
    stop = threading.Event()
    writers = [
        threading.Thread(target=append_for_a_while, args=(log, writer, outcomes, stop))
        for writer in range(4)
    ]
    for thread in writers:
        thread.start()

    def acked() -> int:
        return sum(outcome == "acked" for outcome in list(outcomes.values()))

    wait_until(lambda: acked() >= 20, "appends are acknowledged")
    cluster.signal(cluster.leader(log.name), signal.SIGKILL)
    enough = acked() + 100
    wait_until(lambda: acked() >= enough, "appends are acknowledged again")
    stop.set()
    for thread in writers:
        thread.join()
    values = [record.value for record in log.read(linearizable=True)]
    assert len(set(values)) == len(values), "nothing is there twice"
    there = set(values)
    assert there <= outcomes.keys(), "nothing is there that nobody appended"
    assert {value for value, outcome in outcomes.items() if outcome == "acked"} <= there
    assert not {value for value, outcome in outcomes.items() if outcome == "failed"} & there


def test_a_reader_survives_the_node_that_it_reads_from(
    cluster: DevCluster, log: quorate.Log
) -> None:
    for first in range(0, 2000, 100):
        log.append_batch([b"%d" % number * 1000 for number in range(first, first + 100)])
    records = log.read(linearizable=True)
    assert next(records).offset == 0
    cluster.signal(cluster.leader(log.name), signal.SIGKILL)
    assert [record.offset for record in records] == list(range(1, 2000))


def test_a_paused_node_is_read_around(cluster: DevCluster, log: quorate.Log) -> None:
    log.append(b"v")
    with cluster.client() as client:
        other = client.log(log.name)
        paused = cluster.leader(log.name)
        cluster.signal(paused, signal.SIGSTOP)
        try:
            assert [record.value for record in other.read()] == [b"v"]
            assert other.append(b"w").offset == 1
            up = {node["id"]: node["up"] for node in client.status()["nodes"]}
            assert up == {"n1": True, "n2": True, "n3": True} | {paused: False}
        finally:
            cluster.signal(paused, signal.SIGCONT)
