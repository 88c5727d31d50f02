"""Rows as Arrow has them, and as hypothesis draws them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["ROWS", "Row", "frame"]

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(PAIR),
}
Row = dict[str, Any]

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
