"""A query from one log to another through a sink that fails where it is told to.

The sink is the real one; the fault comes before it, after it, or out of the rows that it is given.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import quorate
import quorate.spark
from quorate.spark.source import QuorateDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from quorate.spark.sink import QuorateStreamWriter

__all__ = ["Faults", "Naive", "Run", "come_to", "start_query"]

# Workers do not see the directory of the tests.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # not ours

# Long enough for a machine with better things to do.
PATIENCE_S = 300


class Run(NamedTuple):
    """One start of the query."""

    endpoints: str
    source: str
    target: str
    checkpoint: str
    # none, task, pause, before, after, raise.
    fault: str = "none"
    # A directory where both sides say how far they are.
    marks: str = ""
    sink: str = "quorate_faults"
    # What becomes of a value on its way.
    value: str = "value"


def start_query(spark: SparkSession, run: Run, **options: str) -> StreamingQuery:
    """It ends when all that there is has been written."""
    reader = spark.readStream.format("quorate").option("endpoints", run.endpoints)
    reader = reader.option("log", run.source).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", "2000").load()
    rows = rows.selectExpr("key", f"{run.value} as value")
    writer = rows.writeStream.format(run.sink).option("endpoints", run.endpoints)
    writer = writer.option("log", run.target).option("checkpointLocation", run.checkpoint)
    writer = writer.option("fault", run.fault).option("marks", run.marks).options(**options)
    return writer.trigger(availableNow=True).start()


def come_to(marks: str, mark: str, over: Callable[[], object] = lambda: False) -> None:
    """Wait until the other side has set ``mark``. It never will if ``over``."""
    deadline = time.monotonic() + PATIENCE_S
    while not (Path(marks) / mark).exists():
        if over() or time.monotonic() > deadline:
            raise TimeoutError(f"nobody came to {mark}")
        time.sleep(0.02)


class Faults(QuorateDataSource):
    """The format quorate, with the options fault and marks."""

    @classmethod
    def name(cls) -> str:
        return "quorate_faults"

    def streamWriter(  # type: ignore[override]  # it has the real one
        self, schema: StructType, overwrite: bool
    ) -> FaultyWriter:
        fault, marks = self.options.pop("fault"), self.options.pop("marks")
        real = super().streamWriter(schema, overwrite)
        return FaultyWriter(real, fault, marks)


class FaultyWriter(DataSourceStreamArrowWriter):
    def __init__(self, real: QuorateStreamWriter, fault: str, marks: str) -> None:
        self.real = real
        self.fault = fault
        self.marks = marks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.real.write(disturbed(iterator, self.fault, self.marks))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.fault == "before":
            self.stand_still()
        self.real.commit(messages, batchId)
        if self.fault == "after":
            self.stand_still()
        if self.fault == "raise":
            raise RuntimeError("after the publish")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.real.abort(messages, batchId)

    def stand_still(self) -> None:
        """Until somebody kills it."""
        (Path(self.marks) / "here").touch()
        come_to(self.marks, "never")


def disturbed(rows: Iterator[pa.RecordBatch], fault: str, marks: str) -> Iterator[pa.RecordBatch]:
    """What happens when most of the rows of a task are on their way."""
    context = TaskContext.get()
    assert context is not None
    seen = 0
    for batch in rows:
        yield batch
        before, seen = seen, seen + batch.num_rows
        if not before < 1500 <= seen:
            continue
        if fault == "task" and context.attemptNumber() == 0:
            raise RuntimeError("in the middle of a task")
        if fault == "pause":
            (Path(marks) / "here").touch()
            come_to(marks, "go")


class Naive(DataSource):
    """A sink that appends what it is given, and so does every repeat: at least once."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NaiveWriter:
        return NaiveWriter(dict(self.options))


class NaiveWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with quorate.Client(self.options["endpoints"]) as client:
            log = client.log(self.options["log"])
            for batch in disturbed(iterator, self.options["fault"], self.options["marks"]):
                log.append_batch(batch.column("value").to_pylist())
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is done."""


if __name__ == "__main__":
    session = quorate.spark.session(
        master="local[2]",
        config={
            "spark.ui.enabled": False,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.port": 19_300,
            "spark.blockManager.port": 19_400,
            "spark.port.maxRetries": 64,
        },
    )
    session.dataSource.register(Faults)
    start_query(session, Run(*sys.argv[1:])).awaitTermination()
