"""Exactly once on a Spark cluster of several processes: executors die, tasks run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sink_faults_rig import Pipe, come_to, driver_at, go_on
from spark_rig import unused_name
from standalone_rig import Standalone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.testing import Cluster


# Drivers are started again and again, each with a Java of its own.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def pipe(cluster: Cluster, tmp_path: Path) -> Pipe:
    return Pipe(cluster, unused_name(), tmp_path)


def test_an_executor_is_killed_while_its_task_writes(pipe: Pipe, standalone: Standalone) -> None:
    run = pipe.marked("pause", master=standalone.master)
    with driver_at(run) as driver:
        standalone.kill_executor()
        # The worker of the dead executor may go on as well, and stage chunks that no publish names.
        go_on(run)
        assert driver.wait() == 0, driver.words()
    pipe.assert_once()


def test_a_task_that_is_slow_is_run_a_second_time(pipe: Pipe, standalone: Standalone) -> None:
    run = pipe.marked("slow", master=standalone.master)
    with driver_at(run) as driver:
        come_to(run.marks, "twin", driver.ended)
        assert driver.wait() == 0, driver.words()
    pipe.assert_once()
