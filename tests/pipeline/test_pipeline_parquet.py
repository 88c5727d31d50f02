"""Rows that are put in place: once, beside any files that a dead attempt left."""

from __future__ import annotations

import itertools
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files, address
from quorate.pipeline.parquet import put_rows, write_aside
from quorate.pipeline.run_lock import only_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from quorate.pipeline.parquet import Aside


def frame(spark: SparkSession, rows: int, parts: int = 2) -> DataFrame:
    return spark.range(rows).repartition(parts).selectExpr("id", "id % 3 as third")


def ids(dest: Path) -> list[int]:
    """The rows as a reader without Spark has them."""
    table = ds.dataset(str(dest), partitioning="hive").to_table()
    return sorted(table.column("id").to_pylist())


def names(dest: Path) -> list[str]:
    return sorted(str(file.relative_to(dest)) for file in dest.rglob("*") if file.is_file())


def test_rows_are_in_files_with_the_stem(spark: SparkSession, tmp_path: Path) -> None:
    dest = tmp_path / "with space [1]"
    placed = put_rows(spark, frame(spark, 100), str(dest), "a")
    assert (placed.files, placed.rows) == (2, 100)
    assert names(dest) == ["a-0.parquet", "a-1.parquet"], "no other file, and no checksum files"
    assert placed.size == sum(file.stat().st_size for file in dest.iterdir())
    assert ids(dest) == list(range(100))


def test_a_repeat_takes_the_place_of_what_was_there(spark: SparkSession, tmp_path: Path) -> None:
    put_rows(spark, frame(spark, 100, 3), str(tmp_path), "a", ["third"])
    put_rows(spark, frame(spark, 10, 1), str(tmp_path), "a-1", ["third"])
    put_rows(spark, frame(spark, 30, 1), str(tmp_path), "a", ["third"])
    assert ids(tmp_path) == sorted([*range(10), *range(30)]), "another stem is left alone"
    assert names(tmp_path)[0] == "third=0/a-0.parquet"


