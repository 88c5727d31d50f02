"""A file of the simulated disk: its readable content, its durable content, the changes in between.

A disk takes the pages of a write one by one, in any order, and may take a part of a page: the fate
of a change says which of its grains a power cut leaves.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.layout import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FATE_BITS",
    "GRAIN",
    "KEPT",
    "LOST",
    "TORN",
    "Fate",
    "FileWrite",
    "Inode",
    "Resize",
]

# Finer than any sector: no code here relies on a sector being written whole.
GRAIN = 64

# The fate of one change in a power cut: bit n says whether grain n of it arrived, and again from
# the first bit after the last. A change that has no grains is kept if the first bit is set. That of
# a file made shorter is so, too; its other bits say which grains of the rest of the page were
# zeroed although the file stayed as long as it was: a kernel may write that page first.
Fate = int
KEPT: Fate = -1
LOST: Fate = 0
TORN: Fate = 0b0101_0101_0101_0101
FATE_BITS = 16
_ZEROS = bytes(PAGE)


class FileWrite(NamedTuple):
    position: int
    data: bytes


class Resize(NamedTuple):
    size: int
    # An allocation only makes a file longer.
    shrink: bool


class Inode:
    """A file without its name."""

    __slots__ = ("_sound", "content", "durable", "older", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[FileWrite | Resize] = []
        # The durable content if no page had rotted; None as long as none has.
        self._sound: bytearray | None = None
        # The earlier contents of a page, by its place: each as it was before the page was written
        # over.
        self.older: dict[int, bytes] = {}

    @property
    def sound(self) -> bytearray:
        """The durable content if no page had rotted."""
        return self.durable if self._sound is None else self._sound

    def spoil(self) -> None:
        """Remember the durable content before it differs from the content that was written."""
        if self._sound is None:
            self._sound = bytearray(self.durable)

    def change(self, change: FileWrite | Resize) -> None:
        _apply(self.content, change)
        self.pending.append(change)

    def settle(self, change: FileWrite | Resize) -> None:
        """Make ``change`` durable."""
        if isinstance(change, FileWrite):
            self._remember(change)
        _apply(self.durable, change)
        if self._sound is not None:
            _apply(self._sound, change)

    def _remember(self, write: FileWrite) -> None:
        start = write.position - write.position % PAGE
        for page in range(start, min(write.position + len(write.data), len(self.durable)), PAGE):
            before = bytes(self.durable[page : page + PAGE])
            place = page - write.position
            same = place >= 0 and write.data[place : place + PAGE] == before
            if before != _ZEROS and not same:
                self.older[page] = before

    def replace(self, position: int, data: bytes) -> None:
        """Replace bytes durably, without a call of the node."""
        self.spoil()
        for content in (self.content, self.durable):
            _apply(content, FileWrite(position, data))

    def shorten(self, size: int) -> None:
        """Cut off the end durably, without a call of the node."""
        self.spoil()
        for content in (self.content, self.durable):
            del content[size:]

    def copy(self) -> Inode:
        twin = Inode()
        twin.content, twin.durable = bytearray(self.content), bytearray(self.durable)
        twin.pending = list(self.pending)
        if self._sound is not None:
            twin._sound = bytearray(self._sound)
        twin.older = dict(self.older)
        return twin

    def power_cut(self, fate: Callable[[], Fate], spoils: Callable[[int], bool]) -> None:
        for change in self.pending:
            for piece in _pages(change):
                met = fate()
                for content in (self.durable, self._sound):
                    if content is not None:
                        _apply_part(content, piece, met)
                if _is_torn_within_page(piece, met, len(self.durable)) and spoils(_start(piece)):
                    self.spoil()
                    _spoil_page(self.durable, piece, met)
        self.pending.clear()
        self.content = bytearray(self.durable)


def _pages(change: FileWrite | Resize) -> list[FileWrite | Resize]:
    """The pages of a write: a disk may take them one by one, in any order."""
    if not isinstance(change, FileWrite):
        return [change]
    position, data = change
    first = PAGE - position % PAGE
    if len(data) <= first:
        return [change]
    bounds = [0, *range(first, len(data), PAGE), len(data)]
    return [FileWrite(position + one, data[one:other]) for one, other in pairwise(bounds)]


def _apply(content: bytearray, change: FileWrite | Resize) -> None:
    if isinstance(change, FileWrite):
        position, data = change
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
    elif change.size > len(content):
        content.extend(bytes(change.size - len(content)))
    elif change.shrink:
        del content[change.size :]


def _apply_part(content: bytearray, change: FileWrite | Resize, fate: Fate) -> None:
    if fate == KEPT or (isinstance(change, Resize) and fate & 1):
        _apply(content, change)
    elif isinstance(change, FileWrite):
        _apply_grains(content, change, [bool(fate >> bit & 1) for bit in range(FATE_BITS)])
    elif change.shrink:
        stop = min(-(-change.size // PAGE) * PAGE, len(content))
        zeros = FileWrite(change.size, bytes(max(0, stop - change.size)))
        _apply_grains(content, zeros, [bool(fate >> bit & 1) for bit in range(1, FATE_BITS)])


def _start(change: FileWrite | Resize) -> int:
    return change.position if isinstance(change, FileWrite) else change.size


def _stop(change: FileWrite | Resize) -> int:
    return change.position + len(change.data) if isinstance(change, FileWrite) else change.size


def _is_torn_within_page(change: FileWrite | Resize, fate: Fate, size: int) -> bool:
    """Whether a power cut left a part of ``change``, which shares its page with other bytes."""
    if fate in (KEPT, LOST) or (isinstance(change, Resize) and (not change.shrink or fate & 1)):
        return False
    return _start(change) % PAGE > 0 or (_stop(change) % PAGE > 0 and _stop(change) < size)


def _spoil_page(content: bytearray, change: FileWrite | Resize, fate: Fate) -> None:
    """Fill the page around a torn ``change`` with random bytes."""
    start, stop = _start(change), _stop(change)
    page = start - start % PAGE
    end = min(page + PAGE, len(content))
    random = Random(f"{fate} {start} {stop}")
    content[page:start] = random.randbytes(max(0, min(start, end) - page))
    if stop < end:
        content[stop:end] = random.randbytes(end - stop)


def _apply_grains(content: bytearray, write: FileWrite, arrived: list[bool]) -> None:
    """Apply those grains of ``write`` that arrived; ``arrived`` begins again after its last."""
    position, data = write
    for grain, start in enumerate(range(0, len(data), GRAIN)):
        if arrived[grain % len(arrived)]:
            _apply(content, FileWrite(position + start, data[start : start + GRAIN]))
