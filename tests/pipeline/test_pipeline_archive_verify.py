"""``--verify``: values inside nested columns, and the places of files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorate.pipeline.archive.rows import row_hash

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk
    from pyspark.sql import SparkSession

# Values of a type that must not be taken for one another.
DIFFERENT: dict[str, list[Any]] = {
    "struct<a:string,b:string>": [
        None,
        {},
        {"a": "x"},
        {"b": "x"},
    ],
    "array<string>": [None, [], [None], ["p", None], [None, None, "p"], ["p"], [""]],
    "array<array<string>>": [
        None,
        [],
        [None],
        [[]],
        [["1"], ["2"]],
        [["1", "2"], []],
        [["1", "2"]],
        [[], ["1", "2"]],
    ],
    "array<struct<a:string,b:array<int>>>": [
        [None],
        [{}],
        [{"a": "x"}, {"b": []}],
        [{"a": "x", "b": []}],
        [{"a": "x", "b": [None]}],
    ],
    "map<string,string>": [None, {}, {"a": None}, {"a": ""}, {"a": "b"}, {"b": "a"}],
    "map<string,map<string,timestamp>>": [
        {"a": {}},
        {"a": None},
        {"a": {"b": "2026-01-01T00:00:00.123456Z"}},
        {"a": {"b": "2026-01-01T00:00:00.123457Z"}},
    ],
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_nested_values_that_differ_have_different_hashes(spark: SparkSession, kind: str) -> None:
    values = DIFFERENT[kind]
    texts = [(number, json.dumps({"v": value})) for number, value in enumerate(values)]
    frame = spark.createDataFrame(texts, "number int, text string")
    parsed = frame.selectExpr(f"from_json(text, 'v {kind}').v as v")
    hashes = {row[0] for row in parsed.select(row_hash(parsed)).collect()}
    assert len(hashes) == len(values)


def only_file(dest: Path) -> Path:
    [file] = dest.rglob("[!.]*.parquet")
    return file


def replaced(file: Path, column: str, values: list[Any]) -> None:
    rows = pq.read_table(file, partitioning=None)
    place = rows.schema.get_field_index(column)
    field = rows.schema.field(place)
    pq.write_table(rows.set_column(place, field, pa.array(values, field.type)), file)


@pytest.mark.spark_slow
def test_verify_finds_a_change_inside_a_nested_column(desk: Desk) -> None:
    was = {"s": {"a": "x"}, "l": ["p", None], "m": {"a": "2026-01-01T00:00:00.123456Z"}}
    now = {
        "s": {"a": None, "b": "x"},
        "l": [None, None, "p"],
        "m": [("a", datetime(2026, 1, 1, microsecond=123457, tzinfo=UTC))],
    }
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append(json.dumps(was).encode())
    schema = "s struct<a:string,b:string>, l array<string>, m map<string,timestamp>"
    assert desk.run("archive", log.name, dest, "--schema", schema, "--verify").status == 0
    file = only_file(dest)
    whole = file.read_bytes()
    for column, value in now.items():
        file.write_bytes(whole)
        replaced(file, column, [value])
        ran = desk.run("archive", log.name, dest, "--verify")
        assert (ran.status, "1 different in the archive" in ran.err) == (1, True), (column, ran.err)


@pytest.mark.spark_slow
def test_verify_finds_a_header_that_came_apart(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append(b"x")
    log.append(b"y", headers=[("a", b"1")])
    assert desk.run("archive", log.name, dest, "--verify").status == 0
    apart = [{"key": "a", "value": None}, {"key": None, "value": b"1"}]
    replaced(only_file(dest), "headers", [[], apart])
    ran = desk.run("archive", log.name, dest, "--verify")
    said = "1 different in the archive, the first at offset 1"
    assert (ran.status, said in ran.err) == (1, True), ran.err


STRAYS = {
    "append_date": [
        "copy.parquet",
        "other=1/copy.parquet",
        "{folder}/deep/copy.parquet",
        "plain/copy.PARQUET",
    ],
    "none": ["more/copy.parquet", "append_date=2026-01-01/copy.parquet"],
}


@pytest.mark.parametrize("by", [pytest.param("append_date", marks=pytest.mark.spark_slow), "none"])
def test_verify_finds_files_that_lie_elsewhere(desk: Desk, by: str) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append_batch([b"one", b"two"])
    assert desk.run("archive", log.name, dest, "--partition-by", by).status == 0
    file = only_file(dest)
    # No reader sees it there.
    hidden = dest / "_hidden" / "copy.parquet"
    hidden.parent.mkdir()
    hidden.write_bytes(file.read_bytes())
    assert desk.run("archive", log.name, dest, "--verify").status == 0
    for place in STRAYS[by]:
        name = place.format(folder=file.parent.name)
        copy = dest / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
        ran = desk.run("archive", log.name, dest, "--verify", "--json")
        said = f"{dest} is not what {log.name} has: {name} lies where the archive has no files"
        assert (ran.status, said in ran.err) == (1, True), ran.err
        compared = json.loads(ran.out.splitlines()[-2])
        assert not compared["verified"]
        # All files that lie in their place are there.
        assert compared["archive"]["records"] == compared["log"]["records"] == 2
        copy.unlink()


@pytest.mark.spark_slow
def test_verify_tells_how_many_files_lie_elsewhere(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append(b"one")
    desk.done("archive", log.name, dest)
    file = only_file(dest)
    for number in range(3):
        (dest / f"{number}.parquet").write_bytes(file.read_bytes())
    file.unlink()
    ran = desk.run("archive", log.name, dest, "--verify")
    assert ran.status == 1
    assert "0.parquet and 2 more lie where the archive has no files" in ran.err
    assert "1 missing in the archive" in ran.err


@pytest.mark.spark_slow
def test_a_log_whose_name_is_hidden_has_files_that_are_not(desk: Desk) -> None:
    """Of files readers pass over such names."""
    log = desk.client.create_log(f"_{desk.name('in')}")
    log.append_batch([b'{"id": 1}', b"no json"])
    dest, bad = desk.directory / "archive", desk.directory / "bad"
    typed = ("--schema", "id long", "--partition-by", "none", "--bad", bad)
    assert desk.done("archive", log.name, dest, *typed, "--verify")["verified"] is True
    assert pq.read_table(dest)["id"].to_pylist() == [1]
    assert pq.read_table(bad).num_rows == 1
