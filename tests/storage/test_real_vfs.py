"""The real file system: all of a write or an error, nothing through a symbolic link."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from directory_rig import Writer, log_path, run
from quorate.storage.flusher import Flush
from quorate.storage.vfs import IOV_MAX, RealVfs
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from quorate.storage.vfs import Buffer, RealFile

    PWritev = Callable[[int, Sequence[Buffer], int], int]


@pytest.fixture
def vfs(tmp_path: Path) -> Iterator[RealVfs]:
    vfs = RealVfs(tmp_path)
    yield vfs
    vfs.close()


@pytest.fixture
def file(vfs: RealVfs) -> Iterator[RealFile]:
    file = vfs.create("file")
    yield file
    file.close()


def content(file: RealFile) -> bytes:
    return file.read(0, file.size())


# -- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 7, 8, 14])
def test_a_short_write_is_finished(
    file: RealFile, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The kernel may write less than it is given, at any place within any buffer."""
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, at: os.pwrite(fd, b"".join(buffers)[:limit], at)
    )
    file.write(2, [b"abcdefg", b"", bytearray(b"hijkl"), memoryview(b"mn")])
    assert content(file) == b"\0\0abcdefghijklmn"


def test_a_short_write_is_finished_however_often_it_is_short_again(
    file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data[:1]), at))
    file.write(0, [b"one ", b"byte ", b"at a time"])
    assert content(file) == b"one byte at a time"


def test_an_error_after_a_short_write_is_not_swallowed(
    file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", lambda *_: 4)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space") as caught:
        file.write(0, [b"more than 4"])
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("count", [IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, 2 * IOV_MAX + 3])
def test_more_buffers_than_one_call_takes_are_written_in_several(
    file: RealFile, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    calls = []
    real: PWritev = os.pwritev

    def counted(fd: int, buffers: Sequence[Buffer], at: int) -> int:
        calls.append(len(buffers))
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "pwritev", counted)
    buffers = [number.to_bytes(3, "little") for number in range(count)]
    file.write(5, buffers)
    assert content(file) == bytes(5) + b"".join(buffers)
    assert max(calls) <= IOV_MAX
    assert sum(calls) == count


