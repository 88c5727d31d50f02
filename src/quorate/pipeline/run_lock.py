"""The lock that lets one run at a time into a directory: a lock of the kernel, which ends with its
process.

A file without a lock would outlive a run that is killed, and would not tell which run owns it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.pipeline.files import Files

__all__ = ["only_run"]


@contextmanager
def only_run(files: Files, name: str) -> Iterator[None]:
    """Keep other runs out of the directory, by a lock on the file ``name``, which stays there.

    Raises InvalidArgument if another run is inside. No run is kept out of a file system that is not
    mounted here, or that has no locks; nor by a user who can neither make nor open the file.
    """
    descriptor = None if files.local is None else _opened(files.local / name)
    if descriptor is None:
        yield
        return
    try:
        _lock(descriptor, files.root)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int | None:
    """The descriptor of the file; None if the file can be neither made nor read: then no other file
    can be written beside it either."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with suppress(OSError):
            return os.open(path, flags, 0o666)
    return None


def _lock(descriptor: int, where: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgument(
            f"another run is at work in {where}: wait until it has ended, or end it"
        ) from None
    except OSError:
        # A mount without locks: there a run checks, before it places files, that it is alone.
        return
