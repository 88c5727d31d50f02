"""Exactly once, whichever process is killed: every input is in the output, and once.

The queries are real, from one log of a real cluster to another, and so are the kills.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sink_faults_rig import (
    RECORDS,
    ROWS_OF_A_BATCH,
    Faults,
    Pipe,
    come_to,
    driver_at,
    go_on,
    node_of,
    run_to_end,
    start_until_here,
)

import quorate.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from spark_rig import Place

# Drivers are started again and again, each with a Java of its own.
pytestmark = pytest.mark.timeout(1800)

# Less than a micro-batch, and more than one.
CAP, ROOM = 1 << 20, 1 << 30


@pytest.fixture
def pipe(place: Place) -> Iterator[Pipe]:
    name, value = ROWS_OF_A_BATCH
    place.spark.conf.set(name, value)
    place.spark.dataSource.register(Faults)
    yield Pipe(place.cluster, place.prefix, place.directory)
    place.spark.conf.unset(name)


def test_the_driver_is_killed_before_and_after_the_publish(pipe: Pipe, spark: SparkSession) -> None:
    with driver_at(pipe.marked("before")):
        assert pipe.numbers() == []
        assert pipe.staged_bytes() > 0
    with driver_at(pipe.marked("after")):
        assert len(pipe.numbers()) == RECORDS // 2
    assert not list(Path(pipe.run.checkpoint, "commits").glob("[0-9]*")), "Spark knows of none"
    run_to_end(spark, pipe.run)
    pipe.assert_once()


def test_the_driver_is_killed_while_tasks_write(pipe: Pipe, spark: SparkSession) -> None:
    with driver_at(pipe.marked("pause")):
        assert pipe.numbers() == []
    run_to_end(spark, pipe.run)
    pipe.assert_once()


def test_a_driver_that_was_given_up_goes_on(pipe: Pipe, spark: SparkSession) -> None:
    """It stands before its first publish when another one writes all there is, and more comes."""
    zombie = pipe.marked("publish")
    with driver_at(zombie) as driver:
        run_to_end(spark, pipe.run)
        pipe.assert_once()
        go_on(zombie)
        # It finds its micro-batch published, or that Spark noted more than it did: either may end
        # it.
        driver.wait()
    run_to_end(spark, pipe.run)
    pipe.assert_once()


def test_the_leader_is_killed_while_rows_are_staged(pipe: Pipe, spark: SparkSession) -> None:
    run = pipe.marked("pause")
    query = start_until_here(spark, run)
    leader = pipe.cluster.wait_leader(pipe.target.name)
    pipe.cluster.kill(leader)
    go_on(run)
    query.awaitTermination()
    pipe.cluster.restart(leader)
    pipe.assert_once()


def test_the_leader_is_killed_with_a_publish_that_it_did_not_read(
    pipe: Pipe, spark: SparkSession
) -> None:
    run = pipe.marked("taken")
    query = start_until_here(spark, run)
    leader = pipe.cluster.wait_leader(pipe.target.name)
    assert node_of(run) == leader
    # Its machine takes the publish, and the node sends no answer.
    pipe.cluster.pause(leader)
    go_on(run)
    come_to(run.marks, "taken", query.exception)
    pipe.cluster.kill(leader)
    query.awaitTermination()
    pipe.cluster.restart(leader)
    pipe.assert_once()


def test_the_leader_is_killed_when_it_has_published_and_nobody_knows(
    pipe: Pipe, spark: SparkSession
) -> None:
    run = pipe.marked("unanswered")
    query = start_until_here(spark, run)
    assert len(pipe.numbers()) == RECORDS // 2
    pipe.cluster.kill(node_of(run))
    go_on(run)
    query.awaitTermination()
    pipe.cluster.restart(node_of(run))
    pipe.assert_once()


def test_all_nodes_are_killed_while_rows_are_staged(pipe: Pipe, spark: SparkSession) -> None:
    run = pipe.marked("pause")
    query = start_until_here(spark, run)
    for name in pipe.cluster.nodes:
        pipe.cluster.kill(name)
    go_on(run)
    for name in pipe.cluster.nodes:
        pipe.cluster.restart(name)
    query.awaitTermination()
    pipe.assert_once()


def test_a_micro_batch_that_is_larger_than_what_may_be_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    name, value = ROWS_OF_A_BATCH
    spark.conf.set(name, value)
    spark.dataSource.register(Faults)
    settings = {"limits": {"staged_bytes": CAP}}
    with quorate.testing.cluster(1, settings=settings, cuttable=False) as small:
        pipe = Pipe(small, "cap", tmp_path)
        with pytest.raises(Exception, match="STAGE_FULL"):
            run_to_end(spark, pipe.run)
        assert pipe.numbers() == []
        # There is no other way out: Spark repeats the micro-batch as it was planned.
        file = small.directory / "n1.toml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f"staged_bytes = {CAP}", f"staged_bytes = {ROOM}"))
        small.restart("n1")
        run_to_end(spark, pipe.run)
        pipe.assert_once()
    spark.conf.unset(name)


def test_marks_are_waited_for(tmp_path: Path) -> None:
    """The rig itself: it does not wait for a process that will never come."""
    with pytest.raises(TimeoutError, match="nobody came to here"):
        come_to(str(tmp_path), "here", lambda: True)
