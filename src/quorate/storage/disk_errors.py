"""Errors of the disk by kind, a plan that waits while too many files are open, and a read that an
unreadable file does not fail."""

from __future__ import annotations

import errno
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.storage.vfs import Vfs

__all__ = [
    "NO_SPACE",
    "PASSING",
    "TOO_MANY_FILES",
    "UNREADABLE",
    "WAIT_FOR_FILES",
    "patiently",
    "read_small",
]

Result = TypeVar("Result")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
# Errors of a disk that does not give back the bytes that were written.
UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
# Errors that are no failure of the disk: the same call may succeed later.
PASSING = NO_SPACE | TOO_MANY_FILES
# The step of a plan that cannot open a file now. The plan is to be resumed after a moment.
WAIT_FOR_FILES = "wait until a file can be opened"


def patiently(begin: Callable[[], Generator[str, None, Result]]) -> Generator[str, None, Result]:
    """Carry out a plan of a running log. If too many files are open, wait and begin it again: a
    flush that is half done can be neither undone nor reported as failed.

    ``begin`` makes a plan that may be begun again after it failed to open a file.
    """
    while True:
        try:
            return (yield from begin())
        except OSError as error:
            if error.errno not in TOO_MANY_FILES:
                raise
        yield WAIT_FOR_FILES


def read_small(vfs: Vfs, name: str) -> bytes:
    """The content of a small file that a log can work without; empty if the disk does not give it
    back."""
    try:
        with closing(vfs.open(name)) as file:
            return file.read(0, file.size())
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return b""
