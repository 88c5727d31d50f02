"""The number of files that the system allows this process."""

from __future__ import annotations

import resource
import sys

__all__ = ["open_files_max"]


def open_files_max() -> int:
    """The number of files and sockets that the system lets this process have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else sys.maxsize
