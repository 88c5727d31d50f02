"""Disks that fail on request: a small library between a node and its system calls.

A test that needs the library compiles it, into the directory of that test.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["FaultyDisks", "why_not"]

SOURCE = Path(__file__).with_name("disk.c")


def why_not() -> str | None:
    """The reason why disks cannot be made to fail on this machine; None if they can."""
    if sys.platform != "linux":
        return "the library knows the calls of Linux only"
    return None if shutil.which("gcc") else "gcc not found"


class FaultyDisks:
    """The disks of a cluster's nodes. Each disk works until a test tells it to fail."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "faulty-disk.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE, "-ldl"], check=True
        )

    def environment(self, node: str) -> dict[str, str]:
        """The environment variables with which a node is started so that its disk obeys the
        tests."""
        return {"LD_PRELOAD": str(self._library), "QUORATE_DISK_FAULT": str(self._order(node))}

    def fail_sync(self, node: str) -> None:
        """The next sync fails with EIO, and only that one."""
        self._tell(node, "sync-fails 0")

    def slow_down(self, node: str, seconds: float) -> None:
        """Every sync takes so much longer, until :meth:`mend`."""
        self._tell(node, f"sync-takes {int(1000 * seconds)}")

    def fail_writes(self, node: str) -> None:
        """Every write fails with ENOSPC, until :meth:`mend`."""
        self._tell(node, "write-fails 0")

    def fail_reads(self, node: str) -> None:
        """Every read fails with EIO, until :meth:`mend`."""
        self._tell(node, "read-fails 0")

    def failed(self, node: str) -> bool:
        """Whether the sync that was told to fail has failed."""
        return not self._order(node).exists()

    def mend(self, node: str) -> None:
        self._order(node).unlink(missing_ok=True)

    def _order(self, node: str) -> Path:
        return self._folder / f"{node}.fault"

    def _tell(self, node: str, order: str) -> None:
        """Write the order beside the file and rename it: no process may read half of an order."""
        aside = self._folder / f"{node}.order"
        aside.write_text(order, encoding="ascii")
        aside.rename(self._order(node))
