"""What Arrow is given: the records of ``read``, in the memory in which they came."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_rig import cluster, log_of, on_loop

from core_rig import FUZZ
from quorate import Client
from quorate.batch import encode_batch
from quorate.client.read.arrow import SCHEMA, record_batches_of
from quorate.client.read.reading import Piece, records_of
from quorate.client.results import Record
from quorate.entry import make_entry
from quorate.entry_body import Stamp, pack_batches, view_entry
from quorate.errors import Corrupt, Trimmed
from quorate.types import ORIGIN, EntryKind, Term
from quorate.wire.calls import FindLog
from quorate.wire.frames import Frame, FrameKind
from quorate.wire.requests import Fetch, decode_records, encode_records
from scripted_node import Found, ScriptedNode, entries, found, in_a_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.entry import Entry

STORED = entries([b"a", b"b", b"c"], [b"d"], [b"e", b"f"])

times = st.integers(-(2**63), 2**63 - 1)
pairs = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=9))


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Any columns: that of one batch need not be those of the next."""
    count = draw(st.integers(1, 5))

    def column(items: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
        return st.lists(items, min_size=count, max_size=count)

    batch = encode_batch(
        draw(column(st.binary(max_size=20))),  # type: ignore[arg-type]  # bytes, all of them
        keys=draw(st.none() | column(st.none() | st.binary(max_size=5))),  # type: ignore[arg-type]
        times=draw(st.none() | times | column(times)),  # type: ignore[arg-type]
        headers=draw(st.none() | column(st.lists(pairs, max_size=3))),  # type: ignore[arg-type]
    )
    return batch, count


def chained(groups: list[list[tuple[bytes, int]]], stamps: list[Stamp]) -> list[Entry]:
    """An entry for each group of batches."""
    made, position, offset = [], ORIGIN, 5
    for number, group in enumerate(groups):
        count = sum(count for _, count in group)
        entry = make_entry(
            position, Term(1), EntryKind.DATA, pack_batches(group, stamps), base_offset=offset,
            count=count, append_time=2000 + number, runs=len(group), stamps=len(stamps),
        )  # fmt: skip
        made.append(entry)
        position, offset = entry.position, offset + count
    return made


def answer(stored: list[Entry]) -> Frame:
    rows = [(entry.base_offset, entry.count, entry.size, entry.append_time) for entry in stored]
    front = encode_records(1, 0, 1 << 40, rows)
    return Frame(FrameKind.RECORDS, front[16:], b"".join(e.header + e.body for e in stored))


def pieces(frame: Frame, start: int, stop: int) -> list[Piece]:
    rows = decode_records(frame).rows
    return [Piece(entry, offset, offset + count, start, stop) for offset, count, entry in rows]


def as_records(found: Iterable[pa.RecordBatch]) -> list[Record]:
    """What Arrow sees, in which it finds no fault."""
    records = []
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        columns = {name: batch.column(name) for name in SCHEMA.names}
        for name in ("timestamp", "append_time"):
            # As numbers: a datetime ends with the year 9999.
            columns[name] = columns[name].cast(pa.int64())
        for row in zip(*(columns[name].to_pylist() for name in Record._fields), strict=True):
            record = Record._make(row)
            pairs = [(pair["key"], pair["value"]) for pair in row[4]]
            records.append(record._replace(headers=pairs))
    return records


@FUZZ
@given(
    st.lists(st.lists(batches(), min_size=1, max_size=3), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
def test_arrow_sees_the_records_that_python_sees(
    groups: list[list[tuple[bytes, int]]], stamped: bool, data: st.DataObject
) -> None:
    stored = chained(groups, [Stamp(0, 1, 1)] if stamped else [])
    end = stored[-1].base_offset + stored[-1].count
    first_end = stored[0].base_offset + stored[0].count
    start = data.draw(st.integers(5, first_end - 1))
    stop = data.draw(st.integers(max(start, stored[-1].base_offset) + 1, end))
    asked = pieces(answer(stored), start, stop)
    records = list(records_of(asked))
    assert [record.offset for record in records] == list(range(start, stop))
    assert as_records(record_batches_of(asked)) == records


def test_nothing_that_came_is_copied() -> None:
    """Frames and batches are multiples of 8, so that even offsets lie where Arrow wants them."""
    batch = encode_batch(
        [b"hello", b"", b"world"], keys=[b"k", None, b""], times=[3, 1, 2],
        headers=[[("trace", b"1")], [], [("x", b"")]],
    )  # fmt: skip
    frame = answer(chained([[(batch, 3)] * 2, [(batch, 3)] * 3], [Stamp(1, 1, 1)]))
    memory = pa.py_buffer(frame.bulk)
    found = list(record_batches_of(pieces(frame, 6, 19)))
    assert sum(batch.num_rows for batch in found) == 13
    for records in found:
        for name in ("key", "value", "timestamp", "headers"):
            for buffer in records.column(name).buffers():
                if buffer is not None:
                    above = buffer.address - memory.address
                    assert 0 <= above <= memory.size - buffer.size


def test_stored_batches_are_not_put_together() -> None:
    batch = encode_batch([b"a", b"b"])
    frame = answer(chained([[(batch, 2)] * 3, [(batch, 2)] * 2], []))
    found = list(record_batches_of(pieces(frame, 6, 14)))
    assert [records.num_rows for records in found] == [1, 2, 2, 2, 1]


@pytest.mark.parametrize("listed", [(b"no batch", 1), (encode_batch([b"a", b"b"]), 3)])
def test_a_batch_that_is_none_is_corrupt(listed: tuple[bytes, int]) -> None:
    """The checksum held, so a replica keeps it like this: no client can do anything about it."""
    stored = chained([[listed]], [])
    view = view_entry(memoryview(stored[0].header + stored[0].body), 0)
    piece = Piece(view, 5, 5 + listed[1], 5, 5 + listed[1])
    for decode in (records_of, record_batches_of):
        with pytest.raises(Corrupt, match="entry 1: "):
            list(decode([piece]))


# -- through a client ----------------------------------------------------------------------------


@on_loop
async def test_an_asynchronous_log_gives_record_batches() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 6, STORED[:1]), Found(0, 6, STORED[1:]))
        found = [batch async for batch in (await log_of(session)).read_arrow(1, 5)]
        assert [batch.column("value").to_pylist() for batch in found] == [
            [b"b", b"c"],
            [b"d"],
            [b"e"],
        ]
        assert [batch.column("offset").to_pylist() for batch in found] == [[1, 2], [3], [4]]


def test_a_log_gives_a_reader_of_record_batches() -> None:
    with in_a_thread(ScriptedNode()) as node:
        node.will(FindLog, lambda _: found(node, leader="n1"))
        node.will(Fetch, Found(0, 6, STORED[:1]), Found(0, 6, STORED[1:]))
        with Client(node.address) as client:
            reader = client.log("orders").read_arrow()
            assert isinstance(reader, pa.RecordBatchReader)
            assert reader.schema == SCHEMA
            table = reader.read_all()
    assert table.column("value").to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert table.column("append_time").cast(pa.int64()).to_pylist() == [2000] * 3 + [
        2001,
        2002,
        2002,
    ]


def test_an_empty_log_is_an_empty_table() -> None:
    with in_a_thread(ScriptedNode()) as node:
        node.will(FindLog, lambda _: found(node, leader="n1"))
        node.will(Fetch, Found(0, 0, []))
        with Client(node.address) as client:
            table = client.log("orders").read_arrow().read_all()
    assert (table.num_rows, table.schema) == (0, SCHEMA)


def test_an_error_comes_through_arrow_as_it_is() -> None:
    with in_a_thread(ScriptedNode()) as node:
        node.will(FindLog, lambda _: found(node, leader="n1"))
        node.will(Fetch, Found(0, 6, STORED[:1]), Trimmed("offset 3 is gone"))
        with Client(node.address) as client:
            reader = client.log("orders").read_arrow()
            assert reader.read_next_batch().num_rows == 3
            with pytest.raises(Trimmed, match="offset 3 is gone"):
                reader.read_next_batch()


# -- without pyarrow -----------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_package_and_its_client_do_without_pyarrow() -> None:
    code = "import sys, quorate; quorate.Client; print('pyarrow' in sys.modules)"
    assert python(code) == "False\n"


def test_without_pyarrow_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from quorate.client.asynchronous import AsyncLog
from quorate.client.blocking import Log
from quorate.client.routing import Route
for log in (Log(None, Route("orders", 7, ["n1"])), AsyncLog(None, Route("orders", 7, ["n1"]))):
    try:
        log.read_arrow()
    except ImportError as error:
        print(error)
"""
    lines = python(code).splitlines()
    assert len(lines) == 2
    assert all("pip install 'quorate[arrow]'" in line for line in lines)
