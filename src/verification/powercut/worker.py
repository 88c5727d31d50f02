"""The process that the power fails for: it writes one log and reports each durable operation."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.entry import Entry, make_entry
from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import VOTE_COPIES, LogId
from quorate.storage.recovery.open import open_log
from quorate.storage.vfs import RealVfs
from quorate.types import EntryKind, Index, NodeId, Term
from verification.disk.store import complete
from verification.powercut.known import Failed, LogOpened, OperationBegun, OperationDone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.types import Position

__all__ = ["work"]

SEGMENT_BYTES = 64 << 10
# A log with more segments is trimmed: it must fit into the image.
SEGMENTS_MAX = 12
IDENTITY = LogId(1, b"power cuts      ")
AFTER_THE_CUT = (errno.EIO, errno.EROFS)


def work(folder: str, seed: str, committed: int, link: Connection[Any, Any]) -> None:
    """Write the log until this process is killed or its disk is gone."""
    vfs = RealVfs(Path(folder))
    try:
        _LogWorker(vfs, Random(seed), committed, link).live()
    except (OSError, Damaged) as error:
        # Of a disk that is gone an open may read no page: it takes them for bad ones then.
        if not _is_gone(vfs):
            link.send(Failed(repr(error)))
    except Exception as error:  # noqa: BLE001  # the other process judges the error
        link.send(Failed(repr(error)))


def _is_gone(vfs: RealVfs) -> bool:
    """Whether the power has failed: from then on no sync of a directory succeeds."""
    try:
        vfs.sync_directory()
    except OSError as error:
        return error.errno in AFTER_THE_CUT
    return False


class _LogWorker:
    _log: SegmentLog
    _flusher: Flusher

    def __init__(
        self, vfs: RealVfs, random: Random, committed: int, link: Connection[Any, Any]
    ) -> None:
        self._vfs = vfs
        self._random = random
        self._committed = committed
        self._link = link

    def live(self) -> None:
        self._link.send(OperationBegun("open"))
        self._open()
        while True:
            self._flush()
            self._run(self._flusher.chores(Index(self._committed)))
            if self._flusher.unproven and self._random.random() < 0.1:
                self._run(self._flusher.prove(Index(self._committed)))
            if self._random.random() < 0.05:
                self._stop()
            if len(self._log.segments) > SEGMENTS_MAX:
                self._trim()

    def _open(self) -> None:
        opening = open_log(self._vfs, IDENTITY, SEGMENT_BYTES, lambda: self._random.getrandbits(64))
        self._log, self._flusher = complete(opening)
        log, following = self._log, Index(self._log.last.index + 1)
        damage = [str(one) for one in log.damage]
        readable = log.first < following and not damage
        found = log.frames(log.first, following, 1 << 30) if readable else []
        frames = [bytes(frame) for frame in found]
        self._say(LogOpened(log.first, frames, log.record, damage))

    def _flush(self) -> None:
        random, log = self._random, self._log
        # Reported with the flush: the next worker must not truncate entries that this one seals.
        self._committed = random.randint(self._committed, log.last.index)
        vote = None
        if random.random() < 0.1:
            name = random.choice((None, NodeId("n1"), NodeId("n2")))
            vote = (Term(log.record.term + random.randint(1, 2)), name)
        before, cut = log.last, None
        if random.random() < 0.2 and before.index > self._committed:
            cut = Index(random.randint(self._committed + 1, before.index))
            before = log.position(Index(cut - 1))
        term = vote[0] if vote is not None else log.record.term
        entries = self._entries(before, term) if random.random() < 0.9 else ()
        flush = Flush(0, vote, cut, entries, Index(self._committed))
        self._report(
            OperationBegun("truncation" if cut else "flush", flush), self._flusher.plan(flush)
        )

    def _entries(self, before: Position, term: Term) -> tuple[Entry, ...]:
        random = self._random
        entries = []
        for _ in range(random.choice((1, 1, 2, 8, 30))):
            body = random.randbytes(random.choice((0, 100, 100, 3000, 3000, 20_000, 70_000)))
            time_us = before.index * 1000
            entry = make_entry(before, term, EntryKind.DATA, body, append_time=time_us)
            entries.append(entry)
            before = entry.position
        return tuple(entries)

    def _trim(self) -> None:
        sealed = [one.last.index + 1 for one in self._log.segments[:-1] if one.footer is not None]
        if sealed:
            first = Index(self._random.choice(sealed))
            self._report(OperationBegun("trim", first=first), self._flusher.trim(first))

    def _stop(self) -> None:
        """Stop the node in order, and start it again."""
        self._report(OperationBegun("stop"), self._flusher.close(Index(self._committed)))
        for segment in self._log.segments:
            segment.file.close()
        self._link.send(OperationBegun("open"))
        self._open()

    def _report(self, begun: OperationBegun, plan: Iterator[str]) -> None:
        self._link.send(begun)
        self._run(plan)
        self._say(OperationDone(self._log.record))

    def _say(self, report: LogOpened | OperationDone) -> None:
        """Send a report, unless the power has failed meanwhile: such a report would claim too much.

        If ext4 is shut down during a sync, the sync succeeds and yet keeps no data. From then on
        ext4 opens no file.
        """
        self._vfs.open(VOTE_COPIES[0]).close()
        self._link.send(report)

    def _run(self, plan: Iterator[str]) -> None:
        for _ in plan:
            pass
