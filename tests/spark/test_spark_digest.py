"""The digest of rows: it ignores order and layout, and sees every other difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from frames_rig import ROWS, Row, frame
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.spark.write.chunks import rows_of
from quorate.spark.write.digest import (
    BLOCK,
    BLOCKS_AT_ONCE,
    NOTHING,
    Digest,
    digest_of,
    digest_of_logs,
)

if TYPE_CHECKING:
    import random

    import pyarrow as pa


def digest(batch: pa.RecordBatch) -> Digest:
    return digest_of(rows_of(batch))


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
    """The place of a cell in memory, and its neighbours, do not change its hash."""
    value = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    before = digest(frame([{"value": bytes(value)}], ("value",)))
    around = [{"value": bytes(data.draw(st.integers(0, 20)))}, {"value": bytes(value)}]
    assert digest(frame(around, ("value",)).slice(1)) == before
    value[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    assert digest(frame([{"value": bytes(value)}], ("value",))) != before


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8", ">f8", "<i2", "<i4", ">i4", "<i8"])
def test_a_digest_knows_vectors_by_their_signs(kind: str) -> None:
    """All of them changed, or a few, as by a library that is not deterministic."""
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


def test_the_digest_of_several_logs_knows_what_is_where() -> None:
    row: Row = {"value": b"v"}
    one, two = digest(frame([row], ("value",))), digest(frame([row, row], ("value",)))
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
