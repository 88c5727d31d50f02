"""Batch reads of a real cluster through real Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType
from spark_rig import fill, offsets, refused

from quorate.spark.source import QuorateBatchReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_rig import Place


def test_records_come_as_they_were_appended(place: Place) -> None:
    log = place.log()
    log.append(b"plain", timestamp=1_700_000_000_000_001)
    log.append(b"", key=b"", headers=[("h", b"1"), ("h", b""), ("ü", b"2")], timestamp=0)
    log.append_batch([b"\x00\xff", b"four"], keys=[b"k", None])
    rows = place.read(log.name).orderBy("offset").collect()
    assert [row.value for row in rows] == [b"plain", b"", b"\x00\xff", b"four"]
    assert [row.key for row in rows] == [None, b"", b"k", None]
    assert [row.offset for row in rows] == [0, 1, 2, 3]
    assert {(row["log"], row.partition) for row in rows} == {(log.name, 0)}
    assert [tuple(pair) for pair in rows[1].headers] == [("h", b"1"), ("h", b""), ("ü", b"2")]
    assert rows[0].headers == []
    times = place.read(log.name).selectExpr("unix_micros(timestamp) as us").take(2)
    assert [row.us for row in times] == [1_700_000_000_000_001, 0]


def test_a_narrower_schema_is_honoured(place: Place) -> None:
    log = place.log(records=10)
    frame = place.columns(log.name, "offset bigint not null, value binary")
    assert frame.columns == ["offset", "value"]
    assert sorted(map(tuple, frame.collect())) == [(n, b"%d" % n) for n in range(10)]
    assert place.columns(log.name, "log string").count() == 10


def test_append_time_is_there_for_those_who_ask(place: Place) -> None:
    log = place.log(records=1)
    [record] = log.read()
    [row] = place.columns(log.name, "appendTime timestamp, timestamp timestamp").collect()
    expected = datetime.fromtimestamp(record.append_time / 1e6, UTC).replace(microsecond=0)
    assert row.appendTime.astimezone(UTC).replace(microsecond=0) == expected
    assert "appendTime" not in place.read(log.name).columns


def test_a_column_or_type_that_there_is_not_is_refused(place: Place) -> None:
    log = place.log(records=1)
    assert "did you mean offset?" in refused(place.columns(log.name, "offsets bigint"))
    assert "column value is binary, not string" in refused(place.columns(log.name, "value string"))


def test_no_columns_at_all_are_refused(place: Place) -> None:
    reader = place.reader(place.log(records=10).name)
    assert "no column is asked for" in refused(reader.schema(StructType([])).load())


def test_an_empty_log_gives_no_rows(place: Place) -> None:
    frame = place.read(place.log().name)
    assert frame.collect() == []
    assert frame.groupBy().count().collect()[0][0] == 0


def test_several_logs_and_patterns(place: Place) -> None:
    one, two = place.log("a-1", 30), place.log("a-2", 20)
    other = place.log("b-1", 5)

    def counts(log: str) -> dict[str, int]:
        return {
            row["log"]: row["count"] for row in place.read(log).groupBy("log").count().collect()
        }

    assert counts(f"{one.name},{other.name}") == {one.name: 30, other.name: 5}
    assert counts(f"{place.prefix}-a*") == {one.name: 30, two.name: 20}


def test_parts_are_tasks(place: Place) -> None:
    log = place.log(records=1000)
    assert place.read(log.name).rdd.getNumPartitions() == 1
    frame = place.read(log.name, minPartitions=4, maxRecordsPerPartition=200)
    assert frame.rdd.getNumPartitions() == 5
    assert offsets(frame) == list(range(1000))


def test_a_replica_that_stands_still_is_left_for_another(place: Place) -> None:
    log = place.log(records=300)
    frame = place.read(log.name, minPartitions=3)
    assert frame.count() == 300, "planned while all of them answer"
    leader = place.cluster.wait_leader(log.name)
    still = next(iter(place.cluster.others(leader)))
    place.cluster.pause(still)
    try:
        assert offsets(frame) == list(range(300))
    finally:
        place.cluster.resume(still)


def test_a_dataframe_is_a_snapshot(place: Place) -> None:
    log = place.log(records=10)
    frame = place.read(log.name)
    assert frame.count() == 10
    fill(log, 15)
    assert frame.count() == 10, "it was planned by its first action"
    assert frame.where("offset >= 5").count() == 5
    assert place.read(log.name).count() == 25


def test_one_dataframe_with_two_filters(place: Place) -> None:
    """With filters pushed down, one use of the frame would get the filters of the other."""
    frame = place.read(place.log(records=100).name)
    both = frame.where("offset < 5").union(frame.where("offset >= 90"))
    assert both.count() == 15
    assert frame.count() == 100
    assert QuorateBatchReader.pushFilters is DataSourceReader.pushFilters


def test_a_log_that_is_not_there_is_named(place: Place) -> None:
    assert "LOG_NOT_FOUND" in refused(place.read("no-such-log"))
    assert "LOG_NOT_FOUND: no log is called no-such-*" in refused(place.read("no-such-*"))


def test_a_planned_read_of_a_deleted_or_recreated_log_fails(place: Place) -> None:
    log = place.log(records=10)
    frame = place.read(log.name)
    assert frame.count() == 10
    new = place.again(log)
    fill(new, 10)
    error = refused(frame)
    assert "LOG_RECREATED" in error
    assert log.incarnation in error
    assert new.incarnation in error
    assert place.read(log.name).count() == 10
    place.client.delete_log(log.name)
    assert "LOG_NOT_FOUND" in refused(frame)


def test_options_are_checked_before_anybody_is_asked(spark: SparkSession) -> None:
    # No node listens there: a request would wait for half a minute.
    reader = spark.read.format("quorate").option("endpoints", "127.0.0.1:1").option("log", "a")
    with pytest.raises(Exception, match=r"did you mean startingOffsets\?"):
        reader.option("startingOffset", "3").load()
    with pytest.raises(Exception, match="INVALID_ARGUMENT: maxOffsetsPerTrigger: it is for str"):
        spark.read.format("quorate").options(
            endpoints="127.0.0.1:1", log="a", maxOffsetsPerTrigger="3"
        ).load().collect()


def test_load_with_a_name_says_what_to_write(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r'load\(.orders.\) does not say where: write \.option\("e'):
        spark.read.format("quorate").load("orders")


def test_load_with_a_name_and_endpoints_reads_it(place: Place) -> None:
    log = place.log(records=3)
    reader = place.spark.read.format("quorate").option("endpoints", place.cluster.endpoints)
    assert reader.load(log.name).count() == 3


def test_a_table_in_sql(place: Place) -> None:
    log = place.log(records=7)
    place.spark.sql(
        f"create temporary view {place.prefix} using quorate "
        f"options (endpoints '{place.cluster.endpoints}', log '{log.name}', startingOffsets '2')"
    )
    [row] = place.spark.sql(
        f"select count(*) as n, min(offset) as low from {place.prefix}"
    ).collect()
    assert (row.n, row.low) == (5, 2)
