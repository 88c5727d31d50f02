"""Rows as batches, and which frames and options are refused: without any Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from frames_rig import ROWS, Row, frame
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from quorate.batch import Batch
from quorate.errors import InvalidArgument
from quorate.spark.cluster_address import ClusterAddress
from quorate.spark.write import chunks
from quorate.spark.write.chunks import (
    by_log,
    copied,
    encode_rows,
    joined,
    pieces,
    rows_of,
    size_of,
)
from quorate.spark.write.columns import ACCEPTED, check_columns
from quorate.spark.write.options import NAMES, Transaction, WriteOptions, parse_write_options

NOW = 1_700_000_000_000_000


@given(ROWS, st.data())
@settings(deadline=None)
def test_records_are_the_rows_of_any_slice(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = frame(rows).slice(start, stop - start)
    records = list(Batch.parse(encode_rows(rows_of(part), NOW)))
    for record, row in zip(records, rows[start:stop], strict=True):
        assert (record.value, record.key) == (row["value"], row["key"])
        assert record.timestamp == (NOW if row["timestamp"] is None else row["timestamp"])
        expected = [(pair["key"], pair["value"]) for pair in row["headers"] or []]
        assert list(record.headers) == expected


def test_a_row_of_nulls_is_a_record_with_a_value() -> None:
    bare: Row = {"value": b"v", "key": None, "timestamp": None, "headers": []}
    record = Batch.parse(encode_rows(rows_of(frame([bare])), NOW)).record(0)
    assert record == (NOW, None, b"v", ())


def test_strings_and_large_cells_are_taken_for_binaries() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        column = pa.array(["grün", ""], pa.string()).cast(kind)
        batch = pa.RecordBatch.from_arrays([column, column], ["value", "key"])
        records = list(Batch.parse(encode_rows(rows_of(batch.slice(0, 1)), NOW)))
        assert [(record.value, record.key) for record in records] == [("grün".encode(),) * 2]


@pytest.mark.parametrize(
    ("name", "bad", "text"),
    [
        ("value", None, "column value is null in 1 of the rows"),
        ("headers", [None], "column headers.key is null"),
        ("headers", [{"key": "a", "value": None}], "column headers.value is null"),
    ],
)
def test_a_null_that_no_record_can_have_is_refused(name: str, bad: object, text: str) -> None:
    row: Row = {"value": b"v", "key": None, "timestamp": None, "headers": None}
    with pytest.raises(InvalidArgument, match=text):
        rows_of(frame([row, row | {name: bad}]))


def test_pieces_are_small_unless_a_row_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PIECE_BYTES", 1000)
    sizes = [10, 10, 5000, 400, 400, 400, 10]
    values = [bytes([number]) * size for number, size in enumerate(sizes)]
    headers: list[Row] = [{"key": "h", "value": b""}]
    batch = frame([{"value": value, "headers": headers} for value in values], ("value", "headers"))
    found = list(pieces(batch, 1 << 20))
    assert [piece.num_rows for piece in found] == [2, 1, 1, 1, 2]
    assert joined(found).equals(batch)
    assert list(pieces(batch.slice(0, 0), 1 << 20)) == []
    assert [piece.num_rows for piece in pieces(batch, 600)] == [2, 1, 1, 1, 1, 1]


@given(ROWS, st.integers(1, 1500))
@settings(deadline=None)
def test_no_piece_is_larger_than_the_limit_unless_it_is_one_row(
    rows: list[Row], limit: int
) -> None:
    batch = frame(rows)
    found = list(pieces(batch, limit))
    assert joined(found).equals(batch)
    for piece in found:
        size = len(encode_rows(rows_of(piece), NOW))
        assert size <= limit or piece.num_rows == 1
        assert size <= size_of(piece)


def test_rows_of_a_log_do_not_keep_the_memory_of_others() -> None:
    logs = ["common"] * 999 + ["rare"]
    values = pa.array([bytes(1000)] * 1000)
    batch = pa.RecordBatch.from_arrays([values, pa.array(logs)], ["value", "log"])
    rare = dict(by_log(batch))["rare"]
    assert rare.get_total_buffer_size() < 10_000
    part = batch.slice(10, 1)
    assert part.get_total_buffer_size() > 1_000_000
    assert copied(part).equals(part)
    assert copied(part).get_total_buffer_size() < 10_000


def test_rows_of_several_logs_keep_their_order() -> None:
    logs = ["b", "a", "b", "c", "a", "b"]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"%d" % n for n in range(6)]), pa.array(logs)], ["value", "log"]
    )
    found = {name: rows.column("value").to_pylist() for name, rows in by_log(batch)}
    assert found == {"b": [b"0", b"2", b"5"], "a": [b"1", b"4"], "c": [b"3"]}
    assert [name for name, _ in by_log(batch.slice(3, 1))] == ["c"]
    lost = batch.set_column(1, "log", pa.array(["a", None] * 3))
    with pytest.raises(InvalidArgument, match="column log is null in 3 of the rows"):
        list(by_log(lost))


def test_a_name_of_a_log_that_is_no_text_is_refused() -> None:
    """Spark casts any binary to a string, and looks at no byte of it."""
    names = pa.array([b"\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([names, pa.array([b"v"])], ["log", "value"])
    with pytest.raises(InvalidArgument, match=r"column log has a name that is not UTF-8"):
        list(by_log(batch))


# -- refusals on the driver ------------------------------------------------------------------------


def schema(**columns: str | DataType) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def pairs(name: str, value: DataType) -> ArrayType:
    return ArrayType(StructType([StructField(name, StringType()), StructField("value", value)]))


@pytest.mark.parametrize(
    "columns",
    [
        {"value": "binary"},
        {"value": "string", "key": "string"},
        {"timestamp": "timestamp", "value": "binary", "key": "binary"},
        {"value": "binary", "headers": pairs("key", BinaryType())},
        {"value": "binary", "headers": pairs("key", StringType())},
    ],
)
def test_columns_that_are_accepted(columns: dict[str, str | DataType]) -> None:
    check_columns(schema(**columns), "orders")
    check_columns(schema(**columns, log="string"), None)


@pytest.mark.parametrize(
    ("columns", "log", "text"),
    [
        ({"value": "integer"}, "l", "column value is int; it may be binary or string: cast it"),
        ({"value": "binary", "key": "long"}, "l", "column key is bigint; it may be binary or str"),
        ({"value": "binary", "timestamp": "long"}, "l", "timestamp is bigint; it may be timest"),
        ({"value": "binary", "timestamp": "timestamp_ntz"}, "l", "it may be timestamp"),
        (
            {"value": "binary", "headers": MapType(StringType(), BinaryType())},
            "l",
            "column headers is map<string,binary>; it may be array<struct<key:string",
        ),
        ({"value": "binary", "headers": pairs("name", BinaryType())}, "l", "column headers is"),
        ({"value": "binary", "log": "integer"}, None, "column log is int; it may be string"),
        ({"key": "binary"}, "l", "column value is missing: the frame has key"),
        ({}, "l", "column value is missing: the frame has no column"),
        ({"Value": "binary"}, "l", r"column Value is not known; did you mean value\?"),
        ({"value": "binary", "price": "double"}, "l", r"price is not known; there are value \(b"),
        ({"value": "binary", "offset": "long"}, "l", "offset is given by the log: drop it, with"),
        ({"value": "binary", "log": "string"}, "l", "log is a column, and the option log = 'l'"),
        ({"value": "binary"}, None, "log is missing"),
    ],
)
def test_columns_that_are_refused(
    columns: dict[str, str | DataType], log: str | None, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        check_columns(schema(**columns), log)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="column value is there twice"):
        check_columns(schema(value="binary").add("value", "binary"), "l")


BASE = {"endpoints": "127.0.0.1:7401"}


def test_options() -> None:
    def parsed(streaming: bool, **given: str) -> WriteOptions:
        lowered = {name.lower(): text for name, text in given.items()}
        return parse_write_options(BASE | lowered, streaming=streaming)

    place = ClusterAddress(BASE["endpoints"], 30.0)
    assert parsed(True) == parsed(False) == WriteOptions(place, None)
    assert parsed(False, log="a") == parsed(False, path="a") == WriteOptions(place, "a")
    known = parsed(False, log="a", txnAppId="etl", txnVersion="7")
    assert known.transaction == Transaction("etl", 7)
    for streaming in (True, False):
        patient = parsed(streaming, log="a", timeout="90")
        assert patient == WriteOptions(ClusterAddress(BASE["endpoints"], 90.0), "a")
    assert parsed(True, replayMismatch="keepFirst").mismatch == "keepFirst"
    assert parsed(True, checkpointLocation="/c", queryName="q") == WriteOptions(place, None)


@pytest.mark.parametrize(
    ("streaming", "given", "text"),
    [
        (False, {"log": "a", "path": "b"}, "one of them is enough"),
        (False, {"txnAppId": "a"}, "txnAppId and txnVersion are given together"),
        (False, {"txnVersion": "1"}, "txnAppId and txnVersion are given together"),
        (False, {"txnAppId": "a", "txnVersion": "-1"}, "not a whole number from 0 on"),
        (True, {"txnAppId": "a", "txnVersion": "1"}, "known again by its checkpoint"),
        (False, {"replayMismatch": "fail"}, "replayMismatch is for streams"),
        (True, {"replayMismatch": "keep"}, "is none of fail, keepFirst"),
        (False, {"txnAppid2": "a"}, r"did you mean txnAppId\?"),
        (False, {"checkpointLocation": "/c"}, "has no option checkpointLocation"),
        (False, {"endpoints": ""}, "endpoints is missing"),
        (
            False,
            {"timeout": "x"},
            "timeout = 'x' is not a number of seconds above 0 and up to 86400",
        ),
        (True, {"timeout": "0"}, "timeout = 0.0 is not a number of seconds"),
    ],
)
def test_options_that_are_refused(streaming: bool, given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        parse_write_options(BASE | given, streaming=streaming)


def test_every_option_and_column_is_in_the_guide() -> None:
    guide = Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "spark.md"
    text = guide.read_text(encoding="utf-8")
    writing = text[text.index("## Writing") : text.index("## Without a cluster")]
    first_cells = re.findall(r"^\| (.*?) \|", writing, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    # save() turns a name into a path.
    assert listed >= {*NAMES, *ACCEPTED} - {"path"}
