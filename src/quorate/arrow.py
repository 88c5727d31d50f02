"""A batch as an Arrow record batch, over the same memory. For clients: a server imports no Arrow.

A column that a batch leaves out is all null, or for headers a list without pairs; Arrow makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from quorate.batch import Batch, Column

__all__ = ["SCHEMA", "record_batch"]

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", _TIMESTAMP),
        ("headers", pa.list_(_PAIR)),
    ]
)


def record_batch(batch: Batch) -> pa.RecordBatch:
    """All records of ``batch``. They keep its memory alive, which nobody may change from then on.

    Raises InvalidArgument if somebody has changed it since it was parsed: a wrong offset would let
    Arrow read foreign memory.
    """
    columns = [_keys(batch), _cells(pa.binary(), batch.count, batch.values), _times(batch)]
    records = pa.RecordBatch.from_arrays([*columns, _headers(batch)], schema=SCHEMA)
    try:
        records.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"batch has changed since it was parsed: {error}") from None
    return records


def _keys(batch: Batch) -> pa.Array:
    if batch.keys is None:
        return pa.nulls(batch.count, pa.binary())
    return _cells(pa.binary(), batch.count, batch.keys.column, pa.py_buffer(batch.keys.validity))


def _times(batch: Batch) -> pa.Array:
    if isinstance(batch.times, memoryview):
        return pa.Array.from_buffers(_TIMESTAMP, batch.count, [None, _aligned(batch.times)])
    return pa.repeat(pa.scalar(batch.times, _TIMESTAMP), batch.count)


def _headers(batch: Batch) -> pa.Array:
    headers = batch.headers
    if headers is None:
        offsets, pairs = pa.py_buffer(bytes(4 * (batch.count + 1))), pa.array([], _PAIR)
    else:
        count = len(headers.names.offsets) // 4 - 1
        names = _cells(pa.string(), count, headers.names)
        contents = _cells(pa.binary(), count, headers.contents)
        offsets = _aligned(headers.offsets)
        pairs = pa.Array.from_buffers(_PAIR, count, [None], children=[names, contents])
    return pa.Array.from_buffers(pa.list_(_PAIR), batch.count, [None, offsets], children=[pairs])


def _cells(
    kind: pa.DataType, count: int, column: Column, validity: pa.Buffer | None = None
) -> pa.Array:
    buffers = [validity, _aligned(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _aligned(numbers: memoryview) -> pa.Buffer:
    """The numbers in place; or a copy, if the batch came to lie where no number may begin."""
    buffer = pa.py_buffer(numbers)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(numbers.tobytes())
