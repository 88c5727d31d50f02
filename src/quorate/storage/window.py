"""The window: reads of a long file piece by piece, with little of it in memory.

The file is not mapped into memory: a page that the disk cannot read would kill the process there,
and here it raises an OSError.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from quorate.storage.layout import PAGE
from quorate.storage.steps import UNREADABLE

if TYPE_CHECKING:
    from quorate.storage.vfs import File

__all__ = ["WINDOW_BYTES", "Readable", "Window", "is_zero"]

WINDOW_BYTES = 1 << 20
# Pages of a segment that the disk may refuse to give back before all of it counts as unreadable:
# each refusal may take seconds.
UNREADABLE_PAGES_MAX = 8


class Readable(Protocol):
    """Bytes that can be read slice by slice, like those of a memoryview."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> memoryview: ...


class Window:
    """The bytes of a file up to ``limit``, read ahead so that small parts cost few calls.

    A requested slice is in memory as a whole: a caller that reads much asks for it in parts.

    If the bytes are known to be ``durable``, a page that the disk does not give back reads as
    zeros: the caller takes zeros there for damage, as it does with a page that rotted, and never
    for unused room.
    """

    __slots__ = ("_data", "_file", "_forgiven", "_limit", "_start")

    def __init__(self, file: File, limit: int, *, durable: bool = False) -> None:
        self._file = file
        # Number of pages that the disk may still refuse.
        self._forgiven = UNREADABLE_PAGES_MAX if durable else 0
        self._limit = min(limit, file.size())
        # The bytes that were read last, and their place.
        self._data = memoryview(b"")
        self._start = 0

    def __len__(self) -> int:
        return self._limit

    def __getitem__(self, part: slice) -> memoryview:
        """The bytes of the slice ``part``; fewer only at the limit."""
        start, stop, _ = part.indices(self._limit)
        if start < self._start or stop > self._start + len(self._data):
            length = min(max(stop - start, WINDOW_BYTES), self._limit - start)
            self._data = memoryview(self._read(start, length))
            self._start = start
        return self._data[start - self._start : max(start, stop) - self._start]

    def _read(self, start: int, length: int) -> bytes:
        try:
            return self._file.read(start, length)
        except OSError as error:
            if error.errno not in UNREADABLE or not self._forgiven:
                raise
            if start // PAGE == (start + length - 1) // PAGE:
                self._forgiven -= 1
                return bytes(length)
        stop, edge = start + length, start - start % PAGE
        places = [start, *range(edge + PAGE, stop, PAGE), stop]
        return b"".join(self._read(one, two - one) for one, two in pairwise(places))


def is_zero(file: File, size: int) -> bool:
    """Whether ``file``, which has ``size`` bytes, is all zeros. A file that the disk does not give
    back is not."""
    chunk = bytes(WINDOW_BYTES)
    try:
        return all(
            file.read(start, len(chunk)) == chunk[: min(len(chunk), size - start)]
            for start in range(0, size, len(chunk))
        )
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return False
