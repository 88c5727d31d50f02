"""Steps of plans that flushing, cutting and opening share."""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from quorate.storage.layout import VOTE_BYTES, VOTE_COPIES, encode_vote, vote_place

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Vfs
    from quorate.types import VoteRecord

    Plan = Iterator[str]

__all__ = [
    "NO_SPACE",
    "PASSING",
    "TOO_MANY_FILES",
    "UNREADABLE",
    "WAIT_FOR_FILES",
    "patiently",
    "plan_record",
    "plan_vote",
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


def plan_record(log: SegmentLog, **changes: object) -> Plan:
    """Write the next vote record of ``log``, with these fields changed."""
    log.record = replace(log.record, number=log.record.number + 1, **changes)  # type: ignore[arg-type]  # names of its fields
    yield from patiently(partial(plan_vote, log.vfs, log.record))


def plan_vote(vfs: Vfs, record: VoteRecord) -> Generator[str, None, None]:
    """Write a vote record to one copy after the other, each synced. Invariant: at any moment one of
    the copies is whole.

    Each write goes to the page that does not hold the record before, which stays in its place.
    """
    names = vfs.names()
    for name in VOTE_COPIES:
        with closing(vfs.open(name) if name in names else vfs.create(name)) as file:
            if file.size() < VOTE_BYTES:
                file.allocate(VOTE_BYTES)  # a full disk must not hinder the next vote
                yield f"allocate {name}"
            file.write(vote_place(record.number), [encode_vote(record)])
            yield f"write {name}"
            file.sync()
            yield f"sync {name}"
        if name not in names:
            vfs.sync_directory()
            yield f"sync directory for {name}"
