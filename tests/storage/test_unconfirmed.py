"""The scan of a segment knows at each moment which of its entries nothing confirms, also after it
dropped some of them for a newer block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.layout import PAGE, Block, block_seed
from quorate.storage.segment_scan import scan
from quorate.types import ORIGIN, Index
from verification.disk.small import grow

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.types import Position

NONCE = 7
# The log of an earlier leader, and the one that took the place of its end.
OLD = grow(ORIGIN, *[30] * 6)
NEW = (*OLD[:2], *grow(OLD[1].position, *[30] * 4, term=2))


class Segment:
    """The bytes of a segment, block by block, each on a page of its own."""

    def __init__(self) -> None:
        self.data = bytearray(PAGE)

    def block(
        self, number: int, before: Position, *entries: Entry, committed: int = 0, gone: int = 0
    ) -> None:
        """Add a block. The last ``gone`` of its entries were truncated."""
        frames = [entry.header + entry.body for entry in entries]
        length, position = sum(map(len, frames)), len(self.data)
        head = Block(before, number, position, Index(committed), length)
        kept = frames[: len(frames) - gone]
        page = head.encode(block_seed(NONCE, position)) + b"".join(kept)
        self.data += page.ljust(PAGE, b"\0")

    def nothing(self) -> None:
        """Add a page that the disk lost."""
        self.data += bytes(PAGE)

    @property
    def holes(self) -> set[Index]:
        """The entries that an open takes for lost."""
        return scan(memoryview(self.data), NONCE, ORIGIN, None).rows.holes


def test_a_dropped_loss_leaves_the_entries_before_it_unconfirmed() -> None:
    """The second block is an old one. The entries that it names as lost are dropped for those that
    the third one names: nothing confirms those in front of either."""
    segment = Segment()
    segment.block(1, ORIGIN, *OLD[:5], gone=3)
    segment.block(2, OLD[4].position, OLD[5])
    segment.block(4, NEW[3].position, NEW[4])
    assert segment.holes == {1, 2, 3, 4}


def test_entries_in_the_place_of_dropped_ones_are_confirmed_by_nothing_yet() -> None:
    """The second block is an old one, and stands in the place of an empty block. The third goes on
    where the log was cut, and a loss follows it."""
    segment = Segment()
    segment.block(1, ORIGIN, *OLD[:5], gone=3, committed=2)
    segment.block(2, OLD[4].position, OLD[5])
    segment.block(4, NEW[1].position, *NEW[2:4])
    segment.nothing()
    segment.block(6, NEW[4].position, NEW[5])
    assert segment.holes == {3, 4, 5}
