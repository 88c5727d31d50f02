"""Entries of many small appends are read in a way of their own, and give the same records."""

from __future__ import annotations

import pytest

from quorate.batch import encode_batch
from quorate.client.read.reading import Piece, records_of
from quorate.client.results import Record
from quorate.entry import make_entry
from quorate.entry_body import pack_batches, view_entry
from quorate.types import ORIGIN, EntryKind, Term

FIRST = 10
SINGLES = [encode_batch([bytes([number])], times=number or None) for number in range(6)]
KEYED = encode_batch([b"\2"], times=2, keys=[b"k"])


def piece(batches: list[bytes], start: int, stop: int) -> Piece:
    body = pack_batches([(batch, 1) for batch in batches])
    count = len(batches)
    entry = make_entry(
        ORIGIN, Term(1), EntryKind.DATA, body, base_offset=FIRST, count=count, runs=count
    )
    view = view_entry(memoryview(entry.header + entry.body), 77)
    return Piece(view, FIRST, FIRST + count, start, stop)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 99), (10, 16), (12, 14), (15, 16), (3, 11), (0, 1), (3, 9), (16, 20), (40, 50)],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_what_was_asked_for_and_nothing_else(start: int, stop: int, keyed: bool) -> None:
    batches = [*SINGLES[:2], KEYED if keyed else SINGLES[2], *SINGLES[3:]]
    offsets = range(max(start, FIRST), min(stop, FIRST + len(batches)))
    found = list(records_of([piece(batches, start, stop)]))
    assert found == [
        Record(
            offset,
            offset - FIRST or None,
            b"k" if keyed and offset == FIRST + 2 else None,
            bytes([offset - FIRST]),
            [],
            77,
        )
        for offset in offsets
    ]
    assert all(type(record) is Record for record in found)


def test_each_record_has_a_list_of_headers_of_its_own() -> None:
    one, other = records_of([piece(SINGLES[:2], 0, 99)])
    one.headers.append(("mine", b""))
    assert other.headers == []
