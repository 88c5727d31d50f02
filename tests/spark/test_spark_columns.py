"""The columns of the format: exactly as Spark expects them, for every schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from quorate.batch import Batch, encode_batch
from quorate.client.read.arrow import offset_column, record_batch
from quorate.errors import InvalidArgument
from quorate.spark.read.columns import COLUMNS, ROWS_MIN, ColumnBuilder, arrow_schema, join_small

if TYPE_CHECKING:
    import pyarrow as pa

NARROW = StructType(
    [
        StructField("appendTime", TimestampType()),
        StructField("offset", LongType(), nullable=False),
        StructField("log", StringType()),
    ]
)


def stored(start: int, count: int, value: bytes = b"v") -> pa.RecordBatch:
    """A batch, as a client reads it."""
    data = encode_batch(
        [value] * count,
        keys=[None, *[b"k"] * (count - 1)],
        times=7,
        headers=[[("h", b"1")]] * count,
    )
    return record_batch(Batch.parse(data), offset_column(start, start + count), 99)


def _headers(key: StructField, *, contains_null: bool = True) -> ArrayType:
    pair = StructType([key, StructField("value", BinaryType())])
    return ArrayType(pair, containsNull=contains_null)


@pytest.mark.parametrize("asked", [COLUMNS, NARROW])
def test_the_schema_is_the_one_that_spark_compares_with(asked: StructType) -> None:
    assert arrow_schema(asked).equals(to_arrow_schema(asked, timezone="UTC"))


def test_all_columns_are_as_the_contract_has_them() -> None:
    assert COLUMNS.simpleString() == (
        "struct<key:binary,value:binary,log:string,partition:int,offset:bigint,"
        "timestamp:timestamp,headers:array<struct<key:string,value:binary>>>"
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("offsets", LongType()), "no column offsets; did you mean offset?"),
        (StructField("xyz", LongType()), "no column xyz; there are key, value, log,"),
        (StructField("value", StringType()), "column value is binary, not string; cast it"),
        (StructField("timestamp", TimestampNTZType()), "timestamp is timestamp, not timestamp_ntz"),
        (StructField("headers", ArrayType(BinaryType())), "not array<binary>"),
        (StructField("key", BinaryType(), nullable=False), "column key may be null"),
        (
            StructField("headers", _headers(StructField("key", StringType(), nullable=False))),
            "write headers array<struct<key:string,value:binary>>, without not null or a comment",
        ),
        (
            StructField("headers", _headers(StructField("key", StringType()), contains_null=False)),
            "without not null or a comment inside",
        ),
    ],
)
def test_a_column_that_there_is_not_is_refused(field: StructField, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        arrow_schema(StructType([field]))
    assert message in str(caught.value)


def test_no_columns_would_be_no_rows() -> None:
    with pytest.raises(InvalidArgument, match="no column is asked for; there are key, value, log"):
        arrow_schema(StructType([]))


@pytest.mark.parametrize("asked", [COLUMNS, NARROW])
def test_records_are_put_into_the_columns(asked: StructType) -> None:
    schema = arrow_schema(asked)
    shape = ColumnBuilder(schema, "orders")
    found = shape(stored(40, 3).slice(1))
    assert found.schema.equals(schema)
    found.validate(full=True)
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [41, 42]
    assert {row["log"] for row in rows} == {"orders"}
    if asked is COLUMNS:
        assert rows[0]["key"] == b"k"
        assert rows[0]["partition"] == 0
        assert rows[0]["headers"] == [{"key": "h", "value": b"1"}]
        assert shape(stored(0, 1)).column("key").to_pylist() == [None]


def test_constants_grow_with_the_batch() -> None:
    shape = ColumnBuilder(arrow_schema(COLUMNS), "orders")
    for count in (1, 5 * ROWS_MIN, 3):
        assert shape(stored(0, count)).column("log").to_pylist() == ["orders"] * count


def test_small_batches_are_gathered_and_large_ones_are_not() -> None:
    large = stored(100, ROWS_MIN)
    batches = [*(stored(start, 1) for start in range(100)), large, stored(100 + ROWS_MIN, 1)]
    found = list(join_small(batches, ["key", "offset", "value"]))
    assert [batch.num_rows for batch in found] == [100, ROWS_MIN, 1]
    assert found[1] is large
    numbers = [number for batch in found for number in batch.column("offset").to_pylist()]
    assert numbers == list(range(100 + ROWS_MIN + 1))
    assert found[0].column("key").to_pylist() == [None] * 100


def test_what_is_gathered_has_a_limit_in_bytes_and_records() -> None:
    heavy = [stored(start, 1, bytes(600 << 10)) for start in range(5)]
    assert [batch.num_rows for batch in join_small(heavy, ["offset"])] == [2, 2, 1]
    many = [stored(start, 600) for start in range(0, 3000, 600)]
    assert [batch.num_rows for batch in join_small(many, ["offset"])] == [1200, 1200, 600]
