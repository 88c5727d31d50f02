"""Batches as Arrow record batches, over the same memory. Imported by the first read that needs it.

A column that a batch leaves out is all null, or for headers a list without pairs; Arrow makes it.
A batch has no offsets and no append times: they are made here, eight bytes a record.
"""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ImportError(
        f"read_arrow needs pyarrow; install it with: pip install 'quorate[arrow]' ({error})"
    ) from error

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.batch import Batch
    from quorate.batch_columns import Column
    from quorate.client.read.reading import Piece

__all__ = [
    "SCHEMA",
    "offset_column",
    "reader_of",
    "record_batch",
    "record_batches_of",
    "scalar",
]

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
_PAIRS = pa.list_(_PAIR)
_NO_PAIRS = pa.nulls(0, _PAIR)

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("headers", _PAIRS),
        ("append_time", _TIMESTAMP),
    ]
)


def record_batches_of(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    """A record batch over each stored batch, without a copy. The first and the last may be a part.

    Batches are not joined: that would copy every value.
    """
    start = pieces[0].offset
    # One column for all batches: most are small.
    offsets = offset_column(start, pieces[-1].end)
    for piece in pieces:
        for part in piece.parts():
            batch, offset, append_time, first, end = part
            records = record_batch(batch, offsets.slice(offset - start, batch.count), append_time)
            yield records if end - first == batch.count else records.slice(first, end - first)


def reader_of(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)


def offset_column(start: int, stop: int) -> pa.Array:
    """The offsets from ``start`` to before ``stop``; a slice of the column costs no copy."""
    return pc.add(_counted(stop - start), scalar(start, pa.int64()))


def scalar(value: int | str, kind: pa.DataType) -> pa.Scalar:
    """The Arrow scalar of ``value``, made without pandas: to convert a Python object Arrow imports
    pandas, where it is installed, and a process of Spark lives too short for that."""
    if isinstance(value, str):
        text = value.encode()
        buffers = [pa.py_buffer(pack("<2i", 0, len(text))), pa.py_buffer(text)]
    else:
        buffers = [pa.py_buffer(value.to_bytes(kind.bit_width // 8, "little", signed=True))]
    return pa.Array.from_buffers(kind, 1, [None, *buffers])[0]


def record_batch(batch: Batch, offsets: pa.Array, append_time: int) -> pa.RecordBatch:
    """All records of ``batch``. They keep its memory alive, which must not change from then on.

    ``offsets`` has one offset for each record. Raises InvalidArgument if the memory has changed
    since it was parsed: a wrong offset would let Arrow read foreign memory. That check costs a
    nanosecond a record, a tenth of the cost of wrapping a small batch.
    """
    count = batch.count
    columns = [
        _keys(batch),
        _cells(pa.binary(), count, batch.values),
        offsets,
        _times(batch),
        _headers(batch),
        _one_time(append_time, count),
    ]
    records = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
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
    times = batch.times
    if times is None:
        return pa.nulls(batch.count, _TIMESTAMP)
    if isinstance(times, int):
        return _one_time(times, batch.count)
    return pa.Array.from_buffers(_TIMESTAMP, batch.count, [None, _aligned(times)])


def _one_time(time: int, count: int) -> pa.Array:
    buffer = pa.py_buffer(time.to_bytes(8, "little", signed=True) * count)
    return pa.Array.from_buffers(_TIMESTAMP, count, [None, buffer])


def _headers(batch: Batch) -> pa.Array:
    headers = batch.headers
    if headers is None:
        offsets, pairs = pa.py_buffer(bytes(4 * (batch.count + 1))), _NO_PAIRS
    else:
        count = len(headers.names.offsets) // 4 - 1
        names = _cells(pa.string(), count, headers.names)
        contents = _cells(pa.binary(), count, headers.contents)
        offsets = _aligned(headers.offsets)
        pairs = pa.Array.from_buffers(_PAIR, count, [None], children=[names, contents])
    return pa.Array.from_buffers(_PAIRS, batch.count, [None, offsets], children=[pairs])


def _cells(
    kind: pa.DataType, count: int, column: Column, validity: pa.Buffer | None = None
) -> pa.Array:
    buffers = [validity, _aligned(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _aligned(numbers: memoryview) -> pa.Buffer:
    """The numbers in place; or a copy, if the memory of the batch is not aligned to 8 bytes.

    Batches from a replica are aligned: frames and batches are multiples of 8 bytes.
    """
    buffer = pa.py_buffer(numbers)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(numbers.tobytes())


# The numbers 0, 1, 2, …: made once, and extended when more are needed.
_numbers = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])


def _counted(count: int) -> pa.Array:
    global _numbers
    numbers = _numbers
    while len(numbers) < count:
        numbers = pa.concat_arrays([numbers, pc.add(numbers, scalar(len(numbers), pa.int64()))])
    _numbers = numbers
    return numbers.slice(0, count)
