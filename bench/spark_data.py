"""What Spark reads and writes in a run: the same rows as Parquet files and in logs.

Two sorts of values: random bytes, which nobody can compress, and text like JSON, of which Parquet
stores a part only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FILES", "SCHEMA", "Shape", "write_files"]

# What both sides read: a number, a time, a key of 8 bytes and the value.
SCHEMA = "offset long, timestamp timestamp, key binary, value binary"
KEY_BYTES = 8
# Of a file at most; a stream takes so many files at a time: a million records.
FILE_RECORDS = 250_000
FILES = 4
ROWS_AT_ONCE = 50_000
# A text that begins differently in each row.
JSON = (
    b'{"id": %010d, "user": "u%06d", "action": "click", "page": "/product/%06d", "ok": true, "n": "'
)


class Shape(NamedTuple):
    """So many records of one sort."""

    name: str
    records: int
    value_bytes: int
    random: bool

    @property
    def bytes(self) -> int:
        """Of the values, which is what figures in bytes are about."""
        return self.records * self.value_bytes


def write_files(shape: Shape, folder: Path) -> None:
    """Parquet files with the rows of ``shape``: at least FILES, for the tasks that read them."""
    folder.mkdir()
    each = min(FILE_RECORDS, -(-shape.records // FILES))
    for number, start in enumerate(range(0, shape.records, each)):
        stop = min(start + each, shape.records)
        with pq.ParquetWriter(folder / f"{number}.parquet", _schema(), compression="snappy") as out:
            for batch in _batches(shape, start, stop):
                out.write_batch(batch)


def _schema() -> pa.Schema:
    return pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ]
    )


def _batches(shape: Shape, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    chance = np.random.default_rng(start)
    for first in range(start, stop, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, stop - first)
        numbers = np.arange(first, first + count, dtype=np.int64)
        if shape.random:
            data = chance.bytes(count * shape.value_bytes)
        else:
            data = b"".join(_text(number, shape.value_bytes) for number in numbers.tolist())
        columns = [
            pa.array(numbers),
            pa.array(numbers).cast(pa.timestamp("us", "UTC")),
            _cells(numbers.astype(">i8").tobytes(), count, KEY_BYTES),
            _cells(data, count, shape.value_bytes),
        ]
        yield pa.record_batch(columns, schema=_schema())


def _text(number: int, size: int) -> bytes:
    head = JSON % (number, number % 100_003, number % 10_007)
    rest = b"%d " % (number * 7919)
    body = head + rest * -(-size // len(rest))
    return body[: size - 2] + b'"}'


def _cells(data: bytes, count: int, size: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
