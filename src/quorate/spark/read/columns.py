"""The columns of the format: their types in Spark, and the conversion of records into them.

Spark compares the first record batch of a task with the schema that it expects: names, their order,
types, and which columns may be null. It does not check later batches. So every batch is made with
that very schema.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorate.client.read.arrow import scalar
from quorate.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from quorate.spark.read.planning import TaskRange

__all__ = ["COLUMNS", "ColumnBuilder", "arrow_schema", "join_small", "shaped"]

_PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
# The only partition: for now every log has one.
PARTITION = 0

COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("log", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", ArrayType(_PAIR)),
    ]
)
# A column that only a query gets whose schema names it.
APPEND_TIME = StructField("appendTime", TimestampType())
# Columns that are null for a record without a key, or without a time.
OPTIONAL = ("key", "timestamp")

_KNOWN = {field.name: field for field in [*COLUMNS, APPEND_TIME]}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "log": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
    "appendTime": _TIMESTAMP,
}
# The client's names of columns, where they differ from the format's.
_CLIENT = {"appendTime": "append_time"}

# Batches with fewer records than this are joined: each batch costs Spark as much as a thousand
# records do. Larger batches are not joined: that would copy their values.
ROWS_MIN = 1024
BYTES_MIN = 1 << 20


def arrow_schema(asked: StructType) -> pa.Schema:
    """The columns of ``asked`` as Arrow has them. Raises InvalidArgument for an unknown column."""
    if not asked.fields:
        # Arrow counts the rows of a batch by its columns: without a column all records are lost.
        raise InvalidArgument(f"no column is asked for; there are {', '.join(_KNOWN)}")
    for field in asked:
        known = _KNOWN.get(field.name)
        if known is None:
            close = get_close_matches(field.name, _KNOWN, n=1, cutoff=0.5)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(_KNOWN)}"
            raise InvalidArgument(f"the format quorate has no column {field.name}; {meant}")
        if field.dataType != known.dataType:
            raise _unlike(field.name, known.dataType.simpleString(), field.dataType.simpleString())
        if not field.nullable and field.name in OPTIONAL:
            raise InvalidArgument(f"column {field.name} may be null: not every record has one")
    return pa.schema([pa.field(one.name, _ARROW[one.name], one.nullable) for one in asked])


def _unlike(name: str, known: str, asked: str) -> InvalidArgument:
    if asked == known:
        return InvalidArgument(f"write {name} {known}, without not null or a comment inside")
    return InvalidArgument(f"column {name} is {known}, not {asked}; cast it after reading")


def shaped(
    batches: Iterable[pa.RecordBatch], task_range: TaskRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ``task_range``, as Spark expects them. Raises Corrupt if one is missing."""
    columns = ColumnBuilder(schema, task_range.log)
    records = 0
    for batch in join_small(batches, columns.needs):
        records += batch.num_rows
        yield columns(batch)
    if records != task_range.stop - task_range.start:
        raise Corrupt(
            f"{task_range.log} from {task_range.start} to {task_range.stop}: {records} records came"
        )


class ColumnBuilder:
    """Turns the record batches that a client reads from one log into the columns of the schema."""

    def __init__(self, schema: pa.Schema, log: str) -> None:
        self._schema = schema
        # The columns with the same value in every row. Their arrays are made once, and made anew
        # when a batch needs a longer one.
        self._constants = {
            "log": scalar(log, pa.string()),
            "partition": scalar(PARTITION, pa.int32()),
        }
        self._made: dict[str, pa.Array] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._column(batch, name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @property
    def needs(self) -> list[str]:
        """The client's columns that this needs; ``offset`` always, to count the records."""
        names = {_CLIENT.get(name, name) for name in self._schema.names}
        return sorted((names - set(self._constants)) | {"offset"})

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name in self._constants:
            return self._constant(name, batch.num_rows)
        column = batch.column(_CLIENT.get(name, name))
        # Spark has another name for the items of a list.
        return column.cast(_ARROW[name]) if name == "headers" else column

    def _constant(self, name: str, rows: int) -> pa.Array:
        made = self._made.get(name)
        if made is None or len(made) < rows:
            made = self._made[name] = pa.repeat(self._constants[name], max(rows, ROWS_MIN))
        return made.slice(0, rows)


def join_small(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of ``batches``, in the same order, with small batches joined.

    A batch has at least ROWS_MIN records or BYTES_MIN bytes, but for the last, and those before a
    large one. Each has at least ``columns``.
    """
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if few and (rows >= ROWS_MIN or size >= BYTES_MIN or batch.num_rows >= ROWS_MIN):
            yield _joined(few, columns)
            few, rows, size = [], 0, 0
        if batch.num_rows >= ROWS_MIN:
            yield batch
            continue
        few.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if few:
        yield _joined(few, columns)


def _joined(batches: list[pa.RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [batch] = pa.Table.from_batches(batches).select(columns).combine_chunks().to_batches()
    return batch
