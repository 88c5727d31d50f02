"""The stream reader as Spark calls it, on a real cluster and without a Java process in between."""

from __future__ import annotations

import json
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from readers_rig import Logs, without
from spark_rig import fill, unused_name

from quorate.errors import (
    InvalidArgument,
    LogNotFound,
    LogRecreated,
    QuorateError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import quorate
    from quorate.spark.read.stream import QuorateStreamReader
    from quorate.testing import Cluster

Offsets = dict[str, dict[str, Any]]


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    made = Logs(cluster, unused_name())
    yield made
    made.close()


def rows(reader: QuorateStreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int]]:
    """The records of a micro-batch."""
    return [
        (row["log"], row["offset"])
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def micro_batches(reader: QuorateStreamReader, *logs: quorate.Log) -> list[list[int]]:
    """How many records of each log the micro-batches have, up to the end."""
    found = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        taken = rows(reader, start, end)
        assert len(set(taken)) == len(taken)
        found.append([sum(1 for name, _ in taken if name == log.name) for log in logs])
        start = end
    return found


def test_offsets_name_the_life_of_each_log(logs: Logs) -> None:
    two, one = logs.make("b", 2), logs.make("a", 1)
    reader = logs.stream(f"{two.name},{one.name}")
    assert list(reader.initialOffset().items()) == [
        (one.name, {"incarnation": one.incarnation, "offset": 1, "start": 1}),
        (two.name, {"incarnation": two.incarnation, "offset": 2, "start": 2}),
    ]
    fill(one, 5)
    assert reader.reportLatestOffset()[one.name]["offset"] == 6


def test_a_limit_of_records(logs: Logs) -> None:
    one, two = logs.make("a", 90), logs.make("b", 10)
    reader = logs.stream(f"{logs.prefix}-*", startingOffsets="earliest", maxOffsetsPerTrigger=50)
    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert micro_batches(reader, one, two) == [[45, 5], [45, 5]]


def test_a_limit_of_bytes_is_kept_roughly(logs: Logs) -> None:
    log = logs.make()
    for _ in range(20):
        log.append_batch([bytes(10_000)] * 10)
    reader = logs.stream(log.name, startingOffsets=0, maxBytesPerTrigger=500_000)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(500_000)
    counts = [count for [count] in micro_batches(reader, log)]
    assert sum(counts) == 200
    assert all(45 <= count <= 50 for count in counts[:-1])


def test_a_record_larger_than_the_limit_comes_alone(logs: Logs) -> None:
    log = logs.make()
    log.append_batch([bytes(10_000)] * 3)
    reader = logs.stream(log.name, startingOffsets=0, maxBytesPerTrigger=1)
    assert micro_batches(reader, log) == [[1], [1], [1]]


def test_a_limit_of_bytes_holds_where_records_differ(logs: Logs) -> None:
    """Large ones first, small ones behind them; and the other way round."""
    large, small, limit = bytes(100_000), b"s" * 20, 250_000
    sizes: list[int] = []
    log = logs.make()
    for value, times, records in ((large, 30, 1), (small, 5, 2000), (small, 130, 5), (large, 9, 1)):
        for _ in range(times):
            log.append_batch([value] * records)
            sizes += [len(value)] * records
    reader = logs.stream(log.name, startingOffsets=0, maxBytesPerTrigger=limit)
    counts = [count for [count] in micro_batches(reader, log)]
    assert sum(counts) == len(sizes)
    ends = accumulate(counts)
    taken = [sum(sizes[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    assert max(taken) <= limit
    assert counts[:14] == [2] * 14, "large records far behind do not make a micro-batch larger"
    assert len(counts) < 35, "nor much smaller"


def test_a_limit_of_bytes_is_divided_and_none_of_it_is_left_over(logs: Logs) -> None:
    one, two = logs.make("a"), logs.make("b")
    one.append_batch([bytes(10_000)] * 41)
    two.append_batch([b"s" * 20] * 40)
    wanted = f"{logs.prefix}-*"
    reader = logs.stream(wanted, startingOffsets="earliest", maxBytesPerTrigger=106_000)
    assert micro_batches(reader, one, two)[:2] == [[10, 40], [10, 0]]
    reader = logs.stream(wanted, startingOffsets="earliest", maxBytesPerTrigger=1)
    assert micro_batches(reader, one, two) == [[1, 1]] * 40 + [[1, 0]], "one of each at least"


def test_both_limits_hold(logs: Logs) -> None:
    log = logs.make()
    log.append_batch([bytes(10_000)] * 40)
    for records, size, most in ((15, 105_000, 10), (7, 105_000, 7)):
        reader = logs.stream(
            log.name, startingOffsets=0, maxOffsetsPerTrigger=records, maxBytesPerTrigger=size
        )
        counts = [count for [count] in micro_batches(reader, log)]
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
    assert entered == {log.name: {"incarnation": log.incarnation, "offset": 0, "start": 0}}
    assert reader.partitions(start, entered) == []
    end = reader.latestOffset(entered, ReadAllAvailable())
    assert rows(reader, entered, end) == [(log.name, number) for number in range(4)]


def test_a_frozen_target_is_reached_and_not_passed(logs: Logs) -> None:
    log = logs.make("a", 10)
    reader = logs.stream(f"{logs.prefix}-*", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    fill(log, 5)
    logs.make("b", 5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {log.name: {"incarnation": log.incarnation, "offset": 10, "start": 0}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(
    ("given", "first"), [({}, 10), ({"startingTimestamp": "1970-01-02"}, 0)], ids=str
)
def test_a_stream_that_ends_does_not_begin_behind_its_target(
    logs: Logs, given: dict[str, object], first: int
) -> None:
    """Spark asks for the target first, and for the start when the log may be longer."""
    log = logs.make(records=10)
    reader = logs.stream(log.name, **given)
    reader.prepareForTriggerAvailableNow()
    fill(log, 5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, start, end) == [(log.name, number) for number in range(first, 10)]


def test_a_micro_batch_is_the_same_again(logs: Logs) -> None:
    log = logs.make(records=50)
    reader = logs.stream(log.name, startingOffsets=7, maxOffsetsPerTrigger=20)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows(reader, start, end)
    fill(log, 50)
    other = logs.stream(log.name)
    assert rows(other, start, end) == first == [(log.name, n) for n in range(7, 27)]


@pytest.mark.parametrize(
    "changed", [{}, {"startingOffsets": 5}, {"startingOffsets": "earliest"}], ids=str
)
def test_the_first_micro_batch_is_the_same_again(logs: Logs, changed: dict[str, object]) -> None:
    """Spark keeps its end alone, and asks again where a stream begins."""
    log = logs.make("a", 50)
    reader = logs.stream(f"{logs.prefix}-*", startingOffsets=json.dumps({log.name: 7}))
    start = reader.initialOffset()
    fill(log, 10)
    late = logs.make("b", 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    expected = [(log.name, number) for number in range(7, 60)]
    assert rows(reader, reader.initialOffset(), end) == expected
    fill(log, 10)
    fill(late, 10)
    restarted = logs.stream(f"{logs.prefix}-*", **changed)
    assert rows(restarted, restarted.initialOffset(), end) == expected
    after = restarted.latestOffset(end, ReadAllAvailable())
    following = [(log.name, number) for number in range(60, 70)]
    following += [(late.name, number) for number in range(15)]
    assert rows(restarted, end, after) == following


def test_an_empty_first_micro_batch_keeps_its_place(logs: Logs) -> None:
    log = logs.make(records=10)
    reader = logs.stream(log.name)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == start
    fill(log, 5)
    restarted = logs.stream(log.name)
    assert rows(restarted, restarted.initialOffset(), end) == []
    after = restarted.latestOffset(end, ReadAllAvailable())
    assert rows(restarted, restarted.initialOffset(), after) == [
        (log.name, number) for number in range(10, 15)
    ]


def test_a_first_micro_batch_of_a_log_that_was_made_again(logs: Logs) -> None:
    log = logs.make(records=10)
    reader = logs.stream(log.name, startingOffsets=0)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    logs.client.delete_log(log.name)
    new = logs.client.create_log(log.name)
    fill(new, 20)
    restarted = logs.stream(log.name, startingOffsets=0)
    with pytest.raises(LogRecreated, match=f"{log.incarnation} is {new.incarnation} now"):
        restarted.partitions(restarted.initialOffset(), end)


def test_offsets_without_a_start_go_on_as_they_did(logs: Logs) -> None:
    """Checkpoints have them of all micro-batches but the first ones."""
    log = logs.make(records=10)
    start = {log.name: {"incarnation": log.incarnation, "offset": 4}}
    reader = logs.stream(log.name)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {log.name: {"incarnation": log.incarnation, "offset": 10}}
    assert rows(reader, start, end) == [(log.name, number) for number in range(4, 10)]


def test_a_stream_does_not_wait_for_a_time(logs: Logs) -> None:
    log = logs.make(records=3)
    now = time.time_ns() // 1_000_000
    in_an_hour = now + 3_600_000
    with pytest.raises(InvalidArgument, match=r"startingTimestamp = \d+ is later than now"):
        logs.stream(log.name, startingTimestamp=in_an_hour).initialOffset()
    assert logs.stream(log.name, startingTimestamp=now).initialOffset().keys() == {log.name}
    assert logs.batch(log.name, startingTimestamp=in_an_hour) == []


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
        with pytest.raises(LogRecreated, match="LOG_RECREATED: ") as next_micro_batch:
            one.latestOffset(end, ReadAllAvailable())
        with pytest.raises(LogRecreated, match="LOG_RECREATED: ") as same_again:
            one.partitions(start, end)
        for caught in (next_micro_batch, same_again):
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
