"""What a disk would still hold after a power cut that takes everything that was not synced.

Follows each sync and looks at the frames that it made durable. It shares no code with recovery: the
simulator holds what recovery finds against this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.layout import (
    BLOCK_BYTES,
    PAGE,
    VOTE_COPIES,
    decode_vote,
    pages,
    segment_name,
)
from quorate.testing.disk.simulated import Resize, Write
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from quorate.testing.disk.simulated import SimulatedDisk

__all__ = ["DurableView"]

BLOCK_MAGIC = b"QRFB"
LENGTH_AT = 8


class _Place(NamedTuple):
    position: Position
    file: str
    stop: int


class DurableView:
    """The durable log and vote of one disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        # By index - 1.
        self._places: list[_Place] = []
        self._vote: VoteRecord | None = None
        disk.watcher = self

    @property
    def vote(self) -> VoteRecord | None:
        """The record that a node would find."""
        return self._vote

    @property
    def last(self) -> Index:
        return Index(len(self._places))

    def position(self, index: Index) -> Position | None:
        """What is durable at ``index``; None if nothing is."""
        if index == 0:
            return ORIGIN
        return self._places[index - 1].position if index <= len(self._places) else None

    # -- what the disk tells -------------------------------------------------------------------

    def file_synced(self, name: str, changes: list[Write | Resize]) -> None:
        if name in VOTE_COPIES:
            self._read_votes()
        elif name.endswith(".segment") and self._disk.durable_bytes(name) is not None:
            for change in changes:
                if isinstance(change, Write):
                    self._take_blocks(name, change.data, change.position)
                elif change.shrink:
                    self._cut(name, change.size)

    def directory_synced(self) -> None:
        self._read_votes()
        for place in self._places:
            if self._disk.durable_bytes(place.file) is None:
                self._cut(place.file, 0)
                return

    def power_cut(self) -> None:
        self._places.clear()
        for name, data in sorted(self._disk.durable.items()):
            if name.endswith(".segment"):
                self._take_blocks(name, bytes(data), 0)
        self._read_votes()

    def _read_votes(self) -> None:
        copies = (self._disk.durable_bytes(name) for name in VOTE_COPIES)
        records = [decode_vote(data) for data in copies if data is not None]
        whole = [record for record in records if record is not None]
        self._vote = max(whole, key=lambda record: record.number, default=None)
        if self._vote is not None and self._vote.cutting:
            # Once it is decided, what stands behind the cut counts for nothing.
            end = (segment_name(self._vote.segment), self._vote.cutting)
            self._places = [place for place in self._places if (place.file, place.stop) <= end]

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
                stop += HEADER_BYTES + header.length
                self._add(_Place(header.position, name, base + stop))
            position = pages(stop)

    def _add(self, place: _Place) -> None:
        row = place.position.index - 1
        places = self._places
        if row < len(places) and places[row].position == place.position:
            return  # the same once more
        del places[row:]
        if row == len(places):
            places.append(place)

    def _cut(self, name: str, size: int) -> None:
        for row, place in enumerate(self._places):
            if place.file == name and place.stop > size:
                del self._places[row:]
                return
