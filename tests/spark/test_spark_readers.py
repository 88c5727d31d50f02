"""The readers as Spark calls them, on a real cluster and without a Java process in between."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from spark_rig import fill, unused_name

from dev_rig import delete_logs
from quorate.client.ranges import read_range
from quorate.errors import (
    InvalidArgument,
    LogNotFound,
    LogRecreated,
    OffsetOutOfRange,
    QuorateError,
    Timeout,
)
from quorate.spark.columns import COLUMNS
from quorate.spark.source import QuorateDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import quorate
    from quorate.spark.stream import QuorateStreamReader
    from quorate.testing import Cluster

Offsets = dict[str, dict[str, Any]]


class Logs:
    """Logs of one test, and readers of them."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.prefix = prefix
        self._streams: list[QuorateStreamReader] = []

    def make(self, name: str = "log", records: int = 0) -> quorate.Log:
        log = self.client.create_log(f"{self.prefix}-{name}")
        if records:
            fill(log, records)
        return log

    def source(self, log: str, **options: object) -> QuorateDataSource:
        given = {"endpoints": self.cluster.endpoints, "log": log}
        return QuorateDataSource(given | {key: str(value) for key, value in options.items()})

    def batch(self, log: str, **options: object) -> list[int]:
        """The offsets that a batch reads."""
        reader = self.source(log, **options).reader(COLUMNS)
        return [
            offset
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for offset in batch.column("offset").to_pylist()  # type: ignore[union-attr]  # Arrow
        ]

    def stream(self, log: str, **options: object) -> QuorateStreamReader:
        reader = self.source(log, **options).streamReader(COLUMNS)
        self._streams.append(reader)
        return reader

    def close(self) -> None:
        for stream in self._streams:
            stream.stop()
        delete_logs(self.client, self.prefix)
        self.client.close()


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    made = Logs(cluster, unused_name())
    yield made
    made.close()


