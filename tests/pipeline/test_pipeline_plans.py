"""The plans of Spark: no costly step runs twice, and no step is one that Spark does slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quorate.pipeline import parquet
from quorate.pipeline.archive import verify, write
from quorate.pipeline.records import records

if TYPE_CHECKING:
    from pipeline_rig import Desk
    from pyspark.sql import DataFrame, SparkSession

    from quorate.pipeline.archive.verify import Side
    from quorate.pipeline.parquet import Aside

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.spark_slow
def test_verify_decodes_each_record_once_for_each_side(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[int] = []
    really = verify._side

    def side(rows: DataFrame, offset: str) -> Side:
        plan = rows._jdf.queryExecution().executedPlan().toString()
        parsers.append(plan.count("from_json("))
        return really(rows, offset)

    monkeypatch.setattr(verify, "_side", side)
    log, dest, bad = desk.log("in"), desk.directory / "archive", desk.directory / "bad"
    log.append_batch([b'{"id": %d}' % n if n % 3 else b"no json" for n in range(6)])
    desk.done("archive", log.name, dest, "--schema", "id long", "--bad", bad, "--verify")
    # The archive, the log; then the same for records set aside.
    assert parsers == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "headers",
    [
        "",
        f", cast(null as {HEADERS}) as headers",
        ", array(struct('h' as key, 'text' as value)) as headers",
    ],
)
def test_no_record_has_headers_that_are_null(spark: SparkSession, headers: str) -> None:
    frame = spark.sql(f"select 'v' as value{headers}")
    [row] = records(frame, None, "log").collect()
    assert row.headers == ([("h", b"text")] if "text" in headers else [])


@pytest.mark.parametrize("by", ["id", pytest.param("append_date", marks=pytest.mark.spark_slow)])
def test_an_archive_decodes_each_record_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    parsers: list[int] = []
    really = parquet.write_aside

    def write_aside(*arguments: Any, **more: Any) -> Aside:
        plan = arguments[1]._jdf.queryExecution().executedPlan().toString()
        parsers.append(plan.count("from_json("))
        return really(*arguments, **more)

    monkeypatch.setattr(write, "write_aside", write_aside)
    log, dest, bad = desk.log("in"), desk.directory / "archive", desk.directory / "bad"
    log.append_batch([b'{"id": %d}' % n if n % 3 else b"no json" for n in range(6)])
    typed = ("--schema", "id long", "--partition-by", by, "--bad", bad)
    desk.done("archive", log.name, dest, *typed)
    # The rows; then the records set aside.
    assert parsers == [1, 1]
