"""The writers as Spark calls them, on a real cluster and without a Java process in between.

What a repeat comes to is in ``test_spark_sink_repeats.py``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pytest
from sink_writers_rig import SCHEMA, Logs, Query, logs_of, rows, task, values

import quorate.testing
from quorate.client.staging import last_publication
from quorate.errors import InvalidArgument, LogNotFound, StageExpired, TooLarge
from quorate.spark.write import chunks
from quorate.spark.write import task as write_task
from quorate.spark.write.task import BATCH_ID, QUERY_ID, RUN_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.testing import Cluster

# A leader looks every ten seconds for apps that it may forget.
PATIENCE_S = 120


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    with logs_of(cluster) as made:
        yield made


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_there_at_once_and_in_the_order_of_its_partitions(logs: Logs) -> None:
    log = logs.make()
    job = logs.batch(log.name)
    with task(1):
        second = job.write(rows("c"))
    with task(0):
        first = job.write(rows("a", "b"))
    assert values(log) == []
    job.commit([second, first])
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
    monkeypatch.setattr(write_task, "CHUNK_BYTES", 1000)
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


def test_a_task_that_says_nothing_is_not_passed_over(logs: Logs) -> None:
    log = logs.make()
    job, query = logs.batch(log.name), Query(logs, log.name)
    with task():
        message = job.write(rows("a"))
    with pytest.raises(InvalidArgument, match="1 of 2 tasks reported what they wrote: nothing"):
        job.commit([message, None])
    with pytest.raises(InvalidArgument, match="1 of 2 tasks reported what they wrote: nothing"):
        query.commit(0, [*query.write(0, rows("a")), None])
    with pytest.raises(InvalidArgument, match="0 of 0 tasks"):
        query.commit(0, [])
    assert values(log) == []


# -- limits and room -------------------------------------------------------------------------------


def test_chunks_are_no_larger_than_the_nodes_allow() -> None:
    limits = {"batch_bytes": 1 << 16}
    with quorate.testing.cluster(1, settings={"limits": limits}, cuttable=False) as small:
        logs = Logs(small, "limits")
        log = logs.make()
        many = [f"{number:04}".ljust(1000, ".") for number in range(300)]
        logs.save(log.name, rows(*many))
        assert values(log) == many
        # The first row waits for more, and the next rows are too many for one chunk with it.
        pair = ["a" * 20_000, "b" * 60_000]
        logs.save(log.name, iter([*rows(pair[0]), *rows(pair[1])]))
        assert values(log) == many + pair
        with task(), pytest.raises(TooLarge, match=r"TOO_LARGE: .*limits.batch_bytes of n1 is 655"):
            logs.batch(log.name).write(rows("c" * (1 << 17)))
        logs.client.close()


class Taking:
    """In place of a stager: it takes every chunk."""

    def __init__(self, *_: object) -> None:
        self.batches: list[bytes] = []

    def send(self, batch: bytes) -> None:
        self.batches.append(batch)


def test_rows_that_wait_do_not_keep_those_that_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_task, "Stager", Taking)
    monkeypatch.setattr(write_task, "largest_chunk", lambda _: 8 << 20)
    first = write_task.first_label(app="app", run=bytes(16), batch_id=0, partition=0)
    writer = write_task._ChunkWriter(Mock(), first, 0)
    writer.add(next(rows(*["x" * 1000] * 2500)))
    assert isinstance(writer.stager, Taking)
    assert len(writer.stager.batches) == 1
    [waiting] = writer._waiting
    assert 0 < waiting.num_rows < 1000
    assert waiting.get_total_buffer_size() < 1_000_000


class Fault(Exception):
    """Of the rows that a task is given."""


def failing(
    logs: Logs, log: quorate.Log, *batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from batch
    assert logs.staged_bytes(log) > 0
    raise Fault


@pytest.mark.parametrize("by_column", [False, True])
def test_a_task_that_fails_gives_back_its_room(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, by_column: bool
) -> None:
    monkeypatch.setattr(write_task, "CHUNK_BYTES", 1)
    log = logs.make()
    name = None if by_column else log.name
    # More than are under way at once.
    batches = [rows(str(number), logs=[log.name] if by_column else None) for number in range(20)]
    query = Query(logs, name)
    others = query.write(0, rows("kept", logs=[log.name] if by_column else None))
    with pytest.raises(Fault):
        query.write(0, failing(logs, log, *batches))
    query.commit(0, others)
    assert values(log) == ["kept"]
    batches = [rows(str(number), logs=[log.name] if by_column else None) for number in range(20)]
    with task(), pytest.raises(Fault):
        logs.batch(name).write(failing(logs, log, *batches))
    assert logs.staged_bytes(log) == 0


def test_what_cannot_be_tidied_up_does_not_hide_why_a_task_failed(logs: Logs) -> None:
    log = logs.make()

    def lost() -> Iterator[pa.RecordBatch]:
        yield from rows("a" * chunks.PIECE_BYTES)
        logs.client.delete_log(log.name)
        raise Fault

    with task(), pytest.raises(Fault):
        logs.batch(log.name).write(lost())


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.spark_slow
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
    """The last publish of ``app``, as far as the log remembers."""
    found = last_publication(log, app)
    return found.batch_id if found is not None else None


def test_an_aborted_micro_batch_can_be_written_again(logs: Logs) -> None:
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


def test_messages_of_another_micro_batch_are_refused(logs: Logs) -> None:
    query = Query(logs, logs.make().name)
    with pytest.raises(InvalidArgument, match="micro-batch 5 has rows of micro-batch 4"):
        query.commit(5, query.write(4, rows("a")))


def test_a_spark_that_does_not_name_the_query_is_refused(logs: Logs) -> None:
    sink = logs.source(logs.make().name).streamWriter(SCHEMA, overwrite=False)
    for properties, text in (
        ({BATCH_ID: "1", RUN_ID: str(uuid4())}, f"does not tell its tasks {QUERY_ID}"),
        ({QUERY_ID: "q", BATCH_ID: "1", RUN_ID: "mine"}, f"{RUN_ID} = 'mine' are not a number"),
    ):
        with task(**properties), pytest.raises(InvalidArgument, match=text):
            sink.write(rows("a"))
    with pytest.raises(InvalidArgument, match="writes in tasks of Spark, and this is not one"):
        sink.write(rows("a"))
