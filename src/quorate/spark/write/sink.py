"""Writers of frames and streams to logs: tasks stage rows, the driver publishes all or none.

All rows of a write become visible in a log at once. Each of several logs has its own publish: a
failure in between is mended by the repeat, which finds some logs published. ``publish`` has the
details, also of a repeat with other rows.

Spark makes the writer of a stream anew for every commit: the commit knows only the messages of the
tasks. Spark may call ``abort`` after a commit that took effect: ``abort`` never undoes a publish.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from quorate.client.staging import abort_staged
from quorate.errors import InvalidArgument, LogNotFound, QuorateError
from quorate.spark.error_codes import coded_errors
from quorate.spark.write.columns import check_columns
from quorate.spark.write.options import parse_write_options
from quorate.spark.write.publish import (
    REPEATED,
    publish_job,
    publish_micro_batch,
    publish_transaction,
    staged_write,
)
from quorate.spark.write.task import (
    CommitMessage,
    first_label,
    first_label_of_query,
    in_query,
    stage_rows,
    task_context,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from quorate.spark.cluster_address import ClusterAddress
    from quorate.spark.write.options import WriteOptions

__all__ = ["QuorateBatchWriter", "QuorateStreamWriter", "batch_writer", "stream_writer"]

ADVICE = (
    "the query is not deterministic or was changed, or its checkpoint was set back; to go on with "
    'what is published, write .option("replayMismatch", "keepFirst")'
)


def batch_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> QuorateBatchWriter:
    """The writer of a batch, made on the driver before a task runs."""
    with coded_errors():
        if overwrite:
            raise InvalidArgument(
                'a log is appended to, never overwritten: write .mode("append"). To begin anew, '
                "write to another log, or delete this one and create it again"
            )
        options = parse_write_options(given, streaming=False)
        check_columns(schema, options.log)
        if options.log is not None:
            with options.cluster.client() as client:
                client.log(options.log)
        return QuorateBatchWriter(options)


def stream_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> QuorateStreamWriter:
    """The writer of a stream, made on the driver for each micro-batch and again for its commit: so
    this sends no request to the cluster."""
    with coded_errors():
        if overwrite:
            raise InvalidArgument(
                "a log is appended to, so a stream has output mode append, not complete: give the "
                'aggregation a watermark and write .outputMode("append"); or append each result as '
                "a whole in foreachBatch, with txnAppId and txnVersion"
            )
        options = parse_write_options(given, streaming=True)
        check_columns(schema, options.log)
        return QuorateStreamWriter(options)


class QuorateBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one save. Tasks and the commit have copies of it, so they share its job
    id."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        job = uuid4()
        self._run = job.bytes
        transaction = options.transaction
        self._app, self._batch_id = transaction if transaction is not None else (f"job-{job}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        with coded_errors():
            context = task_context()
            first = first_label(
                app=self._app,
                run=self._run,
                batch_id=self._batch_id,
                partition=context.partitionId(),
            )
            shares = stage_rows(iterator, self._options, first)
            return CommitMessage(self._app, self._batch_id, shares, in_query(context))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks. The published rows of a transaction stay as they are."""
        with coded_errors():
            found = _all_commit_messages(messages)
            if self._options.transaction is not None:
                write = staged_write(found, self._app, self._batch_id, self._options.log)
                publish_transaction(write, self._options.cluster)
                return
            if any(message.in_query for message in found):
                warnings.warn(
                    "quorate: rows were written in foreachBatch without txnAppId and txnVersion: "
                    "when Spark repeats the batch after a failure, they are written twice",
                    stacklevel=2,
                )
            # A log without rows gets no publish: no repeat will ask it whether there were rows.
            write = staged_write(found, self._app, self._batch_id, log=None)
            publish_job(write, self._options.cluster)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows of a write that failed.

        For a job without a name, all attempts are dropped: tasks that were killed sent no message.
        Another run may be at work on the same transaction: the chunks that it staged are kept.
        """
        found = _commit_messages(messages)
        staged = _attempts(found)
        if self._options.transaction is None:
            logs = {log for log, _ in staged}
            if self._options.log is not None:
                logs.add(self._options.log)
            staged = [(log, None) for log in sorted(logs)]
        _drop(staged, self._app, self._batch_id, self._options.cluster)


class QuorateStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a stream. A log recognises a micro-batch by the query and its
    number."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        with coded_errors():
            first = first_label_of_query(task_context())
            shares = stage_rows(iterator, self._options, first)
            return CommitMessage(first.app, first.batch_id, shares, in_query=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with coded_errors():
            found = _all_commit_messages(messages)
            strange = {message.batch_id for message in found} - {batchId}
            if strange:
                raise InvalidArgument(
                    f"micro-batch {batchId} has rows of micro-batch {strange.pop()}"
                )
            write = staged_write(found, found[0].app, batchId, self._options.log)
            keep_first = self._options.mismatch == "keepFirst"
            try:
                publish_micro_batch(write, self._options.cluster, keep_first=keep_first)
            except REPEATED as error:
                # An earlier micro-batch than the last one cannot be compared any more: a checkpoint
                # that was set back may have put other rows into it.
                raise type(error)(f"{error}; {ADVICE}") from None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the staged rows of the tasks that sent a message.

        Another driver may be at work on the same micro-batch: the chunks that it staged are kept.
        """
        found = _commit_messages(messages)
        if found:
            _drop(_attempts(found), found[0].app, found[0].batch_id, self._options.cluster)


def _commit_messages(messages: Sequence[WriterCommitMessage | None]) -> list[CommitMessage]:
    """The messages of the tasks that wrote their rows: a task that failed sends none."""
    return [message for message in messages if isinstance(message, CommitMessage)]


def _all_commit_messages(messages: Sequence[WriterCommitMessage | None]) -> list[CommitMessage]:
    """The messages of all tasks. Raises InvalidArgument if one is missing: the publish would not
    have all rows. Spark runs at least one task, also for a frame without partitions."""
    found = _commit_messages(messages)
    if len(found) < len(messages) or not found:
        raise InvalidArgument(
            f"{len(found)} of {len(messages)} tasks reported what they wrote: nothing is published"
        )
    return found


def _attempts(messages: Iterable[CommitMessage]) -> list[tuple[str, bytes | None]]:
    """The logs that the tasks staged rows in, each with the id of the attempt."""
    return [
        (log, share.part.attempt) for message in messages for log, share in message.shares.items()
    ]


def _drop(
    staged: Iterable[tuple[str, bytes | None]], app: str, batch_id: int, cluster: ClusterAddress
) -> None:
    """Drop the chunks that an attempt, or for None all attempts, staged, to free their room.

    No reader sees staged chunks, and in the end they expire: so an error here must not hide why the
    write failed.
    """
    with suppress(QuorateError), cluster.client() as client:
        for log, attempt in staged:
            with suppress(LogNotFound):
                abort_staged(client.log(log), app, batch_id, attempt)
