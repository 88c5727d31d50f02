"""The virtual file system (vfs): the only interface between a log and the operating system's files.

A vfs is one directory. A log reads and writes its files by these few calls only, so the same code
runs over a real file system, over one in memory and over one that fails. A call does all of its
work or raises ``OSError``: no short write is ever reported back.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Buffer", "File", "RealFile", "RealVfs", "ReopenedFile", "Vfs"]

Buffer = bytes | bytearray | memoryview

# The highest number of buffers that the kernel takes in one call.
IOV_MAX = 1024
MODE_FILE = 0o600
MODE_DIRECTORY = 0o700


class File(Protocol):
    """An open file. Positions are absolute: there is no cursor to share."""

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """The bytes from ``position`` on; fewer than ``length`` only at the end of the file."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> None: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve disk space for all writes below ``size``; unwritten bytes read as zeros."""

    def sync(self) -> None:
        """Make all written bytes durable, and the size of the file with them."""

    def close(self) -> None: ...


class Vfs(Protocol):
    """One directory, without folders in it."""

    def names(self) -> list[str]: ...

    def create(self, name: str) -> File:
        """Make a new file, readable and writable. No file of that name may exist."""

    def open(self, name: str) -> File: ...

    def rename(self, old: str, new: str) -> None:
        """Give ``old`` the name ``new``, in place of a file that had it."""

    def unlink(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make every creation, renaming and removal so far durable."""

    def space(self) -> tuple[int, int]:
        """The bytes of the file system that are free for this process, and all of its bytes."""


class RealFile:
    """A file descriptor. It is closed at the latest with the last reference to the object: a reader
    in another thread may still use it when its owner drops it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        while data and (missing := length - sum(map(len, parts))):
            data = os.pread(self._fd, missing, position + length - missing)
            parts.append(data)
        return b"".join(parts)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), IOV_MAX):
            chunk = buffers[start : start + IOV_MAX]
            size = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position)
            if written < size:
                self._finish(position + written, memoryview(b"".join(chunk))[written:])
            position += size

    def _finish(self, position: int, rest: memoryview) -> None:
        """Write the rest after a short write, which a signal or a full disk causes."""
        while rest:
            written = os.pwrite(self._fd, rest, position)
            position += written
            rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class ReopenedFile:
    """A file for occasional reads, open only during each of them.

    A log may have more sealed segments than a process may have open files.
    """

    __slots__ = ("_name", "_vfs")

    def __init__(self, vfs: Vfs, name: str) -> None:
        self._vfs = vfs
        self._name = name

    def size(self) -> int:
        file = self._vfs.open(self._name)
        try:
            return file.size()
        finally:
            file.close()

    def read(self, position: int, length: int) -> bytes:
        file = self._vfs.open(self._name)
        try:
            return file.read(position, length)
        finally:
            file.close()

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise OSError(errno.EROFS, "a sealed segment never changes", self._name)

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, "a sealed segment never changes", self._name)

    def allocate(self, size: int) -> None:
        raise OSError(errno.EROFS, "a sealed segment never changes", self._name)

    def sync(self) -> None:
        raise OSError(errno.EROFS, "a sealed segment never changes", self._name)

    def close(self) -> None:
        """Do no work: the file is not open between reads."""


class RealVfs:
    """A directory of the real file system. No symbolic link is followed, not even to the
    directory."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._read_only = read_only
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags)

    def names(self) -> list[str]:
        # A descriptor of its own: users of one descriptor share its place in the listing.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        listed = os.open(".", flags, dir_fd=self._fd)
        try:
            return sorted(os.listdir(listed))  # noqa: PTH208  # by its descriptor, not by a path
        finally:
            os.close(listed)

    def create(self, name: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return RealFile(os.open(name, flags, MODE_FILE, dir_fd=self._fd))

    def open(self, name: str) -> RealFile:
        access = os.O_RDONLY if self._read_only else os.O_RDWR
        flags = access | os.O_NOFOLLOW | os.O_CLOEXEC
        return RealFile(os.open(name, flags, dir_fd=self._fd))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def sync_directory(self) -> None:
        os.fsync(self._fd)

    def space(self) -> tuple[int, int]:
        stat = os.fstatvfs(self._fd)
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

    def close(self) -> None:
        os.close(self._fd)
