"""Finding the chunks of a publish by offset."""

from __future__ import annotations

import pytest

from quorate.entry import Entry, make_entry
from quorate.entry_body import Chunk, Publication, encode_publication, pack_chunks
from quorate.errors import InvalidArgument
from quorate.replica.publish_index import KEPT, PublishIndex, RecentPublishes
from quorate.types import ORIGIN, EntryKind, Index, Position, Term

# Records of each chunk.
RECORDS = (3, 1, 4)
BASE = 100


def publish(claimed: int = len(RECORDS)) -> PublishIndex:
    return PublishIndex(entry(claimed=claimed))


def entry(index: int = 1, claimed: int = len(RECORDS)) -> Entry:
    chunks = [Chunk(Index(10 + place), count, 64) for place, count in enumerate(RECORDS)]
    body = encode_publication(Publication("app", 0, bytes(32)), pack_chunks(chunks))
    before = Position(Index(index - 1), Term(1), 0) if index > 1 else ORIGIN
    return make_entry(
        before, Term(1), EntryKind.PUBLISH, body, base_offset=BASE, count=sum(RECORDS),
        append_time=7, stamps=claimed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "first"),
    [(0, 0), (99, 0), (100, 0), (102, 0), (103, 1), (104, 2), (107, 2)],
)
def test_chunks_from_an_offset_on(offset: int, first: int) -> None:
    found = [(start, chunk.index) for start, chunk in publish().from_offset(offset)]
    assert found == [(100, 10), (103, 11), (104, 12)][first:]


def test_behind_the_last_record_there_is_none() -> None:
    assert list(publish().from_offset(BASE + sum(RECORDS))) == []


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1000 chunks do not fit"):
        publish(claimed=1000)


def test_what_was_read_last_is_kept() -> None:
    recent = RecentPublishes()
    entries = [entry(index) for index in range(1, KEPT + 2)]
    found = [recent.of(one) for one in entries[:KEPT]]
    assert recent.of(entries[0]) is found[0]
    recent.of(entries[KEPT])  # in place of the second, which nobody asked for since
    assert recent.of(entries[0]) is found[0]
    assert recent.of(entries[1]) is not found[1]
