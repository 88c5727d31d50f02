"""The content that a disk would hold after a power cut that loses every change that was not synced.

Follows each sync and looks at the frames that the sync made durable. It shares no code with
recovery: the simulator compares the result of recovery with this view. Rot does not count: an entry
that was durable stays so here until the node itself writes over it or cuts it off.
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
from quorate.types import ORIGIN, Index, Position, VoteRecord
from verification.disk.inode import FileWrite, Resize

if TYPE_CHECKING:
    from quorate.storage.layout import LogId
    from verification.disk.simulated import SimulatedDisk

__all__ = ["BLOCK_MAGIC", "LENGTH_AT", "DurableView", "FramePlace"]

BLOCK_MAGIC = b"QRFB"
LENGTH_AT = 8
# A place beyond the end of every file.
NO_CUT = 1 << 62


class FramePlace(NamedTuple):
    """The place of an entry's frame."""

    position: Position
    file: str
    start: int
    stop: int


class DurableView:
    """The durable log and vote of one disk."""

    def __init__(self, disk: SimulatedDisk, identity: LogId) -> None:
        self._disk = disk
        self._identity = identity
        # The place of each durable entry, at its index - 1.
        self.places: list[FramePlace] = []
        self._vote: VoteRecord | None = None
        disk.watcher = self

    @property
    def vote(self) -> VoteRecord | None:
        """The vote record that a node would find."""
        return self._vote

    @property
    def last(self) -> Index:
        return Index(len(self.places))

    def position(self, index: Index) -> Position | None:
        """The position of the durable entry at ``index``; None if there is none."""
        if index == 0:
            return ORIGIN
        return self.places[index - 1].position if index <= len(self.places) else None

    # -- reports of the disk -------------------------------------------------------------------

    def file_synced(self, name: str, changes: list[FileWrite | Resize]) -> None:
        if name in VOTE_COPIES:
            self._read_votes()
        elif name.endswith(".segment") and self._disk.is_durable(name):
            for change in changes:
                if isinstance(change, FileWrite):
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
        found = (data for data in copies if data is not None)
        self._vote = newest_vote(found, self._identity)
        if self._vote is None:
            return
        # Once a cut is decided, the blocks behind it count for nothing; nor does a segment that the
        # record does not name yet, or no longer.
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
                self._add(FramePlace(header.position, name, base + frame, base + stop))
            position = pages(stop)

    def _add(self, place: FramePlace) -> None:
        row = place.position.index - 1
        places = self.places
        if row < len(places) and places[row] == place:
            return  # the same frame once more
        del places[row:]
        if row == len(places):
            places.append(place)

    def _cut(self, name: str, size: int) -> None:
        for row, place in enumerate(self.places):
            if place.file == name and place.stop > size:
                del self.places[row:]
                return
