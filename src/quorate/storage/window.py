"""A long file read piece by piece: however long it is, little of it is in memory.

Not mapped into memory: a page that the disk cannot read would kill the process there, and here it
is an error like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quorate.storage.steps import UNREADABLE

if TYPE_CHECKING:
    from quorate.storage.vfs import File

__all__ = ["WINDOW_BYTES", "Readable", "Window", "is_zero"]

WINDOW_BYTES = 1 << 20


class Readable(Protocol):
    """Bytes that can be looked at part by part, as those of a memoryview."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> memoryview: ...


class Window:
    """The bytes of a file up to ``limit``, read ahead so that small parts cost few calls.

    A part that is asked for is all in memory: whoever reads much asks for it in parts.
    """

    __slots__ = ("_data", "_file", "_limit", "_start")

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self._limit = min(limit, file.size())
        # What was read last, and where it stands.
        self._data = memoryview(b"")
        self._start = 0

    def __len__(self) -> int:
        return self._limit

    def __getitem__(self, part: slice) -> memoryview:
        """Fewer bytes only at the limit."""
        start, stop, _ = part.indices(self._limit)
        if start < self._start or stop > self._start + len(self._data):
            length = min(max(stop - start, WINDOW_BYTES), self._limit - start)
            self._data = memoryview(self._file.read(start, length))
            self._start = start
        return self._data[start - self._start : max(start, stop) - self._start]


def is_zero(file: File, size: int) -> bool:
    """Whether ``file``, which has ``size`` bytes, is all zeros. What the disk does not give back is
    none."""
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
