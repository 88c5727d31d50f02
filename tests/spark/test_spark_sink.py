"""Writes to a real cluster through real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.client.staging import last_publication

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from spark_rig import Place

    import quorate


def save(place: Place, frame: DataFrame, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("quorate").option("endpoints", place.cluster.endpoints)
    writer.options(**options).mode(mode).save()


def values(log: quorate.Log) -> list[bytes]:
    end = log.end_offset()
    return [record.value for record in log.read(0, end)]


def test_rows_become_records(place: Place) -> None:
    log = place.log()
    frame = place.spark.sql(
        "select id, string(id) as value, if(id % 2 = 0, null, binary(string(id))) as key, "
        "timestamp_micros(id) as timestamp, "
        "if(id = 3, array(named_struct('key', 'h', 'value', 'x')), null) as headers "
        "from range(0, 10, 1, 2)"
    ).drop("id")
    save(place, frame, log=log.name)
    records = list(log.read(0, log.end_offset()))
    assert [record.value for record in records] == [b"%d" % n for n in range(10)]
    assert [record.key for record in records[:4]] == [None, b"1", None, b"3"]
    assert [record.timestamp for record in records] == list(range(10))
    assert [record.headers for record in records[2:5]] == [[], [("h", b"x")], []]
    back = place.read(log.name).select("value", "key", "timestamp", "headers").orderBy("timestamp")
    save(place, back, log=log.name, txnAppId="copy", txnVersion="1")
    save(place, back, log=log.name, txnAppId="copy", txnVersion="1")
    assert values(log) == 2 * [b"%d" % n for n in range(10)]


def test_rows_say_which_log_they_are_for(place: Place) -> None:
    one, two = place.log("one"), place.log("two")
    frame = place.spark.range(0, 20, 1, 2).selectExpr(
        "string(id) as value", f"if(id < 5, '{one.name}', '{two.name}') as log"
    )
    save(place, frame)
    assert values(one) == [b"%d" % n for n in range(5)]
    assert values(two) == [b"%d" % n for n in range(5, 20)]


def test_what_is_refused_on_the_driver_is_told(place: Place) -> None:
    log = place.log()
    numbers = place.spark.range(3)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT: column id is not known; there are val"):
        save(place, numbers, log=log.name)
    with pytest.raises(Exception, match="INVALID_ARGUMENT: column value is bigint; it may be bin"):
        save(place, numbers.selectExpr("id as value"), log=log.name)
    with pytest.raises(Exception, match="LOG_NOT_FOUND"):
        save(place, numbers.selectExpr("string(id) as value"), log="no-such-log")
    with pytest.raises(Exception, match=r'never overwritten: write .mode\("append"\)'):
        save(place, numbers.selectExpr("string(id) as value"), "overwrite", log=log.name)
    # Spark does not even ask; the guide has the code to write.
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        save(place, numbers.selectExpr("string(id) as value"), "errorifexists", log=log.name)
    assert log.end_offset() == 0


def test_a_null_value_fails_the_whole_write(place: Place) -> None:
    log = place.log()
    frame = place.spark.range(0, 10, 1, 2).selectExpr("if(id = 9, null, string(id)) as value")
    with pytest.raises(Exception, match="INVALID_ARGUMENT: column value is null in 1 of the rows"):
        save(place, frame, log=log.name)
    assert log.end_offset() == 0


def test_a_frame_without_partitions_is_written_by_a_task_all_the_same(place: Place) -> None:
    log = place.log()
    empty = place.spark.createDataFrame(place.spark.sparkContext.emptyRDD(), "value string")
    assert empty.rdd.getNumPartitions() == 0
    save(place, empty, log=log.name)
    save(place, empty, log=log.name, txnAppId="etl", txnVersion="1")
    last = last_publication(log, "etl")
    assert last is not None
    assert (last.batch_id, last.count) == (1, 0)
    assert log.end_offset() == 0


def test_output_modes(place: Place) -> None:
    log = place.log()
    counted = place.stream(log.name).load().groupBy("value").count().select("value")
    writer = counted.writeStream.format("quorate").option("endpoints", place.cluster.endpoints)
    writer = writer.option("log", log.name).option("checkpointLocation", str(place.directory))
    with pytest.raises(Exception, match="output mode append, not complete"):
        writer.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(Exception, match=r"(?i)update"):
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()


def test_a_stream_and_a_stream_by_foreach_batch(place: Place) -> None:
    source, target = place.log("source", 250), place.log("target")
    rows = place.stream(source.name, startingOffsets="earliest", maxOffsetsPerTrigger=100).load()

    def copied(name: str) -> None:
        writer = rows.select("key", "value").writeStream.format("quorate").queryName(place.prefix)
        writer = writer.option("endpoints", place.cluster.endpoints).option("log", target.name)
        writer = writer.option("checkpointLocation", str(place.directory / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    copied("one")
    copied("one")
    assert values(target) == [b"%d" % n for n in range(250)]

    def append(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            options = {"txnAppId": "each", "txnVersion": str(batch_id)}
            save(place, frame.select("value"), log=target.name, **options)

    writer = rows.writeStream.foreachBatch(append).trigger(availableNow=True)
    writer.option("checkpointLocation", str(place.directory / "each")).start().awaitTermination()
    assert values(target) == 2 * [b"%d" % n for n in range(250)]
