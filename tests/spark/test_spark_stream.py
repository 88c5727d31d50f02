"""Streams of a real cluster through real Spark."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from spark_rig import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from spark_rig import Place

    import quorate


def micro_batches(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def last(query: StreamingQuery, side: str) -> dict[str, dict[str, Any]]:
    """Offsets of the last progress that there was."""
    progress = query.lastProgress
    assert progress is not None
    found: dict[str, dict[str, Any]] = json.loads(getattr(progress.sources[0], side))
    return found


def places(query: StreamingQuery, side: str, log: quorate.Log) -> list[int]:
    """Offsets of ``log`` in the progress of each micro-batch that had records."""
    return [
        json.loads(getattr(progress.sources[0], side))[log.name]["offset"]
        for progress in query.recentProgress
        if progress.numInputRows
    ]


@contextmanager
def growing(log: quorate.Log) -> Iterator[None]:
    """A thread that appends all the time."""
    over = Event()

    def append() -> None:
        while not over.is_set():
            log.append(b"one more")

    thread = Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ended(place: Place, log: str, **options: object) -> str:
    """The error with which a query ends."""
    with pytest.raises(Exception) as caught:
        place.available(log, **options)
    return str(caught.value)


@pytest.mark.spark_slow
def test_it_begins_at_the_end_unless_told_otherwise(place: Place) -> None:
    log = place.log(records=10)
    place.available(log.name)
    fill(log, 5)
    place.available(log.name)
    assert place.rows(log) == [10, 11, 12, 13, 14]


def test_it_takes_what_there_is_in_micro_batchs_and_goes_on_after_a_restart(place: Place) -> None:
    log = place.log(records=250)
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert micro_batches(query) == [100, 100, 50]
    assert last(query, "endOffset") == {log.name: {"incarnation": log.incarnation, "offset": 250}}
    assert place.rows(log) == list(range(250))
    fill(log, 130)
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert micro_batches(query) == [100, 30]
    assert place.rows(log) == list(range(380))
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert micro_batches(query) == [], "no record is new, and the query ends"


def first_start(place: Place, log: quorate.Log) -> int:
    """Where the first micro-batch began, as its checkpoint has it."""
    written = place.directory / "checkpoint" / "offsets" / "0"
    start = json.loads(written.read_text(encoding="utf-8").splitlines()[-1])[log.name]["start"]
    assert isinstance(start, int)
    return start


@pytest.mark.spark_slow
def test_a_log_that_grows_is_read_from_its_end_on(place: Place) -> None:
    log = place.log(records=10)
    with growing(log):
        place.available(log.name)
        place.available(log.name)
    query = place.available(log.name)
    assert place.rows(log) == list(range(first_start(place, log), log.end_offset()))
    assert last(query, "endOffset")[log.name]["offset"] == log.end_offset()


def test_a_query_that_runs_begins_where_the_log_ended(place: Place) -> None:
    """Spark asks twice where that is."""
    log = place.log(records=10)
    with growing(log):
        query = place.start(place.stream(log.name).load())
        while not micro_batches(query):
            query.awaitTermination(1)
    query.processAllAvailable()
    query.stop()
    assert place.rows(log) == list(range(first_start(place, log), log.end_offset()))


@pytest.mark.spark_slow
def test_a_first_micro_batch_that_failed_is_repeated_whatever_the_options_say_now(
    place: Place,
) -> None:
    log = place.log(records=10)
    taken: list[int] = []

    def run(*, fail: bool, **options: object) -> None:
        def take(frame: DataFrame, _number: int) -> None:
            if fail:
                raise RuntimeError("it dies in its first micro-batch")
            taken.extend(row.offset for row in frame.select("offset").collect())

        stream = place.stream(log.name, maxOffsetsPerTrigger=8, **options).load()
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option(
            "checkpointLocation", str(place.directory / "first")
        ).start().awaitTermination()

    for _ in range(2):
        with pytest.raises(Exception, match="it dies in its first micro-batch"):
            run(fail=True, startingTimestamp="2020-01-01")
    fill(log, 5)
    run(fail=False, startingOffsets="latest")
    assert taken == list(range(15))


@pytest.mark.spark_slow
def test_a_sink_is_given_the_first_micro_batch_as_it_was(place: Place) -> None:
    source, target = place.log("source", 10), place.log("target")
    checkpoint = place.directory / "copy"

    def run(**options: object) -> None:
        rows = place.stream(source.name, **options).load().select("value")
        writer = rows.writeStream.format("quorate").option("log", target.name)
        writer = writer.option("endpoints", place.cluster.endpoints).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    run(startingOffsets=3)
    # As if the driver had died before it noted its first commit.
    for noted in Path(checkpoint, "commits").glob("*0*"):
        noted.unlink()
    fill(source, 5)
    run(startingOffsets=8)
    assert [int(record.value) for record in target.read()] == list(range(3, 15))


def test_the_target_is_frozen_when_it_begins(place: Place) -> None:
    log = place.log(records=200)

    def feed(frame: DataFrame, _number: int) -> None:
        assert frame.count() == 100
        fill(log, 50)

    stream = place.stream(log.name, startingOffsets=0, maxOffsetsPerTrigger=100).load()
    writer = stream.writeStream.foreachBatch(feed).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(place.directory / "feed")).start()
    query.awaitTermination()
    assert log.end_offset() == 300, "it grew while it was read"
    assert micro_batches(query) == [100, 100]
    assert last(query, "endOffset")[log.name]["offset"] == 200
    assert last(query, "latestOffset")[log.name]["offset"] == 250, "when it was planned"


def test_a_running_query_sees_growth_and_shows_its_lag(place: Place) -> None:
    log = place.log(records=5)
    stream = place.stream(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    query = place.start(stream.load())
    query.processAllAvailable()
    assert place.rows(log) == list(range(5))
    assert places(query, "endOffset", log) == [3, 5]
    assert places(query, "latestOffset", log) == [5, 5], "it lags by two records, and by none"
    log.append_batch([b"more"] * 7)
    query.processAllAvailable()
    query.stop()
    assert place.rows(log) == list(range(12))
    assert places(query, "endOffset", log) == [3, 5, 8, 11, 12]
    assert places(query, "latestOffset", log) == [5, 5, 12, 12, 12]


@pytest.mark.spark_slow
def test_a_pattern_takes_in_logs_that_are_made_later(place: Place) -> None:
    one = place.log("a", 10)
    query = place.start(place.stream(f"{place.prefix}-*").load())
    query.processAllAvailable()
    fill(one, 2)
    two = place.log("b", 20)
    query.processAllAvailable()
    # The new log comes in with one micro-batch, and is read with the next.
    query.processAllAvailable()
    query.stop()
    assert place.rows(one) == [10, 11], "from its end on, as a stream does"
    assert place.rows(two) == list(range(20)), "from its beginning"
    three = place.log("c", 30)
    query = place.available(f"{place.prefix}-*", maxOffsetsPerTrigger=25)
    assert micro_batches(query) == [25, 5]
    assert place.rows(three) == list(range(30))


def test_a_log_that_is_made_again_ends_the_query(place: Place) -> None:
    log = place.log(records=10)
    query = place.start(place.stream(log.name, startingOffsets=0).load())
    query.processAllAvailable()
    new = place.again(log)
    fill(new, 3)
    # It may look before or after the new one is there.
    with pytest.raises(Exception, match=r"LOG_RECREATED|LOG_NOT_FOUND"):
        query.awaitTermination()
    error = ended(place, log.name, startingOffsets=0)
    assert "LOG_RECREATED" in error
    assert log.incarnation in error
    assert new.incarnation in error
    assert place.rows(log) == list(range(10)), "no record of the new log"


def test_what_cannot_be_meant_is_said_as_it_is(place: Place) -> None:
    log = place.log(records=10)
    error = ended(place, log.name, endingOffsets=5)
    assert "INVALID_ARGUMENT: endingOffsets: a stream has no end" in error
    assert "UnboundLocalError" not in error, "Spark makes one of an error that comes too early"


def test_a_narrower_schema_is_checked_before_it_starts(place: Place) -> None:
    log = place.log(records=3)
    stream = place.stream(log.name, startingOffsets=0)
    with pytest.raises(Exception, match=r"did you mean offset\?"):
        place.start(stream.schema("offsets bigint").load(), available=True).awaitTermination()
    narrow = stream.schema("log string, offset bigint").load()
    place.start(narrow, available=True).awaitTermination()
    assert place.rows(log) == [0, 1, 2]