@pytest.mark.parametrize("after", range(4))
def test_a_crash_is_mended_by_the_repeat(
    spark: SparkSession, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the middle of moving files, ``after`` some of them."""
    put_rows(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
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
        put_rows(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    monkeypatch.undo()
    seen = ids(tmp_path) if moved else []
    assert len(seen) == len(set(seen)) < 90, "a reader sees no row twice meanwhile"
    put_rows(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    assert ids(tmp_path) == list(range(90))
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_what_is_aside_is_seen_by_nobody(spark: SparkSession, tmp_path: Path) -> None:
    put_rows(spark, frame(spark, 5, 1), str(tmp_path), "a")
    aside = write_aside(spark, frame(spark, 50), str(tmp_path), "b", file_rows_max=10)
    assert aside.rows == 50
    assert ids(tmp_path) == list(range(5))
    assert aside.into_place("b").files >= 5, "files have no more rows than they may"
    assert len(ids(tmp_path)) == 55


@pytest.mark.parametrize("part", [False, True])
def test_what_was_removed_aside_takes_no_place(
    spark: SparkSession, tmp_path: Path, part: bool
) -> None:
    """Another run takes the folder for one that a dead run left."""
    put_rows(spark, frame(spark, 50), str(tmp_path), "a")
    aside = write_aside(spark, frame(spark, 50), str(tmp_path), "a")
    [folder] = tmp_path.glob(".quorate-*")
    if part:
        next(folder.glob("*.parquet")).unlink()
    else:
        shutil.rmtree(folder)
    with pytest.raises(InvalidArgument, match=r"\.quorate-a-\w+ was changed or removed .* one run"):
        aside.into_place("a")
    assert ids(tmp_path) == list(range(50))


def test_two_attempts_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    other = write_aside(spark, frame(spark, 7), str(tmp_path), "a-1")
    first = write_aside(spark, frame(spark, 50, 3), str(tmp_path), "a")
    second = write_aside(spark, frame(spark, 50, 1), str(tmp_path), "a")
    assert second.into_place("a").rows == 50
    with pytest.raises(InvalidArgument, match="one run at a time"):
        first.into_place("a")
    assert ids(tmp_path) == list(range(50))
    assert other.into_place("b").rows == 7, "another name is left alone"


def test_rows_that_are_in_place_stay_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> Aside:
        return write_aside(spark, frame(spark, 90, 1), str(tmp_path), "a", ["third"])

    assert again().in_place_already("a") is None
    placed = put_rows(spark, frame(spark, 90, 2), str(tmp_path), "a", ["third"])
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Files, "move", None)
        assert again().into_place_once("a") == placed
    assert names(tmp_path) == before

    torn = tmp_path / before[0]
    torn.write_bytes(torn.read_bytes()[:-20])
    assert again().in_place_already("a") is None, "a machine lost its power"
    torn.unlink()
    assert again().into_place_once("a").files == 3
    assert ids(tmp_path) == list(range(90))


def test_no_rows_are_no_file(spark: SparkSession, tmp_path: Path) -> None:
    put_rows(spark, frame(spark, 5, 1), str(tmp_path), "a")
    assert put_rows(spark, frame(spark, 0), str(tmp_path), "a").files == 0
    assert names(tmp_path) == []


def test_times_are_times_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select timestamp_micros(1767225600000001) as at")
    put_rows(spark, rows, str(tmp_path), "a")
    [row] = pq.read_table(tmp_path).to_pylist()
    assert row == {"at": datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)}


def test_rows_as_json(spark: SparkSession, tmp_path: Path) -> None:
    placed = put_rows(spark, frame(spark, 3, 1), str(tmp_path), "bad", kind="json")
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


def test_a_small_file_that_was_not_finished_is_none(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path))
    # A row that cannot be encoded fails after the file was made, and before a row is in it.
    cannot_be = "\ud800"
    for before in (None, "one"):
        with pytest.raises(UnicodeEncodeError):
            files.write("note", cannot_be)
        assert files.read("note") == before
        files.write("note", "one")
        assert files.read("note") == "one"
        assert names(tmp_path) == ["note"]


@pytest.mark.parametrize("before", [None, "old"])
def test_a_small_file_is_the_old_or_the_new_one(
    spark: SparkSession, tmp_path: Path, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before each step."""
    for step in range(4):
        files = Files(spark, str(tmp_path / str(step)))
        if before is not None:
            files.write("note", before)
        with monkeypatch.context() as patch:
            dies_before(step, patch)
            with pytest.raises(RuntimeError, match="dead"):
                files.write("note", "new")
        found = files.read("note")
        assert found in (before, "new")
        files.write("note", "newer")
        assert files.read("note") == "newer"
        assert names(tmp_path / str(step)) == ["note"]


def dies_before(step: int, patch: pytest.MonkeyPatch) -> None:
    """The calls that move or remove a file."""
    steps = itertools.count()

    def dying(really: Callable[..., None]) -> Callable[..., None]:
        def act(*arguments: object) -> None:
            if next(steps) == step:
                raise RuntimeError("dead")
            really(*arguments)

        return act

    patch.setattr(Files, "move", dying(Files.move))
    patch.setattr(Files, "remove", dying(Files.remove))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "a/", True),
        ("a", "a/b", True),
        ("a/b/c", "a", True),
        ("a", "ab", False),
        ("a/b", "a/c", False),
        ("a/../b", "b/c", True),
        ("link/b", "a", True),
    ],
)
def test_directories_that_lie_in_each_other(
    spark: SparkSession, tmp_path: Path, one: str, other: str, overlap: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    first, second = (Files(spark, f"{tmp_path}/{name}") for name in (one, other))
    assert first.overlaps(second) is second.overlaps(first) is overlap
    with_scheme = Files(spark, f"file://{tmp_path}/{other}")
    assert first.overlaps(with_scheme) is overlap


def test_one_run_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path / "with space"))
    for _ in range(2):
        with (
            only_run(files, ".quorate/lock"),
            pytest.raises(InvalidArgument, match=r"another run is at work in file:.*with space"),
            only_run(files, ".quorate/lock"),
        ):
            pytest.fail("two of them")


def test_a_local_directory_is_no_place_for_others() -> None:
    assert address("DEST", "/data/x", "local[2]") == "/data/x"
    assert address("DEST", "hdfs://n/x", "spark://m:7077") == "hdfs://n/x"
    with pytest.raises(InvalidArgument, match=r"DEST = /data/x .* file:///data/x if it is mounted"):
        address("DEST", "/data/x", "spark://m:7077")
