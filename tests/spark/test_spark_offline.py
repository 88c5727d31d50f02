"""Reading the data directory of a node that does not run."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from spark_rig import fill

import quorate.testing
from quorate.batch import encode_batch
from quorate.client.staging import Stager, publish_staged
from quorate.commands import ChunkLabel, Part
from quorate.errors import (
    Corrupt,
    InvalidArgument,
    LogNotFound,
    LogRecreated,
    OffsetOutOfRange,
    WrongDirectory,
)
from quorate.spark.read.columns import APPEND_TIME, COLUMNS
from quorate.spark.source import QuorateDataSource
from quorate.storage.layout import segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate import Log
    from quorate.testing import Cluster

# So small that a log has several of them.
SETTINGS = {
    "storage": {"segment_bytes": 1 << 20},
    "limits": {"batch_bytes": 256 << 10, "record_bytes": 64 << 10},
}
RECORDS = 3000


@pytest.fixture(scope="module")
def stopped() -> Iterator[Cluster]:
    """A cluster whose nodes are stopped in good order, and the records that it had."""
    with quorate.testing.cluster(
        nodes=3, logs=["orders", "empty", "staged"], settings=SETTINGS, cuttable=False
    ) as running:
        client = running.client()
        log = client.log("orders")
        for start in range(0, RECORDS, 100):
            values = [b"%d" % number + bytes(1000) for number in range(start, start + 100)]
            log.append_batch(values, keys=[b"k"] * 100, headers=[[("h", b"1")]] * 100)
        publish_between_appends(client.log("staged"))
        assert len(list(client.log("staged").read())) == 31
        # That an entry is committed stands on a disk with the next write only.
        fill(log, 1)
        for name in running.nodes:
            running.stop(name)
        yield running


def publish_between_appends(log: Log) -> None:
    """Ten records, ten again, and ten of two tasks, which were staged between them."""
    log.append_batch([b"before"] * 10, timestamps=1)
    parts = []
    for partition in (0, 1):
        attempt = bytes([partition] * 16)
        stager = Stager(log, ChunkLabel("app", bytes(16), 0, partition, attempt, 0))
        stager.send(encode_batch([b"staged %d" % partition] * 5, times=2))
        stager.finish()
        parts.append(Part(partition, attempt, 1, 5))
    log.append_batch([b"between"] * 10, timestamps=3)
    publish_staged(log, "app", 0, parts, bytes(32))
    log.append(b"last", timestamp=4)


def read(path: Path, log: str, **options: object) -> list[dict[str, Any]]:
    """The rows that the reader gives, in their order."""
    given = {"path": str(path), "log": log}
    source = QuorateDataSource(given | {key: str(value) for key, value in options.items()})
    reader = source.reader(StructType([*COLUMNS, APPEND_TIME]))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()  # type: ignore[union-attr]  # an Arrow batch
    ]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


@pytest.mark.parametrize("node", ["n1", "n2", "n3"])
def test_every_replica_has_what_was_appended(stopped: Cluster, node: str) -> None:
    rows = read(stopped.data(node), "orders", minPartitions=3)[:RECORDS]
    assert offsets(rows) == list(range(RECORDS))
    assert rows[1234]["value"] == b"1234" + bytes(1000)
    assert rows[1234]["key"] == b"k"
    assert rows[1234]["headers"] == [{"key": "h", "value": b"1"}]
    assert {row["log"] for row in rows} == {"orders"}


def test_spark_reads_it(spark: SparkSession, stopped: Cluster, tmp_path: Path) -> None:
    place = str(stopped.data("n1"))
    reader = spark.read.format("quorate").option("path", place).option("log", "orders")
    frame = reader.option("minPartitions", "3").load()
    assert frame.rdd.getNumPartitions() == 3
    assert frame.where(f"offset < {RECORDS}").count() == RECORDS
    stream = spark.readStream.format("quorate").option("path", place).option("log", "orders")
    query = stream.load().writeStream.format("noop")
    with pytest.raises(Exception, match="path: a data directory is read as a batch"):
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()


def test_ranges_and_patterns(stopped: Cluster) -> None:
    place = stopped.data("n1")
    rows = read(place, "orders", startingOffsets=150, endingOffsets=260)
    assert offsets(rows) == list(range(150, 260))
    logs = {row["log"] for row in read(place, "*")}
    assert logs == {"orders", "staged"}, "the node's own log is not listed"
    assert read(place, "empty") == []


def test_a_time_leads_to_the_first_record_that_was_appended_then(stopped: Cluster) -> None:
    place = stopped.data("n1")
    times = [row["appendTime"] for row in read(place, "orders")]
    moment = times[1700].replace(microsecond=times[1700].microsecond // 1000 * 1000)
    rows = read(place, "orders", startingTimestamp=moment.isoformat())
    expected = next(number for number, time in enumerate(times) if time >= moment)
    assert expected <= 1700
    assert offsets(rows) == list(range(expected, len(times)))
    assert read(place, "orders", startingTimestamp="2200-01-01") == []


@pytest.mark.parametrize("bounds", [(0, 30), (12, 27), (21, 22), (20, 25)])
def test_what_was_staged_has_the_place_of_its_publish(
    stopped: Cluster, bounds: tuple[int, int]
) -> None:
    rows = read(stopped.data("n2"), "staged", startingOffsets=bounds[0], endingOffsets=bounds[1])
    values = [b"before"] * 10 + [b"between"] * 10 + [b"staged 0"] * 5 + [b"staged 1"] * 5
    found = [(row["offset"], row["value"]) for row in rows]
    assert found == list(enumerate(values))[slice(*bounds)]
    times = [row["appendTime"] for row in rows]
    assert times == sorted(times)


def test_what_is_not_there_is_refused(stopped: Cluster, tmp_path: Path) -> None:
    place = stopped.data("n1")
    with pytest.raises(LogNotFound, match="no log items; the logs there: empty, orders, staged"):
        read(place, "items")
    with pytest.raises(InvalidArgument, match="is not the data directory of a node"):
        read(tmp_path, "orders")
    with pytest.raises(OffsetOutOfRange, match="OFFSET_OUT_OF_RANGE: startingOffsets 99999"):
        read(place, "orders", startingOffsets=99_999)


def test_a_running_node_is_left_alone(cluster: Cluster) -> None:
    with pytest.raises(WrongDirectory, match="is in use by process"):
        read(cluster.data("n1"), "orders")


def test_a_log_that_was_made_again_since_the_plan_is_named(stopped: Cluster) -> None:
    reader = QuorateDataSource({"path": str(stopped.data("n1")), "log": "orders"}).reader(COLUMNS)
    [partition] = reader.partitions()
    planned = partition.value._replace(incarnation="0" * 32)
    with pytest.raises(LogRecreated, match=f"{'0' * 32} is {partition.value.incarnation} now"):
        list(reader.read(InputPartition(planned)))


def test_a_damaged_copy_is_not_read(stopped: Cluster, tmp_path: Path) -> None:
    copy = tmp_path / "n3"
    shutil.copytree(stopped.data("n3"), copy)
    # The largest log; its first segment is full of the oldest records.
    log = max(copy.glob("logs/*"), key=lambda place: len(list(place.iterdir())))
    with (log / segment_name(1)).open("r+b") as file:
        file.seek(100_000)
        byte = file.read(1)
        file.seek(100_000)
        file.write(bytes([byte[0] ^ 1]))
    assert offsets(read(copy, "orders", startingOffsets=2000)), "the rest is whole"
    with pytest.raises(Corrupt):
        read(copy, "orders")
