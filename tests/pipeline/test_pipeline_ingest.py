"""Files of every format become records: each row once; a bad row is set aside, or an error."""

from __future__ import annotations

import gzip
import json
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files
from quorate.pipeline.ingest.sources import find_source
from quorate.pipeline.run_lock import only_run

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk
    from pyspark.sql import SparkSession

NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z


def directory(desk: Desk, name: str = "src") -> Path:
    made = desk.directory / name
    made.mkdir()
    return made


def bad_rows(where: Path) -> list[dict[str, str]]:
    files = sorted(where.glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def test_lines_of_a_file_twice(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.directory / "a b[1].txt"
    file.write_bytes(b"one\n\ntwo \xff\r\nthree")
    done = desk.done("ingest", file, log.name)
    assert (done["format"], done["read"], done["appended"], done["end"]) == ("text", 4, 4, 4)
    assert desk.values("out") == [b"one", b"", b"two \xff", b"three"]
    again = desk.done("ingest", file, log.name)
    assert (again["read"], again["appended"], again["end"]) == (0, 0, 4)


def test_json_in_a_growing_directory(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    (src / "1.jsonl").write_text('{"id": 1, "t": "2026-01-01T12:00:00"}\n\n{"id": 2.50, "t": 1}\n')
    (src / "half.tmp").write_text("not finished")
    ran = desk.run("ingest", src, log.name, "--key", "id", "--timestamp", "t")
    assert ran.status == 0, ran.err
    assert "no json, so left alone: half.tmp" in ran.err
    (src / "deep").mkdir()
    with gzip.open(src / "deep" / "2.json.gz", "wt") as file:
        file.write(f'{{"id": "x", "t": {NOON_US // 1000}}}\n')
    assert desk.done("ingest", src, log.name, "--key", "id", "--timestamp", "t")["appended"] == 1
    records = desk.records("out")
    assert [record.key for record in records] == [b"1", b"2.5", b"x"]
    assert records[1].value == b'{"id": 2.50, "t": 1}', "as it was"
    assert (records[0].timestamp, records[2].timestamp) == (NOON_US, NOON_US)
    assert desk.done("ingest", src, log.name)["end"] == 3


def test_rows_that_are_none(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    (src / "a.json").write_text('{"v": "x", "t": 1}\n{"v": \n{"t": "soon", "v": "y"}\n{"t": 2}\n')
    columns = ("--value", "v", "--timestamp", "t")
    ran = desk.run("ingest", src, log.name, *columns)
    assert ran.status == 1
    assert f"DECODE_FAILED: {src}/a.json line 2: not JSON: {{" in ran.err
    assert "--bad DIR" in ran.err
    assert log.end_offset() == 0, "all of a micro-batch, or nothing"

    aside = desk.directory / "bad"
    done = desk.done("ingest", src, log.name, *columns, "--bad", aside)
    assert (done["read"], done["appended"], done["bad"]) == (4, 1, 3)
    assert desk.values("out") == [b"x"]
    assert [(row["row"], row["error"]) for row in bad_rows(aside)] == [
        ('{"v": ', "not JSON"),
        ('{"t": "soon", "v": "y"}', "t is not a time: ISO 8601, or milliseconds since 1970"),
        ('{"t": 2}', "no v, which is the value"),
    ]
    assert all(row["file"].endswith("/a.json") for row in bad_rows(aside))


def test_a_line_of_json_is_one_value(desk: Desk) -> None:
    log, keyed = desk.log("out"), desk.log("keyed")
    good = ['{"a":1}', '{"a":6,"a":7}', ' {"a": 100000000.55} ']
    bad = [
        '{"a":2} {"a":3}',
        '{"a":4}}',
        '{"a":5},',
        '{"a":8}],"x":[{"a":9}',
        '{"a":1},{"a":2}',
        '{"a":tru}',
    ]
    file = desk.write("a.json", "\n".join([*good, *bad, "[1]", "null", "1.5", '"x"', ""]))
    aside = desk.directory / "bad"
    done = desk.done("ingest", file, log.name, "--bad", aside)
    assert (done["appended"], done["bad"]) == (7, 6)
    assert [(row["row"], row["error"]) for row in bad_rows(aside)] == [
        (row, "not JSON") for row in bad
    ]
    other = desk.directory / "other"
    done = desk.done("ingest", file, keyed.name, "--key", "a", "--bad", other)
    assert [record.key for record in desk.records("keyed")] == [b"1", b"7", b"100000000.55"]
    assert [row["error"] for row in bad_rows(other)] == [
        *("not JSON" for _ in bad),
        *("no object, so it has no columns" for _ in range(4)),
    ]


def test_a_column_of_json_that_nobody_can_read_is_said(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.write("a.json", '{"a":{"x":1,"x":2},"b":1}\n{"a":{"x":1},"b":{"x":1,"x":2}}\n')
    aside = desk.directory / "bad"
    desk.done("ingest", file, log.name, "--key", "a", "--bad", aside)
    assert [record.key for record in desk.records("out")] == [b'{"x":1}']
    assert [row["error"] for row in bad_rows(aside)] == ["an object in a column has a name twice"]


def test_json_without_the_columns_that_were_asked_for(desk: Desk) -> None:
    log, whole = desk.log("out"), desk.log("whole")
    file = desk.write("a.json", '{"id": 1, "t": 1}\n{"noid": 4}\n[1]\n \n"x"\n{"t": 2}\n')
    aside = desk.directory / "bad"
    options = ("--key", "id", "--timestamp", "t")
    done = desk.done("ingest", file, log.name, *options, "--bad", aside)
    assert (done["read"], done["appended"], done["bad"]) == (5, 2, 3)
    assert [record.key for record in desk.records("out")] == [b"1", None]
    assert [(row["row"], row["error"]) for row in bad_rows(aside)] == [
        ('{"noid": 4}', "no t, which is the time"),
        ("[1]", "no object, so it has no columns"),
        ('"x"', "no object, so it has no columns"),
    ]
    # Any JSON value is a record, if no column is asked for.
    assert desk.done("ingest", file, whole.name)["appended"] == 5


def test_a_file_that_is_mended_is_taken_as_a_whole(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.write("a.csv", "id,name\n1,a\n2\n")
    ran = desk.run("ingest", file, log.name)
    assert f"{file} line 3: does not fit the columns: 2" in ran.err
    desk.write("a.csv", "id,name\n1,a\n2,b\n")
    assert desk.done("ingest", file, log.name)["appended"] == 2


def test_csv_with_a_header(desk: Desk) -> None:
    log, typed = desk.log("out"), desk.log("typed")
    src = directory(desk)
    (src / "a.csv").write_text('id,full.name,amount\n1,"b,c",2.5\n2,,3\n')
    desk.done("ingest", src, log.name, "--key", "full.name")
    records = desk.records("out")
    assert [json.loads(record.value) for record in records] == [
        {"id": "1", "full.name": "b,c", "amount": "2.5"},
        {"id": "2", "full.name": None, "amount": "3"},
    ]
    assert [record.key for record in records] == [b"b,c", None]
    # Of the same files, for another log.
    schema = "id long, `full.name` string, amount double"
    desk.done("ingest", src, typed.name, "--schema", schema)
    assert json.loads(desk.values("typed")[0]) == {"id": 1, "full.name": "b,c", "amount": 2.5}
    (src / "b.csv").write_text("id,amount\n3,4\n")
    ran = desk.run("ingest", src, typed.name, "--schema", schema)
    said = f"file://{src}/b.csv: the header has id,amount in place of id,full.name,amount"
    assert (ran.status, ran.error) == (1, f"INVALID_ARGUMENT: {said}")
    for text, said in (
        ("id,amount,name\n3,4,x\n", "column 2 is amount in the header, and full.name in --schema"),
        ("id,full.name\n3,4\n", "column 3 is missing in the header, and amount in --schema"),
    ):
        file = desk.write("c.csv", text)
        ran = desk.run("ingest", file, typed.name, "--schema", schema)
        assert (ran.status, f"INVALID_ARGUMENT: {file}: {said}" in ran.err) == (1, True), ran.err


def test_a_row_of_csv_is_one_line(desk: Desk) -> None:
    log = desk.log("out")
    bad = ['1,"line one', 'line two,x",3', '4,5,"open', '10,5" pipe,x', '12,x,"C:\\"']
    good = ["6,a b,7", '8,"s\\"t",9', '11,"b,c",x']
    file = desk.write("a.csv", "\n".join(["id,text,more", *bad, *good, ""]))
    ran = desk.run("ingest", file, log.name)
    said = f'{file} line 2: a quote is not closed in its line, and a row is one line: 1,"line one'
    assert (ran.status, said in ran.error) == (1, True), ran.err
    aside = desk.directory / "bad"
    done = desk.done("ingest", file, log.name, "--bad", aside)
    assert (done["appended"], done["bad"]) == (3, 5)
    assert [row["row"] for row in bad_rows(aside)] == bad
    assert [json.loads(value)["text"] for value in desk.values("out")] == ["a b", 's"t', "b,c"]


def test_csv_with_types_and_a_header_in_quotes(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.write("a.csv", '"id","at"\n1,2026-01-01T12:00:00.123456Z\n\nx,\n')
    aside = desk.directory / "bad"
    schema = ("--schema", "id long, at timestamp")
    done = desk.done("ingest", file, log.name, *schema, "--timestamp", "at", "--bad", aside)
    assert (done["read"], done["appended"]) == (2, 1)
    [record] = desk.records("out")
    assert json.loads(record.value) == {"id": 1, "at": "2026-01-01T12:00:00.123456Z"}
    assert record.timestamp == NOON_US + 123_456
    [row] = bad_rows(aside)
    assert (row["row"], row["error"]) == ("x,", "does not fit the columns")


def test_files_of_parquet_with_different_columns(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    pq.write_table(pa.table({"id": [1]}), src / "a.parquet")
    pq.write_table(pa.table({"id": [2], "extra": ["x"]}), src / "b.parquet")
    desk.done("ingest", src, log.name)
    rows = sorted(map(json.loads, desk.values("out")), key=str)
    assert rows == [{"id": 1, "extra": None}, {"id": 2, "extra": "x"}]
    pq.write_table(pa.table({"extra": [1], "id": [3]}), src / "c.parquet")
    ran = desk.run("ingest", src, log.name)
    said = (
        f"INVALID_ARGUMENT: {src}/c.parquet: column extra is bigint, and string in {src}/b.parquet"
    )
    assert (ran.status, said in ran.error, log.end_offset()) == (1, True, 2), ran.err


def test_parquet_that_comes_late_with_another_column(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    source = find_source(spark, str(tmp_path), None, None, waiting=True)
    pq.write_table(pa.table({"ID": [2]}), tmp_path / "b.parquet")
    source.check_late(spark)
    pq.write_table(pa.table({"id": [3], "extra": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(InvalidArgument, match="a file has come with the column extra"):
        source.check_late(spark)


def test_numbers_that_are_no_times_are_bad_rows(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.directory / "a.parquet"
    times = [NOON_US // 1000, 1700000000123456789, -(10**18), -1]
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "t": times}), file)
    aside = desk.directory / "bad"
    done = desk.done("ingest", file, log.name, "--timestamp", "t", "--bad", aside)
    assert (done["appended"], done["bad"]) == (2, 2)
    assert [record.timestamp for record in desk.records("out")] == [NOON_US, -1000]
    assert {row["error"] for row in bad_rows(aside)} == {
        "t is not a time: ISO 8601, or milliseconds since 1970"
    }


def test_parquet_with_folders(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    (src / "day=3").mkdir()
    at = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    rows = pa.table({"id": [1, 2], "raw": [b"\xff", b"x"], "at": [at, at]})
    pq.write_table(rows, src / "day=3" / "a.parquet")
    columns = ("--value", "raw", "--key", "id", "--timestamp", "at")
    assert desk.done("ingest", src, log.name, *columns)["format"] == "parquet"
    records = desk.records("out")
    assert [(record.key, record.value) for record in records] == [(b"1", b"\xff"), (b"2", b"x")]
    assert records[0].timestamp == NOON_US + 123_456
    whole = desk.log("whole")
    desk.done("ingest", src, whole.name)
    assert json.loads(desk.values("whole")[1]) == {
        "id": 2,
        "raw": "eA==",
        "at": "2026-01-01T12:00:00.123456Z",
        "day": 3,
    }


def test_what_cannot_be_is_said(desk: Desk) -> None:
    log = desk.log("out")
    empty, mixed = directory(desk, "empty"), directory(desk, "mixed")
    (mixed / "a.json").write_text('{"id": 1, "name": 2}\n')
    (mixed / "b.csv").write_text("id\n1\n")
    file = desk.write("a.json", '{"id": 1, "name": 2}\n')
    strange = desk.write("a.xyz", "1\n")
    text = desk.write("a.txt", "1\n")
    cases: dict[tuple[str | Path, ...], str] = {
        (desk.directory / "no", log.name): "no does not exist: SRC is a file or a directory",
        (file, desk.name("no")): f"`quorate log create {desk.name('no')}`",
        (empty, log.name): "no files are in it",
        (mixed, log.name): "a.json, b.csv are of several kinds; say --format",
        (strange, log.name): "a.xyz may be anything; say --format text|json|csv|parquet",
        (file, log.name, "--value", "amount"): "no such column; there are id, name",
        (text, log.name, "--key", "id"): "--key id: text has lines, no columns",
        (file, log.name, "--schema", "id long"): "--schema is for CSV",
    }
    ran = desk.run_without_spark("ingest", "/no/such", log.name)
    assert ran.error == "INVALID_ARGUMENT: /no/such does not exist: SRC is a file or a directory"
    for option in ("--bad", "--checkpoint"):
        ran = desk.run_without_spark("ingest", file, log.name, option, text)
        assert ran.error == f"INVALID_ARGUMENT: {option} {text} is a file, not a directory"
    for arguments, said in cases.items():
        ran = desk.run("ingest", *arguments)
        assert (ran.status, said in ran.err) == (1, True), ran.err
    assert log.end_offset() == 0


def test_bad_rows_have_a_place_of_their_own(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    (src / "a.json").write_text('{"id": 1}\nno json\n')
    for bad in (src, src / "bad", desk.directory):
        ran = desk.run("ingest", src, log.name, "--bad", bad)
        said = f"--bad = {bad} and SRC = {src} are the same, or one of them lies in the other"
        assert (ran.status, said in ran.err) == (1, True), ran.err
    assert [file.name for file in src.iterdir()] == ["a.json"], "no checkpoint was made"
    assert log.end_offset() == 0


def test_a_checkpoint_is_of_one_source_and_one_life_of_a_log(desk: Desk) -> None:
    log = desk.log("out")
    file = desk.write("a.txt", "1\n")
    other = desk.write("b.txt", "2\n")
    kept = desk.directory / "checkpoint"
    assert desk.done("ingest", file, log.name, "--checkpoint", kept)["appended"] == 1
    ran = desk.run("ingest", other, log.name, "--checkpoint", kept)
    assert (ran.status, f"is of the source {file}, not {other}" in ran.err) == (1, True)
    desk.client.delete_log(log.name)
    desk.client.create_log(log.name)
    ran = desk.run("ingest", file, log.name, "--checkpoint", kept)
    assert (ran.status, "of the incarnation" in ran.err) == (1, True)


def test_a_run_does_not_begin_beside_another(desk: Desk, spark: SparkSession) -> None:
    log = desk.log("out")
    file = desk.write("a.txt", "1\n")
    kept = desk.directory / "checkpoint"
    with only_run(Files(spark, str(kept)), "quorate.lock"):
        ran = desk.run("ingest", file, log.name, "--checkpoint", kept)
    said = f"INVALID_ARGUMENT: another run is at work in file:{kept}"
    assert (ran.status, said in ran.err, log.end_offset()) == (1, True, 0), ran.err
    assert desk.done("ingest", file, log.name, "--checkpoint", kept)["appended"] == 1


def test_a_checkpoint_that_was_set_back_loses_nothing_in_silence(desk: Desk) -> None:
    log = desk.log("out")
    src = directory(desk)
    kept, before = desk.directory / "checkpoint", desk.directory / "before"
    for number in range(3):
        (src / f"{number}.txt").write_text("x\n")
        if number == 1:
            shutil.copytree(kept, before)
        desk.done("ingest", src, log.name, "--checkpoint", kept)
    shutil.rmtree(kept)
    before.rename(kept)
    ran = desk.run("ingest", src, log.name, "--checkpoint", kept)
    assert (ran.status, "DUPLICATE" in ran.err, log.end_offset()) == (1, True, 3), ran.err
