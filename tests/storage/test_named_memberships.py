"""The newest membership entry of a log is known even if the disk lost it: blocks name it."""

from __future__ import annotations

import pytest

from quorate.entry import Entry, make_entry
from quorate.membership import Membership, encode_membership
from quorate.storage.flusher import Flush
from quorate.storage.layout import DISTANCE_MAX, PAGE, Block, LogId, SegmentHeader, segment_name
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Position, Term
from verification.disk.inode import LOST
from verification.disk.store import Store

BODY = encode_membership(Membership((NodeId("n1"),)))


class Writer:
    """Writes entries one flush at a time, each to a page of its own."""

    def __init__(self, segment_bytes: int = 16 * PAGE) -> None:
        self.store = Store("n1", segment_bytes)
        self.store.open()
        self.positions: list[Position] = [ORIGIN]

    def write(self, kinds: str, cut: int | None = None) -> None:
        """Write entries: m is a membership, any other letter a noop; first drop those from ``cut``
        on."""
        if cut is not None:
            del self.positions[cut:]
        truncate_from = Index(cut) if cut is not None else None
        for letter in kinds:
            entry = self._entry(letter)
            committed = Index(entry.index - 2) if entry.index > 2 else Index(0)
            self.store.write(Flush(0, None, truncate_from, (entry,), committed))
            self.positions.append(entry.position)
            truncate_from = None

    def _entry(self, letter: str) -> Entry:
        kind, body = (EntryKind.MEMBERSHIP, BODY) if letter == "m" else (EntryKind.NOOP, b"")
        return make_entry(self.positions[-1], Term(1), kind, body)

    def lose(self, index: int) -> None:
        """Spoil the page with the block and the header of an entry."""
        log = self.store.log
        assert log is not None
        segment = log.segment(Index(index))
        start, _ = segment.rows.frame(Index(index))
        self.store.disk.spoil(segment_name(segment.number), start - start % PAGE, bytes(PAGE))

    def named(self) -> int:
        """The newest membership entry, as the next open finds it after a power cut."""
        self.store.disk.power_cut(lambda: LOST)
        return self.store.open().membership


@pytest.mark.parametrize(
    ("kinds", "named"), [("nn", 0), ("nmn", 2), ("nmnmnn", 4), ("m", 1), ("nnm", 3)]
)
def test_an_open_knows_the_newest_membership_entry(kinds: str, named: int) -> None:
    writer = Writer()
    writer.write(kinds)
    assert writer.named() == named


@pytest.mark.parametrize("kinds", ["nmnnn", "nmnnnnnn", "mnmnnmnnn"])
def test_an_open_knows_a_membership_entry_that_is_lost(kinds: str) -> None:
    writer = Writer()
    writer.write(kinds)
    newest = kinds.rindex("m") + 1
    writer.lose(newest)
    assert writer.named() == newest


def test_a_later_segment_knows_it_too() -> None:
    writer = Writer(segment_bytes=6 * PAGE)
    writer.write("nm" + "n" * 12)
    log = writer.store.log
    assert log is not None
    assert log.segment(Index(2)).number < log.segments[-1].number
    # A segment without any block must do, too.
    assert log.segments[-1].header.membership == 2
    writer.lose(2)
    assert writer.named() == 2


def test_a_membership_that_was_truncated_is_named_no_more() -> None:
    writer = Writer()
    writer.write("mnm")
    writer.write("nn", cut=3)
    assert writer.named() == 1
    # Also by the process that opened the log since.
    writer.write("mn")
    writer.write("nn", cut=5)
    assert writer.named() == 1


def test_a_block_and_a_segment_name_it_by_its_distance() -> None:
    before = Position(Index(1 << 40), Term(1), 7)
    for distance in (1, 2, DISTANCE_MAX, DISTANCE_MAX + 1):
        membership = Index(before.index + 1 - distance)
        block = Block(before, 9, PAGE, Index(0), 0, membership)
        header = SegmentHeader(1, 2, LogId(3, bytes(16)), before, 0, 0, 0, PAGE, membership)
        expected = membership if distance <= DISTANCE_MAX else 0
        found, first = Block.decode(block.encode(5), 5), SegmentHeader.decode(header.encode())
        assert found is not None
        assert first is not None
        assert (found.membership, first.membership) == (expected, expected)