def rows(reader: QuorateStreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int]]:
    """What a portion holds."""
    return [
        (row["log"], row["offset"])
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def without(given: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in given.items() if key != name}


def portions(reader: QuorateStreamReader, *logs: quorate.Log) -> list[list[int]]:
    """How many records of each log the portions have, up to the end."""
    found = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        taken = rows(reader, start, end)
        assert len(set(taken)) == len(taken)
        found.append([sum(1 for name, _ in taken if name == log.name) for log in logs])
        start = end
    return found


# -- batches -------------------------------------------------------------------------------------


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
    """What was planned is there, also if the first who is asked has not heard of it."""
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


# -- streams -------------------------------------------------------------------------------------


def test_offsets_name_the_life_of_each_log(logs: Logs) -> None:
    two, one = logs.make("b", 2), logs.make("a", 1)
    reader = logs.stream(f"{two.name},{one.name}")
    assert list(reader.initialOffset().items()) == [
        (one.name, {"incarnation": one.incarnation, "offset": 1}),
        (two.name, {"incarnation": two.incarnation, "offset": 2}),
    ]
    fill(one, 5)
    assert reader.reportLatestOffset()[one.name]["offset"] == 6


def test_a_limit_of_records(logs: Logs) -> None:
    one, two = logs.make("a", 90), logs.make("b", 10)
    reader = logs.stream(f"{logs.prefix}-*", startingOffsets="earliest", maxOffsetsPerTrigger=50)
    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert portions(reader, one, two) == [[45, 5], [45, 5]]


def test_a_limit_of_bytes_is_kept_roughly(logs: Logs) -> None:
    log = logs.make()
    for _ in range(20):
        log.append_batch([bytes(10_000)] * 10)
    reader = logs.stream(log.name, startingOffsets=0, maxBytesPerTrigger=500_000)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(500_000)
    counts = [count for [count] in portions(reader, log)]
    assert sum(counts) == 200
    assert all(45 <= count <= 50 for count in counts[:-1])


def test_a_record_larger_than_the_limit_comes_alone(logs: Logs) -> None:
    log = logs.make()
    log.append_batch([bytes(10_000)] * 3)
    reader = logs.stream(log.name, startingOffsets=0, maxBytesPerTrigger=1)
    assert portions(reader, log) == [[1], [1], [1]]


def test_both_limits_hold(logs: Logs) -> None:
    log = logs.make()
    log.append_batch([bytes(10_000)] * 40)
    for records, size, most in ((15, 105_000, 10), (7, 105_000, 7)):
        reader = logs.stream(
            log.name, startingOffsets=0, maxOffsetsPerTrigger=records, maxBytesPerTrigger=size
        )
        counts = [count for [count] in portions(reader, log)]
        assert max(counts) == most
        assert sum(counts) == 40


def test_who_asks_for_all_gets_all(logs: Logs) -> None:
    log = logs.make(records=100)
    reader = logs.stream(log.name, startingOffsets=0, maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())[log.name]["offset"] == 100
    assert logs.stream(log.name).getDefaultReadLimit() == ReadAllAvailable()


def test_a_new_log_of_a_pattern_comes_in_and_is_read_then(logs: Logs) -> None:
    reader = logs.stream(f"{logs.prefix}-*")
    start = reader.initialOffset()
    assert start == {}
    log = logs.make(records=4)
    entered = reader.latestOffset(start, ReadAllAvailable())
    assert entered == {log.name: {"incarnation": log.incarnation, "offset": 0}}
    assert reader.partitions(start, entered) == []
    end = reader.latestOffset(entered, ReadAllAvailable())
    assert rows(reader, entered, end) == [(log.name, number) for number in range(4)]


def test_a_frozen_target_is_reached_and_not_passed(logs: Logs) -> None:
    log = logs.make("a", 10)
    reader = logs.stream(f"{logs.prefix}-*", startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(log, 5)
    logs.make("b", 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {log.name: {"incarnation": log.incarnation, "offset": 10}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_portion_is_the_same_again(logs: Logs) -> None:
    log = logs.make(records=50)
    reader = logs.stream(log.name, startingOffsets=7, maxOffsetsPerTrigger=20)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows(reader, start, end)
    fill(log, 50)
    other = logs.stream(log.name)
    assert rows(other, start, end) == first == [(log.name, n) for n in range(7, 27)]


def test_a_log_that_is_made_again_is_named_with_both_ids(logs: Logs) -> None:
    log = logs.make(records=10)
    reader = logs.stream(log.name, startingOffsets=0)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    logs.client.delete_log(log.name)
    new = logs.client.create_log(log.name)
    fill(new, 20)
    restarted = logs.stream(log.name, startingOffsets=0)
    for one in (reader, restarted):
        with pytest.raises(LogRecreated, match="LOG_RECREATED: ") as next_portion:
            one.latestOffset(end, ReadAllAvailable())
        with pytest.raises(LogRecreated, match="LOG_RECREATED: ") as same_again:
            one.partitions(start, end)
        for caught in (next_portion, same_again):
            assert log.incarnation in str(caught.value)
            assert new.incarnation in str(caught.value)


@pytest.mark.parametrize("pattern", [False, True])
def test_a_deleted_log_is_named(logs: Logs, pattern: bool) -> None:
    log = logs.make(records=10)
    wanted = f"{logs.prefix}-*" if pattern else log.name
    reader = logs.stream(wanted, startingOffsets="earliest")
    start = reader.initialOffset()
    logs.client.delete_log(log.name)
    restarted = logs.stream(wanted, startingOffsets="earliest")
    for one in (reader, restarted):
        with pytest.raises(LogNotFound, match=f"LOG_NOT_FOUND: .*{log.name}"):
            one.latestOffset(start, ReadAllAvailable())


def test_a_checkpoint_keeps_its_logs(logs: Logs) -> None:
    log, other = logs.make("a", 10), logs.make("b", 10)
    start = logs.stream(log.name).initialOffset()
    with pytest.raises(InvalidArgument, match=f"the checkpoint has {log.name}, which the option"):
        logs.stream(other.name).latestOffset(start, ReadAllAvailable())
    both = logs.stream(f"{log.name},{other.name}").latestOffset(start, ReadAllAvailable())
    assert both[other.name]["offset"] == 0, "one that is added is read from its beginning"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": 5}, "INVALID_ARGUMENT: endingOffsets: a stream has no end"),
        ({"startingOffsets": 11}, "OFFSET_OUT_OF_RANGE: startingOffsets 11"),
        ({"startingOffset": 1}, r"did you mean startingOffsets\?"),
        ({"readFrom": "n7"}, "readFrom = 'n7' is none of any, leader, n1, n2, n3"),
        ({"log": "*", "startingOffsets": '{"x": 1}'}, "startingOffsets names x, which is not read"),
        ({"log": "no-such-log"}, "LOG_NOT_FOUND"),
    ],
)
def test_a_stream_that_cannot_be_meant_is_refused_by_its_first_question(
    logs: Logs, given: dict[str, object], message: str
) -> None:
    log = logs.make(records=10)
    reader = logs.stream(str(given.get("log", log.name)), **without(given, "log"))
    with pytest.raises(QuorateError, match=message):
        reader.initialOffset()
