"""The shell of one replica: the event loop drives its engine, and threads do its work on disk.

Inputs are gathered, and one turn is taken for all of them in the next pass of the loop. All code
runs in the loop's thread, except the work that waits for a disk: the writer carries out plans, and
a pool does cold reads.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, TypeVar

from quorate.errors import (
    Busy,
    Corrupt,
    DiskFailed,
    InvariantBroken,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    ReplicaHalted,
)
from quorate.replica.exchange import (
    Deliver,
    LinkClosed,
    LinkRefused,
    Operate,
    Propose,
    Read,
    ReadAnswer,
    Receipt,
    Request,
    Room,
    Stage,
)
from quorate.replica.opening import plan_opening
from quorate.replica.reader import Reader
from quorate.replica.status import status_of
from quorate.replica.upkeep import Upkeep
from quorate.replica.writer import LogWriter
from quorate.state.judge import PLAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Executor

    from quorate.config import Config
    from quorate.raft.messages import Envelope
    from quorate.raft.output import Event
    from quorate.replica.exchange import Effects, Input, Operation, Result
    from quorate.replica.opening import OpenedReplica
    from quorate.replica.reader import Fetched
    from quorate.replica.status import ReplicaStatus
    from quorate.replica.writer import Writer
    from quorate.state.judge import AppendTerms, Staged
    from quorate.state.labels import Label
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.directory import DataDirectory
    from quorate.types import GroupId, Index, NodeId

    Callback = Callable[[Result], None]

__all__ = ["Replica"]

Found = TypeVar("Found")

log = logging.getLogger(__name__)

# Seconds that a stop waits for the commit of logged requests.
DRAIN_S = 1.0


class Replica:
    """One replica in one event loop. The loop calls each callback once, and never within the call
    that gave it."""

    def __init__(
        self,
        opened: OpenedReplica,
        writer: Writer,
        readers: Executor,
        *,
        send: Callable[[list[Envelope]], None],
        halted: Callable[[ReplicaHalted], None],
        report: Callable[[Sequence[Event]], None],
    ) -> None:
        self.engine = engine = opened.engine
        self.halted = halted
        self._send = send
        self._report = report
        self._opened = opened
        self._disk = LogWriter(
            writer, opened.log, opened.flusher, report=self._give, checkpoint=self._checkpoint
        )
        self._reader = Reader(engine, opened.log, readers, self.barrier)
        self._loop = asyncio.get_running_loop()
        # The inputs of the next turn; a turn is due as soon as there is one.
        self._inbox: list[Input] = []
        self._turn_due = False
        self._token = 0
        # The callbacks by token. Without an answer the outcome of an append is unknown; a read has
        # no effect.
        self._appends: dict[int, Callback] = {}
        self._reads: dict[int, Callback] = {}
        # The reason why requests are refused; None while they are accepted.
        self._refused: str | None = None
        # The reason why no turn is taken any more; None while turns are taken.
        self._ended: str | None = None
        # Done when no append waits any more; None if no stop waits for that.
        self._drained: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._tick_s = engine.config.timing.tick_ms / 1000
        self._upkeep = Upkeep(self._disk, engine.allowance, _now_ms())
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self._give(Room(opened.flusher.room, opened.flusher.shortage))

    @classmethod
    async def open(
        cls,
        directory: DataDirectory,
        group: GroupId,
        voters: tuple[NodeId, ...],
        config: Config,
        writer: Writer,
        readers: Executor,
        *,
        send: Callable[[list[Envelope]], None],
        halted: Callable[[ReplicaHalted], None],
        report: Callable[[Sequence[Event]], None] = lambda _: None,
        boot: int = 0,
        note_boot: Callable[[int], Awaitable[None]] | None = None,
    ) -> Replica:
        """Open the log in ``directory``, or make it, and start the replica.

        ``send`` is given the messages of a turn, ``report`` its events; ``halted`` is called once
        if the replica must stop. Raises ReplicaHalted if the replica cannot start.

        The log was opened before with ``boot``; ``note_boot`` is given the boot of this opening,
        and the replica sends no message before ``note_boot`` is done.
        """
        try:
            plan = plan_opening(directory, group, voters, config, _now_ms(), boot)
            opened = await writer.carry_out(plan)
            if note_boot is not None:
                await opened.note_boot(note_boot)
        except (OSError, Busy) as error:
            node, number = directory.identity.node, group.incarnation
            # The error of the system: callers that wait for room or files look at the cause.
            cause = error.__cause__ if isinstance(error, Busy) else error
            raise DiskFailed(f"{node} cannot open log {number:032x}: {error}") from cause
        return cls(opened, writer, readers, send=send, halted=halted, report=report)

    # -- inputs --------------------------------------------------------------------------------

    def deliver(self, envelope: Envelope) -> None:
        """Take a message of a peer into the next turn."""
        self._give(Deliver(envelope))

    def link_closed(self, peer: NodeId) -> None:
        self._give(LinkClosed(peer))

    def link_refused(self, peer: NodeId) -> None:
        self._give(LinkRefused(peer))

    def propose(
        self,
        batch: bytes,
        count: int,
        terms: AppendTerms,
        callback: Callback,
        rows: bytes = b"",
    ) -> None:
        """Append a batch of ``count`` records, or several with their ``rows``; ``callback`` gets a
        Receipt or an error."""
        if self._refused is not None:
            self._refuse(callback)
            return
        self._token += 1
        self._appends[self._token] = callback
        self._give(Propose(self._token, batch, count, None, terms, rows))

    def operate(self, operation: Operation, callback: Callback) -> None:
        """Log an operation; ``callback`` gets its result or an error."""
        if self._refused is not None:
            self._refuse(callback)
            return
        self._token += 1
        self._appends[self._token] = callback
        self._give(Operate(self._token, operation))

    def read(self, callback: Callback) -> None:
        """Read the end of the log by a barrier; ``callback`` gets a ReadAnswer or an error."""
        if self._ended is not None:
            self._refuse(callback)
            return
        self._token += 1
        self._reads[self._token] = callback
        self._give(Read(self._token))

    async def append(self, batch: bytes, count: int, terms: AppendTerms = PLAIN) -> Receipt:
        future = self._loop.create_future()
        self.propose(batch, count, terms, partial(_finish, future))
        return await future  # type: ignore[no-any-return]  # a receipt, or it raises

    async def stage(self, label: Label, batch: bytes, count: int) -> Staged:
        """Log a batch of ``count`` records that readers see only once it is published."""
        if self._refused is not None:
            raise self._refusal
        future = self._loop.create_future()
        self._token += 1
        self._appends[self._token] = partial(_finish, future)
        self._give(Stage(self._token, label, batch, count))
        return await future  # type: ignore[no-any-return]  # Staged, or it raises

    async def operation(self, operation: Operation) -> Result:
        """Log an operation and return its result. Raises the error if there is one."""
        future = self._loop.create_future()
        self.operate(operation, partial(_finish, future))
        return await future  # type: ignore[no-any-return]  # a result that is no error

    async def barrier(self) -> ReadAnswer:
        """Wait until all appends acknowledged before the call are applied here."""
        future = self._loop.create_future()
        self.read(partial(_finish, future))
        return await future  # type: ignore[no-any-return]  # a ReadAnswer, or it raises

    # -- reads and status ----------------------------------------------------------------------

    async def fetch(
        self, offset: int, bytes_max: int, wait_s: float = 0.0, session_end: int = 0
    ) -> Fetched:
        """Fetch frames: see :meth:`Reader.fetch`."""
        return await self._guarded(self._reader.fetch(offset, bytes_max, wait_s, session_end))

    async def offset_at(self, time_us: int) -> int:
        """Find an offset by time: see :meth:`Reader.offset_at`."""
        return await self._guarded(self._reader.offset_at(time_us))

    async def _guarded(self, reading: Awaitable[Found]) -> Found:
        try:
            return await reading
        except ReplicaHalted as error:
            self._halt(error)
            raise self._refusal from error

    @property
    def leader(self) -> NodeId | None:
        """The leader, if this replica knows it."""
        return self.engine.core.standing.leader if self._refused is None else None

    @property
    def serves(self) -> bool:
        """Whether this node leads and its first entry is applied: it logs appends at once."""
        leader = self.engine.core.leader if self._refused is None else None
        return leader is not None and self.engine.applied >= leader.start

    @property
    def first_offset(self) -> int:
        return self._reader.first_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record that is applied here; the leader is not asked."""
        return self.engine.state.end

    def status(self) -> ReplicaStatus:
        return status_of(self.engine, self.first_offset)

    # -- turns ---------------------------------------------------------------------------------

    def _give(self, item: Input) -> None:
        """Put an input into the next turn, with the others that arrive by then."""
        if self._ended is None:
            self._inbox.append(item)
            self._plan_turn()

    def _plan_turn(self) -> None:
        """Take a turn in the next pass of the loop."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self._upkeep.tend(self.engine.settled, _now_ms())
        self._turn()

    def _turn(self) -> None:
        if self._ended is not None:
            return
        self._turn_due = False
        engine = self.engine
        inputs, self._inbox = self._inbox, []
        end = engine.state.end
        try:
            self._carry_out(engine.turn(inputs, _now_ms(), time_ns() // 1000))
            if engine.state.end != end:
                self._reader.moved()
        except Exception as error:  # noqa: BLE001  # the state is unknown after it
            self._halt(error)

    def _carry_out(self, effects: Effects) -> None:
        """Carry out the effects of a turn, the flush first: the disk is the slowest."""
        if effects.more:
            self._plan_turn()
        if effects.flush is not None:
            self._upkeep.flushed(_now_ms())
            self._disk.flush(effects.flush, self.engine.settled)
        if effects.sends:
            self._send(effects.sends)
        if effects.events:
            self._report(effects.events)
        for token, result in effects.answers:
            callback = self._appends.pop(token, None) or self._reads.pop(token)
            self._answer(callback, result)
        self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        if self._drained is not None and not (self._appends or self._drained.done()):
            self._drained.set_result(None)

    def _answer(self, callback: Callback, result: Result) -> None:
        try:
            callback(result)
        except Exception:
            log.exception("node=%s an answer could not be given", self.engine.node)

    def _checkpoint(self, sealed: Index) -> Checkpoint | None:
        try:
            return self.engine.checkpoint(sealed)
        except (Busy, Corrupt):
            return None  # its position cannot be read now: the next seal brings the next one
        except Exception as error:  # noqa: BLE001  # as in a turn
            self._halt(error)
            return None

    # -- the end -------------------------------------------------------------------------------

    def _halt(self, error: Exception) -> None:
        """Halt the replica, because going on could do harm: from here on it takes no turn, sends no
        message and writes no file."""
        if self._ended is None:
            self._disk.abandon()
            self._end(f"{self.engine.node} halted")
            self.halted(error if isinstance(error, ReplicaHalted) else self._unforeseen(error))

    def _unforeseen(self, error: Exception) -> ReplicaHalted:
        node = self.engine.node
        halt: ReplicaHalted = InvariantBroken(f"{node}: a turn failed: {error!r}")
        if isinstance(error, OSError | Busy):
            halt = DiskFailed(f"{node} cannot read its disk: {error}")
        halt.__cause__ = error
        return halt

    def _end(self, why: str) -> None:
        """End the turns. Appends that wait are told that their outcome is unknown, and reads are
        refused."""
        self._take_no_more(why)
        self._ended = why
        self._ticker.cancel()
        self._reader.stop(str(self._refusal))
        self._inbox.clear()
        for callback in self._appends.values():
            self._answer(callback, OutcomeUnknown(f"{why} before the outcome was known"))
        for callback in self._reads.values():
            self._answer(callback, self._refusal)
        self._appends.clear()
        self._reads.clear()
        self._look_whether_drained()

    def _take_no_more(self, why: str) -> None:
        """Refuse all requests from now on, also those that arrived and were in no turn yet."""
        self._refused = why
        given, self._inbox = self._inbox, []
        for item in given:
            if isinstance(item, Request):
                self._answer(self._appends.pop(item.token), self._refusal)
            else:
                self._inbox.append(item)

    @property
    def _refusal(self) -> QuorateError:
        return NotLeader(f"{self._refused}; leader: none")

    def _refuse(self, callback: Callback) -> None:
        self._loop.call_soon(self._answer, callback, self._refusal)

    async def close(self, *, clean: bool = True) -> None:
        """Stop and close the files. A clean stop waits for a moment for the commit of logged
        requests, ends the flush under way and writes its mark; the other kind leaves the files as a
        kill does, for a log that is no longer wanted.

        Raises DiskFailed or OSError if the mark could not be written; the files are closed then,
        too.
        """
        if self._closing is None:
            clean = clean and self._ended is None
            if clean:
                self._take_no_more(self._stopping)
            if clean and self._appends:
                self._drained = self._loop.create_future()
            else:
                self._leave(clean=clean)
            self._closing = self._loop.create_task(self._give_back(clean=clean))
        await asyncio.shield(self._closing)

    @property
    def _stopping(self) -> str:
        return f"{self.engine.node} is stopping"

    def _leave(self, *, clean: bool) -> None:
        if not clean:
            self._disk.abandon()
        if self._ended is None:
            self._end(self._stopping)

    async def _give_back(self, *, clean: bool) -> None:
        if self._drained is not None:
            await asyncio.wait([self._drained], timeout=DRAIN_S)
            clean = self._ended is None  # the replica may have halted meanwhile
            self._leave(clean=clean)
        try:
            await self._disk.rest()
            if clean:
                await self._disk.close(self.engine.settled)
        finally:
            await self._reader.rest()
            self._opened.close()


def _now_ms() -> int:
    return monotonic_ns() // 1_000_000


def _finish(future: asyncio.Future[Result], result: Result) -> None:
    if future.done():
        return  # the caller was cancelled
    if isinstance(result, QuorateError):
        future.set_exception(result)
    else:
        future.set_result(result)
