"""Reading the data directory of a node that does not run."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest
from spark_rig import fill, offsets, refused

import quorate.testing
from quorate.batch import encode_batch
from quorate.client.administration import find_log
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.session import Session
from quorate.client.staging import Chunk, Part, publish, stage
from quorate.storage.layout import segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from quorate.testing import Cluster

# So small that a log has several of them.
SETTINGS = {
    "storage": {"segment_bytes": 1 << 20},
    "limits": {"batch_bytes": 256 << 10, "record_bytes": 64 << 10},
}
RECORDS = 3000


@pytest.fixture(scope="module")
def stopped() -> Iterator[Cluster]:
    """A cluster whose nodes are stopped in good order, and what it had."""
    with quorate.testing.cluster(
        nodes=3, logs=["orders", "empty", "staged"], settings=SETTINGS, cuttable=False
    ) as running:
        client = running.client()
        log = client.log("orders")
        for start in range(0, RECORDS, 100):
            values = [b"%d" % number + bytes(1000) for number in range(start, start + 100)]
            log.append_batch(values, keys=[b"k"] * 100, headers=[[("h", b"1")]] * 100)
        asyncio.run(published(running.endpoints))
        assert len(list(client.log("staged").read())) == 30
        # What is known to be committed is on a disk with the next write only.
        fill(log, 1)
        for name in running.nodes:
            running.stop(name)
        yield running


async def published(endpoints: str) -> None:
    """Ten records, then ten of two tasks that come to be seen at once, then ten again."""
    session = Session(Routing(parse_endpoints(endpoints)), 30.0)
    try:
        route = await find_log(session, "staged")
        await session.append(route, encode_batch([b"before"] * 10, times=1))
        parts = []
        for partition in (0, 1):
            attempt = bytes([partition] * 16)
            batch = encode_batch([b"staged %d" % partition] * 5, times=2)
            await stage(session, route, Chunk("app", bytes(16), 0, partition, attempt, 0), batch)
            parts.append(Part(partition, attempt, 1, 5))
        await session.append(route, encode_batch([b"between"] * 10, times=3))
        await publish(session, route, "app", 0, parts, bytes(32))
    finally:
        await session.close()


def read(spark: SparkSession, path: Path, log: str, **options: object) -> DataFrame:
    reader = spark.read.format("quorate").option("path", str(path)).option("log", log)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return reader.load()


@pytest.mark.parametrize("node", ["n1", "n2", "n3"])
def test_every_replica_has_what_was_appended(
    spark: SparkSession, stopped: Cluster, node: str
) -> None:
    frame = read(spark, stopped.data(node), "orders", minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.where(f"offset < {RECORDS}").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(RECORDS))
    assert rows[1234].value == b"1234" + bytes(1000)
    assert rows[1234].key == b"k"
    assert [tuple(pair) for pair in rows[1234].headers] == [("h", b"1")]
    assert rows[0]["log"] == "orders"


def test_ranges_patterns_and_times(spark: SparkSession, stopped: Cluster) -> None:
    place = stopped.data("n1")
    frame = read(spark, place, "orders", startingOffsets=150, endingOffsets=260)
    assert offsets(frame) == list(range(150, 260))
    logs = {row["log"] for row in read(spark, place, "*").select("log").distinct().collect()}
    assert logs == {"orders", "staged"}, "the node's own log is nobody else's"
    assert read(spark, place, "empty").collect() == []


def test_a_time_leads_to_the_first_record_that_was_appended_then(
    spark: SparkSession, stopped: Cluster
) -> None:
    place = stopped.data("n1")
    reader = spark.read.format("quorate").schema("offset bigint, appendTime timestamp")
    frame = reader.option("path", str(place)).option("log", "orders").load()
    micros = frame.selectExpr("offset", "unix_micros(appendTime) as us").orderBy("offset")
    times = [row.us for row in micros.collect()]
    milliseconds = times[1700] // 1000
    found = read(spark, place, "orders", startingTimestamp=milliseconds)
    expected = next(place for place, time in enumerate(times) if time >= 1000 * milliseconds)
    assert expected <= 1700
    assert offsets(found) == list(range(expected, len(times)))


@pytest.mark.parametrize("bounds", [(0, 30), (12, 27), (21, 22), (20, 25)])
def test_what_was_staged_has_the_place_of_its_publish(
    spark: SparkSession, stopped: Cluster, bounds: tuple[int, int]
) -> None:
    frame = read(
        spark, stopped.data("n2"), "staged", startingOffsets=bounds[0], endingOffsets=bounds[1]
    )
    found = [(row.offset, row.value) for row in frame.orderBy("offset").collect()]
    values = [b"before"] * 10 + [b"between"] * 10 + [b"staged 0"] * 5 + [b"staged 1"] * 5
    assert found == list(enumerate(values))[slice(*bounds)]


def test_what_is_not_there_is_refused(
    spark: SparkSession, stopped: Cluster, tmp_path: Path
) -> None:
    place = stopped.data("n1")
    error = refused(read(spark, place, "items"))
    assert "LOG_NOT_FOUND" in error
    assert "the logs there: empty, orders, staged" in error
    assert "is not the data directory of a node" in refused(read(spark, tmp_path, "orders"))
    assert "OFFSET_OUT_OF_RANGE" in refused(read(spark, place, "orders", startingOffsets=99_999))
    stream = spark.readStream.format("quorate").option("path", str(place)).option("log", "orders")
    query = stream.load().writeStream.format("noop")
    with pytest.raises(Exception, match="path: a data directory is read as a batch"):
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()


def test_a_running_node_is_left_alone(spark: SparkSession, cluster: Cluster) -> None:
    client = cluster.client()
    client.log("running", create=True)
    assert "is in use by process" in refused(read(spark, cluster.data("n1"), "running"))


def test_a_damaged_copy_is_not_read(spark: SparkSession, stopped: Cluster, tmp_path: Path) -> None:
    copy = tmp_path / "n3"
    shutil.copytree(stopped.data("n3"), copy)
    # The largest log; its first segment is full of what was appended first.
    log = max(copy.glob("logs/*"), key=lambda place: len(list(place.iterdir())))
    with (log / segment_name(1)).open("r+b") as file:
        file.seek(100_000)
        byte = file.read(1)
        file.seek(100_000)
        file.write(bytes([byte[0] ^ 1]))
    assert offsets(read(spark, copy, "orders", startingOffsets=2000)), "the rest is whole"
    assert "CORRUPT" in refused(read(spark, copy, "orders"))
