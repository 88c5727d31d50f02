"""The vote record on disk: the plans that write its next version to its two copies."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from quorate.storage.disk_errors import patiently
from quorate.storage.layout import VOTE_BYTES, VOTE_COPIES, encode_vote, vote_place

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from quorate.storage.layout import LogId
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Vfs
    from quorate.types import VoteRecord

    Plan = Iterator[str]

__all__ = ["plan_record", "plan_vote"]


def plan_record(log: SegmentLog, **changes: object) -> Plan:
    """Write the next vote record of ``log``, with these fields changed."""
    log.record = replace(log.record, number=log.record.number + 1, **changes)  # type: ignore[arg-type]  # names of its fields
    yield from patiently(partial(plan_vote, log.vfs, log.identity, log.record))


def plan_vote(
    vfs: Vfs, identity: LogId, record: VoteRecord, copies: Sequence[str] = VOTE_COPIES
) -> Generator[str, None, None]:
    """Write a vote record to one copy after the other, each synced. Invariant: at any moment one of
    the copies is whole.

    Each write goes to the page that does not hold the record before, which stays in its place.
    """
    names = vfs.names()
    for name in copies:
        with closing(vfs.open(name) if name in names else vfs.create(name)) as file:
            if file.size() < VOTE_BYTES:
                file.allocate(VOTE_BYTES)  # a full disk must not hinder the next vote
                yield f"allocate {name}"
            file.write(vote_place(record.number), [encode_vote(record, identity)])
            yield f"write {name}"
            file.sync()
            yield f"sync {name}"
        if name not in names:
            vfs.sync_directory()
            yield f"sync directory for {name}"
