"""Rows of Spark as batches: Arrow's columns become those of the batch, without a step per record.

Spark's strings and binaries lie in memory as a batch has them: bytes, and offsets that cut them
into cells. A slice only has to count its offsets from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorate.batch import HEADERS, KEYS, ONE_TIME, TIMES, assemble_batch
from quorate.client.read.arrow import offset_column
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Offsets = npt.NDArray[np.int32]
    Truths = npt.NDArray[np.bool_]
    Number = TypeVar("Number", bound=np.generic)

__all__ = [
    "Cells",
    "FrameRows",
    "Pairs",
    "by_log",
    "copied",
    "encode_rows",
    "joined",
    "pieces",
    "rows_of",
    "size_of",
]

# A piece of a frame has no more bytes than this, unless a single row has more.
PIECE_BYTES = 2 << 20
# The bytes of a batch besides its rows: a head, the first offset of each column, and padding.
HEAD_BYTES = 256


class Cells(NamedTuple):
    """The bytes of a column, and the offsets that cut them into cells: one more than there are
    cells, beginning with 0."""

    offsets: Offsets
    data: memoryview

    @property
    def lengths(self) -> Offsets:
        return np.diff(self.offsets)


class Pairs(NamedTuple):
    """The headers of all rows, and the offsets that cut them into one list per row."""

    offsets: Offsets
    names: Cells
    contents: Cells


@dataclass(slots=True)
class FrameRows:
    """Some rows of a frame, at least one, in memory that Arrow holds."""

    count: int
    values: Cells
    # None if no row has a key.
    keys: Cells | None
    # A mask of the rows that have a key; None if all have.
    keyed: Truths | None
    # Microseconds since 1970; None if no row has a time.
    times: Numbers | None
    # A mask of the rows that have a time; None if all have.
    timed: Truths | None
    # None if no row has a header.
    headers: Pairs | None


def rows_of(batch: pa.RecordBatch) -> FrameRows:
    """The rows of ``batch``. Raises InvalidArgument for a null in a column that may have none."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    value = columns["value"]
    _refuse_nulls(
        "value", value, "a record has a value; leave the row out, or give it an empty one"
    )
    key, timestamp = _unless_null(columns.get("key")), _unless_null(columns.get("timestamp"))
    return FrameRows(
        batch.num_rows,
        _cells(value),
        keys=None if key is None else _cells(key),
        keyed=_present(key),
        times=None if timestamp is None else _times(timestamp),
        timed=_present(timestamp),
        headers=_pairs(columns.get("headers")),
    )


def _unless_null(column: pa.Array | None) -> pa.Array | None:
    return None if column is None or column.null_count == len(column) else column


def _refuse_nulls(name: str, column: pa.Array, why: str) -> None:
    if column.null_count:
        raise InvalidArgument(f"column {name} is null in {column.null_count} of the rows: {why}")


def _present(column: pa.Array | None) -> Truths | None:
    if column is None or column.null_count == 0:
        return None
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    present: Truths = bits[column.offset : column.offset + len(column)].view(np.bool_)
    return present


def _numbers(column: pa.Array, kind: type[Number]) -> npt.NDArray[Number]:
    """The numbers of ``column``, without a copy; those of nulls are arbitrary. Arrow's own way
    would import pandas."""
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _cells(column: pa.Array) -> Cells:
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary()).cast(pa.binary())
    _, ends, data = column.buffers()
    first = column.offset
    offsets = np.frombuffer(ends, np.int32)[first : first + len(column) + 1]
    start, stop = int(offsets[0]), int(offsets[-1])
    view = memoryview(data if data is not None else b"").cast("B")
    return Cells(offsets - offsets[0], view[start:stop])


def _times(column: pa.Array) -> Numbers:
    return _numbers(column.cast(pa.timestamp("us", column.type.tz)), np.int64)


