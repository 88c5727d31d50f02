"""Opening a disk: what it holds, and what must be done before the node may speak.

A killed process leaves writes that can be read but are not durable. So nothing found here counts
until it was written and synced again, the vote record in both its copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.entry import Entry, chain_holds
from quorate.errors import DiskFailed
from quorate.storage.flusher import VOTE_COPIES, plan_vote
from quorate.storage.steps import File, Step, Sync, Truncate, WriteEntries, WriteVote
from quorate.types import ORIGIN, Index, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Image", "Recovered", "plan_open", "recover"]


@dataclass(frozen=True, slots=True)
class Image:
    """What can be read from a disk. None stands for what is there and is not whole."""

    # The copies of the vote record that exist.
    votes: Mapping[File, VoteRecord | None]
    entries: Sequence[Entry | None]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the node starts from, once the plan of :func:`plan_open` is carried out."""

    record: VoteRecord
    entries: tuple[Entry, ...]
    torn_from: Index | None  # where a torn tail was cut
    # The newest copy as it was found; None if the node never spoke.
    found: WriteVote | None = None


def recover(image: Image) -> Recovered:
    """The newest vote and the longest unbroken log of ``image``, in a new boot."""
    entries = _whole_prefix(image.entries)
    torn_from = Index(len(entries) + 1) if len(entries) < len(image.entries) else None
    found = _newest_vote(image)
    newest = found.record if found is not None else VoteRecord(0, Term(0), None, 0)
    # A log entry of a term proves that the term was reached, whatever became of the record.
    term = max(newest.term, entries[-1].term if entries else Term(0))
    vote = newest.vote if term == newest.term else None
    record = VoteRecord(newest.number + 1, term, vote, newest.boot + 1)
    return Recovered(record, entries, torn_from, found)


def plan_open(recovered: Recovered) -> Iterator[Step]:
    """Make what was recovered durable. Only then may the node report or vote with any of it."""
    order: tuple[File, ...] = VOTE_COPIES
    if recovered.found is not None:
        # The copy that was found may be in the page cache only, the other one torn: it is secured
        # as it is before the other is touched, and renewed last.
        yield recovered.found
        yield Sync(recovered.found.file)
        others = (file for file in VOTE_COPIES if file is not recovered.found.file)
        order = (*others, recovered.found.file)
    yield from plan_vote(recovered.record, order)
    if recovered.torn_from is not None:
        yield Truncate(recovered.torn_from)
        yield Sync(File.LOG)
    if recovered.entries:
        yield WriteEntries(recovered.entries)
        yield Sync(File.LOG)


def _newest_vote(image: Image) -> WriteVote | None:
    """The newest whole copy; None if this node has never said a word."""
    whole = [WriteVote(file, record) for file, record in image.votes.items() if record is not None]
    if whole:
        return max(whole, key=lambda copy: copy.record.number)
    if len(image.votes) < len(VOTE_COPIES) and not image.entries:
        return None  # not even the first open came to its end
    raise DiskFailed(
        "no copy of the vote record can be read: starting without it could vote twice in one "
        "term; replace this node as a new one"
    )


def _whole_prefix(slots: Sequence[Entry | None]) -> tuple[Entry, ...]:
    """The entries before the first one that is torn or does not continue the chain."""
    whole: list[Entry] = []
    before = ORIGIN
    for entry in slots:
        if entry is None or not chain_holds(before, (entry,)):
            break
        whole.append(entry)
        before = entry.position
    return tuple(whole)
