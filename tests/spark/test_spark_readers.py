"""The batch reader as Spark calls it, on a real cluster and without a Java process in between."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition
from readers_rig import Logs, without
from spark_rig import fill, unused_name

from quorate.client.blocking import Log
from quorate.client.read.ranges import read_range
from quorate.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    QuorateError,
    Timeout,
)
from quorate.spark.read.cluster_logs import ClusterLog
from quorate.spark.read.columns import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.testing import Cluster


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    made = Logs(cluster, unused_name())
    yield made
    made.close()


def test_a_range_that_fits_into_one_sample_is_sampled_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.make(records=100)
    read, sampled = Log.read_arrow, []

    def noted(self: Log, start: int, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        sampled.append((start, stop))
        return iter(read(self, start, stop))

    monkeypatch.setattr(Log, "read_arrow", noted)
    assert ClusterLog(log).record_bytes(0, 100) > 0
    assert sampled == [(0, 100)]


@pytest.mark.parametrize("read_from", ["any", "leader", "n1", "n2", "n3"])
def test_every_replica_can_be_read(logs: Logs, read_from: str) -> None:
    log = logs.make(records=1000)
    assert logs.batch(log.name, readFrom=read_from, minPartitions=5) == list(range(1000))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"startingOffsets": 11}, OffsetOutOfRange, "OFFSET_OUT_OF_RANGE: startingOffsets 11"),
        ({"endingOffsets": 11}, OffsetOutOfRange, "OFFSET_OUT_OF_RANGE: endingOffsets 11"),
        ({"startingOffsets": 5, "endingOffsets": 4}, InvalidArgument, "it would begin at 5"),
        ({"readFrom": "n7"}, InvalidArgument, "'n7' is none of any, leader, n1, n2, n3"),
        ({"startingOffsets": '{"a": 1}', "log": "*"}, InvalidArgument, "offsets are given for a,"),
    ],
)
def test_what_is_not_there_is_refused(
    logs: Logs, given: dict[str, object], error: type[QuorateError], message: str
) -> None:
    log = logs.make(records=10)
    with pytest.raises(error, match=message):
        logs.batch(str(given.get("log", log.name)), **without(given, "log"))


def test_offsets_of_some_logs_of_a_pattern(logs: Logs) -> None:
    one, two, other = logs.make("a-1", 30), logs.make("a-2", 20), logs.make("b-1", 5)
    starting = json.dumps({one.name: 29, two.name: "latest"})
    assert logs.batch(f"{logs.prefix}-*", startingOffsets=starting) == [29, *range(5)]
    ending = json.dumps({two.name: 3, other.name: "earliest"})
    assert logs.batch(f"{logs.prefix}-?-[12]", endingOffsets=ending) == [*range(30), *range(3)]


def test_ranges_by_offset_and_time(logs: Logs) -> None:
    log = logs.make(records=10)
    moment = max(record.append_time for record in log.read()) + 1
    log.append(b"later")
    while log.offset_at(moment) == log.end_offset():
        log.append(b"later")
    later, end = log.offset_at(moment), log.end_offset()
    text = datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="microseconds")
    assert logs.batch(log.name, startingOffsets=3, endingOffsets=7) == [3, 4, 5, 6]
    assert logs.batch(log.name, startingOffsets="latest") == []
    assert logs.batch(log.name, startingTimestamp=text) == list(range(later, end))
    assert logs.batch(log.name, endingTimestamp=text) == list(range(later))
    assert logs.batch(log.name, startingTimestamp=0) == list(range(end))


def test_a_log_that_has_no_records_has_no_parts(logs: Logs) -> None:
    reader = logs.source(logs.make().name).reader(COLUMNS)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_only_the_named_replica_is_waited_for(logs: Logs) -> None:
    log = logs.make(records=10)
    leader = logs.cluster.wait_leader(log.name)
    still = next(iter(logs.cluster.others(leader)))
    with logs.cluster.client(timeout=2.0) as client:
        impatient = client.log(log.name)
        logs.cluster.pause(still)
        try:
            with pytest.raises(Timeout, match=f"{still} has not given offset 3 of {log.name}"):
                list(read_range(impatient, 3, 7, read_from=still))
            turns = [list(read_range(log, 3, 7, turn=turn)) for turn in range(3)]
        finally:
            logs.cluster.resume(still)
    for batches in turns:
        assert [n for batch in batches for n in batch.column("offset").to_pylist()] == [3, 4, 5, 6]


def test_a_replica_that_is_behind_is_not_believed(logs: Logs) -> None:
    """A planned range is read, also if the first replica that is asked lags behind it."""
    log = logs.make(records=10)
    leader = logs.cluster.wait_leader(log.name)
    behind = next(iter(logs.cluster.others(leader)))
    logs.cluster.pause(behind)
    try:
        fill(log, 500)
    finally:
        logs.cluster.resume(behind)
    for read_from in ("any", behind):
        assert logs.batch(log.name, readFrom=read_from, minPartitions=6) == list(range(510))


def test_a_leader_that_dies_after_the_plan_is_missed_by_nobody(logs: Logs) -> None:
    log = logs.make(records=600)
    reader = logs.source(log.name, readFrom="leader", minPartitions=3).reader(COLUMNS)
    parts = reader.partitions()
    leader = logs.cluster.wait_leader(log.name)
    logs.cluster.kill(leader)
    try:
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]  # Arrow
    finally:
        logs.cluster.restart(leader)
    assert [row["offset"] for row in found] == list(range(600))


def test_a_range_has_to_name_somebody(logs: Logs) -> None:
    with pytest.raises(InvalidArgument, match="'n9' is none of any, leader, n1, n2, n3"):
        read_range(logs.make(records=1), 0, 1, read_from="n9")
