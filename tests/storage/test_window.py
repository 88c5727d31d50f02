"""A long file is read piece by piece, and what is found in it does not depend on the pieces."""

from __future__ import annotations

import errno
import os
import tracemalloc
from random import Random
from typing import TYPE_CHECKING

import pytest

from directory_rig import CLUSTER, INCARNATION, Writer, log_path
from quorate.storage.buffered import WINDOW_BYTES, BufferedFile
from quorate.storage.directory import DataDirectory
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.open import open_log
from quorate.storage.segment_scan import scan
from quorate.storage.vfs import RealFile
from verification.disk.simulated import SimulatedDisk
from verification.disk.store import complete

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_a_window_shows_the_bytes_of_the_file() -> None:
    random = Random(1)
    data = random.randbytes(3 * WINDOW_BYTES + 777)
    file = SimulatedDisk().create("a")
    file.write(0, [data])
    for limit in (len(data), len(data) + 9, 2 * WINDOW_BYTES + 5, 0):
        window, shown = BufferedFile(file, limit), data[:limit]
        assert len(window) == len(shown)
        for _ in range(200):
            start = random.randrange(len(data) + 50)
            length = random.choice((0, 1, 64, PAGE, WINDOW_BYTES, WINDOW_BYTES + 1, len(data)))
            assert window[start : start + length] == shown[start : start + length]
        assert len(window[10:5]) == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment with blocks and frames that are smaller, as large and larger than a window."""
    path = tmp_path_factory.mktemp("large") / "n1"
    writer = Writer.open(path, segment_bytes=24 * MIB)
    for size in (100, 60_000, 66_000, 300_000, MIB - 100, MIB, 3 * MIB):
        writer.flush(writer.entries(3, size=size))
    writer.crash()
    return path


def test_frames_are_found_wherever_the_pieces_end(large: Path) -> None:
    writer = Writer.open(large)
    segment = writer.log.segments[0]
    header, file = segment.header, segment.file
    data = bytearray(file.read(0, file.size()))
    expected = scan(memoryview(data), header.nonce, header.before, None)
    found = scan(BufferedFile(file, len(data)), header.nonce, header.before, None)
    assert [len(found.rows.starts), found.last.index] == [21, 21]
    for name in ("starts", "ends", "offsets", "times"):
        assert getattr(found.rows, name) == getattr(expected.rows, name)
    for row in range(21):
        # The last byte of each body in turn: every one of them is looked at.
        place = found.rows.ends[row] - 1
        with (log_path(large) / segment_name(1)).open("r+b") as spoilt:
            spoilt.seek(place)
            spoilt.write(bytes([data[place] ^ 1]))
            spoilt.flush()
            again = scan(BufferedFile(file, len(data)), header.nonce, header.before, None)
            spoilt.seek(place)
            spoilt.write(bytes([data[place]]))
        assert again.without_body == ({row + 1} if row < 18 else set())
        assert again.last.index == (21 if row < 18 else row)
    writer.crash()


def test_opening_a_large_segment_takes_little_memory(large: Path) -> None:
    """Also one whose last block, which nothing proves, is larger than a window."""
    tracemalloc.start()
    writer = Writer.open(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert writer.log.last.index == 21
    assert peak < 6 * MIB
    writer.crash()


def test_a_page_that_the_disk_cannot_read_is_damage_and_not_the_end_of_the_process(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RealFile.read

    def failing(self: RealFile, position: int, length: int) -> bytes:
        if position <= 2 * MIB < position + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, position, length)

    monkeypatch.setattr(RealFile, "read", failing)
    with DataDirectory.open(large, CLUSTER, "n1") as directory:
        vfs, identity = directory.log_vfs(INCARNATION), directory.log_id(INCARNATION)
        log, _ = complete(open_log(vfs, identity, 24 * MIB, lambda: 1))
        assert any(one.start <= 2 * MIB < one.stop for one in log.damage)
        log.close()
        vfs.close()
