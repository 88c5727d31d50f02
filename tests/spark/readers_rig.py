"""Logs of a real cluster, and readers as Spark calls them, without a Java process in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_rig import fill

from dev_rig import delete_logs
from quorate.spark.read.columns import COLUMNS
from quorate.spark.source import QuorateDataSource

if TYPE_CHECKING:
    import quorate
    from quorate.spark.read.stream import QuorateStreamReader
    from quorate.testing import Cluster

__all__ = ["Logs", "without"]


class Logs:
    """Logs of one test, and readers of them."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.prefix = prefix
        self._streams: list[QuorateStreamReader] = []

    def make(self, name: str = "log", records: int = 0) -> quorate.Log:
        log = self.client.create_log(f"{self.prefix}-{name}")
        if records:
            fill(log, records)
        return log

    def source(self, log: str, **options: object) -> QuorateDataSource:
        given = {"endpoints": self.cluster.endpoints, "log": log}
        return QuorateDataSource(given | {key: str(value) for key, value in options.items()})

    def batch(self, log: str, **options: object) -> list[int]:
        """The offsets that a batch reads."""
        reader = self.source(log, **options).reader(COLUMNS)
        return [
            offset
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for offset in batch.column("offset").to_pylist()  # type: ignore[union-attr]  # Arrow
        ]

    def stream(self, log: str, **options: object) -> QuorateStreamReader:
        reader = self.source(log, **options).streamReader(COLUMNS)
        self._streams.append(reader)
        return reader

    def close(self) -> None:
        for stream in self._streams:
            stream.stop()
        delete_logs(self.client, self.prefix)
        self.client.close()


def without(given: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in given.items() if key != name}
