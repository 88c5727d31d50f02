"""Runs of an archive that are killed, or that meet another one: files in place stay there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quorate.pipeline import parquet
from quorate.pipeline.archive import write
from quorate.pipeline.archive.note import NOTE
from quorate.pipeline.files import Files
from quorate.pipeline.run_lock import only_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline_rig import Desk
    from pyspark.sql import SparkSession

    from quorate.pipeline.parquet import Aside

SCHEMA = ("--schema", "id long")


def offsets(dest: Path) -> list[int]:
    if not list(dest.rglob("[!.]*.parquet")):
        return []
    table = ds.dataset(str(dest), partitioning="hive").to_table()
    return sorted(table.column("offset").to_pylist())


def refused(bad: Path) -> list[int]:
    return sorted(pq.read_table(bad).column("offset").to_pylist())


def next_offset(dest: Path) -> int:
    return int(json.loads((dest / NOTE).read_text())["stop"])


@pytest.fixture
def begun(desk: Desk) -> tuple[str, Path, Path]:
    """A log of six records, two of them bad; its archive, in one micro-batch; and the bad ones."""
    log = desk.log("in")
    log.append_batch([b'{"id": %d}' % n if n % 3 else b"no json" for n in range(6)])
    dest, bad = desk.directory / "archive", desk.directory / "bad"
    desk.done("archive", log.name, dest, *SCHEMA, "--bad", bad)
    assert (offsets(dest), refused(bad)) == ([1, 2, 4, 5], [0, 3])
    return log.name, dest, bad


def forget_the_end(dest: Path) -> None:
    """As if it had been killed after the note, before Spark knew that the micro-batch is done."""
    commits = dest / ".quorate" / "checkpoint" / "commits"
    # With the checksum that Spark keeps beside it.
    for file in (commits / "0", commits / ".0.crc"):
        file.unlink()


def die_at(patch: pytest.MonkeyPatch, name: str, stem: str) -> None:
    """Before a file of that stem gets its name."""
    really: Callable[..., None] = getattr(Files, name)

    def act(files: Files, *names: str) -> None:
        if stem in names[-1]:
            raise RuntimeError("dead")
        really(files, *names)

    patch.setattr(Files, name, act)


@pytest.mark.spark_slow
def test_a_micro_batch_that_is_noted_is_left_as_it_is(
    desk: Desk, begun: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, dest, bad = begun
    forget_the_end(dest)
    desk.log("in").append_batch([b'{"id": 6}', b"no json"])
    with monkeypatch.context() as patch:
        # A second kill, in the step that once removed the files of the first micro-batch.
        die_at(patch, "move", f"{log}-{0:020}-{5:020}")
        done = desk.done("archive", log, dest)
    assert (done["archived"], done["bad"], done["next"]) == (1, 1, 8)
    assert (offsets(dest), refused(bad)) == ([1, 2, 4, 5, 6], [0, 3, 7])
    assert not list(dest.glob(".quorate-*"))
    assert desk.run("archive", log, dest, "--verify").status == 0


@pytest.mark.spark_slow
def test_a_micro_batch_that_lost_files_is_not_noted_until_it_has_them(
    desk: Desk, begun: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, dest, bad = begun
    forget_the_end(dest)
    for file in dest.rglob(f"{log}-*.parquet"):
        file.unlink()
    # The note is only read when there is a record to archive.
    desk.log("in").append(b'{"id": 6}')
    with monkeypatch.context() as patch:
        die_at(patch, "move", f"{log}-{0:020}-{5:020}")
        assert desk.run("archive", log, dest).status == 1
    assert next_offset(dest) == 0
    desk.done("archive", log, dest)
    assert (offsets(dest), refused(bad)) == ([1, 2, 4, 5, 6], [0, 3])


def test_a_run_does_not_begin_beside_another(
    desk: Desk, spark: SparkSession, begun: tuple[str, Path, Path]
) -> None:
    log, dest, _ = begun
    desk.log("in").append(b'{"id": 6}')
    aside = dest / ".quorate-micro-batch-1-0badcafe"
    aside.mkdir()
    with only_run(Files(spark, str(dest)), ".quorate/lock"):
        for more in ((), ("--verify",)):
            ran = desk.run("archive", log, dest, *more)
            said = f"INVALID_ARGUMENT: another run is at work in file:{dest}"
            assert (ran.status, said in ran.err) == (1, True), ran.err
    assert aside.exists(), "files that the other run has written aside are its own"
    assert offsets(dest) == [1, 2, 4, 5]
    desk.done("archive", log, dest)
    assert offsets(dest) == [1, 2, 4, 5, 6]
    assert not aside.exists()


@pytest.mark.parametrize("noted", [pytest.param(False, marks=pytest.mark.spark_slow), True])
def test_where_no_lock_keeps_it_out_another_run_loses_nothing(
    desk: Desk, begun: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """It begins when this one has written aside; it is dead or at work when this one goes on."""
    log, dest, bad = begun
    desk.log("in").append_batch([b"no json", b'{"id": 7}'])

    def write_aside(*arguments: object, **more: object) -> Aside:
        aside = parquet.write_aside(*arguments, **more)  # type: ignore[arg-type]  # as they came
        [folder] = dest.glob(".quorate-micro-batch-*")
        if noted:
            note = json.loads((dest / NOTE).read_text())
            (dest / NOTE).write_text(json.dumps(note | {"stop": 8, "repeated_from": 6}))
        else:
            for file in folder.rglob("*.parquet"):
                file.unlink()
        return aside

    with monkeypatch.context() as patch:
        patch.setattr(write, "write_aside", write_aside)
        ran = desk.run("archive", log, dest)
    said = "another run has archived into" if noted else "was changed or removed by another process"
    assert (ran.status, said in ran.err) == (1, True), ran.err
    assert offsets(dest) == [1, 2, 4, 5]
    assert next_offset(dest) == (8 if noted else 6)
    if not noted:
        desk.done("archive", log, dest)
        assert (offsets(dest), refused(bad)) == ([1, 2, 4, 5, 7], [0, 3, 6])


@pytest.mark.spark_slow
def test_a_micro_batch_without_a_good_record(desk: Desk) -> None:
    """With folders that need a shuffle, which has no row then."""
    log, dest, bad = desk.log("in"), desk.directory / "archive", desk.directory / "bad"
    log.append_batch([b"no json", b"no json", b'{"id": 2}', b"no json"])
    few = ("--max-records-per-batch", "2", "--partition-by", "id")
    done = desk.done("archive", log.name, dest, *SCHEMA, "--bad", bad, *few)
    assert (done["archived"], done["bad"], done["next"]) == (1, 3, 4)
    assert (offsets(dest), refused(bad)) == ([2], [0, 1, 3])
    assert desk.run("archive", log.name, dest, "--verify").status == 0
