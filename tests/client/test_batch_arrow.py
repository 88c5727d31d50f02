"""A batch as Arrow sees it: the same records, the same memory, and no other memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.batch import Batch, BatchRecord, encode_batch
from quorate.client.read.arrow import SCHEMA, offset_column, record_batch
from quorate.errors import InvalidArgument

FULL = encode_batch(
    [b"hello", b"", b"world!"],
    keys=[b"k1", None, b""],
    times=[-1, 0, 1 << 40],
    headers=[[("trace", b"\x2a"), ("trace", b"")], [], [("ключ", b"\x2b")]],
)

times = st.integers(-(2**63), 2**63 - 1)
pairs = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=9))


def seen(records: pa.RecordBatch) -> list[BatchRecord]:
    """The records of a record batch in which Arrow finds no fault."""
    records.validate(full=True)
    headers = [
        tuple((pair["key"], pair["value"]) for pair in row)
        for row in records.column("headers").to_pylist()
    ]
    # As numbers: a datetime ends with the year 9999.
    stamps = records.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (stamps, *(records.column(name).to_pylist() for name in ("key", "value")), headers)
    return [BatchRecord(*row) for row in zip(*columns, strict=True)]


def wrapped(batch: Batch) -> pa.RecordBatch:
    return record_batch(batch, offset_column(7, 7 + batch.count), 2000)


def buffers(column: pa.Array) -> list[pa.Buffer]:
    return [buffer for buffer in column.buffers() if buffer is not None]


def inside(buffer: pa.Buffer, whole: pa.Buffer) -> bool:
    start = buffer.address - whole.address
    return bool(start >= 0 and start + buffer.size <= whole.size)


@FUZZ
@given(
    values=st.lists(st.binary(max_size=20), min_size=1, max_size=20),
    keys=st.none() | st.lists(st.none() | st.binary(max_size=5), min_size=20, max_size=20),
    stamps=st.none() | times | st.lists(times, min_size=20, max_size=20),
    headers=st.none() | st.lists(st.lists(pairs, max_size=3), min_size=20, max_size=20),
)
def test_arrow_sees_the_records_that_python_sees(
    values: list[bytes],
    keys: list[bytes | None] | None,
    stamps: list[int] | int | None,
    headers: list[list[tuple[str, bytes]]] | None,
) -> None:
    count = len(values)
    batch = Batch.parse(
        encode_batch(
            values,
            keys=keys and keys[:count],
            times=stamps[:count] if isinstance(stamps, list) else stamps,
            headers=headers and headers[:count],
        )
    )
    records = wrapped(batch)
    assert seen(records) == list(batch)
    assert records.column("offset").to_pylist() == list(range(7, 7 + count))
    assert records.column("append_time").cast(pa.int64()).to_pylist() == [2000] * count
    assert records.schema == SCHEMA


def test_the_columns_have_the_documented_types() -> None:
    assert [(field.name, str(field.type)) for field in SCHEMA] == [
        ("key", "binary"),
        ("value", "binary"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("headers", "list<item: struct<key: string, value: binary>>"),
        ("append_time", "timestamp[us, tz=UTC]"),
    ]


def test_every_column_lies_in_the_memory_of_the_batch() -> None:
    whole = pa.py_buffer(FULL)
    records = wrapped(Batch.parse(FULL))
    for name in ("key", "value", "timestamp", "headers"):
        assert buffers(records.column(name))
        assert all(inside(buffer, whole) for buffer in buffers(records.column(name)))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 5), (1 << 40, (1 << 40) + 20_000)])
def test_offsets_are_counted(start: int, stop: int) -> None:
    assert offset_column(start, stop).to_pylist() == list(range(start, stop))
    assert offset_column(start, stop).type == pa.int64()


def test_what_is_left_out_is_null_or_without_pairs() -> None:
    records = wrapped(Batch.parse(encode_batch([b"x", b"y"])))
    assert records.column("key").null_count == 2
    assert records.column("timestamp").null_count == 2
    assert records.column("headers").null_count == 0
    assert seen(records) == [BatchRecord(None, None, b"x", ()), BatchRecord(None, None, b"y", ())]


@pytest.mark.parametrize("shift", range(1, 9))
def test_a_batch_that_lies_askew_is_read_and_its_values_are_not_copied(shift: int) -> None:
    memory = bytes(shift) + FULL
    batch = Batch.parse(memoryview(memory)[shift:])
    records = wrapped(batch)
    assert seen(records) == list(Batch.parse(FULL))
    offsets, data = buffers(records.column("value"))
    assert offsets.address % 8 == 0
    assert inside(data, pa.py_buffer(memory))


def test_the_records_keep_the_memory_alive() -> None:
    records = wrapped(Batch.parse(bytearray(FULL)))
    assert seen(records) == list(Batch.parse(FULL))


@pytest.mark.parametrize("lie", [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x0c\0\0\0"])
@pytest.mark.parametrize("row", [0, 3, 6, 7, 9])
def test_memory_that_changed_after_parsing_is_refused(row: int, lie: bytes) -> None:
    """All offsets of all columns: values, keys, headers, names and contents."""
    memory = bytearray(FULL)
    batch = Batch.parse(memory)
    start = int.from_bytes(memory[40 + 8 * row : 44 + 8 * row], "little")
    memory[start + 4 : start + 8] = lie
    with pytest.raises(InvalidArgument, match="batch has changed since it was parsed"):
        wrapped(batch)


def test_a_name_that_changed_after_parsing_is_refused() -> None:
    memory = bytearray(FULL)
    batch = Batch.parse(memory)
    place = memory.index(b"trace")
    memory[place : place + 1] = b"\xff"
    with pytest.raises(InvalidArgument, match="batch has changed since it was parsed"):
        wrapped(batch)