def _pairs(column: pa.Array | None) -> Pairs | None:
    if column is None:
        return None
    counts, present = _numbers(pc.list_value_length(column), np.int32), _present(column)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts if present is None else np.where(present, counts, 0), out=offsets[1:])
    if offsets[-1] == 0:
        return None
    names, contents = column.flatten().flatten()
    _refuse_nulls("headers.key", names, "a header has a name")
    _refuse_nulls("headers.value", contents, "a header has a value, if an empty one")
    return Pairs(offsets, _cells(names), _cells(contents))


# -- encoding ------------------------------------------------------------------------------------


def encode_rows(rows: FrameRows, now_us: int) -> bytes:
    """The batch of these rows. A row without a time gets the time ``now_us``."""
    flags, time = 0, now_us
    parts = [*_bytes_of(rows.values)]
    if rows.keys is not None:
        flags |= KEYS
        keyed = np.ones(rows.count, np.bool_) if rows.keyed is None else rows.keyed
        parts += [np.packbits(keyed, bitorder="little").data, *_bytes_of(rows.keys)]
    if rows.times is None:
        flags |= ONE_TIME
    else:
        flags, time = flags | TIMES, 0
        times = rows.times if rows.timed is None else np.where(rows.timed, rows.times, now_us)
        parts.append(np.ascontiguousarray(times).data.cast("B"))
    if rows.headers is not None:
        flags |= HEADERS
        offsets, names, contents = rows.headers
        parts += [offsets.data.cast("B"), *_bytes_of(names), *_bytes_of(contents)]
    return assemble_batch(flags, rows.count, time, parts)


def _bytes_of(cells: Cells) -> tuple[memoryview, memoryview]:
    return cells.offsets.data.cast("B"), cells.data


# -- cutting and joining ---------------------------------------------------------------------------


def by_log(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each log that the column ``log`` names, in their order."""
    column = batch.column("log")
    _refuse_nulls("log", column, "a row has to say which log it is for")
    encoded = column.dictionary_encode()
    try:
        names = encoded.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"column log has a name that is not UTF-8: {error.object!r}; no log has that name: "
            f"leave the row out, or give it the name of one"
        ) from None
    rest = batch.drop_columns(["log"])
    if len(names) == 1:
        yield names[0], rest
        return
    # The sort is stable, so the rows of a log stay in their order.
    order = pc.array_sort_indices(encoded.indices)
    codes = _numbers(encoded.indices.take(order), np.int32)
    starts = np.searchsorted(codes, np.arange(len(names) + 1)).tolist()
    for name, start, stop in zip(names, starts, starts[1:], strict=False):
        # A copy: a few rows that wait for more would keep the rows of all logs in memory.
        yield name, rest.take(order.slice(start, stop - start))


def size_of(batch: pa.RecordBatch) -> int:
    """The bytes of these rows as a batch, or a few more."""
    # The batch has a bit for each key, which Arrow leaves out if no key is missing.
    size: int = batch.nbytes + batch.num_rows // 8 + HEAD_BYTES
    return size


def pieces(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """The rows of ``batch`` in pieces. As a batch, a piece has at most PIECE_BYTES and at most
    ``limit`` bytes, or one row."""
    most = min(PIECE_BYTES, limit)
    if size_of(batch) <= most or batch.num_rows == 1:
        if batch.num_rows:
            yield batch
        return
    ends = _ends(rows_of(batch))
    room = most - HEAD_BYTES
    start, before = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, before + room, "right")))
        yield batch.slice(start, stop - start)
        start, before = stop, int(ends[stop - 1])


def _ends(rows: FrameRows) -> Numbers:
    """The bytes of all rows up to the end of each row."""
    # Offsets, a time and a bit for the key, at most 24 bytes a row, come on top of the cells.
    ends: Numbers = np.arange(1, rows.count + 1, dtype=np.int64) * 24 + rows.values.offsets[1:]
    if rows.keys is not None:
        ends += rows.keys.offsets[1:]
    if rows.headers is not None:
        offsets, names, contents = rows.headers
        ends += names.offsets[offsets[1:]] + contents.offsets[offsets[1:]] + 8 * offsets[1:]
    return ends


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows: a slice keeps the whole batch that it is a part of in memory."""
    return batch.take(offset_column(0, batch.num_rows))


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of ``batches``, of which there is at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
