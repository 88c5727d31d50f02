"""A pipeline is stopped in many ways: each record is in the sink or a dead letter, once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from driver_rig import Driver
from pipeline_rig import pipeline_file

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk

RECORDS = 2000
MICRO_BATCH = 500
# Of a hundred records so many are bad, of either kind.
BAD_OF_100 = 3
# Rows take their time, letters do not: so there is a while in which only the letters are staged.
SLOW = """
import time

@F.udf("long")
def slowly(number):
    time.sleep(0.002)
    return number
"""


class Pipe:
    """A log of orders, and a pipeline whose micro-batches take long enough to be interrupted."""

    def __init__(self, desk: Desk, sink: str) -> None:
        self.desk = desk
        source = desk.log("in")
        for log in ("out", "dlq"):
            desk.log(log)
        for first in range(0, RECORDS, 500):
            source.append_batch([_order(number) for number in range(first, first + 500)])
        text = pipeline_file(
            "return df.select(slowly('id').alias('id'))",
            decode="json",
            schema="id long not null",
            checks={"not too large": "id < 1000000"},
            sink=sink,
            dead_letter="log:LOG-dlq",
        )
        text = text.replace("@pipeline", f"{SLOW}\n@pipeline")
        self.file = desk.write("piped.py", text)

    def driver(self, *options: str) -> Driver:
        arguments = ("run", str(self.file), "--max-records-per-batch", str(MICRO_BATCH), *options)
        return Driver(self.desk.cluster.endpoints, self.desk.directory, *arguments)

    def written(self) -> int:
        return len(self.desk.values("out"))

    def in_a_micro_batch(self) -> bool:
        """Letters are staged and not published: the rows of the same micro-batch are under way."""
        logs = self.desk.client.status()["logs"]
        [found] = [log for log in logs if log["name"] == self.desk.name("dlq")]
        return found["staged_bytes"] > 0

    def letters(self) -> list[int]:
        return sorted(
            int(dict(record.headers)["source.offset"]) for record in self.desk.records("dlq")
        )


def _order(number: int) -> bytes:
    if number % 100 < BAD_OF_100:
        return b"?" if number % 2 else b'{"id": 1000000}'
    return b'{"id": %d}' % number


GOOD = [number for number in range(RECORDS) if number % 100 >= BAD_OF_100]
BAD = [number for number in range(RECORDS) if number % 100 < BAD_OF_100]


def test_driver_killed_leader_killed_and_interrupted(desk: Desk) -> None:
    pipe = Pipe(desk, "log:LOG-out")
    with pipe.driver() as driver:
        driver.wait_for(
            lambda: pipe.written() and pipe.in_a_micro_batch(), "a micro-batch is under way"
        )
        driver.kill()
    first = pipe.written()
    assert 0 < first < len(GOOD)

    with pipe.driver("--json") as driver:
        driver.wait_for(lambda: pipe.written() > first, "it goes on")
        driver.interrupt()
        ended = driver.ended()
    assert ended.status == 1
    assert "the micro-batch under way is not written; the next run repeats it" in ended.err
    assert "error: INTERRUPTED: " in ended.err
    assert "Traceback" not in ended.err, ended.err
    told = json.loads(ended.out.splitlines()[0])
    second = pipe.written()
    assert first < second < len(GOOD)
    assert 0 < told["reached"] < RECORDS

    with pipe.driver() as driver:
        driver.wait_for(pipe.in_a_micro_batch, "a micro-batch is under way")
        leader = desk.cluster.wait_leader(desk.name("out"))
        desk.cluster.kill(leader)
        try:
            ended = driver.ended()
        finally:
            desk.cluster.restart(leader)
    assert ended.status == 0, ended.err
    assert "checkpoint" in ended.out

    ids = [json.loads(value)["id"] for value in desk.values("out")]
    assert sorted(ids) == GOOD
    assert pipe.letters() == BAD
    assert desk.done("run", pipe.file)["read"] == 0


def test_parquet_survives_a_killed_driver(desk: Desk) -> None:
    pipe = Pipe(desk, "parquet:rows")
    with pipe.driver() as driver:
        driver.wait_for(lambda: list((desk.directory / "rows").glob("*.parquet")), "there are rows")
        before = len(desk.records("dlq"))
        driver.wait_for(
            lambda: len(desk.records("dlq")) > before, "the next micro-batch has letters"
        )
        driver.kill()
    done = desk.done("run", pipe.file)
    assert 0 < done["read"] < RECORDS
    assert sorted(pq.read_table(desk.directory / "rows")["id"].to_pylist()) == GOOD
    assert pipe.letters() == BAD


def test_a_pipeline_that_goes_on_ends_by_ctrl_c(desk: Desk, tmp_path: Path) -> None:
    source = desk.log("in")
    desk.log("out")
    source.append_batch([b"1", b"2"])
    file = desk.write("piped.py", pipeline_file())
    with Driver(
        desk.cluster.endpoints, tmp_path, "run", file, "--trigger", "200ms", "--json"
    ) as driver:
        driver.wait_for(lambda: len(desk.values("out")) == 2, "it took the records that were there")
        source.append(b"3")
        driver.wait_for(lambda: len(desk.values("out")) == 3, "it took the record that came")
        driver.interrupt()
        ended = driver.ended()
    assert ended.status == 0, ended.err
    assert "piped runs until Ctrl-C" in ended.err
    assert ended.document["written"] == 3
    assert ended.document["reached"] == 3


@pytest.mark.usefixtures("spark")
def test_a_session_that_cannot_be_had_says_why(desk: Desk, tmp_path: Path) -> None:
    desk.log("in"), desk.log("out")
    file = desk.write("piped.py", pipeline_file())
    with Driver(
        desk.cluster.endpoints, tmp_path, "run", file, "--conf", "spark.driver.memory=none"
    ) as driver:
        ended = driver.ended()
    assert ended.status == 1
    [line] = ended.err.strip().splitlines()
    assert line.startswith("error: SPARK_FAILED: ")
    assert "none" in line
