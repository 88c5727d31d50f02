"""A file system of our own in a file, whose power can fail."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["BLOCK_BYTES", "LOG_FLUSH", "NO_LOG_FLUSH", "Image", "why_not"]

IMAGE_BYTES = 64 << 20
# The block sizes of ext4: that of a large disk, and one that tears a page into parts.
BLOCK_BYTES = (4096, 1024)
TOOLS = ("mkfs.ext4", "mount", "umount")

# From the kernel's ext4.h. The second flag writes the journal out first: then renames, removals and
# new file sizes are kept, and file contents that were not synced are lost.
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH, LOG_FLUSH = 2, 1


class Image:
    """An ext4 file system in an image file, mounted below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "image"
        self.mounted = folder / "mounted"
        self.mounted.mkdir()

    def make(self, block_bytes: int = BLOCK_BYTES[0]) -> None:
        self._path.unlink(missing_ok=True)
        with self._path.open("xb") as file:
            file.truncate(IMAGE_BYTES)
        _command("mkfs.ext4", "-q", "-F", "-b", str(block_bytes), str(self._path))

    def mount(self) -> None:
        _command("mount", "-t", "ext4", "-o", "loop", str(self._path), str(self.mounted))

    def unmount(self) -> None:
        if self.mounted.is_mount():
            _command("umount", str(self.mounted))

    def cut(self, flag: int) -> None:
        descriptor = os.open(self.mounted, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, flag.to_bytes(4, sys.byteorder))
        finally:
            os.close(descriptor)


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """The reason why this machine can make no power cuts; None if it can."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    with tempfile.TemporaryDirectory(prefix="quorate-power-") as folder:
        image = Image(Path(folder))
        try:
            image.make()
            image.mount()
            image.cut(NO_LOG_FLUSH)
        except subprocess.CalledProcessError as error:
            return f"{error.cmd[0]}: {error.stderr.strip()}"
        except OSError as error:
            return f"no shutdown of ext4: {error}"
        finally:
            image.unmount()
    return None
