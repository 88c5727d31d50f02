"""The work of a read task: one range of a log becomes the columns that the query asks for.

A task connects when it begins and leaves no state behind: Spark uses the worker's process again,
perhaps for another cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.client.read.ranges import read_range
from quorate.spark.read.columns import shaped
from quorate.spark.read.planning import recreated
from quorate.spark.worker import begin_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.spark.read.options import ReadOptions
    from quorate.spark.read.planning import TaskRange

__all__ = ["read_replicated"]


def read_replicated(
    task_range: TaskRange, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ``task_range``, all of them: a task that cannot read them all fails."""
    assert options.cluster is not None  # for the type checker: this is no data directory
    begin_task()
    with options.cluster.client() as client:
        log = client.log(task_range.log)
        if log.incarnation != task_range.incarnation:
            raise recreated(task_range.log, task_range.incarnation, log.incarnation)
        batches = read_range(
            log,
            task_range.start,
            task_range.stop,
            read_from=options.read_from,
            turn=task_range.turn,
        )
        yield from shaped(batches, task_range, schema)
