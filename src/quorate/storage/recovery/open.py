"""Opening a log: the look at its files, and the steps before the replica may speak to other nodes.

A killed process leaves writes that can be read but are not durable, and after a failed sync the
pages look clean. So the bytes that an open finds do not count until they were written and synced
again, unless a later write proves that they were durable.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.errors import Damaged
from quorate.storage.buffered import WINDOW_BYTES
from quorate.storage.checkpoint import CHECKPOINT, read_position
from quorate.storage.damage import UNREADABLE_ADVICE, WHOLE_ADVICE, Damage
from quorate.storage.disk_errors import PASSING, UNREADABLE, read_small
from quorate.storage.flusher import Flusher
from quorate.storage.layout import (
    BOOT_SHIFT,
    CLEAN,
    OPENING,
    VOTE_COPIES,
    decode_votes,
    never_opened,
    newest_vote,
    segment_name,
)
from quorate.storage.log import SegmentLog
from quorate.storage.recovery.inventory import LATER_BLOCK, OLD_VOTES, Survey, read_mark, survey
from quorate.storage.truncate import end_cut, shorten
from quorate.storage.vote import plan_vote
from quorate.types import ORIGIN, Index, Term, VoteRecord

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
    least_boot: int = 0,
    *,
    begins_unsure: bool = False,
) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
    """Open a log, by a plan that returns the log and its flusher. The replica may speak to other
    nodes only when the plan has ended.

    A log begins with segments of ``least_bytes``; if that is not given, all have ``segment_bytes``.
    On a full disk ``reserve_bytes`` are kept for entries without which the group cannot go on.
    ``begins_unsure``: a new log may be in the place of another, on a disk that is lost (R7).
    Raises Damaged if the files are older than boot ``least_boot`` of the log.
    """
    with _stopping_this_log():
        check_boot(vfs, identity, least_boot)
        found, seen = _look(vfs, identity)
    record = found or NO_RECORD
    if record.boot == 0:  # it was made with the directory, and no process used it
        record = replace(record, unsure=record.unsure or begins_unsure)
    yield from _begin(vfs)
    log = SegmentLog(vfs, identity, _next_record(record, seen), seen.segments, seen.loaded)
    log.damage = seen.damage
    yield from _secure_newest(seen)
    yield from _renew_votes(log, found)
    flusher = Flusher(
        log, segment_bytes, draw_nonce, usage_max, least_bytes,
        unproven=seen.unproven, reserve_bytes=reserve_bytes,
    )  # fmt: skip
    # Only now, after the record, and before the first cut: the mark may be the only proof of a lost
    # end.
    yield from _remove(vfs, [OPENING, *seen.unfinished])
    yield from flusher.spare.adopt()
    for name in seen.leftovers:
        yield from flusher.spare.recycle(name)
    yield from _cut(seen)
    yield from end_cut(log)
    yield from flusher.allocate_ahead()
    return log, flusher


@contextmanager
def _stopping_this_log() -> Iterator[None]:
    """Raise Damaged if the disk does not give back written bytes. That stops this log alone: other
    logs of this node may be readable."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise Damaged(f"this log cannot be read: {error}; {UNREADABLE_ADVICE}") from error


def check_boot(vfs: Vfs, identity: LogId, least: int) -> None:
    """Raise Damaged if the vote record is of a boot before ``least``, in which the log was opened:
    the votes and acknowledgements since then are not there."""
    copies = _read_votes(vfs)
    found = newest_vote(copies.values(), identity)
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
    found = newest_vote(copies.values(), identity)
    mark = read_mark(vfs, identity)
    seen = survey(vfs, identity, found or NO_RECORD, mark)
    if found is None:
        _refuse_without_votes(vfs, copies)
    elif mark is not None and mark.boot > found.boot:
        raise Damaged(f"{OLD_VOTES}; {WHOLE_ADVICE}")
    else:
        _refuse_later_blocks(seen, found.boot)
    _compare_checkpoint(vfs, identity, seen)
    return found, seen


def _refuse_later_blocks(seen: Survey, boot: int) -> None:
    """Raise Damaged if a process of a later boot than ``boot``, that of the vote record, wrote a
    block: the votes since then are not there."""
    for segment in seen.segments:
        if segment.write_number >> BOOT_SHIFT > boot:
            raise Damaged(f"{segment_name(segment.number)}: {LATER_BLOCK}; {WHOLE_ADVICE}")


def _compare_checkpoint(vfs: Vfs, identity: LogId, seen: Survey) -> None:
    """Note that durable entries at the end of the log are lost if the checkpoint covers more than
    the log holds: a checkpoint covers only entries that were durable here."""
    try:
        covered = read_position(vfs, identity)
    except OSError as error:
        if error.errno in PASSING:
            raise
        return  # it is noted as damage when the state is read from it
    newest = seen.segments[-1] if seen.segments else None
    last = newest.last.index if newest is not None else ORIGIN.index
    if covered is None or covered.index <= last:
        return
    name, end = (segment_name(newest.number), newest.end) if newest is not None else (CHECKPOINT, 0)
    what = f"the checkpoint covers entries up to {covered.index}, and the log ends with {last}"
    seen.damage.append(Damage(name, end, end, Index(last + 1), last, what))
    seen.lost_tail = True


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


def _renew_votes(log: SegmentLog, found: VoteRecord | None) -> Iterator[str]:
    vfs, identity = log.vfs, log.identity
    if any(name in vfs.names() for name in VOTE_COPIES):
        # A killed open may have made a copy whose name is not durable yet. A power cut that takes
        # this name and leaves the name of the copy made next, with nothing in it, would look like
        # the loss of a vote.
        vfs.sync_directory()
        yield "sync directory"
    if found is not None:
        # The record that was found may be in the page cache only, and the other copy may be bad. It
        # is made durable in both copies before the record before it is overwritten. A copy that is
        # there without it comes first: a disk may spoil all of a page whose write a crash tears.
        held = _read_votes(vfs)
        has = {
            name: name not in held or found in decode_votes(held[name], identity)
            for name in VOTE_COPIES
        }
        lacking = sorted(VOTE_COPIES, key=has.__getitem__)
        yield from plan_vote(vfs, identity, found, lacking)
    yield from plan_vote(vfs, identity, log.record)


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
        with _stopping_this_log():
            found = file.read(start, min(WINDOW_BYTES, stop - start))
        file.write(start, [found])
        yield f"write {name} again from {start}"
    file.sync()
    yield f"sync {name} again"


def _cut(seen: Survey) -> Iterator[str]:
    """Cut off the bytes that a crash tore, and those behind a cut that was begun."""
    for segment in seen.untidy:
        yield from shorten(segment, segment.end)
    if seen.cut_at is not None and seen.segments:
        yield from shorten(seen.segments[-1], seen.cut_at)
