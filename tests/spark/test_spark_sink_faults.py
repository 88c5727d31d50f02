"""Exactly once, whatever is killed: every input is in the output, and once.

The queries are real, from one log of a real cluster to another, and so are the kills.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sink_faults_rig
from sink_faults_rig import Faults, Naive, Run, come_to, start_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_rig import Place

RECORDS = 4000
# Some chunks for each portion.
RECORD_BYTES = 1200
ROWS_OF_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
DRIVER = sink_faults_rig.__file__


class Pipe:
    """A log full of numbers, and an empty one that they are to be written to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        source, self.target = place.log("source"), place.log("target")
        for first in range(0, RECORDS, 500):
            numbers = range(first, first + 500)
            source.append_batch([(b"%d " % number).ljust(RECORD_BYTES, b".") for number in numbers])
        checkpoint = str(place.directory / "checkpoint")
        self.run = Run(place.cluster.endpoints, source.name, self.target.name, checkpoint)
        place.spark.dataSource.register(Faults)
        place.spark.dataSource.register(Naive)

    def once(self, fault: str = "none", **options: str) -> None:
        """Run the query to its end, in this process."""
        start_query(self.place.spark, self.run._replace(fault=fault), **options).awaitTermination()

    def marked(self, fault: str, name: str) -> Run:
        marks = self.place.directory / name
        marks.mkdir()
        return self.run._replace(fault=fault, marks=str(marks))

    def killed(self, fault: str) -> None:
        """Run the query in a process of its own, and kill all of it where it stands still."""
        run = self.marked(fault, fault)
        driver = subprocess.Popen(
            [sys.executable, DRIVER, *run],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            come_to(run.marks, "here", lambda: driver.poll() is not None)
        finally:
            for pid in processes_of(driver.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            driver.wait()

    def numbers(self) -> list[int]:
        end = self.target.end_offset()
        return [int(record.value.split()[0]) for record in self.target.read(0, end)]

    def staged_bytes(self) -> int:
        logs = self.place.client.status()["logs"]
        [found] = [log for log in logs if log["name"] == self.target.name]
        return found["staged_bytes"]


def processes_of(session: int) -> list[int]:
    """The driver, Java, and the workers: all that ``start_new_session`` began."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == session:
                found.append(int(stat.parent.name))
    return found


@pytest.fixture
def pipe(place: Place) -> Iterator[Pipe]:
    # So that a task is given its rows in several batches.
    place.spark.conf.set(ROWS_OF_A_BATCH, "500")
    yield Pipe(place)
    place.spark.conf.unset(ROWS_OF_A_BATCH)


def assert_once(pipe: Pipe) -> None:
    numbers = pipe.numbers()
    assert len(numbers) == len(set(numbers)) == RECORDS
    assert sorted(numbers) == list(range(RECORDS))
    assert pipe.staged_bytes() == 0


def test_the_driver_is_killed_before_and_after_the_publish(pipe: Pipe) -> None:
    pipe.killed("before")
    assert pipe.numbers() == []
    assert pipe.staged_bytes() > 0
    pipe.killed("after")
    assert 0 < len(pipe.numbers()) < RECORDS
    assert not list(Path(pipe.run.checkpoint, "commits").glob("[0-9]*")), "Spark knows of none"
    pipe.once()
    assert_once(pipe)


def test_a_commit_fails_after_the_publish(pipe: Pipe) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="after the publish"):
            pipe.once("raise")
        assert len(pipe.numbers()) == 2000, "portion 0 is published, and stays so"
    pipe.once()
    assert_once(pipe)


def test_every_task_fails_once_in_the_middle(pipe: Pipe) -> None:
    pipe.once("task")
    assert_once(pipe)


def test_a_sink_without_all_this_repeats_itself(pipe: Pipe) -> None:
    """The harness can tell: the same faults, with a sink that simply appends."""
    run = pipe.run._replace(fault="task", sink="naive")
    start_query(pipe.place.spark, run).awaitTermination()
    numbers = pipe.numbers()
    assert set(numbers) == set(range(RECORDS))
    assert len(numbers) > RECORDS


def test_the_leader_is_killed_while_rows_are_staged(pipe: Pipe) -> None:
    run = pipe.marked("pause", "pause")
    query = start_query(pipe.place.spark, run)
    come_to(run.marks, "here", query.exception)
    cluster = pipe.place.cluster
    leader = cluster.wait_leader(pipe.target.name)
    cluster.kill(leader)
    (Path(run.marks) / "go").touch()
    query.awaitTermination()
    cluster.restart(leader)
    assert_once(pipe)


def test_a_portion_that_is_repeated_with_other_rows(pipe: Pipe) -> None:
    pipe.once()
    # As if the driver had died before it noted the last commit, and come back as another program.
    for noted in Path(pipe.run.checkpoint, "commits").glob("*1*"):
        noted.unlink()
    pipe.run = pipe.run._replace(value="concat('-', string(value))")
    with pytest.raises(Exception, match="REPLAY_MISMATCH"):
        pipe.once()
    pipe.once(replayMismatch="keepFirst")
    assert_once(pipe)
