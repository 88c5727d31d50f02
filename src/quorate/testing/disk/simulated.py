"""A disk that remembers what was synced and forgets the rest, as real ones do.

It is a vfs in memory. Each file has what can be read, what is durable, and the changes in between;
so has the directory. A killed process leaves the changes readable; a power cut keeps each of them,
loses it or tears it; a failed sync leaves them readable for good and never durable.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from quorate.storage.layout import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.storage.vfs import Buffer

__all__ = [
    "FATE_BITS",
    "GRAIN",
    "KEPT",
    "LOST",
    "TORN",
    "UNLIMITED",
    "Fate",
    "Inode",
    "Resize",
    "SimulatedDisk",
    "SimulatedFile",
    "Watcher",
    "Write",
]

# Finer than any sector: nothing here relies on a sector being written whole.
GRAIN = 64
# Bytes of a disk that never fills up.
UNLIMITED = 1 << 40

# What a power cut makes of one change: bit n says whether grain n of it arrived, and again from
# the first bit after the last. A change that has no grains is kept if the first bit is set. That of
# a file made shorter is so, too; its other bits say which grains of the rest of the page were
# zeroed although the file stayed as long as it was: a kernel may write that page first.
Fate = int
KEPT: Fate = -1
LOST: Fate = 0
TORN: Fate = 0b0101_0101_0101_0101
FATE_BITS = 16
_ZEROS = bytes(PAGE)


class Write(NamedTuple):
    position: int
    data: bytes


class Resize(NamedTuple):
    size: int
    # An allocation only makes a file longer.
    shrink: bool


class Watcher(Protocol):
    """Somebody who wants to know what becomes durable."""

    def file_synced(self, name: str, changes: list[Write | Resize]) -> None: ...

    def directory_synced(self) -> None: ...

    def power_cut(self) -> None: ...


class Inode:
    """A file, whatever its name is."""

    __slots__ = ("_sound", "content", "durable", "older", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[Write | Resize] = []
        # What would be durable if nothing had rotted; None as long as nothing has.
        self._sound: bytearray | None = None
        # By where it begins: what a page held before it was last written over.
        self.older: dict[int, bytes] = {}

    @property
    def sound(self) -> bytearray:
        """What would be durable if nothing had rotted."""
        return self.durable if self._sound is None else self._sound

    def spoil(self) -> None:
        """From now on what is durable is not what was written: remember that."""
        if self._sound is None:
            self._sound = bytearray(self.durable)

    def change(self, change: Write | Resize) -> None:
        _apply(self.content, change)
        self.pending.append(change)

    def settle(self, change: Write | Resize) -> None:
        """``change`` is durable."""
        if isinstance(change, Write):
            self._remember(change)
        _apply(self.durable, change)
        if self._sound is not None:
            _apply(self._sound, change)

    def _remember(self, write: Write) -> None:
        start = write.position - write.position % PAGE
        for page in range(start, min(write.position + len(write.data), len(self.durable)), PAGE):
            before = bytes(self.durable[page : page + PAGE])
            place = page - write.position
            same = place >= 0 and write.data[place : place + PAGE] == before
            if before != _ZEROS and not same:
                self.older[page] = before

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
        """What lies beyond the end of the file takes room, and is not written without it."""
        data = bytes(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._disk.meet(f"write {self._name}")
        had = self.size()
        end = position + len(data)
        if end > had and end - had > (room := max(0, self._disk.space()[0])):
            if (given := had + room - position) > 0:
                self.inode.change(Write(position, data[:given]))
            raise _no_space()
        self.inode.change(Write(position, data))

    def truncate(self, size: int) -> None:
        self._disk.meet(f"truncate {self._name}")
        self.inode.change(Resize(size, shrink=True))

    def allocate(self, size: int) -> None:
        """Without room for all of it, what there is of it stays taken, as on real file systems."""
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
        # (old name, new name, file); None for what a creation has no old and a removal no new of.
        self._pending: list[tuple[str | None, str | None, Inode]] = []
        # Files that are gone and should not be.
        self._lost: dict[str, Inode] = {}
        # The next call fails: an error number, or 0. And how many have failed.
        self.error = 0
        self.errors_met = 0
        # Whether a write that a power cut tears within a page takes the rest of that page along:
        # asked with the name of the file and the place of the write.
        self.spoils_page: Callable[[str, int], bool] = _spoils_nothing
        # Counts the calls that change something.
        self.calls = 0
        self.watcher: Watcher | None = None

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

    # -- what its files tell it ----------------------------------------------------------------

    def meet(self, what: str) -> None:
        """Every call that changes something passes here, and may fail."""
        self.calls += 1
        if self.error:
            error, self.error = self.error, 0
            self.errors_met += 1
            self.fail()
            raise OSError(error, os.strerror(error), what)

    # -- what tests ask ------------------------------------------------------------------------

    @property
    def durable(self) -> dict[str, bytearray]:
        """What a power cut that loses everything would leave."""
        return {name: inode.durable for name, inode in self._durable_files.items()}

    @property
    def sound(self) -> dict[str, bytearray]:
        """What a power cut that loses everything would leave if nothing had rotted."""
        return {name: inode.sound for name, inode in {**self._lost, **self._durable_files}.items()}

    def is_durable(self, name: str) -> bool:
        """Whether a power cut that loses everything leaves a file, or would if none were lost."""
        return name in self._durable_files or name in self._lost

    def durable_bytes(self, name: str) -> bytearray | None:
        inode = self._durable_files.get(name)
        return inode.durable if inode is not None else None

    @property
    def unsynced(self) -> int:
        """How many changes the next power cut may take away."""
        return len(self._pending) + sum(len(inode.pending) for inode in self.files.values())

    def unsynced_in(self, names: Sequence[str]) -> int:
        """In how many of these files the next power cut may tear something."""
        return sum(bool(self.files[name].pending) for name in names if name in self.files)

    # -- what happens to it --------------------------------------------------------------------

    def fail(self) -> None:
        """A sync failed: what was written can still be read, and no later sync makes it durable.

        Linux marks the pages clean; only writing them again helps. Sizes are the journal's, not the
        pages': a later sync still takes them along.
        """
        for inode in self.files.values():
            inode.pending = [change for change in inode.pending if isinstance(change, Resize)]

    def power_cut(self, fate: Callable[[], Fate]) -> None:
        """Ask ``fate`` for every change that was not synced; what it spares is durable."""
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
        """Other bytes stand in a file, durably: what no call of ours did."""
        inode = self.files[name]
        inode.spoil()
        for content in (inode.content, inode.durable):
            _apply(content, Write(position, data))

    def shorten(self, name: str, size: int) -> None:
        """A file ends early."""
        inode = self.files[name]
        inode.spoil()
        for content in (inode.content, inode.durable):
            del content[size:]

    def lose(self, name: str) -> None:
        """A file is gone."""
        self._lost[name] = self.files.pop(name)
        self._durable_files.pop(name, None)

    def copy(self) -> SimulatedDisk:
        """The same disk once more, to be broken in another way."""
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
                known[id(inode)] = copy = Inode()
                copy.content, copy.durable = bytearray(inode.content), bytearray(inode.durable)
                copy.pending = list(inode.pending)
                if inode.sound is not inode.durable:
                    copy._sound = bytearray(inode.sound)
                copy.older = dict(inode.older)
        twin.files = {name: known[id(inode)] for name, inode in self.files.items()}
        twin._durable_files = {n: known[id(inode)] for n, inode in self._durable_files.items()}
        twin._lost = {name: known[id(inode)] for name, inode in self._lost.items()}
        twin._pending = [(old, new, known[id(inode)]) for old, new, inode in self._pending]
        return twin


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _pages(change: Write | Resize) -> list[Write | Resize]:
    """The pages of a write: a disk may take them one by one, in any order."""
    if not isinstance(change, Write):
        return [change]
    position, data = change
    first = PAGE - position % PAGE
    if len(data) <= first:
        return [change]
    bounds = [0, *range(first, len(data), PAGE), len(data)]
    return [Write(position + one, data[one:other]) for one, other in pairwise(bounds)]


def _apply(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Write):
        position, data = change
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
    elif change.size > len(content):
        content.extend(bytes(change.size - len(content)))
    elif change.shrink:
        del content[change.size :]


def _apply_part(content: bytearray, change: Write | Resize, fate: Fate) -> None:
    if fate == KEPT or (isinstance(change, Resize) and fate & 1):
        _apply(content, change)
    elif isinstance(change, Write):
        _apply_grains(content, change, [bool(fate >> bit & 1) for bit in range(FATE_BITS)])
    elif change.shrink:
        stop = min(-(-change.size // PAGE) * PAGE, len(content))
        zeros = Write(change.size, bytes(max(0, stop - change.size)))
        _apply_grains(content, zeros, [bool(fate >> bit & 1) for bit in range(1, FATE_BITS)])


def _spoils_nothing(name: str, position: int) -> bool:
    return False


def _start(change: Write | Resize) -> int:
    return change.position if isinstance(change, Write) else change.size


def _stop(change: Write | Resize) -> int:
    return change.position + len(change.data) if isinstance(change, Write) else change.size


def _is_torn_within_page(change: Write | Resize, fate: Fate, size: int) -> bool:
    """Whether a power cut left a part of ``change``, which shares its page with other bytes."""
    if fate in (KEPT, LOST) or (isinstance(change, Resize) and (not change.shrink or fate & 1)):
        return False
    return _start(change) % PAGE > 0 or (_stop(change) % PAGE > 0 and _stop(change) < size)


def _spoil_page(content: bytearray, change: Write | Resize, fate: Fate) -> None:
    """Leave anything in the page around a torn ``change``."""
    start, stop = _start(change), _stop(change)
    page = start - start % PAGE
    end = min(page + PAGE, len(content))
    random = Random(f"{fate} {start} {stop}")
    content[page:start] = random.randbytes(max(0, min(start, end) - page))
    if stop < end:
        content[stop:end] = random.randbytes(end - stop)


def _apply_grains(content: bytearray, write: Write, arrived: list[bool]) -> None:
    """Those grains of ``write`` that arrived; ``arrived`` begins again after its last."""
    position, data = write
    for grain, start in enumerate(range(0, len(data), GRAIN)):
        if arrived[grain % len(arrived)]:
            _apply(content, Write(position + start, data[start : start + GRAIN]))
