"""Exactly once in one session: tasks and commits that fail, and repeats with other rows.

What needs processes to be killed is in ``test_spark_sink_faults.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sink_faults_rig import RECORDS, ROWS_OF_A_BATCH, Faults, Naive, Pipe, run_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from spark_rig import Place


@pytest.fixture
def pipe(place: Place) -> Iterator[Pipe]:
    name, value = ROWS_OF_A_BATCH
    place.spark.conf.set(name, value)
    place.spark.dataSource.register(Faults)
    place.spark.dataSource.register(Naive)
    yield Pipe(place.cluster, place.prefix, place.directory)
    place.spark.conf.unset(name)


def test_nothing_goes_wrong(pipe: Pipe, spark: SparkSession) -> None:
    run_to_end(spark, pipe.run)
    pipe.assert_once()


def test_a_commit_fails_after_the_publish(pipe: Pipe, spark: SparkSession) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="after the publish"):
            run_to_end(spark, pipe.run._replace(fault="raise"))
        assert len(pipe.numbers()) == RECORDS // 2, "portion 0 is published, and stays so"
    run_to_end(spark, pipe.run)
    pipe.assert_once()


def test_every_task_fails_once_in_the_middle(pipe: Pipe, spark: SparkSession) -> None:
    run_to_end(spark, pipe.run._replace(fault="task"))
    pipe.assert_once()


def test_a_sink_without_all_this_repeats_itself(pipe: Pipe, spark: SparkSession) -> None:
    """The harness can tell: the same faults, with a sink that simply appends."""
    run_to_end(spark, pipe.run._replace(fault="task", sink="naive"))
    numbers = pipe.numbers()
    assert set(numbers) == set(range(RECORDS))
    assert len(numbers) > RECORDS


def test_a_portion_that_is_repeated_with_other_rows(pipe: Pipe, spark: SparkSession) -> None:
    run_to_end(spark, pipe.run)
    # As if the driver had died before it noted the last commit, and come back as another program.
    for noted in Path(pipe.run.checkpoint, "commits").glob("*1*"):
        noted.unlink()
    other = pipe.run._replace(value="concat('-', string(value))")
    with pytest.raises(Exception, match="REPLAY_MISMATCH"):
        run_to_end(spark, other)
    run_to_end(spark, other, replayMismatch="keepFirst")
    pipe.assert_once()
