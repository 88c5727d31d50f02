"""Archives: each record once, for readers without Spark, and compared with the log."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk

    import quorate

TODAY_US = 1_700_000_000_000_000


def fill(log: quorate.Log, records: int) -> None:
    start = log.end_offset()
    numbers = range(start, start + records)
    log.append_batch(
        [b"value %d \xff" % number for number in numbers],
        keys=[b"key %d" % number if number % 3 else None for number in numbers],
        headers=[[("h", b"%d" % number)] for number in numbers],
        timestamps=[TODAY_US + number for number in numbers],
    )


def table(dest: Path) -> pa.Table:
    return ds.dataset(str(dest), partitioning="hive").to_table().sort_by("offset")


def files(dest: Path) -> list[str]:
    return sorted(str(file.relative_to(dest)) for file in dest.rglob("*.parquet"))


@pytest.mark.spark_slow
def test_a_growing_log_in_three_runs(desk: Desk) -> None:
    log = desk.log("in")
    dest = desk.directory / "archive"
    for run in range(3):
        fill(log, 1000)
        done = desk.done("archive", log.name, dest, "--max-records-per-batch", "600")
        assert (done["archived"], done["first"], done["next"]) == (1000, 0, 1000 * (run + 1))
    rows = table(dest)
    assert rows.column("offset").to_pylist() == list(range(3000))
    assert rows.column("append_time").to_pylist() == sorted(rows.column("append_time").to_pylist())
    [row] = rows.slice(17, 1).to_pylist()
    assert row["value"] == b"value 17 \xff"
    assert (row["key"], row["headers"]) == (b"key 17", [{"key": "h", "value": b"17"}])
    assert row["timestamp"] == datetime.fromtimestamp(TODAY_US / 1e6, UTC).replace(microsecond=17)
    assert str(row["append_time"].date()) == str(row["append_date"])
    assert rows.column("key").null_count == 1000

    before = files(dest)
    [day] = {file.partition("/")[0] for file in before}
    assert [file.partition("/")[2] for file in before[:2]] == [
        f"{log.name}-{0:020}-{599:020}-0.parquet",
        f"{log.name}-{600:020}-{999:020}-0.parquet",
    ]
    assert day == f"append_date={row['append_time'].date()}"
    assert desk.done("archive", log.name, dest)["archived"] == 0
    assert files(dest) == before, "another run changes no file"


@pytest.mark.spark_slow
def test_verify_finds_what_was_planted(desk: Desk) -> None:
    log = desk.log("in")
    fill(log, 900)
    dest = desk.directory / "archive"
    ran = desk.run("archive", log.name, dest, "--max-records-per-batch", "300", "--verify")
    assert ran.status == 0, ran.err
    assert "verified: the archive has what the log has" in ran.out

    first, second, third = (dest / file for file in files(dest))
    away = third.rename(desk.directory / "away.parquet")
    ran = desk.run("archive", log.name, dest, "--verify", "--json")
    assert ran.status == 1
    assert "CORRUPT" in ran.err
    assert "300 missing in the archive, the first at offset 600" in ran.err
    assert json.loads(ran.out.splitlines()[-2])["archive"]["records"] == 600
    away.rename(third)

    rows = pq.read_table(second, partitioning=None)
    values = rows.column("value").to_pylist()
    values[7] = b"another"
    place = rows.schema.get_field_index("value")
    pq.write_table(rows.set_column(place, "value", pa.array(values, pa.binary())), second)
    ran = desk.run("archive", log.name, dest, "--verify")
    assert ran.status == 1
    assert "1 different in the archive, the first at offset 307" in ran.err

    pq.write_table(rows, second)
    copy = first.with_name("copy.parquet")
    copy.write_bytes(first.read_bytes())
    ran = desk.run("archive", log.name, dest, "--verify")
    assert ran.status == 1
    assert "300 in the archive more than once, the first at offset 0" in ran.err
    copy.unlink()
    assert desk.run("archive", log.name, dest, "--verify").status == 0


@pytest.mark.spark_slow
def test_json_becomes_typed_columns(desk: Desk) -> None:
    log = desk.log("in")
    good = [{"id": n, "key": f"k{n}", "at": f"2026-01-0{n % 3 + 1}T12:00:00Z"} for n in range(30)]
    bad = [b"no json", b'{"id": "x"}']
    log.append_batch([bad[0], *(json.dumps(one).encode() for one in good), bad[1]])
    dest, aside = desk.directory / "typed", desk.directory / "bad"
    schema = ("--schema", "id long, key string, at timestamp", "--partition-by", "at")
    ran = desk.run("archive", log.name, dest, *schema)
    assert ran.status == 1
    assert f"DECODE_FAILED: {log.name} offset 0: malformed JSON: no json" in ran.err
    assert "--bad DIR" in ran.err
    assert files(dest) == []

    done = desk.done("archive", log.name, dest, "--bad", aside)
    assert (done["archived"], done["bad"], done["next"]) == (30, 2, 32)
    rows = table(dest)
    assert rows.column("id").to_pylist() == list(range(30))
    assert rows.column("key").to_pylist() == [f"k{n}" for n in range(30)], "of the schema"
    assert rows.column("record_key").null_count == 30, "of the record, which has none"
    assert {file.partition("/")[0] for file in files(dest)} == {
        f"at_date=2026-01-0{day}" for day in (1, 2, 3)
    }
    refused = pq.read_table(aside).sort_by("offset").to_pylist()
    assert [row["value"] for row in refused] == bad
    assert [row["offset"] for row in refused] == [0, 31]
    assert "column id is x, not bigint" in refused[1]["error"]

    ran = desk.run("archive", log.name, dest, "--verify")
    assert ran.status == 0, ran.err
    compared = {line[:10].strip(): line[10:].split() for line in ran.out.splitlines()}
    assert compared["bad"] == ["2", "2"]
    assert f"verified: the archive has what the log has, and {aside} has what" in ran.out


@pytest.mark.spark_slow
def test_verify_finds_what_is_wrong_with_what_was_set_aside(desk: Desk) -> None:
    log = desk.log("in")
    log.append_batch([b'{"id": %d}' % n if n % 3 else b"no json %d" % n for n in range(12)])
    dest, other, aside = (desk.directory / name for name in ("typed", "other", "bad"))
    typed = ("--schema", "id long", "--bad", aside, "--max-records-per-batch", "6")
    for one in (dest, other):
        assert desk.run("archive", log.name, one, *typed, "--verify").status == 0

    # Each archive knows its own by their names.
    query = json.loads((dest / ".quorate" / "checkpoint" / "metadata").read_text())["id"]
    first, second = sorted(aside.glob(f"{log.name}-{query.partition('-')[0]}-*.parquet"))
    away = second.rename(desk.directory / "away.parquet")
    ran = desk.run("archive", log.name, dest, "--verify", "--json")
    said = f"CORRUPT: {dest} is not what {log.name} has: 2 missing among the bad ones in {aside}"
    assert (ran.status, said in ran.err) == (1, True), ran.err
    assert "the first at offset 6" in ran.err
    compared = json.loads(ran.out.splitlines()[-2])
    assert (compared["archive"]["bad"], compared["log"]["bad"]) == (2, 4)
    away.rename(second)

    rows = pq.read_table(first)
    values = rows.column("value").to_pylist()
    place = rows.schema.get_field_index("value")
    changed = pa.array([values[0], b"another"], pa.binary())
    pq.write_table(rows.set_column(place, "value", changed), first)
    ran = desk.run("archive", log.name, dest, "--verify")
    assert (ran.status, "1 different among the bad ones" in ran.err) == (1, True), ran.err

    shutil.rmtree(aside)
    ran = desk.run("archive", log.name, dest, "--verify")
    assert (ran.status, "4 missing among the bad ones" in ran.err) == (1, True), ran.err


@pytest.mark.spark_slow
def test_two_archives_have_one_place_for_bad_records(desk: Desk) -> None:
    log = desk.log("in")
    log.append_batch([b'{"id": 1}', b"no json", b'{"id": 2}'])
    bad = desk.directory / "bad"
    for name in ("one", "two"):
        done = desk.done(
            "archive", log.name, desk.directory / name, "--schema", "id long", "--bad", bad
        )
        assert (done["archived"], done["bad"]) == (2, 1)
    assert pq.read_table(bad).column("offset").to_pylist() == [1, 1], "one of each"

    # A run that cannot go on adds no file.
    one = desk.directory / "one"
    shutil.rmtree(one / ".quorate" / "checkpoint")
    log.append(b"no json")
    ran = desk.run("archive", log.name, one)
    assert (ran.status, "goes up to 3, and its checkpoint" in ran.err) == (1, True), ran.err
    assert len(files(bad)) == 2


def test_bad_records_have_a_place_of_their_own(desk: Desk) -> None:
    log = desk.log("in")
    log.append_batch([b'{"id": 1}', b"no json"])
    dest = desk.directory / "archive"
    flat = ("archive", log.name, dest, "--schema", "id long", "--partition-by", "none")
    for bad in (dest, dest / "bad", desk.directory):
        ran = desk.run(*flat, "--bad", bad)
        said = f"--bad = {bad} and DEST = {dest} are the same, or one of them lies in the other"
        assert (ran.status, said in ran.err) == (1, True), ran.err
        assert not dest.exists()


@pytest.mark.spark_slow
def test_a_range_is_an_archive_of_its_own(desk: Desk) -> None:
    log = desk.log("in")
    fill(log, 100)
    dest = desk.directory / "part"
    flat = ("--partition-by", "none", "--max-records-per-batch", "40")
    done = desk.done("archive", log.name, dest, "--from", "10", "--to", "70", *flat)
    assert (done["archived"], done["next"], done["complete"]) == (60, 70, True)
    assert table(dest).column("offset").to_pylist() == list(range(10, 70))
    assert files(dest)[0] == f"{log.name}-{10:020}-{49:020}-0.parquet"
    fill(log, 10)
    assert desk.done("archive", log.name, dest)["archived"] == 0, "it has an end"
    assert desk.run("archive", log.name, dest, "--verify").status == 0
    ran = desk.run("archive", log.name, dest, "--to", "80")
    assert (ran.status, "was begun with --to 70, not 80" in ran.err) == (1, True)


def test_what_cannot_be_is_said_before_anything_is_made(desk: Desk) -> None:
    log = desk.log("in")
    dest = desk.directory / "archive"
    cases = {
        ("archive", desk.name("no"), dest): f"`quorate log create {desk.name('no')}`",
        ("archive", log.name, dest, "--schema", "id lonk"): "schema = 'id lonk' is not a schema",
        (
            "archive",
            log.name,
            dest,
            "--partition-by",
            "day",
        ): "there are append_date, value, offset",
        ("archive", log.name, dest, "--from", "7"): f"--from 7: {log.name} ends at 0",
        ("archive", log.name, dest, "--to", "9"): f"--to 9: {log.name} ends at 0",
        ("archive", log.name, dest, "--partition-by", "headers"): "no folder can be named",
        ("archive", log.name, dest, "--to", "@2999-01-01"): "--to lies in the future",
    }
    for arguments, said in cases.items():
        ran = desk.run(*arguments)
        assert (ran.status, said in ran.err) == (1, True), ran.err
        assert not dest.exists()
    assert desk.run("archive", log.name, dest, "--decode", "json").status == 2
    ran = desk.run("archive", log.name, dest, "--from", "@2026-99-01")
    assert (ran.status, "--from" in ran.error, "is not a time" in ran.error) == (2, True, True)
    file = desk.write("a.txt", "x")
    for arguments, what in (
        ((file,), f"DEST {file}"),
        ((file / "deep",), f"DEST {file}/deep: {file}"),
        ((dest, "--bad", file), f"--bad {file}"),
    ):
        ran = desk.run_without_spark("archive", log.name, *arguments)
        said = f"INVALID_ARGUMENT: {what} is a file, not a directory"
        assert (ran.status, said) == (1, ran.error)
    dest.mkdir()
    (dest / "other.parquet").touch()
    ran = desk.run("archive", log.name, dest)
    assert "holds other.parquet and no archive" in ran.err


def test_an_archive_belongs_to_one_life_of_one_log(desk: Desk) -> None:
    log = desk.log("in")
    fill(log, 10)
    dest = desk.directory / "archive"
    desk.done("archive", log.name, dest)
    other = desk.log("other")
    ran = desk.run("archive", other.name, dest)
    assert f"is an archive of {log.name}, not of {other.name}" in ran.err
    desk.client.delete_log(log.name)
    desk.client.create_log(log.name)
    ran = desk.run("archive", log.name, dest)
    assert (ran.status, "LOG_RECREATED" in ran.err) == (1, True)


@pytest.mark.spark_slow
def test_a_checkpoint_that_was_removed_archives_nothing_twice(desk: Desk) -> None:
    log = desk.log("in")
    fill(log, 100)
    dest = desk.directory / "archive"
    desk.done("archive", log.name, dest, "--max-records-per-batch", "60")
    shutil.rmtree(dest / ".quorate" / "checkpoint")
    fill(log, 10)
    ran = desk.run("archive", log.name, dest)
    assert (ran.status, "goes up to 100, and its checkpoint" in ran.err) == (1, True), ran.err
    assert table(dest).column("offset").to_pylist() == list(range(100))


@pytest.mark.spark_slow
def test_files_get_no_larger_than_they_are_to_be(desk: Desk) -> None:
    log = desk.log("in")
    fill(log, 4000)
    dest = desk.directory / "archive"
    few = ("--max-records-per-batch", "2000")
    desk.done("archive", log.name, dest, *few, "--target-file-size", "4KB")
    # The first micro-batch shows how much a record takes.
    sizes = [(dest / file).stat().st_size for file in files(dest)]
    assert len(sizes) > 4
    assert table(dest).column("offset").to_pylist() == list(range(4000))


def test_files_of_the_first_micro_batch_are_about_as_large(desk: Desk) -> None:
    log = desk.log("in")
    bytes_of = random.Random(1)
    for _ in range(5):
        log.append_batch([bytes_of.randbytes(80) for _ in range(2000)])
    dest = desk.directory / "archive"
    assert desk.done("archive", log.name, dest, "--target-file-size", "128KB")["archived"] == 10_000
    sizes = sorted((dest / file).stat().st_size for file in files(dest))
    # The last file of each task may be smaller.
    assert 64 << 10 < sizes[len(sizes) // 2] < sizes[-1] < 160 << 10
    assert table(dest).column("offset").to_pylist() == list(range(10_000))
