"""The window: reads of a long file piece by piece, with little of it in memory.

The file is not mapped into memory: a page that the disk cannot read would kill the process there,
and here it raises an OSError.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from quorate.storage.disk_errors import UNREADABLE
from quorate.storage.layout import PAGE

if TYPE_CHECKING:
    from quorate.storage.vfs import File

__all__ = ["WINDOW_BYTES", "BufferedFile", "Readable", "is_zero", "skip_zeros"]

WINDOW_BYTES = 1 << 20
# Pages of a segment that the disk may refuse to give back before all of it counts as unreadable:
# each refusal may take seconds.
UNREADABLE_PAGES_MAX = 8
_ZEROS = bytes(WINDOW_BYTES)


class Readable(Protocol):
    """Bytes that can be read slice by slice, like those of a memoryview."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> memoryview: ...


class BufferedFile:
    """The bytes of a file up to ``limit``, read ahead so that small parts cost few calls.

    A requested slice is in memory as a whole: a caller that reads much asks for it in parts.

    If the bytes are known to be ``durable``, a page that the disk does not give back reads as
    zeros: the caller takes zeros there for damage, as it does with a page that rotted. A caller for
    which zeros may be unused room looks at ``refused``.
    """

    __slots__ = ("_data", "_file", "_forgiven", "_limit", "_start", "refused")

    def __init__(self, file: File, limit: int, *, durable: bool = False) -> None:
        self._file = file
        # The places of the pages that the disk did not give back.
        self.refused: set[int] = set()
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

    def refuses(self, start: int, stop: int) -> bool:
        """Whether the disk did not give back a page of bytes start..stop-1."""
        return any(start < page + PAGE and page < stop for page in self.refused)

    def _read(self, start: int, length: int) -> bytes:
        single = start // PAGE == (start + length - 1) // PAGE
        if single and start - start % PAGE in self.refused:
            return bytes(length)  # a page is refused once, however often it is read
        try:
            return self._file.read(start, length)
        except OSError as error:
            if error.errno not in UNREADABLE or not self._forgiven:
                raise
            if single:
                self._forgiven -= 1
                self.refused.add(start - start % PAGE)
                return bytes(length)
        stop, edge = start + length, start - start % PAGE
        places = [start, *range(edge + PAGE, stop, PAGE), stop]
        return b"".join(self._read(one, two - one) for one, two in pairwise(places))


def skip_zeros(data: Readable, position: int) -> int:
    """The first page from ``position`` on that is not all zeros, or the end of ``data``."""
    if not _is_blank(data, position, PAGE):
        return position
    for step in (WINDOW_BYTES, PAGE):
        while position < len(data) and _is_blank(data, position, step):
            position += step
    return position


def _is_blank(data: Readable, start: int, length: int) -> bool:
    chunk = bytes(data[start : start + length])  # comparing a view itself goes byte by byte
    return chunk == _ZEROS[: len(chunk)]


def is_zero(file: File, start: int, stop: int) -> bool:
    """Whether bytes start..stop-1 of ``file`` are all zeros. Bytes that the disk does not give back
    are not."""
    try:
        return all(
            file.read(place, min(WINDOW_BYTES, stop - place))
            == bytes(min(WINDOW_BYTES, stop - place))
            for place in range(start, stop, WINDOW_BYTES)
        )
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return False
