"""One Spark session and one real cluster for all tests of Spark; each test uses logs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_rig import Place

import quorate.spark
import quorate.testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate.testing import Cluster

# Whoever is first waits until a Java process is warm.
PATIENCE_S = 600
HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    place: Path = tmp_path_factory.mktemp("spark")
    session = quorate.spark.session(
        "tests",
        # Two cores; a task may fail once.
        master="local[2,2]",
        config={
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Below what the kernel gives to those who do not ask for a port.
            "spark.driver.port": 19_100,
            "spark.blockManager.port": 19_200,
            "spark.port.maxRetries": 64,
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with quorate.testing.cluster(nodes=3, cuttable=False) as running:
        yield running


@pytest.fixture
def place(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[Place]:
    made = Place(spark, cluster, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    made.client.close()
