"""Streams of a real cluster through real Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from spark_rig import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from spark_rig import Place


def portions(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def last(query: StreamingQuery, side: str) -> dict[str, dict[str, Any]]:
    """Offsets of the last progress that there was."""
    progress = query.lastProgress
    assert progress is not None
    found: dict[str, dict[str, Any]] = json.loads(getattr(progress.sources[0], side))
    return found


def ended(place: Place, log: str, **options: object) -> str:
    """The error with which a query ends."""
    with pytest.raises(Exception) as caught:
        place.available(log, **options)
    return str(caught.value)


def test_it_begins_at_the_end_unless_told_otherwise(place: Place) -> None:
    log = place.log(records=10)
    place.available(log.name)
    fill(log, 5)
    place.available(log.name)
    assert place.rows(log) == [10, 11, 12, 13, 14]


def test_it_takes_what_there_is_in_portions_and_goes_on_after_a_restart(place: Place) -> None:
    log = place.log(records=250)
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert portions(query) == [100, 100, 50]
    assert last(query, "endOffset") == {log.name: {"incarnation": log.incarnation, "offset": 250}}
    assert place.rows(log) == list(range(250))
    fill(log, 130)
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert portions(query) == [100, 30]
    assert place.rows(log) == list(range(380))
    query = place.available(log.name, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert portions(query) == [], "there is nothing new, and it ends"


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
    assert portions(query) == [100, 100]
    assert last(query, "endOffset")[log.name]["offset"] == 200
    assert last(query, "latestOffset")[log.name]["offset"] == 250, "when it was planned"


def test_a_running_query_sees_growth_and_shows_its_lag(place: Place) -> None:
    log = place.log(records=5)
    query = place.start(place.stream(log.name, startingOffsets="earliest").load())
    query.processAllAvailable()
    assert place.rows(log) == list(range(5))
    fill(log, 7)
    query.processAllAvailable()
    query.stop()
    assert place.rows(log) == list(range(12))
    assert last(query, "latestOffset")[log.name]["offset"] == 12


def test_a_pattern_takes_in_logs_that_are_made_later(place: Place) -> None:
    one = place.log("a", 10)
    query = place.start(place.stream(f"{place.prefix}-*").load())
    query.processAllAvailable()
    fill(one, 2)
    two = place.log("b", 20)
    query.processAllAvailable()
    # The new log comes in with one portion, and is read with the next.
    query.processAllAvailable()
    query.stop()
    assert place.rows(one) == [10, 11], "from its end on, as a stream does"
    assert place.rows(two) == list(range(20)), "from its beginning"
    three = place.log("c", 30)
    query = place.available(f"{place.prefix}-*", maxOffsetsPerTrigger=25)
    assert portions(query) == [25, 5]
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
    assert place.rows(log) == list(range(10)), "nothing of the new one"


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
