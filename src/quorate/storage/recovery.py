"""Opening a log: what its files hold, and what must be done before the node may speak.

A killed process leaves writes that can be read but are not durable, and after a failed sync the
pages look clean. So nothing found here counts until it was written and synced again, unless
something that was written later proves that it was durable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.errors import Damaged
from quorate.storage.cutting import end_cut, shorten
from quorate.storage.damage import UNREADABLE_ADVICE, WHOLE_ADVICE
from quorate.storage.flusher import Flusher
from quorate.storage.layout import (
    CLEAN,
    OPENING,
    VOTE_COPIES,
    never_opened,
    newest_vote,
    segment_name,
)
from quorate.storage.log import SegmentLog
from quorate.storage.steps import UNREADABLE, plan_vote, read_small
from quorate.storage.survey import Survey, read_mark, survey
from quorate.storage.window import WINDOW_BYTES
from quorate.types import ORIGIN, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.storage.layout import LogId
    from quorate.storage.vfs import Vfs

__all__ = ["check_boot", "open_log"]

# What a log begins with.
NO_RECORD = VoteRecord(0, Term(0), None, 0)


def open_log(
    vfs: Vfs,
    identity: LogId,
    segment_bytes: int,
    draw_nonce: Callable[[], int],
    usage_max: int = 100,
    least_bytes: int | None = None,
    reserve_bytes: int = 0,
) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
    """A plan like any other; what it returns at its end may be spoken with.

    A log begins with segments of ``least_bytes``; if that is not given, all have ``segment_bytes``.
    On a full disk ``reserve_bytes`` are kept for what a group cannot do without.
    """
    try:
        found, seen = _look(vfs, identity)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        # Other logs of this node may lie in better places.
        raise Damaged(f"this log cannot be read: {error}; {UNREADABLE_ADVICE}") from error
    record = found or NO_RECORD
    yield from _begin(vfs)
    log = SegmentLog(vfs, identity, _next_record(record, seen), seen.segments, seen.loaded)
    log.damage = seen.damage
    yield from _secure_newest(seen)
    yield from _renew_votes(vfs, log.record, found)
    # Only now, and before anything is cut: of a lost end nothing but the mark may tell.
    yield from _remove(vfs, [OPENING, *seen.leftovers])
    yield from _cut(seen)
    flusher = Flusher(
        log, segment_bytes, draw_nonce, usage_max, least_bytes,
        unproven=seen.unproven, reserve_bytes=reserve_bytes,
    )  # fmt: skip
    if seen.segments:
        yield from end_cut(log)
    yield from flusher.adopt_spare()
    yield from flusher.allocate_ahead()
    return log, flusher


def check_boot(vfs: Vfs, least: int) -> None:
    """Raise Damaged if the vote record is of an earlier boot than one in which the log was opened:
    what it voted and acknowledged since is not there."""
    copies = _read_votes(vfs)
    found = newest_vote(copies.values())
    if found is None and not never_opened(vfs.names(), copies.get(VOTE_COPIES[0], b"")):
        return  # the open itself refuses that
    boot = found.boot if found is not None else 0
    if boot < least:
        raise Damaged(
            f"the folder of this log is an older copy: its vote record is of boot {boot}, and the "
            f"log was opened with boot {least} here; {WHOLE_ADVICE}"
        )


def _look(vfs: Vfs, identity: LogId) -> tuple[VoteRecord | None, Survey]:
    """The newest vote record and what else is there. Nothing is written."""
    copies = _read_votes(vfs)
    found = newest_vote(copies.values())
    seen = survey(vfs, identity, found or NO_RECORD, read_mark(vfs))
    if found is None:
        _refuse_without_votes(vfs, copies)
    return found, seen


# -- the vote record ---------------------------------------------------------------------------


def _read_votes(vfs: Vfs) -> dict[str, bytes]:
    """The copies that exist, by name."""
    names = vfs.names()
    return {name: read_small(vfs, name) for name in VOTE_COPIES if name in names}


def _refuse_without_votes(vfs: Vfs, copies: dict[str, bytes]) -> None:
    if never_opened(vfs.names(), copies.get(VOTE_COPIES[0], b"")):
        return
    raise Damaged(
        "no copy of the vote record can be read: starting without it could vote twice in one "
        "term; put the newest copy of the whole data directory back, or go on with the other "
        "nodes, this release cannot replace this one yet"
    )


def _next_record(record: VoteRecord, seen: Survey) -> VoteRecord:
    """The record of a new boot."""
    last = seen.segments[-1].last if seen.segments else ORIGIN
    # A log entry of a term proves that the term was reached, whatever became of the record.
    term = max(record.term, last.term)
    return replace(
        record,
        number=record.number + 1,
        term=term,
        vote=record.vote if term == record.term else None,
        boot=record.boot + 1,
        segment=seen.segments[-1].number if seen.segments else 0,
        nonce=seen.segments[-1].header.nonce if seen.segments else 0,
        unsure=record.unsure or seen.lost_tail,
        # A cut that was begun may not be durable yet; and what a crash tore is cut off like it.
        cutting=seen.cut_at or 0,
        before=last if seen.cut_at else ORIGIN,
    )


def _renew_votes(vfs: Vfs, record: VoteRecord, found: VoteRecord | None) -> Iterator[str]:
    if found is not None:
        # It may be in the page cache only, and the other copy bad. It is secured as it is, in both,
        # before anything is written over the one before it.
        yield from plan_vote(vfs, found)
        vfs.sync_directory()
        yield "sync directory"
    yield from plan_vote(vfs, record)


# -- files -------------------------------------------------------------------------------------


def _begin(vfs: Vfs) -> Iterator[str]:
    """The mark of a clean stop says under its own name that nothing has changed since. Under the
    other one it says only how the log ended: until the first cut that stays true. Whether a power
    cut takes the new name back does not matter before the vote record is renewed."""
    if CLEAN in vfs.names():
        vfs.rename(CLEAN, OPENING)
        yield f"rename {CLEAN} to {OPENING}"


def _remove(vfs: Vfs, names: list[str]) -> Iterator[str]:
    """Files that must not be there: gone for good before anything else happens."""
    there = set(vfs.names())
    for name in names:
        if name in there:
            vfs.unlink(name)
            yield f"unlink {name}"
            vfs.sync_directory()
            yield f"sync directory without {name}"


def _secure_newest(seen: Survey) -> Iterator[str]:
    """Write again what nothing proves to be durable: it may be in the page cache only.

    Before the next record is written: that one says of a cut that everything before it is durable.
    """
    if not seen.segments:
        return
    newest = seen.segments[-1]
    file, name = newest.file, segment_name(newest.number)
    stop = newest.end if seen.cut_at is None else min(newest.end, seen.cut_at)
    for start in range(seen.durable_end, stop, WINDOW_BYTES):
        file.write(start, [file.read(start, min(WINDOW_BYTES, stop - start))])
        yield f"write {name} again from {start}"
    file.sync()
    yield f"sync {name} again"


def _cut(seen: Survey) -> Iterator[str]:
    """Cut off what a crash tore, or was to be cut before it."""
    for segment in seen.untidy:
        yield from shorten(segment, segment.end)
    if seen.cut_at is not None:
        yield from shorten(seen.segments[-1], seen.cut_at)
