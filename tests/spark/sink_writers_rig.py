"""The writers as Spark calls them, without a Java process in between."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType
from spark_rig import unused_name

from dev_rig import delete_logs
from quorate.spark.source import QuorateDataSource
from quorate.spark.write.task import BATCH_ID, QUERY_ID, RUN_ID, CommitMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import quorate
    from quorate.spark.write.sink import QuorateBatchWriter, QuorateStreamWriter
    from quorate.testing import Cluster

__all__ = ["BY_COLUMN", "SCHEMA", "Logs", "Query", "logs_of", "rows", "task", "values"]

SCHEMA = StructType().add("value", "binary")
BY_COLUMN = StructType().add("value", "binary").add("log", "string")


@contextmanager
def task(partition: int = 0, /, **properties: str) -> Iterator[None]:
    """The context that a worker of Spark sets before it runs a task."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    context._localProperties = properties
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def rows(*values: str, logs: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    columns = {"value": pa.array([value.encode() for value in values])}
    if logs is not None:
        columns["log"] = pa.array(logs)
    yield pa.RecordBatch.from_pydict(columns)


class Query:
    """A streaming query that is known again by its id, in one of its runs."""

    def __init__(self, logs: Logs, log: str | None, **options: str) -> None:
        self._logs = logs
        self._log = log
        self._options = options
        self._id = str(uuid4())
        self.restart()

    def restart(self, **options: str) -> None:
        self._run = str(uuid4())
        self._options |= options

    def writer(self) -> QuorateStreamWriter:
        """Made anew for each step, as Spark does."""
        schema = SCHEMA if self._log is not None else BY_COLUMN
        source = self._logs.source(self._log, **self._options)
        return source.streamWriter(schema, overwrite=False)

    def write(self, batch_id: int, *batches: Iterator[pa.RecordBatch]) -> list[CommitMessage]:
        """By one task for each of ``batches``."""
        messages = []
        for partition, batch in enumerate(batches):
            properties = {QUERY_ID: self._id, BATCH_ID: str(batch_id), RUN_ID: self._run}
            with task(partition, **properties):
                messages.append(self.writer().write(batch))
        return messages

    def commit(self, batch_id: int, messages: Sequence[CommitMessage | None]) -> None:
        self.writer().commit(list(messages), batch_id)

    def abort(self, batch_id: int, messages: Sequence[CommitMessage | None]) -> None:
        self.writer().abort(list(messages), batch_id)


class Logs:
    """Logs of one test, and writers to them."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.prefix = prefix

    def make(self, name: str = "log") -> quorate.Log:
        return self.client.create_log(f"{self.prefix}-{name}")

    def source(self, log: str | None, **options: str) -> QuorateDataSource:
        given = {"endpoints": self.cluster.endpoints} | options
        return QuorateDataSource(given if log is None else given | {"log": log})

    def batch(self, log: str | None, **options: str) -> QuorateBatchWriter:
        schema = SCHEMA if log is not None else BY_COLUMN
        return self.source(log, **options).writer(schema, overwrite=False)

    def save(self, log: str | None, *batches: Iterator[pa.RecordBatch], **options: str) -> None:
        job = self.batch(log, **options)
        messages = []
        for partition, batch in enumerate(batches):
            with task(partition):
                messages.append(job.write(batch))
        job.commit(list(messages))

    def staged_bytes(self, log: quorate.Log) -> int:
        [found] = [one for one in self.client.status()["logs"] if one["name"] == log.name]
        return found["staged_bytes"]


def values(log: quorate.Log) -> list[str]:
    end = log.end_offset()
    return [record.value.decode() for record in log.read(0, end)]


@contextmanager
def logs_of(cluster: Cluster) -> Iterator[Logs]:
    """Of one test; deleted in the end."""
    made = Logs(cluster, unused_name())
    try:
        yield made
    finally:
        delete_logs(made.client, made.prefix)
        made.client.close()
