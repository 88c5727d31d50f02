"""A query from one log to another through a sink that fails where it is told to.

The sink is the real one; the fault comes before it, after it, or out of the rows that it is given.
This file is also the program of a driver that is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import quorate
import quorate.spark
from quorate.client.node_connection import NodeConnection
from quorate.client.retries import Idempotency, Lost
from quorate.client.session import Session
from quorate.client.stall import unacknowledged
from quorate.commands import Abort, Publish
from quorate.spark.source import QuorateDataSource
from quorate.wire.calls import LogCall
from verification.spark_chaos.driver import processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from quorate.client.routing import Route
    from quorate.spark.write.sink import QuorateStreamWriter
    from quorate.testing import Cluster

__all__ = [
    "RECORDS",
    "ROWS_OF_A_BATCH",
    "DriverProcess",
    "Faults",
    "Naive",
    "Pipe",
    "Run",
    "come_to",
    "driver_at",
    "go_on",
    "node_of",
    "run_to_end",
    "start_query",
    "start_until_here",
]

# Workers do not see the directory of the tests.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # not ours

# Long enough for a machine with better things to do.
PATIENCE_S = 300
# Spark gives a worker ten seconds to start, which a busy machine may not. No query has begun then.
LATE = "Python worker failed to connect back"

RECORDS = 4000
# Some chunks for each micro-batch.
RECORD_BYTES = 1200
MICRO_BATCH = 2000
# So that a task is given its rows in several batches; and where in them a fault comes.
ROWS_OF_A_BATCH = ("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
MIDDLE = 750


class Run(NamedTuple):
    """One start of the query."""

    endpoints: str
    source: str
    target: str
    checkpoint: str
    # none, task, pause, slow, before, after, raise, publish, taken, unanswered.
    fault: str = "none"
    # A directory where both sides say how far they are.
    marks: str = ""
    sink: str = "quorate_faults"
    # The expression for a value, and the condition of the records that are kept.
    value: str = "value"
    where: str = "true"
    master: str = "local[2]"


def start_query(spark: SparkSession, run: Run, **options: str) -> StreamingQuery:
    """It ends when all that there is has been written."""
    reader = spark.readStream.format("quorate").option("endpoints", run.endpoints)
    reader = reader.option("log", run.source).option("startingOffsets", "earliest")
    rows = (
        reader.option("maxOffsetsPerTrigger", str(MICRO_BATCH)).option("minPartitions", "2").load()
    )
    rows = rows.where(run.where).selectExpr("key", f"{run.value} as value")
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


def node_of(run: Run) -> str:
    """Where a publish that was disturbed went."""
    return (Path(run.marks) / "node").read_text(encoding="utf-8")


def go_on(run: Run) -> None:
    """Let the process that stands still go on."""
    (Path(run.marks) / "go").touch()


def run_to_end(spark: SparkSession, run: Run, **options: str) -> None:
    """Run queries until all records are written."""
    while True:
        query = start_query(spark, run, **options)
        try:
            query.awaitTermination()
            return
        except Exception as error:  # Spark has a class for each way of an error
            if LATE not in str(error):
                raise


def start_until_here(spark: SparkSession, run: Run) -> StreamingQuery:
    """A query that stands still where its fault is."""
    while True:
        query = start_query(spark, run)
        try:
            come_to(run.marks, "here", query.exception)
            return query
        except TimeoutError:
            if LATE not in str(query.exception()):
                raise


class Pipe:
    """A log full of numbers, and an empty one that they are to be written to."""

    def __init__(self, cluster: Cluster, prefix: str, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self._client = cluster.client()
        self._source = self._client.create_log(f"{prefix}-source")
        self.target = self._client.create_log(f"{prefix}-target")
        for first in range(0, RECORDS, 500):
            numbers = range(first, first + 500)
            values = [(b"%d " % number).ljust(RECORD_BYTES, b".") for number in numbers]
            self._source.append_batch(values)
        checkpoint = str(directory / "checkpoint")
        self.run = Run(cluster.endpoints, self._source.name, self.target.name, checkpoint)

    def marked(self, fault: str, **changes: str) -> Run:
        marks = self.directory / f"marks-{fault}"
        marks.mkdir()
        return self.run._replace(fault=fault, marks=str(marks), **changes)

    def numbers(self) -> list[int]:
        end = self.target.end_offset()
        return [int(record.value.split()[0]) for record in self.target.read(0, end)]

    def staged_bytes(self) -> int:
        logs = self._client.status()["logs"]
        [found] = [log for log in logs if log["name"] == self.target.name]
        return found["staged_bytes"]

    def assert_once(self) -> None:
        numbers = self.numbers()
        assert len(numbers) == len(set(numbers)) == RECORDS
        assert digest_of(self.target) == digest_of(self._source)
        assert self.staged_bytes() == 0


def digest_of(log: quorate.Log) -> int:
    """Of all values, in any order."""
    return sum(
        int.from_bytes(blake2b(record.value, digest_size=8).digest(), "little")
        for record in log.read(0, log.end_offset())
    )


class DriverProcess:
    """A driver that is a process of its own, with its Java and its workers."""

    def __init__(self, run: Run, output: Path) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *run], stdout=file, stderr=file, start_new_session=True
            )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def processes(self) -> list[int]:
        return processes_of(self._process.pid)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def words(self) -> str:
        return self._output.read_text(encoding="utf-8")[-4000:]

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def driver_at(run: Run) -> Iterator[DriverProcess]:
    """A driver that stands still where its fault is. In the end all of it is killed."""
    driver = DriverProcess(run, Path(run.marks) / "driver.log")
    try:
        come_to(run.marks, "here", driver.ended)
        yield driver
    finally:
        driver.kill()


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
            self.stand_still("never")
        if self.fault == "publish":
            self.stand_still("go")
        with self.publishes():
            self.real.commit(messages, batchId)
        if self.fault == "after":
            self.stand_still("never")
        if self.fault == "raise":
            raise RuntimeError("after the publish")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.real.abort(messages, batchId)

    @contextmanager
    def publishes(self) -> Iterator[None]:
        """The client's handling of a publish, with the fault in it."""
        change, call = Session.change, NodeConnection.call
        if self.fault == "taken":
            Session.change = self.taken(change)  # type: ignore[method-assign]  # that is the fault
        if self.fault == "unanswered":
            NodeConnection.call = self.unanswered(call)  # type: ignore[method-assign]  # the same
        try:
            yield
        finally:
            Session.change, NodeConnection.call = change, call  # type: ignore[method-assign]  # as it was

    def taken(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """A publish stands still before it is sent, to a node that is connected; then it is told
        when that node has it."""

        async def disturbed(
            session: Session, route: Route, what: str, call: object, *rest: Any, **more: Any
        ) -> Any:
            if not (isinstance(call, LogCall) and isinstance(call.command, Publish)):
                return await change(session, route, what, call, *rest, **more)
            publish = call.command
            # There is no such attempt: the node that says so leads.
            abort = Abort(app=publish.app, batch_id=publish.batch_id, attempt=bytes(16))
            asked = LogCall(route.wire, abort)
            await change(session, route, "abort", asked, Idempotency.IDEMPOTENT)
            at = await session.pool.reach(session.routing.addresses(route.to_write()))
            (Path(self.marks) / "node").write_text(at.node)
            self.stand_still("go")
            before = at._sent_bytes
            answer = asyncio.ensure_future(change(session, route, what, call, *rest, **more))
            line = at._connection
            # No call tells when the other machine has the bytes.
            while at._sent_bytes == before or line.buffered or unacknowledged(line.descriptor):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            (Path(self.marks) / "taken").touch()
            return await answer

        return disturbed

    def unanswered(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A publish took effect, and its answer is lost."""

        async def disturbed(at: NodeConnection, call: object, batch: bytes = b"") -> Any:
            answer = await real(at, call, batch)
            published = isinstance(call, LogCall) and isinstance(call.command, Publish)
            if published and not (Path(self.marks) / "go").exists():
                (Path(self.marks) / "node").write_text(at.node)
                # No other work goes on meanwhile: so no timeout ends before the answer is lost.
                self.stand_still("go")
                raise Lost("the answer to the publish")
            return answer

        return disturbed

    def stand_still(self, until: str) -> None:
        """Wait until the mark ``until`` is there, or this process is killed."""
        (Path(self.marks) / "here").touch()
        come_to(self.marks, until)


def disturbed(rows: Iterator[pa.RecordBatch], fault: str, marks: str) -> Iterator[pa.RecordBatch]:
    """The fault that strikes when most of the rows of a task are on their way."""
    reached = Path(marks) / "here"
    context = TaskContext.get()
    assert context is not None
    seen = 0
    for batch in rows:
        yield batch
        before, seen = seen, seen + batch.num_rows
        if not before < MIDDLE <= seen:
            continue
        if fault == "task" and context.attemptNumber() == 0:
            raise RuntimeError("in the middle of a task")
        if fault == "pause":
            reached.touch()
            come_to(marks, "go")
        if fault == "slow" and context.attemptNumber() > 0:
            (Path(marks) / "twin").touch()
        elif fault == "slow" and context.partitionId() == 0 and not reached.exists():
            reached.touch()
            come_to(marks, "never")


class Naive(DataSource):
    """A sink that appends the rows of every attempt: at least once."""

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
    told = Run(*sys.argv[1:])
    session = quorate.spark.session(
        master=told.master,
        config={
            "spark.ui.enabled": False,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.port": 24_300,
            "spark.blockManager.port": 24_400,
            "spark.port.maxRetries": 64,
            "spark.executor.memory": "512m",
            # A task that takes a little longer than the others is run a second time.
            "spark.speculation": told.fault == "slow",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.efficiency.enabled": False,
            **dict([ROWS_OF_A_BATCH]),
        },
    )
    session.dataSource.register(Faults)
    run_to_end(session, told)
