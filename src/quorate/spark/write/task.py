"""The work of a write task: it stages its rows, as chunks that no reader sees yet.

A task connects when it begins and leaves no state behind. Each attempt to write a partition draws
an id of its own: if a task failed, or was started twice, the publish names only one attempt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from quorate.client.staging import Stager, abandon_all, largest_chunk
from quorate.commands import ChunkLabel, Part
from quorate.errors import InvalidArgument
from quorate.spark.worker import begin_task
from quorate.spark.write.chunks import (
    by_log,
    copied,
    encode_rows,
    joined,
    pieces,
    rows_of,
    size_of,
)
from quorate.spark.write.digest import NOTHING, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.client.blocking import Log
    from quorate.spark.write.digest import Digest
    from quorate.spark.write.options import WriteOptions

__all__ = [
    "CommitMessage",
    "Share",
    "first_label",
    "first_label_of_query",
    "in_query",
    "stage_rows",
    "task_context",
]

# The least bytes of a chunk, but for the last, and for one before a large row.
CHUNK_BYTES = 1 << 20

# The properties in which Spark tells tasks about their query. Only Spark's source documents them.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


class Share(NamedTuple):
    """The rows that a task staged in one log."""

    part: Part
    digest: Digest
    # The log took some chunks. Otherwise it answered at once that this or a later batch is
    # published.
    accepted: bool


@dataclass(frozen=True, slots=True)
class CommitMessage(WriterCommitMessage):
    """The commit message of a task: all that the driver ever learns of the task."""

    app: str
    batch_id: int
    # Shares by log; a log that got no rows is left out.
    shares: dict[str, Share] = field(default_factory=dict)
    # A streaming query runs the task.
    in_query: bool = False


def task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("the format quorate writes in tasks of Spark, and this is not one")
    return context


def in_query(context: TaskContext) -> bool:
    """True if a streaming query runs the task, directly or by foreachBatch."""
    return context.getLocalProperty(QUERY_ID) is not None


def first_label(*, app: str, run: bytes, batch_id: int, partition: int) -> ChunkLabel:
    """The label of the first chunk of a new attempt to write a partition. ``app`` is the id of the
    query, the name of the job, or the value of the option txnAppId."""
    return ChunkLabel(
        app=app, run=run, batch_id=batch_id, partition=partition, attempt=uuid4().bytes, number=0
    )


def first_label_of_query(context: TaskContext) -> ChunkLabel:
    """The label of the first chunk of a task of a stream. Raises InvalidArgument if Spark lacks a
    property."""
    found = {name: context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID)}
    missing = [name for name, text in found.items() if not text]
    if missing:
        raise InvalidArgument(
            f"this Spark does not tell its tasks {', '.join(missing)}, without which a repeat is "
            f"not known again; write in foreachBatch, with txnAppId and txnVersion"
        )
    batch_id, run = found[BATCH_ID], found[RUN_ID]
    try:
        run_id, number = UUID(str(run)).bytes, int(str(batch_id))
    except ValueError:
        raise InvalidArgument(
            f"{BATCH_ID} = {batch_id!r} and {RUN_ID} = {run!r} are not a number and the id of a run"
        ) from None
    return first_label(
        app=str(found[QUERY_ID]), run=run_id, batch_id=number, partition=context.partitionId()
    )


def stage_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, first: ChunkLabel
) -> dict[str, Share]:
    """Stage the rows of a task, and return its share in each log. In every log, its chunks are
    numbered from ``first`` on.

    A log that does not exist is an error: no log is created. An attempt that fails drops the chunks
    that it staged: the next attempt needs the room.
    """
    begin_task()
    now_us = time.time_ns() // 1000
    writers: dict[str, _ChunkWriter] = {}
    with options.cluster.client() as client:
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                addressed = by_log(batch) if options.log is None else [(options.log, batch)]
                for name, rows in addressed:
                    if name not in writers:
                        writers[name] = _ChunkWriter(client.log(name), first, now_us)
                    writers[name].add(rows)
            return {name: writer.finish() for name, writer in writers.items()}
        except Exception:
            abandon_all([writer.stager for writer in writers.values()])
            raise


class _ChunkWriter:
    """Cuts the rows of a task for one log into chunks, and stages them."""

    def __init__(self, log: Log, first: ChunkLabel, now_us: int) -> None:
        self.stager = Stager(log, first)
        # The log refuses a chunk with more bytes.
        self._limit = largest_chunk(log)
        self._first = first
        # The time of rows that have none.
        self._now_us = now_us
        self._digest = NOTHING
        # Rows that are too few for a chunk, and their bytes.
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for piece in pieces(batch, self._limit):
            size = size_of(piece)
            if self._waiting and self._waiting_bytes + size > self._limit:
                self._send()
            self._waiting.append(piece)
            self._waiting_bytes += size
            if self._waiting_bytes >= CHUNK_BYTES:
                self._send()
        if self._waiting and self._waiting[-1].num_rows < batch.num_rows:
            self._waiting[-1] = copied(self._waiting[-1])

    def finish(self) -> Share:
        """Send the last rows and return the share of the task, which has at least one row."""
        if self._waiting:
            self._send()
        self.stager.finish()
        part = Part(
            partition=self._first.partition,
            attempt=self._first.attempt,
            chunks=self.stager.chunks,
            records=self._digest.records,
        )
        return Share(part, self._digest, self.stager.accepted)

    def _send(self) -> None:
        rows = rows_of(joined(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        self._digest = self._digest.plus(digest_of(rows))
        self.stager.send(encode_rows(rows, self._now_us))
