"""Reading from a real cluster: records and Arrow, while others append and leaders die."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.errors import OffsetOutOfRange
from quorate.testing import cluster as start_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate import Client, Log
    from quorate.testing import Cluster

# More than one answer holds: the rest comes from any replica.
LARGE = bytes(100_000)
MANY = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(logs=["mixed", "large"], directory=tmp_path_factory.mktemp("reads")) as made:
        yield made


@pytest.fixture(scope="module")
def client(nodes: Cluster) -> Client:
    return nodes.client()


@pytest.fixture(scope="module")
def mixed(client: Client) -> Log:
    """Batches with different columns."""
    log = client.log("mixed")
    log.append(b"plain")
    log.append_batch([b"a", b"b", b"c"], keys=[b"k", None, b""], timestamps=[3, 1, 2])
    log.append_batch([b"d", b"e"], headers=[[("h", b"1"), ("h", b"")], []], timestamps=7)
    log.append(b"", key=b"alone", headers=[("ключ", b"\xff")])
    log.append_batch([b"%d" % number for number in range(20)])
    return log


@pytest.fixture(scope="module")
def large(client: Client) -> Log:
    log = client.log("large")
    for number in range(MANY):
        log.append_batch([b"%d" % number, LARGE])
    return log


def values(log: Log, start: int, stop: int | None, *, arrow: bool) -> list[bytes]:
    if arrow:
        found: list[bytes] = log.read_arrow(start, stop).read_all().column("value").to_pylist()
        return found
    return [record.value for record in log.read(start, stop)]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 27), st.integers(0, 40))
def test_arrow_sees_the_records_that_python_sees(mixed: Log, start: int, stop: int) -> None:
    records = list(mixed.read(start, stop))
    table = mixed.read_arrow(start, stop).read_all()
    assert table.column("offset").to_pylist() == [record.offset for record in records]
    assert table.column("key").to_pylist() == [record.key for record in records]
    assert table.column("value").to_pylist() == [record.value for record in records]
    for name in ("timestamp", "append_time"):
        stamps = table.column(name).cast(pa.int64()).to_pylist()
        assert stamps == [getattr(record, name) for record in records]
    headers = [
        [(pair["key"], pair["value"]) for pair in row] for row in table["headers"].to_pylist()
    ]
    assert headers == [record.headers for record in records]


@pytest.mark.parametrize("arrow", [False, True])
def test_an_empty_log_has_nothing(client: Client, arrow: bool) -> None:
    log = client.create_log(f"empty-{arrow}")
    assert values(log, 0, None, arrow=arrow) == []


@pytest.mark.parametrize("arrow", [False, True])
def test_a_start_beyond_the_end_is_named(mixed: Log, arrow: bool) -> None:
    with pytest.raises(OffsetOutOfRange):
        values(mixed, 28, None, arrow=arrow)
    assert values(mixed, 27, None, arrow=arrow) == []


@pytest.mark.parametrize("arrow", [False, True])
def test_many_answers_come_whole_and_in_order(large: Log, arrow: bool) -> None:
    expected = [value for number in range(MANY) for value in (b"%d" % number, LARGE)]
    assert values(large, 0, None, arrow=arrow) == expected
    assert values(large, 5, 2 * MANY - 5, arrow=arrow) == expected[5:-5]


def test_every_replica_is_read_from(nodes: Cluster, large: Log) -> None:
    """By readers of one client, one after the other."""
    for _ in nodes.nodes:
        assert sum(1 for _ in large.read()) == 2 * MANY
    session = large._client._workers[os.getpid()]._session
    assert {requests.node for requests in session.pool._open.values()} == set(nodes.nodes)


@pytest.mark.parametrize("arrow", [False, True])
def test_own_appends_are_seen_at_once(client: Client, arrow: bool) -> None:
    log = client.create_log(f"own-{arrow}")
    for number in range(30):
        log.append(b"%d" % number)
        assert values(log, number, None, arrow=arrow) == [b"%d" % number]


@pytest.mark.parametrize("arrow", [False, True])
def test_a_leader_dies_while_it_is_read(nodes: Cluster, arrow: bool) -> None:
    log = nodes.client().log(f"dies-{arrow}", create=True)
    for number in range(MANY):
        log.append_batch([b"%d" % number, LARGE])
    killed = nodes.wait_leader(log.name)
    seen: list[int] = []
    if arrow:
        for batch in log.read_arrow():
            seen += batch.column("offset").to_pylist()
            if len(seen) == 2 * 5:
                nodes.kill(killed)
    else:
        for record in log.read():
            seen.append(record.offset)
            if len(seen) == 5:
                nodes.kill(killed)
    nodes.restart(killed)
    assert seen == list(range(2 * MANY))


def test_a_follower_sees_what_others_append_while_a_leader_dies(nodes: Cluster) -> None:
    log = nodes.client().log("followed", create=True)
    enough = 200
    stop = threading.Event()

    def append() -> None:
        writer = nodes.client().log("followed").producer("writer")
        with writer:
            number = 0
            while not stop.is_set():
                writer.send(b"%d" % number)
                number += 1
                if number % 10 == 0:
                    writer.flush()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        seen = []
        for record in log.read(follow=True):
            seen.append((record.offset, record.value))
            if len(seen) == enough // 2:
                killed = nodes.wait_leader("followed")
                nodes.kill(killed)
            if len(seen) == enough:
                break
    finally:
        stop.set()
        thread.join()
    nodes.restart(killed)
    assert seen == [(number, b"%d" % number) for number in range(enough)]


@pytest.mark.parametrize("arrow", [False, True])
def test_a_read_goes_on_in_a_forked_process(large: Log, arrow: bool) -> None:
    """With connections of its own, after what its parent was given; and the parent's goes on."""
    counts = (
        (batch.num_rows for batch in large.read_arrow()) if arrow else (1 for _ in large.read())
    )
    first = next(counts)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"%d" % sum(counts))
        os._exit(0)
    os.close(writer)
    try:
        rest = sum(counts)
        assert first + rest == 2 * MANY
        assert os.read(reader, 100) == b"%d" % rest
    finally:
        os.close(reader)
        os.waitpid(child, 0)
