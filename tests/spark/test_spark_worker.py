"""The first task of a Python worker of Spark."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from quorate.spark import worker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls of the garbage collector, by a worker that has had no task yet."""
    asked: list[str] = []
    monkeypatch.setattr(worker, "_begun", False)
    monkeypatch.setattr(gc, "collect", lambda: asked.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    yield asked


def test_the_first_task_sets_aside_what_is_imported(
    collections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    worker.begin_task()
    worker.begin_task()
    assert collections == ["collect", "freeze"]


def test_a_process_that_is_no_worker_is_left_alone(collections: list[str]) -> None:
    worker.begin_task()
    assert collections == []


def test_no_worker_waits_for_pandas() -> None:
    """Arrow imports pandas for a function in Python, and each import takes half a second."""
    done = subprocess.run(
        [sys.executable, "-c", _MOVE_RECORDS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["30", "False"]


# A batch from a log to Spark's columns and back, with records that lack a key or headers.
_MOVE_RECORDS = """
import sys

from quorate.client.read.arrow import offset_column, record_batch
from quorate.batch import Batch, encode_batch
from quorate.spark.read.columns import COLUMNS, ColumnBuilder, arrow_schema
from quorate.spark.source import QuorateDataSource
from quorate.spark.write.chunks import by_log, copied, encode_rows, pieces, rows_of
from quorate.spark.write.digest import digest_of

schema = arrow_schema(COLUMNS)
pair = [("h", b"1")]
data = encode_batch(
    [b"v"] * 30,
    keys=[b"k", None] * 15,
    headers=[pair, []] * 15,
    times=list(range(30)),
)
read = record_batch(Batch.parse(data), offset_column(0, 30), 0)
count = 0
for name, rows in by_log(ColumnBuilder(schema, "orders")(read)):
    for piece in pieces(copied(rows), 1000):
        cells = rows_of(piece)
        digest_of(cells)
        count += Batch.parse(encode_rows(cells, 0)).count
print(count, "pandas" in sys.modules)
"""
