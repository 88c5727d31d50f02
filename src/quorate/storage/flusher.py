"""Turns what must become durable into a plan of steps, in an order that no crash can break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.steps import File, Step, Sync, Truncate, WriteEntries, WriteVote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Entry
    from quorate.types import Index, VoteRecord

__all__ = ["VOTE_COPIES", "plan_flush", "plan_vote"]

# The vote record stands in both: whichever write a crash tears, the other copy is whole.
VOTE_COPIES = (File.VOTE_A, File.VOTE_B)


def plan_vote(record: VoteRecord, order: tuple[File, ...] = VOTE_COPIES) -> Iterator[Step]:
    """One copy after the other, each synced: at any moment one of them is whole.

    Unless both are whole, ``order`` begins with the one that is not.
    """
    for file in order:
        yield WriteVote(file, record)
        yield Sync(file)


def plan_flush(
    record: VoteRecord | None, truncate_from: Index | None, entries: tuple[Entry, ...]
) -> Iterator[Step]:
    """Vote first, then the log. A truncation is durable before anything is written over it."""
    if record is not None:
        yield from plan_vote(record)
    if truncate_from is not None:
        yield Truncate(truncate_from)
        yield Sync(File.LOG)
    if entries:
        yield WriteEntries(entries)
        yield Sync(File.LOG)
