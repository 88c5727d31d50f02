"""Processes are killed while records are moved: each record arrives, and once."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from driver_rig import Driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline_rig import Desk

    import quorate

RECORDS = 3000
MICRO_BATCH = 500
# Each test starts Spark several times, and a machine may have better things to do.
patient = pytest.mark.timeout(1800)


def fill(log: quorate.Log, records: int = RECORDS) -> None:
    for first in range(0, records, 500):
        log.append_batch([b"value %d" % number for number in range(first, first + 500)])


def values(numbers: range = range(RECORDS)) -> list[bytes]:
    return [b"value %d" % number for number in numbers]


def has(log: quorate.Log, records: int) -> bool:
    return log.end_offset() >= records


def run_with_a_dead_leader(
    desk: Desk, log: quorate.Log, begun: Callable[[], object], *arguments: str | Path
) -> None:
    """Its leader dies when it has ``begun``, and the run goes on to its end all the same."""
    with Driver(desk.cluster.endpoints, desk.directory, *arguments) as driver:
        driver.wait_for(begun, "it has begun")
        leader = desk.cluster.wait_leader(log.name)
        desk.cluster.kill(leader)
        try:
            ended = driver.ended()
        finally:
            desk.cluster.restart(leader)
    assert ended.status == 0, ended.err


@patient
def test_an_archive(desk: Desk) -> None:
    log = desk.log("in")
    fill(log)
    dest = desk.directory / "archive"
    command = ("archive", log.name, dest, "--max-records-per-batch", str(MICRO_BATCH))

    def placed() -> int:
        # Not in the folders written aside: directories come and go there.
        return len(list(dest.glob(f"append_date=*/{log.name}-*.parquet")))

    with Driver(desk.cluster.endpoints, desk.directory, *command) as driver:
        driver.wait_for(
            lambda: list(dest.glob(".quorate-micro-batch-1-*/**/*.parquet")), "rows are aside"
        )
        driver.kill()
    first = placed()
    assert first < RECORDS // MICRO_BATCH
    with Driver(desk.cluster.endpoints, desk.directory, *command, "--json") as driver:
        driver.wait_for(lambda: placed() > first + 1, "it goes on")
        driver.interrupt()
        ended = driver.ended()
    assert ended.status == 1
    assert "error: INTERRUPTED: " in ended.err
    assert "Traceback" not in ended.err, ended.err
    assert 0 < json.loads(ended.out.splitlines()[0])["next"] < RECORDS
    second = placed()
    assert second < RECORDS // MICRO_BATCH
    run_with_a_dead_leader(desk, log, lambda: placed() > second, *command)

    rows = ds.dataset(str(dest), partitioning="hive").to_table().sort_by("offset")
    assert rows.column("offset").to_pylist() == list(range(RECORDS))
    assert rows.column("value").to_pylist() == values()
    assert not list(dest.glob(".quorate-*")), "no folder of a dead run is left"
    assert placed() == RECORDS // MICRO_BATCH
    ran = desk.run(*command, "--verify")
    assert ran.status == 0, ran.err


@patient
def test_files_that_are_ingested(desk: Desk) -> None:
    log = desk.log("out")
    src, aside = desk.directory / "src", desk.directory / "bad"
    src.mkdir()
    for first in range(0, RECORDS, MICRO_BATCH):
        lines = [f'"value {number}"' for number in range(first, first + MICRO_BATCH)]
        (src / f"{first:05}.json").write_text("\n".join([*lines, f"bad {first}"]) + "\n")
    command = ("ingest", src, log.name, "--max-files-per-batch", "1", "--bad", aside)
    for some in (MICRO_BATCH, 3 * MICRO_BATCH):
        with Driver(desk.cluster.endpoints, desk.directory, *command) as driver:
            driver.wait_for(partial(has, log, some), "some are there")
            driver.kill()
        assert some <= log.end_offset() < RECORDS
    run_with_a_dead_leader(desk, log, lambda: True, *command)
    assert sorted(desk.values("out")) == sorted(b'"%s"' % value for value in values())
    bad = [line for file in aside.glob("*.json") for line in file.read_text("utf-8").splitlines()]
    assert len(bad) == len(set(bad)) == RECORDS // MICRO_BATCH
    done = desk.done(*command)
    assert (done["read"], done["end"]) == (0, RECORDS)


@patient
def test_letters_that_are_replayed(desk: Desk) -> None:
    letters, log = desk.log("dlq"), desk.log("out")
    fill(letters)
    command = ("replay", letters.name, "--to", log.name)

    def staged() -> int:
        # A node that has just been restarted may not know of the log yet.
        logs = desk.client.status()["logs"]
        return sum(one["staged_bytes"] or 0 for one in logs if one["name"] == log.name)

    with Driver(desk.cluster.endpoints, desk.directory, *command) as driver:
        driver.wait_for(lambda: staged() or log.end_offset(), "it is staged or published")
        driver.kill()
    assert log.end_offset() in (0, RECORDS), "all of a micro-batch, or nothing"
    run_with_a_dead_leader(desk, log, lambda: True, *command)
    assert desk.values("out") == values()
    fill(letters, 1000)
    done = desk.done(*command)
    assert (done["first"], done["replayed"]) == (RECORDS, 1000)
    assert desk.done(*command)["replayed"] == 0
    assert log.end_offset() == RECORDS + 1000


@patient
def test_a_growing_directory_is_watched_until_ctrl_c(desk: Desk) -> None:
    log = desk.log("out")
    src = desk.directory / "src"
    src.mkdir()
    command = ("ingest", src, log.name, "--format", "text", "--follow", "--json")
    with Driver(desk.cluster.endpoints, desk.directory, *command) as driver:
        for number in range(2):
            whole = desk.directory / "whole.txt"
            whole.write_text(f"{number}\n", encoding="utf-8")
            whole.rename(src / f"{number}.txt")
            driver.wait_for(partial(has, log, number + 1), "the file is taken")
        driver.interrupt()
        ended = driver.ended()
    assert ended.status == 0, ended.err
    assert desk.values("out") == [b"0", b"1"]
    assert desk.done(*command[:5])["appended"] == 0
