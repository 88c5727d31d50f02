"""What Spark reads and writes in a run: the same rows as Parquet files and in logs.

Two sorts of values: random bytes, which nobody can compress, and orders as JSON, of which Parquet
stores a part only: names of fields come again, numbers do not.
"""

from __future__ import annotations

from itertools import cycle
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
# How an order begins, what it has as often as there is room, and how it ends.
HEAD = b'{"id": 1%09d, "user": "u%06d", "action": "%s", "page": "/product/%06d"'
ITEM = b'{"sku": "%06d-%03d", "name": "%s", "quantity": %d, "price": %d.%02d}'
NOTE = b', "note": "%s"}'
ACTIONS = (b"view", b"cart", b"order", b"return")
NAMES = (b"lamp", b"chair", b"paper", b"kettle", b"carpet", b"bicycle", b"umbrella", b"notebook")
# Room for the last item and the note behind it.
ITEM_BYTES_MAX = 96
# Numbers of at most six digits that are drawn for an order, in turn for one field after the other.
DRAWN = 64


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
            drawn = chance.integers(0, 1_000_000, (count, DRAWN)).tolist()
            orders = zip(numbers.tolist(), drawn, strict=True)
            data = b"".join(_order(number, some, shape.value_bytes) for number, some in orders)
        columns = [
            pa.array(numbers),
            pa.array(numbers).cast(pa.timestamp("us", "UTC")),
            _cells(numbers.astype(">i8").tobytes(), count, KEY_BYTES),
            _cells(data, count, shape.value_bytes),
        ]
        yield pa.record_batch(columns, schema=_schema())


def _order(number: int, drawn: list[int], size: int) -> bytes:
    """JSON of ``size`` bytes, at least 100."""
    some = cycle(drawn)
    text = HEAD % (number, next(some), ACTIONS[next(some) % len(ACTIONS)], next(some))
    items = []
    room = size - len(text) - len(NOTE) - len(b', "items": []')
    while room > ITEM_BYTES_MAX:
        price = next(some)
        name = NAMES[next(some) % len(NAMES)]
        item = ITEM % (next(some), price % 1000, name, 1 + price % 9, price // 100, price % 100)
        items.append(item)
        room -= len(item) + 2
    if items:
        text += b', "items": [%s]' % b", ".join(items)
    note = b"%d " % next(some) * size
    return text + NOTE % note[: size - len(text) - len(NOTE) + 2]


def _cells(data: bytes, count: int, size: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
