"""The writers as Spark calls them, on a real cluster and without a Java process in between."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType
from spark_rig import unused_name

import quorate.testing
from dev_rig import delete_logs
from quorate.client.staging import last_published
from quorate.errors import (
    Duplicate,
    InvalidArgument,
    LogNotFound,
    ReplayMismatch,
    StageExpired,
    TooLarge,
)
from quorate.spark import chunks, writer
from quorate.spark.source import QuorateDataSource
from quorate.spark.writer import BATCH_ID, QUERY_ID, RUN_ID, Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.spark.sink import QuorateBatchWriter, QuorateStreamWriter
    from quorate.testing import Cluster

SCHEMA = StructType().add("value", "binary")
# A leader looks every ten seconds for what it may forget.
PATIENCE_S = 120
BY_COLUMN = StructType().add("value", "binary").add("log", "string")


@contextmanager
def task(partition: int = 0, /, **properties: str) -> Iterator[None]:
    """What a worker of Spark sets before it runs a task."""
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

    def write(self, batch_id: int, *batches: Iterator[pa.RecordBatch]) -> list[Written]:
        """By one task for each of ``batches``."""
        messages = []
        for partition, batch in enumerate(batches):
            properties = {QUERY_ID: self._id, BATCH_ID: str(batch_id), RUN_ID: self._run}
            with task(partition, **properties):
                messages.append(self.writer().write(batch))
        return messages

    def commit(self, batch_id: int, messages: Sequence[Written | None]) -> None:
        self.writer().commit(list(messages), batch_id)

    def abort(self, batch_id: int, messages: Sequence[Written | None]) -> None:
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


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    made = Logs(cluster, unused_name())
    yield made
    delete_logs(made.client, made.prefix)
    made.client.close()


def values(log: quorate.Log) -> list[str]:
    end = log.end_offset()
    return [record.value.decode() for record in log.read(0, end)]


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_there_at_once_and_in_the_order_of_its_partitions(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task(1):
        second = job.write(rows("c"))
    with task(0):
        first = job.write(rows("a", "b"))
    assert values(log) == []
    job.commit([second, None, first])
    assert values(log) == ["a", "b", "c"]
    assert len({record.append_time for record in log.read()}) == 1


def test_an_attempt_that_is_not_named_leaves_nothing(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task():
        job.write(rows("lost"))
        kept = job.write(rows("kept"))
    assert logs.staged_bytes(log) > 0
    job.commit([kept])
    assert values(log) == ["kept"]
    assert logs.staged_bytes(log) == 0


def test_an_aborted_batch_leaves_nothing(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task():
        staged = job.write(rows("a"))
    job.abort([None])
    assert logs.staged_bytes(log) == 0
    with pytest.raises(StageExpired):
        job.commit([staged])
    assert values(log) == []


def test_abort_never_undoes_a_commit(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task():
        staged = job.write(rows("a"))
    job.commit([staged])
    job.abort([staged])
    assert values(log) == ["a"]


def test_a_frame_without_rows_writes_nothing(logs: Logs) -> None:
    log = logs.make()
    empty = pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
    logs.save(log.name, iter(()), iter([empty]))
    assert values(log) == []


def test_a_transaction_is_written_once(logs: Logs) -> None:
    log = logs.make()
    logs.save(log.name, rows("a"), txnAppId="etl", txnVersion="3")
    logs.save(log.name, rows("a"), txnAppId="etl", txnVersion="3")
    logs.save(log.name, rows("other", "rows"), txnAppId="etl", txnVersion="3")
    logs.save(log.name, rows("older"), txnAppId="etl", txnVersion="2")
    assert values(log) == ["a"]
    logs.save(log.name, rows("b"), txnAppId="etl", txnVersion="4")
    logs.save(log.name, rows("c"), txnAppId="another", txnVersion="1")
    assert values(log) == ["a", "b", "c"]


def test_two_jobs_without_a_transaction_are_two(logs: Logs) -> None:
    log = logs.make()
    logs.save(log.name, rows("a"))
    logs.save(log.name, rows("a"))
    assert values(log) == ["a", "a"]


def test_rows_go_to_the_logs_that_they_name(logs: Logs) -> None:
    one, two = logs.make("one"), logs.make("two")
    named = rows("1", "2", "3", logs=[one.name, two.name, one.name])
    more = rows("4", logs=[two.name])
    logs.save(None, named, more, txnAppId="etl", txnVersion="0")
    assert (values(one), values(two)) == (["1", "3"], ["2", "4"])


def test_no_log_is_created(logs: Logs) -> None:
    with pytest.raises(LogNotFound, match="LOG_NOT_FOUND: "):
        logs.batch("no-such-log")
    job = logs.batch(None)
    with task(), pytest.raises(LogNotFound, match="LOG_NOT_FOUND: "):
        job.write(rows("a", logs=["no-such-log"]))
    assert "no-such-log" not in logs.client.logs()


def test_overwriting_says_what_to_do(logs: Logs) -> None:
    source = logs.source("any")
    with pytest.raises(InvalidArgument, match=r'never overwritten: write .mode\("append"\)'):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(InvalidArgument, match="output mode append, not complete: give the aggr"):
        source.streamWriter(SCHEMA, overwrite=True)


def test_a_row_beyond_the_limit_is_refused_by_its_size(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task(), pytest.raises(TooLarge, match=r"TOO_LARGE: .*limits.record_bytes"):
        job.write(rows("a", "x" * (5 << 20)))
    with task():
        job.commit([job.write(rows("a", "y" * (3 << 20), "z" * (3 << 20)))])
    assert [len(value) for value in values(log)] == [1, 3 << 20, 3 << 20]


def test_many_chunks_keep_the_order_of_the_rows(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "PIECE_BYTES", 2000)
    monkeypatch.setattr(writer, "CHUNK_BYTES", 1000)
    log = logs.make()
    numbers = [f"{number:04}" for number in range(3000)]
    batches = [batch for start in range(0, 3000, 100) for batch in rows(*numbers[start:][:100])]
    logs.save(log.name, iter(batches))
    assert values(log) == numbers


def test_in_a_query_a_batch_without_a_transaction_warns(logs: Logs) -> None:
    log = logs.make()
    for options in ({}, {"txnAppId": "query", "txnVersion": "0"}):
        job = logs.batch(log.name, **options)
        with task(**{QUERY_ID: "query", BATCH_ID: "0"}):
            message = job.write(rows("a"))
        if options:
            job.commit([message])  # a warning would be an error
        else:
            with pytest.warns(UserWarning, match="foreachBatch without txnAppId and txnVersion"):
                job.commit([message])
    assert values(log) == ["a", "a"]


# -- streams ---------------------------------------------------------------------------------------


def test_a_portion_that_is_repeated_is_there_once(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    staged = query.write(0, rows("a"), rows("b"))
    query.restart()
    query.commit(0, query.write(0, rows("b"), rows("a")))
    query.restart()
    query.commit(0, query.write(0, rows("a", "b")))
    query.commit(0, staged)
    query.commit(1, query.write(1, rows("c")))
    assert values(log) == ["b", "a", "c"]
    assert logs.staged_bytes(log) == 0


def test_a_portion_before_the_last_one_cannot_be_compared(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    for batch_id in range(2):
        query.commit(batch_id, query.write(batch_id, rows(str(batch_id))))
    query.restart()
    with pytest.raises(Duplicate, match=r"DUPLICATE: .*checkpoint was set back; to go on with"):
        query.commit(0, query.write(0, rows("0")))
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, rows("0")))
    assert values(log) == ["0", "1"]


def test_a_portion_that_is_repeated_with_other_rows_is_told(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    query.commit(0, query.write(0, rows("a", "b")))
    for others in (["a", "c"], ["a"], ["a", "b", "b"]):
        query.restart()
        with pytest.raises(ReplayMismatch, match=r"REPLAY_MISMATCH: .*not deterministic"):
            query.commit(0, query.write(0, rows(*others)))
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, rows("a", "c")))
    query.commit(1, query.write(1, rows("d")))
    assert values(log) == ["a", "b", "d"]


def test_some_logs_of_a_portion_may_be_published_before_the_others(logs: Logs) -> None:
    one, two = logs.make("one"), logs.make("two")
    query = Query(logs, None)

    def written() -> list[Written]:
        return query.write(0, rows("1", "2", logs=[one.name, two.name]))

    [message] = written()
    query.commit(0, [Written(message.app, 0, {one.name: message.shares[one.name]})])
    query.restart()
    query.commit(0, written())
    assert (values(one), values(two)) == (["1"], ["2"])


def test_the_first_log_with_other_rows_ends_a_repeat_and_is_named(logs: Logs) -> None:
    one, two, three = (logs.make(name) for name in ("one", "three", "two"))
    names = [one.name, two.name, three.name]
    query = Query(logs, None)
    query.commit(0, query.write(0, rows("a", "b", logs=names[:2])))
    query.restart()
    again = query.write(0, rows("a", "other", "c", logs=names))
    with pytest.raises(ReplayMismatch, match=f"log {two.name}: app .*keepFirst"):
        query.commit(0, again)
    assert [values(log) for log in (one, two, three)] == [["a"], ["b"], []]
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, rows("a", "other", "c", logs=names)))
    assert [values(log) for log in (one, two, three)] == [["a"], ["b"], ["c"]]


def test_a_job_without_a_name_is_not_remembered_for_long() -> None:
    with quorate.testing.cluster(1, settings={"timing": {"once_expiry_ms": 1000}}) as small:
        logs = Logs(small, "once")
        log, job = logs.make(), logs.batch("once-log")
        with task():
            job.commit([job.write(rows("a"))])
        logs.save(log.name, rows("b"), txnAppId="app", txnVersion="0")
        deadline = time.monotonic() + PATIENCE_S
        while last_batch(log, job._app) is not None:
            assert time.monotonic() < deadline, "it is still remembered"
            time.sleep(0.1)
        assert last_batch(log, "app") == 0
        assert values(log) == ["a", "b"]


def last_batch(log: quorate.Log, app: str) -> int | None:
    """What ``app`` published last, as far as the log remembers."""
    found = log._client._run(lambda session: last_published(session, log._route, app))
    return found.batch_id if found is not None else None


def test_an_aborted_portion_can_be_written_again(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    staged = query.write(0, rows("a"))
    theirs = query.write(0, rows("a"))
    query.abort(0, [*staged, None])
    with pytest.raises(StageExpired, match="STAGE_EXPIRED: "):
        query.commit(0, staged)
    query.commit(0, theirs)
    query.abort(0, theirs)
    assert values(log) == ["a"]


def test_a_portion_without_rows_publishes_nothing(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    query.commit(0, query.write(0, iter(())))
    query.commit(1, [])
    assert values(log) == []


def test_messages_of_another_portion_are_refused(logs: Logs) -> None:
    query = Query(logs, logs.make().name)
    with pytest.raises(InvalidArgument, match="portion 5 has rows of portion 4"):
        query.commit(5, query.write(4, rows("a")))


def test_a_spark_that_does_not_name_the_query_is_refused(logs: Logs) -> None:
    sink = logs.source(logs.make().name).streamWriter(SCHEMA, overwrite=False)
    for properties, text in (
        ({BATCH_ID: "1", RUN_ID: str(uuid4())}, f"does not tell its tasks {QUERY_ID}"),
        ({QUERY_ID: "q", BATCH_ID: "1", RUN_ID: "mine"}, f"{RUN_ID} = 'mine' are not a number"),
    ):
        with task(**properties), pytest.raises(InvalidArgument, match=text):
            sink.write(rows("a"))
    with pytest.raises(InvalidArgument, match="writes in tasks of Spark, and this is none"):
        sink.write(rows("a"))
