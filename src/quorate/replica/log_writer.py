"""The writer of one log: gives the threads of a node one plan of this log at a time.

While a thread carries out a plan, the log's end and its flusher belong to that thread, and to the
loop in between: no lock is needed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from quorate.errors import Damaged, DiskFailed
from quorate.replica.engine_io import FilesAwaited, Flushed, FlushFailed, Room
from quorate.replica.writer import FILES_S
from quorate.storage.disk_errors import WAIT_FOR_FILES
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.replica.engine_io import DiskReport
    from quorate.replica.writer import Writer
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.flusher import Flush, Flusher
    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment

    Plan = Iterator[str]
    # Puts work into a queue of the writer.
    Begin = Callable[[Callable[[], None]], None]

__all__ = ["LogWriter"]

# Maximum segments that wait for their seal while there is always a flush: each is an open file.
UNSEALED_MAX = 1
# Seconds that a stop waits for files.
STOP_S = 5.0


class LogWriter:
    """The plans of one log: a flush as soon as there is one, chores in between.

    The spare comes first among the chores, and without a break: a flush may need it as the next
    segment, and without it appends are soon refused. The others stop after any step for a flush
    that waits and go on after it: they touch no file that a flush touches. Only if too many
    segments wait for their seal, a flush waits until one more is sealed.

    A checkpoint comes last. It may be large, so it is made and written section by section, never
    keeps a flush or another chore waiting for more than one section, and a stop gives it up.
    """

    __slots__ = (
        "_abandoned", "_asked", "_awaited", "_busy", "_checkpoint", "_chores", "_failed",
        "_flusher", "_idle", "_keeping", "_log", "_loop", "_next", "_orders", "_patient_until",
        "_report", "_room", "_settled", "_tended", "_writer",
    )  # fmt: skip

    def __init__(
        self,
        writer: Writer,
        log: SegmentLog,
        flusher: Flusher,
        *,
        report: Callable[[DiskReport], None],
        checkpoint: Callable[[Index], Checkpoint | None],
    ) -> None:
        self._writer = writer
        self._log = log
        self._flusher = flusher
        log.looks_later = True
        self._report = report
        # Called with the last entry that is sealed: returns a checkpoint if one is due.
        self._checkpoint = checkpoint
        self._loop = asyncio.get_running_loop()
        # Whether a thread has the log, or is to have it.
        self._busy = False
        # The order for chores, until a thread begins with it. The loop or thread that takes it out
        # has the log.
        self._orders: list[tuple[Index, bool, int | None]] = []
        # Whether a thread is going to look for an order.
        self._asked = False
        # The last report of the room; None if there was a flush since.
        self._room: Room | None = None
        # The flush that waits until the thread is done with the log. Threads only look whether
        # there is one.
        self._next: Flush | None = None
        # The last settled index when the log was last given to a thread.
        self._settled = Index(0)
        # Chores that stopped for a flush, or are to be done before others.
        self._chores: Plan | None = None
        # The checkpoint that is being written.
        self._keeping: Plan | None = None
        # The newest segment when no chores were left: the next chores come with the next segment.
        self._tended: Segment | None = None
        # True if no more may be written; not even the plan under way goes on.
        self._abandoned = False
        # The reason why there can be no clean stop: a plan was not carried out to its end.
        self._failed: Exception | None = None
        # Done when no thread has the log any more; None if no stop waits for that.
        self._idle: asyncio.Future[None] | None = None
        # The work that waits for files, of which the wait was reported.
        self._awaited: Iterator[None] | None = None
        # The time at which a stop gives up a plan that waits for files.
        self._patient_until = 0.0

    # -- in the loop ---------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def unproven(self) -> bool:
        """Whether the last flush can be proved. Called only while no thread has the log."""
        return self._flusher.unproven

    def wants_proof(self, settled: Index) -> bool:
        """Whether that proof is worth a block now. Called only while no thread has the log."""
        return self._flusher.wants_proof(settled)

    @property
    def has_chores(self) -> bool:
        """Whether chores may be left. Called only by the loop or thread that has the log."""
        segments = self._log.segments
        if self._chores is not None or self._keeping is not None or self._log.wanted:
            return True
        return not segments or segments[-1] is not self._tended

    @property
    def wanted(self) -> bool:
        """Whether a turn waits for chores."""
        return bool(self._log.wanted)

    def tell_findings(self) -> None:
        """Report what reads found out about the disk."""
        findings = self._log.findings
        while findings:
            self._report(findings.popleft())

    def flush(self, flush: Flush, settled: Index) -> None:
        """Make ``flush`` durable: now, or as soon as the chores under way let it."""
        self._settled = settled
        if self._busy and not self._took_back():
            self._next = flush
        else:
            self._busy = True
            self._writer.begin(self._drive, self._writer.begin, self._do_flush(flush, settled))

    def tend(self, settled: Index, *, prove: bool = False, wanted: int | None = None) -> None:
        """Do chores while there is no flush, and prove the last flush if ``prove`` is set.

        ``wanted`` are the bytes of an entry for which there must be room; None: those wanted last.
        """
        self._busy = True
        self._settled = settled
        self._orders.append((settled, prove, wanted))
        # The order is appended first: a thread that looks from now on finds it.
        if not self._asked:
            self._asked = True
            self._writer.begin_later(self._do_tend)

    def _took_back(self) -> bool:
        """Take back the order for chores; whether no thread had begun with it."""
        try:
            self._orders.pop()
        except IndexError:
            return False
        return True

    def abandon(self) -> None:
        """Leave the disk as a kill does: the plan under way ends after its present step."""
        self._abandoned = True

    async def rest(self) -> None:
        """Wait until no thread has the log; no thread gets it again."""
        if self._busy and not self._took_back():
            self._idle = self._loop.create_future()
            self._patient_until = self._loop.time() + STOP_S
            await self._idle

    async def close(self, settled: Index) -> None:
        """Write the mark of a clean stop. No thread has the log."""
        if self._failed is not None:
            raise self._failed
        await self._writer.carry_out(self._closing(settled))

    def _closing(self, settled: Index) -> Generator[str, None, None]:
        if self._chores is not None:
            yield from self._chores
        if self._keeping is not None:
            self._keeping = None
            yield from self._flusher.give_up_keeping()
        yield from self._flusher.close(settled)

    def _flushed(self, number: int, room: int, seconds: float, *, free: bool) -> None:
        if free:
            self._release()
        if not self._abandoned:
            self._room = None
            self._writer.observe(seconds)
            self._report(Flushed(number, room))

    def _tidied(self, room: Room, more: bool) -> None:
        """Report the room after chores ended or stopped for a flush, and go on if ``more`` can be
        done at once."""
        if self._keeping is None and self._idle is None and not self._abandoned:
            checkpoint = self._checkpoint(self._log.sealed)
            if checkpoint is not None:
                self._keeping = self._flusher.keep(checkpoint)
        self._release()
        if self._abandoned:
            return
        if room != self._room:
            self._room = room
            self._report(room)
        if not self._busy and self._idle is None and (more or self._keeping is not None):
            self.tend(self._settled)

    def _fail(self, number: int, error: Exception) -> None:
        described = _described(error)
        self._failed = DiskFailed(f"this was no clean stop: {described}")
        self._abandoned = True
        self._release()
        self._report(FlushFailed(number, described, isinstance(error, Damaged)))

    def _release(self) -> None:
        """Take the log back from a thread, and give it to a waiting stop or to the next flush."""
        self._busy = False
        flush, self._next = self._next, None
        if self._idle is not None:
            self._idle.set_result(None)
        elif flush is not None and not self._abandoned:
            self.flush(flush, self._settled)

    def _wait(self, begin: Begin, work: Iterator[None]) -> None:
        """Carry ``work`` on later, because no file can be opened now: the threads are free for
        other logs meanwhile."""
        if self._idle is not None and self._loop.time() >= self._patient_until:
            self._failed = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._abandoned = True
        if work is not self._awaited:
            self._awaited = work
            self._report(FilesAwaited())
        self._loop.call_later(FILES_S, begin, partial(self._drive, begin, work))

    # -- in a thread ---------------------------------------------------------------------------

    def _drive(self, begin: Begin, work: Iterator[None]) -> None:
        """Carry ``work`` on until it is done, or yields because no file can be opened."""
        for _ in work:
            self._tell(self._wait, begin, work)
            return

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:  # noqa: SIM105  # suppress would cost each flush a microsecond
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            pass  # the loop is closed: the node halted, and its process ends

    def _do_flush(self, flush: Flush, settled: Index) -> Iterator[None]:
        try:
            started = perf_counter()
            yield from self._carry_out(self._flusher.plan(flush))
            seconds = perf_counter() - started
            room, free = self._flusher.room, not self.has_chores
        except Exception as error:  # noqa: BLE001  # the state of the disk is unknown after it
            self._tell(self._fail, flush.number, error)
            return
        self._tell(partial(self._flushed, flush.number, room, seconds, free=free))
        if not free:
            yield from self._do(settled, flushing=True)

    def _do_tend(self) -> None:
        self._asked = False
        try:
            settled, prove, wanted = self._orders.pop()
        except IndexError:
            return  # a flush or a stop took the order back
        work = self._do(settled, prove=prove, wanted=wanted)
        self._drive(self._writer.begin_later, work)

    def _do(
        self,
        settled: Index,
        *,
        prove: bool = False,
        wanted: int | None = None,
        flushing: bool = False,
    ) -> Iterator[None]:
        """Do the proof, the spare and the other chores. A thread for flushes does only one step of
        those others, so that they go on even if there is always a flush, unless too many segments
        wait for their seal."""
        try:
            if prove:
                yield from self._carry_out(self._flusher.prove(settled))
            yield from self._carry_out(self._flusher.allocate_ahead(wanted))
            more = yield from self._do_chores(settled, flushing=flushing)
            more = more or self._keep_some(flushing=flushing)
            self._tell(self._tidied, Room(self._flusher.room, self._flusher.spare.shortage), more)
        except Exception as error:  # noqa: BLE001  # the state of the disk is unknown after it
            self._tell(self._fail, 0, error)

    def _carry_out(self, plan: Plan) -> Iterator[None]:
        while not self._abandoned and (step := next(plan, None)) is not None:
            if step == WAIT_FOR_FILES:
                yield

    def _steps(self, plan: Plan) -> Plan:
        """The steps of ``plan``, until all plans are abandoned."""
        while not self._abandoned and (step := next(plan, None)) is not None:
            yield step

    def _do_chores(self, settled: Index, *, flushing: bool) -> Generator[None, None, bool]:
        """Do chores; whether more of them can be done at once."""
        resumed, before = self._chores is not None, self._waiting(settled)
        chores, self._chores = self._chores or self._flusher.chores(settled), None
        patient = self._sealable(settled) <= UNSEALED_MAX
        found = False
        for step in self._steps(chores):
            found = True
            stops = patient and (flushing or self._next is not None)
            if stops and not step.endswith("spare"):
                self._chores = chores
                return True
            if step == WAIT_FOR_FILES:
                yield
        segments, left = self._log.segments, self._waiting(settled)
        if not found and segments and self._is_tidy(settled):
            self._tended = segments[-1]
        # Seals and index files that cannot be written now are tried again later, not at once.
        return left > 0 and (resumed or left < before)

    def _keep_some(self, *, flushing: bool) -> bool:
        """Go on with the checkpoint under way; whether more of it is left."""
        keeping = self._keeping
        for _ in self._steps(keeping) if keeping is not None else ():
            if flushing or self._next is not None or self._idle is not None:
                return True
        self._keeping = None
        return False

    def _sealable(self, settled: Index) -> int:
        """Number of segments that wait for their seal and could be sealed now."""
        return sum(one.last.index <= settled for one in self._log.unsealed)

    def _waiting(self, settled: Index) -> int:
        """Number of seals and index files that are to be written."""
        return self._sealable(settled) + len(self._log.unindexed)

    def _is_tidy(self, settled: Index) -> bool:
        """Whether there are no chores before the next segment begins. A segment is sealed once all
        its entries are settled; and for the spare or an index file there may be room later."""
        sealed = self._log.segments[:-1]
        done = not sealed or sealed[-1].last.index <= settled
        return done and self._flusher.spare.bytes > 0 and not self._log.unindexed


def _described(error: Exception) -> str:
    """The text of ``error``; an error of the system names the file."""
    return str(error) if isinstance(error, OSError | Damaged) else repr(error)
