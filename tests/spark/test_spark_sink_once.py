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


@pytest.mark.spark_slow
def test_a_commit_fails_after_the_publish(pipe: Pipe, spark: SparkSession) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="after the publish"):
            run_to_end(spark, pipe.run._replace(fault="raise"))
        assert len(pipe.numbers()) == RECORDS // 2, "micro-batch 0 is published, and stays so"
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


def forget_the_last_commit(pipe: Pipe) -> None:
    """As if the driver had died before it noted it."""
    for noted in Path(pipe.run.checkpoint, "commits").glob("*1*"):
        noted.unlink()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(
            {"value": "concat('-', string(value))"}, id="other rows", marks=pytest.mark.spark_slow
        ),
        pytest.param({"where": "false"}, id="no rows"),
    ],
)
def test_a_micro_batch_that_is_repeated_with_other_rows(
    pipe: Pipe, spark: SparkSession, changed: dict[str, str]
) -> None:
    run_to_end(spark, pipe.run)
    forget_the_last_commit(pipe)
    # It comes back as another program.
    other = pipe.run._replace(**changed)
    with pytest.raises(Exception, match="REPLAY_MISMATCH"):
        run_to_end(spark, other)
    run_to_end(spark, other, replayMismatch="keepFirst")
    pipe.assert_once()


@pytest.mark.spark_slow
def test_a_micro_batch_without_rows_is_repeated(pipe: Pipe, spark: SparkSession) -> None:
    nothing = pipe.run._replace(where="false")
    run_to_end(spark, nothing)
    forget_the_last_commit(pipe)
    run_to_end(spark, nothing)
    forget_the_last_commit(pipe)
    with pytest.raises(Exception, match="REPLAY_MISMATCH"):
        run_to_end(spark, pipe.run)
    assert pipe.numbers() == []
