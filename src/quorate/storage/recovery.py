"""Opening a log: the look at its files, and the steps before the replica may speak to other nodes.

A killed process leaves writes that can be read but are not durable, and after a failed sync the
pages look clean. So the bytes that an open finds do not count until they were written and synced
again, unless a later write proves that they were durable.
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

# The vote record of a log that has none on disk yet.
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
    """Open a log, by a plan that returns the log and its flusher. The replica may speak to other
    nodes only when the plan has ended.

    A log begins with segments of ``least_bytes``; if that is not given, all have ``segment_bytes``.
    On a full disk ``reserve_bytes`` are kept for entries without which the group cannot go on.
    """
    try:
        found, seen = _look(vfs, identity)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        # Damaged stops this log alone: other logs of this node may be readable.
        raise Damaged(f"this log cannot be read: {error}; {UNREADABLE_ADVICE}") from error
    record = found or NO_RECORD
    yield from _begin(vfs)
    log = SegmentLog(vfs, identity, _next_record(record, seen), seen.segments, seen.loaded)
    log.damage = seen.damage
    yield from _secure_newest(seen)
    yield from _renew_votes(vfs, log.record, found)
    # Only now, after the record, and before the first cut: the mark may be the only proof of a lost
    # end.
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
    """Raise Damaged if the vote record is of a boot before ``least``, in which the log was opened:
    the votes and acknowledgements since then are not there."""
    copies = _read_votes(vfs)
    found = newest_vote(copies.values())
    if found is None and not never_opened(vfs.names(), copies.get(VOTE_COPIES[0], b"")):
        return  # the open itself refuses a log without a vote record
    boot = found.boot if found is not None else 0
    if boot < least:
        raise Damaged(
            f"the folder of this log is an older copy: its vote record is of boot {boot}, and the "
            f"log was opened with boot {least} here; {WHOLE_ADVICE}"
        )


def _look(vfs: Vfs, identity: LogId) -> tuple[VoteRecord | None, Survey]:
    """The newest vote record, and the survey of the other files. No file is written."""
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
    # An entry of a term proves that the term was reached, even if the record of it is lost.
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
        # A cut that was begun may not be durable yet; and torn bytes are cut off in the same way.
        cutting=seen.cut_at or 0,
        before=last if seen.cut_at else ORIGIN,
    )


def _renew_votes(vfs: Vfs, record: VoteRecord, found: VoteRecord | None) -> Iterator[str]:
    if found is not None:
        # The record that was found may be in the page cache only, and the other copy may be bad. It
        # is made durable in both copies before the record before it is overwritten.
        yield from plan_vote(vfs, found)
        vfs.sync_directory()
        yield "sync directory"
    yield from plan_vote(vfs, record)


# -- files -------------------------------------------------------------------------------------


def _begin(vfs: Vfs) -> Iterator[str]:
    """Rename the mark of a clean stop. Under the name CLEAN it says that the log has not changed
    since; under OPENING it says only how the log ended, which stays true until the first cut. A
    power cut that undoes the renaming does no harm before the vote record is renewed."""
    if CLEAN in vfs.names():
        vfs.rename(CLEAN, OPENING)
        yield f"rename {CLEAN} to {OPENING}"


def _remove(vfs: Vfs, names: list[str]) -> Iterator[str]:
    """Remove the files ``names``, durably before the next step of the open."""
    there = set(vfs.names())
    for name in names:
        if name in there:
            vfs.unlink(name)
            yield f"unlink {name}"
            vfs.sync_directory()
            yield f"sync directory without {name}"


def _secure_newest(seen: Survey) -> Iterator[str]:
    """Write those blocks again that no proof shows to be durable: they may be in the page cache
    only.

    This comes before the next vote record, which says of a cut that all bytes before it are
    durable.
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
    """Cut off the bytes that a crash tore, and those behind a cut that was begun."""
    for segment in seen.untidy:
        yield from shorten(segment, segment.end)
    if seen.cut_at is not None:
        yield from shorten(seen.segments[-1], seen.cut_at)
