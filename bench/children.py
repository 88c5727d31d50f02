"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Called by the child. It holds for the program that takes the child's place, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
