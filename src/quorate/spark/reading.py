"""The work of a read task: one range of a log becomes the columns that the query asks for.

A task connects when it begins and leaves no state behind: Spark uses the worker's process again,
perhaps for another cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.client.ranges import read_range
from quorate.errors import Corrupt
from quorate.spark.columns import Shape, gathered
from quorate.spark.planning import recreated
from quorate.spark.workers import begin_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from quorate.spark.options import ReadOptions
    from quorate.spark.planning import Range

__all__ = ["read_replicated", "shaped"]


def read_replicated(
    part: Range, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ``part``, all of them: a task that cannot read them all fails."""
    assert options.cluster is not None  # for the type checker: this is no data directory
    begin_task()
    with options.cluster.client() as client:
        log = client.log(part.log)
        if log.incarnation != part.incarnation:
            raise recreated(part.log, part.incarnation, log.incarnation)
        batches = read_range(
            log, part.start, part.stop, read_from=options.read_from, turn=part.turn
        )
        yield from shaped(batches, part, schema)


def shaped(
    batches: Iterable[pa.RecordBatch], part: Range, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ``part``, as Spark expects them. Raises Corrupt if one is missing."""
    shape = Shape(schema, part.log)
    return map(shape, gathered(_counted(batches, part), shape.needs))


def _counted(batches: Iterable[pa.RecordBatch], part: Range) -> Iterator[pa.RecordBatch]:
    records = 0
    for batch in batches:
        records += batch.num_rows
        yield batch
    if records != part.stop - part.start:
        raise Corrupt(f"{part.log} from {part.start} to {part.stop}: {records} records came")