def test_a_short_write_in_the_middle_of_many_buffers_moves_nothing(
    file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows the short part begins where it would have begun."""
    shorts = iter([100, 1 << 30])
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, at: os.pwrite(fd, b"".join(buffers)[: next(shorts)], at)
    )
    buffers = [number.to_bytes(2, "little") for number in range(IOV_MAX + 10)]
    file.write(0, buffers)
    assert content(file) == b"".join(buffers)


def test_writing_nothing_changes_nothing(file: RealFile) -> None:
    file.write(9, [])
    assert file.size() == 0


# -- reading, sizes ----------------------------------------------------------------------------


def test_reading_gives_fewer_bytes_only_at_the_end(file: RealFile) -> None:
    file.write(0, [b"0123456789"])
    assert file.read(0, 10) == b"0123456789"
    assert file.read(4, 3) == b"456"
    assert file.read(7, 100) == b"789"
    assert file.read(10, 1) == b""
    assert file.read(1000, 1) == b""
    assert file.read(3, 0) == b""


def test_a_short_read_is_finished(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(0, [b"0123456789"])
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: whole(fd, min(length, 3), at))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 100) == b"56789"


def test_allocating_makes_a_file_longer_and_never_shorter(file: RealFile) -> None:
    file.write(0, [b"kept"])
    file.allocate(8192)
    assert content(file) == b"kept".ljust(8192, b"\0")
    file.allocate(100)
    assert file.size() == 8192


def test_what_is_cut_off_and_allocated_again_reads_as_zeros(file: RealFile) -> None:
    file.write(0, [b"x" * 8192])
    file.truncate(5000)
    assert file.size() == 5000
    file.allocate(8192)
    assert content(file) == (b"x" * 5000).ljust(8192, b"\0")
    file.sync()


# -- syncing -----------------------------------------------------------------------------------


def test_a_sync_that_fails_is_told(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is told once: the kernel calls the pages clean then."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file.write(0, [b"not durable"])
    monkeypatch.setattr(os, "fdatasync", failing)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO


def test_a_sync_of_a_directory_is_one_of_the_directory_itself(
    vfs: RealVfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    vfs.sync_directory()
    assert synced == [tmp_path.stat().st_ino]


def test_a_sync_of_a_directory_that_fails_is_told(
    vfs: RealVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        vfs.sync_directory()


@pytest.mark.parametrize("call", ["write", "read", "truncate", "allocate"])
def test_an_error_of_any_call_is_told(
    call: str, file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("pwritev", "pread", "ftruncate", "posix_fallocate"):
        monkeypatch.setattr(os, name, failing)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: file.write(0, [b"x"]),
        "read": lambda: file.read(0, 1),
        "truncate": lambda: file.truncate(0),
        "allocate": lambda: file.allocate(1),
    }
    with pytest.raises(OSError, match="Input/output error"):
        calls[call]()


# -- the directory -----------------------------------------------------------------------------


def test_names_are_sorted_and_follow_renames_and_removals(vfs: RealVfs) -> None:
    for name in ("b", "a", "c"):
        vfs.create(name).close()
    assert vfs.names() == ["a", "b", "c"]
    vfs.rename("c", "a")
    vfs.unlink("b")
    vfs.sync_directory()
    assert vfs.names() == ["a"]


def test_a_file_is_created_only_once_and_for_its_owner_alone(vfs: RealVfs, tmp_path: Path) -> None:
    vfs.create("new").close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        vfs.create("new")


def test_a_file_that_is_not_there_is_not_made_by_opening_it(vfs: RealVfs) -> None:
    with pytest.raises(FileNotFoundError):
        vfs.open("missing")
    assert vfs.names() == []


def test_no_symbolic_link_is_followed(vfs: RealVfs, tmp_path: Path) -> None:
    """Somebody who may write into the directory must not lead us out of it."""
    (tmp_path / "target").write_bytes(b"untouched")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        vfs.open("link")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        vfs.create("dangling")
    assert (tmp_path / "target").read_bytes() == b"untouched"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotADirectoryError):
        RealVfs(tmp_path / "link")


def test_what_is_opened_to_read_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    vfs = RealVfs(tmp_path, read_only=True)
    file = vfs.open("file")
    assert content(file) == b"kept"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"lost"])
    file.close()
    vfs.close()


def test_the_directory_is_held_whatever_becomes_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    vfs = RealVfs(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    vfs.create("file").close()
    assert (tmp_path / "new" / "file").exists()
    vfs.close()


def test_space_is_what_the_file_system_says(vfs: RealVfs, tmp_path: Path) -> None:
    free, total = vfs.space()
    assert 0 < free <= total
    assert total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


# -- descriptors -------------------------------------------------------------------------------


def test_a_file_for_which_there_is_no_room_does_not_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node on a full disk tries again and again: for the spare, and for an index file."""
    writer = Writer.open(tmp_path / "n1")
    for _ in range(9):
        writer.flush(writer.entries(5))
    assert len(writer.log.segments) == 2

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (log_path(tmp_path / "n1") / "0000000000000001.index").unlink()
    writer.log.segments[0].indexed = False
    run(writer.flusher.plan(Flush(90, entries=tuple(writer.entries(35)))))  # takes the spare
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # the kernel's list, not a folder
    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        disk.setattr(os, "pwritev", full)
        for _ in range(5):
            run(writer.flusher.chores(Index(0)))
    assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208  # as above
    run(writer.flusher.chores(Index(0)))
    names = {path.name for path in log_path(tmp_path / "n1").iterdir()}
    assert {"spare", "0000000000000001.index"} <= names
    writer.crash()
