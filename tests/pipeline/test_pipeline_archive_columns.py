"""Columns of an archive: names that Spark takes for the same, odd ones, and odd folders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk


def rows(dest: Path) -> list[dict[str, Any]]:
    table = ds.dataset(str(dest), partitioning="hive").to_table()
    by_offset = "record_offset" if "record_offset" in table.column_names else "offset"
    return list(table.sort_by(by_offset).to_pylist())


def folders(dest: Path) -> set[str]:
    return {file.parent.name for file in dest.rglob("[!.]*.parquet")}


def test_a_column_goes_before_the_day_of_append_however_it_is_written(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append_batch([b'{"id": %d, "Append_Date": "day %d"}' % (n, n % 2) for n in range(4)])
    schema = "id long, Append_Date string"
    ran = desk.run("archive", log.name, dest, "--schema", schema, "--verify")
    assert ran.status == 0, ran.err
    assert [row["Append_Date"] for row in rows(dest)] == ["day 0", "day 1", "day 0", "day 1"]
    assert folders(dest) == {"Append_Date=day 0", "Append_Date=day 1"}


@pytest.mark.spark_slow
def test_a_folder_is_found_however_its_column_is_written(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append_batch([b'{"Ts": "2026-01-0%dT12:00:00Z"}' % day for day in (1, 2)])
    by = ("--schema", "Ts timestamp", "--partition-by", "tS")
    assert desk.run("archive", log.name, dest, *by, "--verify").status == 0
    assert folders(dest) == {"Ts_date=2026-01-01", "Ts_date=2026-01-02"}
    other = desk.directory / "other"
    assert desk.run("archive", log.name, other, "--partition-by", "Append_Date").status == 0
    [folder] = folders(other)
    assert folder.startswith("append_date=")


@pytest.mark.parametrize(
    ("schema", "by", "said"),
    [
        (
            "ts timestamp, TS_Date string",
            "ts",
            "--partition-by ts: its folders would be called ts_date, as a column is",
        ),
        (
            "offset long, Record_Offset long",
            "none",
            "--schema: beside a column offset that of the record gets the name record_offset",
        ),
        (
            "id long, deep struct<list:array<map<string,variant>>>",
            "none",
            "--schema: column deep has a variant, which --verify cannot compare: write string",
        ),
        (
            "id long, deep array<struct<a:int,A:int>>",
            "none",
            "--schema: column deep has a struct with a field a twice: rename one of them",
        ),
        (
            "OFFSET long",
            "RECORD_offset",
            "--partition-by record_offset: no folder can be named after a value of type bigint",
        ),
        (
            "_id long",
            "_id",
            "--partition-by _id: readers ignore folders whose names begin so",
        ),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_made(
    desk: Desk, schema: str, by: str, said: str
) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    log.append(b'{"id": 1}')
    ran = desk.run("archive", log.name, dest, "--schema", schema, "--partition-by", by)
    assert (ran.status, f"INVALID_ARGUMENT: {said}" in ran.err) == (1, True), ran.err
    assert not dest.exists()


@pytest.mark.spark_slow
def test_names_may_have_any_characters(desk: Desk) -> None:
    names = ["http.status", "a `tick`", "what: 50% = [half]?"]
    log = desk.log("in")
    log.append_batch(
        [json.dumps({"id": n} | dict.fromkeys(names, n % 2)).encode() for n in range(4)]
    )
    inner = ", ".join(f"`{name.replace('`', '``')}`:int" for name in names)
    columns = ", ".join(f"`{name.replace('`', '``')}` int" for name in names)
    typed = ("--schema", f"id long, {columns}, deep struct<{inner}>", "--verify")
    for by in ("append_date", *names[1:]):
        dest = desk.directory / str(names.index(by) if by in names else by)
        ran = desk.run("archive", log.name, dest, *typed, "--partition-by", by)
        assert ran.status == 0, ran.err
        found = rows(dest)
        assert [row["id"] for row in found] == [0, 1, 2, 3]
        for name in names:
            assert name == by or [row[name] for row in found] == [0, 1, 0, 1]


def test_texts_that_no_folder_can_have_are_null(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    texts = [None, "", "__HIVE_DEFAULT_PARTITION__", "a/b"]
    log.append_batch([json.dumps({"id": n, "c": text}).encode() for n, text in enumerate(texts)])
    typed = ("--schema", "id long, c string", "--partition-by", "c", "--verify")
    ran = desk.run("archive", log.name, dest, *typed)
    assert ran.status == 0, ran.err
    assert [row["c"] for row in rows(dest)] == [None, None, None, "a/b"]


@pytest.mark.spark_slow
def test_the_first_and_the_last_day_that_a_timestamp_can_have(desk: Desk) -> None:
    log, dest = desk.log("in"), desk.directory / "archive"
    times = [-(1 << 63), -1, 0, (1 << 63) - 1]
    log.append_batch([b"x"] * len(times), timestamps=times)
    ran = desk.run("archive", log.name, dest, "--partition-by", "timestamp", "--verify")
    assert ran.status == 0, ran.err
    days = ("-290308-12-21", "1969-12-31", "1970-01-01", "+294247-01-10")
    assert folders(dest) == {f"timestamp_date={day}" for day in days}
