"""Tests of Spark share a session and a cluster; each test uses logs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_rig import Place

from dev_rig import delete_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate.testing import Cluster

# The first test waits until a Java process is warm.
PATIENCE_S = 600
HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(PATIENCE_S))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def cluster(spark_cluster: Cluster) -> Cluster:
    return spark_cluster


@pytest.fixture
def place(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[Place]:
    made = Place(spark, cluster, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    delete_logs(made.client, made.prefix)
    made.client.close()
