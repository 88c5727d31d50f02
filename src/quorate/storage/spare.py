"""The spare segment of a log: a file of zeros with allocated space, which the next segment takes.

It is allocated ahead, so that no append is accepted for which the disk has no room later.
"""

from __future__ import annotations

import errno
from contextlib import closing
from typing import TYPE_CHECKING

from quorate.storage.buffered import is_zero
from quorate.storage.disk_errors import NO_SPACE, PASSING, patiently
from quorate.storage.layout import PAGE, SPARE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.storage.vfs import File, Vfs

    Plan = Iterator[str]

__all__ = ["SpareSegment", "erase"]

# Bytes of zeros that one step writes.
ERASED_BYTES = 1 << 20


class SpareSegment:
    """Allocates the spare segment of one log, and knows its size."""

    def __init__(self, vfs: Vfs, usage_max: int) -> None:
        self._vfs = vfs
        # Percent of the file system in use above which no space is allocated.
        self._usage_max = usage_max
        # The size of the file; 0 if there is none.
        self.bytes = 0
        # Why the last allocation failed; empty once one succeeded.
        self.shortage = ""

    def adopt(self) -> Plan:
        """Keep the spare segment of an earlier process, whatever its size: another one might not
        fit on the disk."""
        if SPARE not in self._vfs.names():
            return
        with closing(self._vfs.open(SPARE)) as file:
            size = yield from _cut_to_pages(file, SPARE)
            usable = size > 0 and is_zero(file, 0, size)
            if usable:
                usable = yield from self._occupy(file, size)
        if usable:
            self.bytes = size
        else:
            self._vfs.unlink(SPARE)
            yield "unlink spare"
        self._vfs.sync_directory()
        yield "sync directory for spare"

    def _occupy(self, file: File, size: int) -> Generator[str, None, bool]:
        """Give the pages of a file of zeros their room, which those of a copied file may lack.
        Return whether the disk has that room."""
        try:
            file.allocate(size)
            yield "allocate spare"
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # Some file systems ask for room for pages that have room already. A write does not.
            return (yield from _erased(file, SPARE, size))
        file.sync()
        yield "sync spare"
        return True

    def recycle(self, name: str) -> Plan:
        """Make a segment that is no part of the log the spare segment if it has more room than the
        spare segment. Remove it otherwise."""
        with closing(self._vfs.open(name)) as file:
            size = yield from _cut_to_pages(file, name)
            usable = size > self.bytes
            if usable:
                usable = yield from _erased(file, name, size)
        if usable:
            self._vfs.rename(name, SPARE)
            yield f"rename {name} to spare"
            self.bytes = size
        else:
            self._vfs.unlink(name)
            yield f"unlink {name}"
        self._vfs.sync_directory()
        yield f"sync directory without {name}"

    def allocate_ahead(self, size: int) -> Plan:
        """Allocate ``size`` bytes if the disk has room. If it has none, note the shortage and keep
        the spare segment as it was."""
        try:
            yield from self.allocate(size)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.shortage = error.strerror or "no space is left"
            if error.errno in NO_SPACE:  # else the spare segment was not even opened
                yield from patiently(self._restore)

    def allocate(self, size: int) -> Generator[str, None, None]:
        """Allocate ``size`` bytes. Raises OSError if the disk would be too full."""
        free, total = self._vfs.space()
        if (total - free + size - self.bytes) * 100 > total * self._usage_max:
            used = (total - free) * 100 // max(1, total)
            raise OSError(
                errno.ENOSPC,
                f"{used} % of the disk are in use, storage.disk_usage_max = {self._usage_max}",
                SPARE,
            )
        vfs = self._vfs
        # An allocation that failed may have left a spare segment that could not be removed yet.
        there = SPARE in vfs.names()
        with closing(vfs.open(SPARE) if there else vfs.create(SPARE)) as file:
            if file.size() > size:
                file.truncate(size)
                yield "shorten spare"
            file.allocate(size)
            yield "allocate spare"
            file.sync()
            yield "sync spare"
        self.bytes = size
        self.shortage = ""

    def _restore(self) -> Generator[str, None, None]:
        """Restore the old spare segment, or none, after an allocation that failed."""
        if self.bytes:
            with closing(self._vfs.open(SPARE)) as file:
                file.truncate(self.bytes)
                yield "shorten spare"
                file.sync()
                yield "sync spare"
        elif SPARE in self._vfs.names():
            self._vfs.unlink(SPARE)
            yield "unlink spare"


def erase(file: File, name: str, start: int, stop: int) -> Plan:
    """Overwrite bytes start..stop-1 with zeros, durably before the room is used."""
    for place in range(start, stop, ERASED_BYTES):
        file.write(place, [bytes(min(ERASED_BYTES, stop - place))])
        yield f"erase {name} from {place}"
    file.sync()
    yield f"sync {name}"


def _erased(file: File, name: str, size: int) -> Generator[str, None, bool]:
    """Make the file ``size`` bytes of zeros. Return whether the disk has room for all of them: the
    pages of a copied file may have none."""
    try:
        yield from erase(file, name, 0, size)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return False
    return True


def _cut_to_pages(file: File, name: str) -> Generator[str, None, int]:
    """Cut off a part of a page at the end of ``file``: no block uses one, and a process may have
    been killed while the file grew. Return the size."""
    had = file.size()
    size = had // PAGE * PAGE
    if had > size:
        file.truncate(size)
        yield f"shorten {name}"
    return size
