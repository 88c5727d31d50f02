"""``python -m quorate.demo.parent_death PARENT COMMAND…``: a command that ends with its parent.

A demo that is killed cannot end the processes that it started. So the kernel does: the death signal
that is set here holds also for the command that takes the place of this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

PR_SET_PDEATHSIG = 1


def main(parent: int, *command: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the kernel was asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
