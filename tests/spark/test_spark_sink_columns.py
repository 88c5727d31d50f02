"""Rows as batches and as a digest, and which frames and options are refused: without any Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
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
from quorate.spark import chunks
from quorate.spark.chunks import (
    by_log,
    copied,
    encode_rows,
    joined,
    pieces,
    rows_of,
    size_of,
)
from quorate.spark.connecting import Cluster
from quorate.spark.digest import BLOCK, BLOCKS_AT_ONCE, NOTHING, Digest, digest_of, digest_of_logs
from quorate.spark.sink_columns import ACCEPTED, check_columns
from quorate.spark.sink_options import NAMES, Transaction, WriteOptions, parse_write_options

if TYPE_CHECKING:
    import random

NOW = 1_700_000_000_000_000
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(PAIR),
}
Row = dict[str, Any]
ROW: list[Row] = [{"value": b"v"}]

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.binary(max_size=40),
            "key": st.none() | st.binary(max_size=20),
            "timestamp": st.none() | st.integers(-(1 << 50), 1 << 50),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.binary(max_size=9)}),
                max_size=3,
            ),
        }
    ),
    min_size=1,
    max_size=30,
)


def frame(rows: list[Row], names: tuple[str, ...] = tuple(TYPES)) -> pa.RecordBatch:
    columns = [pa.array([row[name] for row in rows], TYPES[name]) for name in names]
    return pa.RecordBatch.from_arrays(columns, list(names))


def digest(batch: pa.RecordBatch) -> Digest:
    return digest_of(rows_of(batch))


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


@given(ROWS, st.randoms(use_true_random=False), st.data())
@settings(deadline=None)
def test_a_digest_knows_neither_order_nor_splits(
    rows: list[Row], draw: random.Random, data: st.DataObject
) -> None:
    whole = digest(frame(rows))
    draw.shuffle(rows)
    cut = data.draw(st.integers(0, len(rows)))
    parts = [frame(part) for part in (rows[:cut], rows[cut:]) if part]
    sums = NOTHING
    for part in parts:
        sums = sums.plus(digest(part))
    assert sums == whole
    assert len(whole.encode()) == 32


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("value", b"", b"\0"),
        ("value", b"12345678", b"1234567\xb8"),
        ("value", b"\x80" + bytes(7) + b"\x80" + bytes(7), bytes(16)),
        ("value", bytes(8), bytes(9)),
        ("value", b"x" * BLOCK, b"x" * (BLOCK - 1) + b"y"),
        ("value", b"x" * (BLOCK + 1), b"x" * BLOCK + b"y"),
        ("value", b"x" * BLOCK + b"y" * BLOCK, b"y" * BLOCK + b"x" * BLOCK),
        ("value", bytes(BLOCK + 8), (bytes(7) + b"\x80") * (BLOCK // 8 + 1)),
        (
            "value",
            bytes(2 * BLOCK),
            bytes(7) + b"\x80" + bytes(7) + b"\x80" + bytes(2 * BLOCK - 16),
        ),
        ("value", bytes(BLOCK * BLOCKS_AT_ONCE), bytes(BLOCK * BLOCKS_AT_ONCE + 1)),
        ("value", bytes(BLOCK * BLOCKS_AT_ONCE + 1), bytes(BLOCK * BLOCKS_AT_ONCE) + b"y"),
        ("key", None, b""),
        ("key", b"a", b"b"),
        ("timestamp", None, 0),
        ("timestamp", 1, 2),
        ("headers", [], [{"key": "", "value": b""}]),
        ("headers", [{"key": "a", "value": b"b"}], [{"key": "ab", "value": b""}]),
    ],
)
def test_a_digest_knows_what_differs(name: str, one: object, other: object) -> None:
    row = {"value": b"value", "key": b"key", "timestamp": 5, "headers": []}
    assert digest(frame([row | {name: one}])) != digest(frame([row | {name: other}]))


@given(st.integers(BLOCK - 9, 3 * BLOCK), st.data())
@settings(deadline=None)
def test_a_digest_knows_every_byte_of_a_long_cell(size: int, data: st.DataObject) -> None:
    """Whatever stands around it: where a cell begins in memory changes nothing."""
    value = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    before = digest(frame([{"value": bytes(value)}], ("value",)))
    around = [{"value": bytes(data.draw(st.integers(0, 20)))}, {"value": bytes(value)}]
    assert digest(frame(around, ("value",)).slice(1)) == before
    value[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    assert digest(frame([{"value": bytes(value)}], ("value",))) != before


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8", ">f8", "<i2", "<i4", ">i4", "<i8"])
def test_a_digest_knows_vectors_by_their_signs(kind: str) -> None:
    """All of them changed, or a few: what a library that is not deterministic does now and then."""
    numbers = np.random.default_rng(7).integers(1, 30_000, 300).astype(kind)
    one, other = [], []
    for length in range(1, len(numbers)):
        vector = numbers[:length]
        some = vector.copy()
        some[length // 2 :] *= -1
        for changed in (-vector, some):
            one.append({"value": vector.tobytes()})
            other.append({"value": changed.tobytes()})
    pairs = zip(_each(one), _each(other), strict=True)
    assert [place for place, (a, b) in enumerate(pairs) if a == b] == []


@pytest.mark.parametrize("size", [8, 16, 24, 2 * BLOCK])
def test_a_digest_knows_bits_that_change_together(size: int) -> None:
    """The highest ones of a word, and those that a shift by half a word brings together with
    them: a product has the former in one bit only."""
    base = np.random.default_rng(7).integers(0, 1 << 63, size // 8, np.uint64)
    bits = [1 << 63, 1 << 31, 1 << 63 | 1 << 31, 1 << 62, 1 << 30, 1 << 62 | 1 << 30]
    changes = [
        [first, second, *[rest] * (len(base) - 2)][: len(base)]
        for first in (0, *bits)
        for second in (0, *bits)
        for rest in (0, *bits)
    ]
    values = {(base ^ np.array(change, np.uint64)).tobytes() for change in changes}
    found = _each([{"value": value} for value in sorted(values)])
    assert len(set(found)) == len(values) > 1


def _each(rows: list[Row]) -> list[Digest]:
    """The digest of each row by itself."""
    batch = frame(rows, ("value",))
    return [digest(batch.slice(place, 1)) for place in range(len(rows))]


def test_a_digest_knows_cells_that_changed_their_rows() -> None:
    """A plain sum of columns would not."""
    straight = [{"value": b"1", "key": b"a"}, {"value": b"2", "key": b"b"}]
    crossed = [{"value": b"2", "key": b"a"}, {"value": b"1", "key": b"b"}]
    names = ("value", "key")
    assert digest(frame(straight, names)) != digest(frame(crossed, names))
    twice = [straight[0], straight[0]]
    assert digest(frame(twice, names))[2:] != NOTHING[2:], "two of the same do not cancel"


def test_no_column_is_a_column_of_nothing() -> None:
    bare: Row = {"value": b"v", "key": None, "timestamp": None, "headers": []}
    assert digest(frame([bare], ("value",))) == digest(frame([bare]))
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


def test_the_digest_of_several_logs_knows_what_is_where() -> None:
    one, two = digest(frame(ROW, ("value",))), digest(frame(2 * ROW, ("value",)))
    assert digest_of_logs({"a": one}) == one.encode()
    assert digest_of_logs({"a": one, "b": two}) == digest_of_logs({"b": two, "a": one})
    others = [
        {},
        {"a": one},
        {"a": two},
        {"a": one, "b": two},
        {"a": two, "b": one},
        {"a": one, "c": two},
        {"a": one, "b": two, "c": NOTHING},
    ]
    found = {digest_of_logs(digests) for digests in others}
    assert len(found) == len(others)
    assert {len(told) for told in found} == {32}


# -- what is refused on the driver -----------------------------------------------------------------


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

    place = Cluster(BASE["endpoints"], 30.0)
    assert parsed(True) == parsed(False) == WriteOptions(place, None)
    assert parsed(False, log="a") == parsed(False, path="a") == WriteOptions(place, "a")
    known = parsed(False, log="a", txnAppId="etl", txnVersion="7")
    assert known.transaction == Transaction("etl", 7)
    for streaming in (True, False):
        patient = parsed(streaming, log="a", timeout="90")
        assert patient == WriteOptions(Cluster(BASE["endpoints"], 90.0), "a")
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
    # A path is what save() makes of a name.
    assert listed >= {*NAMES, *ACCEPTED} - {"path"}
