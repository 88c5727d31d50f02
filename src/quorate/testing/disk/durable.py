"""What a disk would still hold after a power cut that takes everything that was not synced.

Follows each sync and looks at the frames that it made durable. It shares no code with recovery: the
simulator holds what recovery finds against this. Rot does not count: what was durable stays so here
until the node itself writes over it or cuts it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.layout import (
    BLOCK_BYTES,
    PAGE,
    VOTE_COPIES,
    newest_vote,
    pages,
    segment_name,
)
from quorate.testing.disk.simulated import Resize, Write
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from quorate.testing.disk.simulated import SimulatedDisk

__all__ = ["BLOCK_MAGIC", "LENGTH_AT", "DurableView", "Place"]

BLOCK_MAGIC = b"QRFB"
LENGTH_AT = 8
# Further behind than anything in a file.
NO_CUT = 1 << 62


class Place(NamedTuple):
    """Where the frame of an entry lies."""

    position: Position
    file: str
    start: int
    stop: int


class DurableView:
    """The durable log and vote of one disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        # By index - 1.
        self.places: list[Place] = []
        self._vote: VoteRecord | None = None
        disk.watcher = self

    @property
    def vote(self) -> VoteRecord | None:
        """The record that a node would find."""
        return self._vote

    @property
    def last(self) -> Index:
        return Index(len(self.places))

    def position(self, index: Index) -> Position | None:
        """What is durable at ``index``; None if nothing is."""
        if index == 0:
            return ORIGIN
        return self.places[index - 1].position if index <= len(self.places) else None

    # -- what the disk tells -------------------------------------------------------------------

    def file_synced(self, name: str, changes: list[Write | Resize]) -> None:
        if name in VOTE_COPIES:
            self._read_votes()
        elif name.endswith(".segment") and self._disk.is_durable(name):
            for change in changes:
                if isinstance(change, Write):
                    self._take_blocks(name, change.data, change.position)
                elif change.shrink:
                    self._cut(name, change.size)

    def directory_synced(self) -> None:
        self._read_votes()
        for place in self.places:
            if not self._disk.is_durable(place.file):
                self._cut(place.file, 0)
                return

    def power_cut(self) -> None:
        self.places.clear()
        for name, data in sorted(self._disk.sound.items()):
            if name.endswith(".segment"):
                self._take_blocks(name, bytes(data), 0)
        self._read_votes()

    def _read_votes(self) -> None:
        copies = (self._disk.durable_bytes(name) for name in VOTE_COPIES)
        self._vote = newest_vote(data for data in copies if data is not None)
        if self._vote is None:
            return
        # Once a cut is decided, what stands behind it counts for nothing; nor does a segment that
        # the record does not name yet, or any more.
        end = (segment_name(self._vote.segment), self._vote.cutting or NO_CUT)
        while self.places and (self.places[-1].file, self.places[-1].stop) > end:
            self.places.pop()

    # -- frames --------------------------------------------------------------------------------

    def _take_blocks(self, name: str, data: bytes, base: int) -> None:
        """Note the frames of every block in ``data``, which stands at ``base`` of the file."""
        position = 0
        while position < len(data):
            if data[position : position + 4] != BLOCK_MAGIC:
                position += PAGE
                continue
            length = int.from_bytes(data[position + LENGTH_AT : position + LENGTH_AT + 4], "little")
            start = position + BLOCK_BYTES
            stop = start
            while stop < start + length:
                header = parse_header(data, stop)
                if header is None or len(data) < stop + HEADER_BYTES + header.length:
                    break
                frame, stop = stop, stop + HEADER_BYTES + header.length
                self._add(Place(header.position, name, base + frame, base + stop))
            position = pages(stop)

    def _add(self, place: Place) -> None:
        row = place.position.index - 1
        places = self.places
        if row < len(places) and places[row] == place:
            return  # the same once more
        del places[row:]
        if row == len(places):
            places.append(place)

    def _cut(self, name: str, size: int) -> None:
        for row, place in enumerate(self.places):
            if place.file == name and place.stop > size:
                del self.places[row:]
                return
