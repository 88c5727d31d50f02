"""A disk that remembers which changes were synced and forgets the others, as real disks do.

It is a vfs in memory. Each file has a readable content, a durable content, and the changes in
between; so has the directory. A killed process leaves the changes readable; a power cut keeps,
loses or tears each of them; a failed sync leaves them readable for good and never durable.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Protocol

from verification.disk.inode import FileWrite, Inode, Resize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.storage.vfs import Buffer
    from verification.disk.inode import Fate

__all__ = [
    "UNLIMITED",
    "DurabilityWatcher",
    "SimulatedDisk",
    "SimulatedFile",
]

# The size of a disk that never fills up, in bytes.
UNLIMITED = 1 << 40


class DurabilityWatcher(Protocol):
    """An observer of the changes that become durable."""

    def file_synced(self, name: str, changes: list[FileWrite | Resize]) -> None: ...

    def directory_synced(self) -> None: ...

    def power_cut(self) -> None: ...


class SimulatedFile:
    """An open file. It works on its file even when the name is gone, as POSIX has it."""

    def __init__(self, disk: SimulatedDisk, name: str, inode: Inode) -> None:
        self._disk = disk
        self._name = name
        self.inode = inode

    def size(self) -> int:
        return len(self.inode.content)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.inode.content[position : position + length])

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Data beyond the end of the file takes room, and is not written without it."""
        data = bytes(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._disk.meet(f"write {self._name}")
        had = self.size()
        end = position + len(data)
        if end > had and end - had > (room := max(0, self._disk.space()[0])):
            if (given := had + room - position) > 0:
                self.inode.change(FileWrite(position, data[:given]))
            raise _no_space()
        self.inode.change(FileWrite(position, data))

    def truncate(self, size: int) -> None:
        self._disk.meet(f"truncate {self._name}")
        self.inode.change(Resize(size, shrink=True))

    def allocate(self, size: int) -> None:
        """Without room for all of it, the room that is left stays taken, as on real file
        systems."""
        self._disk.meet(f"allocate {self._name}")
        had = self.size()
        given = min(size, had + max(0, self._disk.space()[0]))
        if given > had:
            self.inode.change(Resize(given, shrink=False))
        if given < size and had < size:
            raise _no_space()

    def sync(self) -> None:
        self._disk.meet(f"sync {self._name}")
        inode = self.inode
        changes, inode.pending = inode.pending, []
        for change in changes:
            inode.settle(change)
        if self._disk.watcher is not None:
            self._disk.watcher.file_synced(self._name, changes)

    def close(self) -> None:
        pass


class SimulatedDisk:
    """One directory on such a disk."""

    def __init__(self, capacity: int = UNLIMITED) -> None:
        self.capacity = capacity
        self.files: dict[str, Inode] = {}
        self._durable_files: dict[str, Inode] = {}
        # (old name, new name, file); old is None for a creation, new is None for a removal.
        self._pending: list[tuple[str | None, str | None, Inode]] = []
        # Files that were lost although they should be there.
        self._lost: dict[str, Inode] = {}
        # The error number with which the next call fails, or 0; and the number of calls that
        # failed.
        self.error = 0
        self.errors_met = 0
        # Whether a write that a power cut tears within a page spoils the rest of that page: called
        # with the name of the file and the place of the write.
        self.spoils_page: Callable[[str, int], bool] = _spoils_nothing
        # Counts the calls that change the disk.
        self.calls = 0
        self.watcher: DurabilityWatcher | None = None

    # -- the vfs -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self.files)

    def create(self, name: str) -> SimulatedFile:
        self.meet(f"create {name}")
        if name in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        inode = self.files[name] = Inode()
        self._pending.append((None, name, inode))
        return SimulatedFile(self, name, inode)

    def open(self, name: str) -> SimulatedFile:
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return SimulatedFile(self, name, self.files[name])

    def rename(self, old: str, new: str) -> None:
        self.meet(f"rename {old}")
        inode = self.files[new] = self.files.pop(old)
        self._pending.append((old, new, inode))

    def unlink(self, name: str) -> None:
        self.meet(f"unlink {name}")
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._pending.append((name, None, self.files.pop(name)))

    def sync_directory(self) -> None:
        self.meet("sync directory")
        self._durable_files = dict(self.files)
        self._pending.clear()
        if self.watcher is not None:
            self.watcher.directory_synced()

    def space(self) -> tuple[int, int]:
        used = sum(len(inode.content) for inode in self.files.values())
        return self.capacity - used, self.capacity

    # -- reports of its files ------------------------------------------------------------------

    def meet(self, what: str) -> None:
        """Count a call that changes the disk, or let it fail."""
        self.calls += 1
        if self.error:
            error, self.error = self.error, 0
            self.errors_met += 1
            self.fail()
            raise OSError(error, os.strerror(error), what)

    # -- questions of tests --------------------------------------------------------------------

    @property
    def durable(self) -> dict[str, bytearray]:
        """The files that a power cut would leave which loses every change that was not synced."""
        return {name: inode.durable for name, inode in self._durable_files.items()}

    @property
    def sound(self) -> dict[str, bytearray]:
        """The files that such a power cut would leave if no page had rotted."""
        return {name: inode.sound for name, inode in {**self._lost, **self._durable_files}.items()}

    def is_durable(self, name: str) -> bool:
        """Whether a power cut that loses every change leaves a file, or would if no file were
        lost."""
        return name in self._durable_files or name in self._lost

    def durable_bytes(self, name: str) -> bytearray | None:
        inode = self._durable_files.get(name)
        return inode.durable if inode is not None else None

    @property
    def unsynced(self) -> int:
        """The number of changes that the next power cut may take away."""
        return len(self._pending) + sum(len(inode.pending) for inode in self.files.values())

    def unsynced_in(self, names: Sequence[str]) -> int:
        """The number of these files in which the next power cut may tear a change."""
        return sum(bool(self.files[name].pending) for name in names if name in self.files)

    # -- faults --------------------------------------------------------------------------------

    def fail(self) -> None:
        """Let a sync fail: the changes can still be read, and no later sync makes them durable.

        Linux marks the pages clean; only writing them again helps. Sizes are the journal's, not the
        pages': a later sync still takes them along.
        """
        for inode in self.files.values():
            inode.pending = [change for change in inode.pending if isinstance(change, Resize)]

    def power_cut(self, fate: Callable[[], Fate]) -> None:
        """Ask ``fate`` for every change that was not synced; the changes that it spares are
        durable."""
        files = self._durable_files
        for old, new, inode in self._pending:
            if fate() & 1:
                if old is not None and files.get(old) is inode:
                    del files[old]
                if new is not None:
                    files[new] = inode
        self._pending.clear()
        for name, inode in files.items():
            inode.power_cut(fate, partial(self.spoils_page, name))
        self.files = dict(files)
        if self.watcher is not None:
            self.watcher.power_cut()

    def spoil(self, name: str, position: int, data: bytes) -> None:
        """Replace bytes of a file durably, without a call of the node."""
        self.files[name].replace(position, data)

    def shorten(self, name: str, size: int) -> None:
        """Cut off the end of a file."""
        self.files[name].shorten(size)

    def lose(self, name: str) -> None:
        """Remove a file."""
        self._lost[name] = self.files.pop(name)
        self._durable_files.pop(name, None)

    def copy(self) -> SimulatedDisk:
        """A copy of the disk, to be broken in another way."""
        twin = SimulatedDisk(self.capacity)
        twin.spoils_page = self.spoils_page
        known: dict[int, Inode] = {}
        for inode in (
            *self.files.values(),
            *self._durable_files.values(),
            *self._lost.values(),
            *(one[2] for one in self._pending),
        ):
            if id(inode) not in known:
                known[id(inode)] = inode.copy()
        twin.files = {name: known[id(inode)] for name, inode in self.files.items()}
        twin._durable_files = {n: known[id(inode)] for n, inode in self._durable_files.items()}
        twin._lost = {name: known[id(inode)] for name, inode in self._lost.items()}
        twin._pending = [(old, new, known[id(inode)]) for old, new, inode in self._pending]
        return twin


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _spoils_nothing(name: str, position: int) -> bool:
    return False
