"""Rows that are put in place: once, whatever was left by an attempt that died."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files, address
from quorate.pipeline.parquet import place, write_aside

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, rows: int, parts: int = 2) -> DataFrame:
    return spark.range(rows).repartition(parts).selectExpr("id", "id % 3 as third")


def ids(dest: Path) -> list[int]:
    """As a reader has them who knows nothing of Spark."""
    table = ds.dataset(str(dest), partitioning="hive").to_table()
    return sorted(table.column("id").to_pylist())


def names(dest: Path) -> list[str]:
    return sorted(str(file.relative_to(dest)) for file in dest.rglob("*") if file.is_file())


def test_rows_are_in_files_with_the_stem(spark: SparkSession, tmp_path: Path) -> None:
    dest = tmp_path / "with space [1]"
    placed = place(spark, frame(spark, 100), str(dest), "a")
    assert (placed.files, placed.rows) == (2, 100)
    assert names(dest) == ["a-0.parquet", "a-1.parquet"], "nothing else, and no checksum files"
    assert placed.size == sum(file.stat().st_size for file in dest.iterdir())
    assert ids(dest) == list(range(100))


def test_a_repeat_takes_the_place_of_what_was_there(spark: SparkSession, tmp_path: Path) -> None:
    place(spark, frame(spark, 100, 3), str(tmp_path), "a", ["third"])
    place(spark, frame(spark, 10, 1), str(tmp_path), "a-1", ["third"])
    place(spark, frame(spark, 30, 1), str(tmp_path), "a", ["third"])
    assert ids(tmp_path) == sorted([*range(10), *range(30)]), "another stem is left alone"
    assert names(tmp_path)[0] == "third=0/a-0.parquet"


@pytest.mark.parametrize("after", range(4))
def test_a_crash_is_mended_by_the_repeat(
    spark: SparkSession, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the middle of moving files, ``after`` some of them."""
    place(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    moved = 0
    really = Files.move

    def move(files: Files, name: str, to: str) -> None:
        nonlocal moved
        if moved == after:
            die()
        moved += 1
        really(files, name, to)

    def die() -> NoReturn:
        raise RuntimeError("dead")

    monkeypatch.setattr(Files, "move", move)
    with pytest.raises(RuntimeError, match="dead"):
        place(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    monkeypatch.undo()
    seen = ids(tmp_path) if moved else []
    assert len(seen) == len(set(seen)) < 90, "a reader sees no row twice meanwhile"
    place(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    assert ids(tmp_path) == list(range(90))
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_what_is_aside_is_seen_by_nobody(spark: SparkSession, tmp_path: Path) -> None:
    place(spark, frame(spark, 5, 1), str(tmp_path), "a")
    aside = write_aside(spark, frame(spark, 50), str(tmp_path), "b", file_rows_max=10)
    assert aside.rows == 50
    assert ids(tmp_path) == list(range(5))
    assert aside.into_place("b").files >= 5, "files have no more rows than they may"
    assert len(ids(tmp_path)) == 55


def test_no_rows_are_no_file(spark: SparkSession, tmp_path: Path) -> None:
    place(spark, frame(spark, 5, 1), str(tmp_path), "a")
    assert place(spark, frame(spark, 0), str(tmp_path), "a").files == 0
    assert names(tmp_path) == []


def test_times_are_times_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select timestamp_micros(1767225600000001) as at")
    place(spark, rows, str(tmp_path), "a")
    [row] = pq.read_table(tmp_path).to_pylist()
    assert row == {"at": datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)}


def test_rows_as_json(spark: SparkSession, tmp_path: Path) -> None:
    placed = place(spark, frame(spark, 3, 1), str(tmp_path), "bad", kind="json")
    assert placed.rows == 3
    assert len((tmp_path / "bad-0.json").read_text(encoding="utf-8").splitlines()) == 3


def test_a_small_file_is_never_half_there(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path))
    assert files.read("note") is None
    files.write("note", "one")
    files.write("note", "two ä")
    assert files.read("note") == "two ä"
    assert names(tmp_path) == ["note"]
    # The old one is removed, and it died before the new one had its name.
    (tmp_path / "note").rename(tmp_path / "note.new")
    assert files.read("note") == "two ä"


def test_a_local_directory_is_no_place_for_others() -> None:
    assert address("DEST", "/data/x", "local[2]") == "/data/x"
    assert address("DEST", "hdfs://n/x", "spark://m:7077") == "hdfs://n/x"
    with pytest.raises(InvalidArgument, match=r"DEST = /data/x .* file:///data/x if it is mounted"):
        address("DEST", "/data/x", "spark://m:7077")
