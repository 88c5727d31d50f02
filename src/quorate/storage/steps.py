"""Pieces of plans that flushing and opening share."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from quorate.storage.layout import PAGE, VOTE_COPIES, encode_vote, pages, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.storage.segment import Segment
    from quorate.storage.vfs import Vfs
    from quorate.types import VoteRecord

    Plan = Iterator[str]

__all__ = ["NO_SPACE", "plan_vote", "shorten"]

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def plan_vote(vfs: Vfs, record: VoteRecord, order: Sequence[str] = VOTE_COPIES) -> Plan:
    """One copy after the other, each synced: at any moment one of them is whole.

    Unless both are whole, ``order`` begins with the one that is not.
    """
    names = vfs.names()
    for name in order:
        file = vfs.open(name) if name in names else vfs.create(name)
        file.write(0, [encode_vote(record)])
        yield f"write {name}"
        file.sync()
        yield f"sync {name}"
        file.close()
        if name not in names:
            vfs.sync_directory()
            yield f"sync directory for {name}"


def shorten(segment: Segment, size: int) -> Plan:
    """Cut the file at ``size`` and allocate what was cut off again, durable before it is used."""
    file, name = segment.file, segment_name(segment.number)
    segment.end = pages(size)
    segment.proved = PAGE
    file.truncate(size)
    yield f"truncate {name} at {size}"
    try:
        file.allocate(segment.header.capacity)
        yield f"allocate {name}"
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        segment.capacity = segment.end  # it takes nothing more
    file.sync()
    yield f"sync {name}"
