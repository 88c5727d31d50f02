"""Commands of ``quorate pipeline`` in this process, on the session and cluster that all share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pipeline_rig import Desk

from dev_rig import delete_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate.testing import Cluster

# The first test waits until a Java process is warm; one that kills some waits for several.
PATIENCE_S = 600
FAULTS_PATIENCE_S = 1800
HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            faults = item.path.stem.endswith("_faults")
            item.add_marker(pytest.mark.timeout(FAULTS_PATIENCE_S if faults else PATIENCE_S))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)


@pytest.fixture
def desk(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Iterator[Desk]:
    """A directory of its own, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORATE_ENDPOINTS", spark_cluster.endpoints)
    made = Desk(spark_cluster, tmp_path, capsysbinary)
    yield made
    for query in spark.streams.active:
        query.stop()
    delete_logs(made.client, made.prefix)
    made.client.close()
