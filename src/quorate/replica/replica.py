"""One replica in a process: the event loop drives its engine, and threads do its work on disk.

Inputs are gathered, and one turn is taken for all of them in the next pass of the loop. All code
runs in the loop's thread, except the work that waits for a disk: the writer carries out plans, and
a pool does cold reads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, TypeVar

from quorate.commands import ChunkLabel
from quorate.errors import (
    Busy,
    Corrupt,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    ReplicaHalted,
)
from quorate.replica.callbacks import Callbacks
from quorate.replica.chores import ChoreSchedule
from quorate.replica.engine_io import (
    ChangeMembers,
    Operate,
    Operated,
    Propose,
    Read,
    ReadAnswer,
    Request,
    Room,
    Stage,
    TransferLeadership,
)
from quorate.replica.halting import halt_after
from quorate.replica.log_writer import LogWriter
from quorate.replica.opening import open_replica
from quorate.replica.reader import LogReader
from quorate.replica.second_look import SecondLooks
from quorate.replica.status import status_of
from quorate.state.judge import UNCONDITIONAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Executor

    from quorate.commands import ChunkStaged, Receipt
    from quorate.config import Config
    from quorate.membership import Membership
    from quorate.raft.changes import MemberChange
    from quorate.raft.messages import Envelope
    from quorate.raft.output import Event, MembersChanged, Transferred
    from quorate.replica.callbacks import Callback
    from quorate.replica.engine_io import ClientOperation, Effects, Input, Result
    from quorate.replica.opening import OpenedReplica
    from quorate.replica.reader import Fetched
    from quorate.replica.status import ReplicaStatus
    from quorate.replica.writer import Writer
    from quorate.state.judge import AppendConditions
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.directory import DataDirectory
    from quorate.storage.flusher import Flush
    from quorate.types import GroupId, Index, NodeId

__all__ = ["Replica", "now_ms"]

Found = TypeVar("Found")

# Bytes of entries up to which a flush is small: about the appends of W2 that share an entry.
SMALL_FLUSH_BYTES = 32 * 1024
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
            writer, opened.log, opened.flusher, report=self.give, checkpoint=self._checkpoint
        )
        self._reader = LogReader(engine, opened.log, readers, self.barrier)
        self._loop = asyncio.get_running_loop()
        # The inputs of the next turn; a turn is due as soon as there is one.
        self._inbox: list[Input] = []
        self._turn_due = False
        self._callbacks = Callbacks(engine.node)
        # The reason why requests are refused; None while they are accepted.
        self._refused: str | None = None
        # The reason why no turn is taken any more; None while turns are taken.
        self._ended: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._tick_s = engine.config.timing.tick_ms / 1000
        self._chore_schedule = ChoreSchedule(self._disk, engine.disk_space, now_ms())
        self._second_looks = SecondLooks(opened.log, readers, now_ms())
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self.give(Room(opened.flusher.room, opened.flusher.spare.shortage))

    @classmethod
    async def open(
        cls,
        directory: DataDirectory,
        group: GroupId,
        membership: Membership,
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
        opened = await open_replica(
            directory, group, membership, config, writer, now_ms(), boot, note_boot
        )
        return cls(opened, writer, readers, send=send, halted=halted, report=report)

    # -- inputs --------------------------------------------------------------------------------

    def give(self, item: Input) -> None:
        """Put an input into the next turn, with the others that arrive by then."""
        if self._ended is None:
            self._inbox.append(item)
            self._plan_turn()

    def propose(
        self,
        batch: bytes,
        count: int,
        conditions: AppendConditions,
        callback: Callback,
        rows: bytes = b"",
        deadline_ms: int | None = None,
    ) -> None:
        """Append a batch of ``count`` records, or several with their ``rows``; ``callback`` gets a
        Receipt or an error. The batch is not logged later than ``deadline_ms``, by
        :func:`now_ms`."""
        if self._refused is not None:
            self._refuse(callback)
            return
        token = self._callbacks.add_append(callback)
        self.give(Propose(token, batch, count, None, conditions, rows, deadline_ms))

    def read(self, callback: Callback) -> None:
        """Read the end of the log by a barrier; ``callback`` gets a ReadAnswer or an error."""
        if self._ended is not None:
            self._refuse(callback)
            return
        self.give(Read(self._callbacks.add_read(callback)))

    async def append(
        self, batch: bytes, count: int, conditions: AppendConditions = UNCONDITIONAL
    ) -> Receipt:
        future = self._loop.create_future()
        self.propose(batch, count, conditions, partial(_finish, future))
        return await future  # type: ignore[no-any-return]  # a receipt, or it raises

    async def operate(
        self, command: ClientOperation | ChunkLabel, batch: bytes = b"", count: int = 0
    ) -> Operated | ChunkStaged:
        """Log a command and return its result. Raises the error if there is one. The one command
        with a ``batch``, of ``count`` records, stages it: readers see it once it is published."""
        if self._refused is not None:
            raise self._refusal
        future = self._loop.create_future()
        token = self._callbacks.add_append(partial(_finish, future))
        if isinstance(command, ChunkLabel):
            self.give(Stage(token, command, batch, count))
        else:
            self.give(Operate(token, command))
        return await future  # type: ignore[no-any-return]  # a result that is no error

    async def barrier(self) -> ReadAnswer:
        """Wait until all appends acknowledged before the call are applied here."""
        future = self._loop.create_future()
        self.read(partial(_finish, future))
        return await future  # type: ignore[no-any-return]  # a ReadAnswer, or it raises

    async def transfer(self, target: NodeId | None) -> Transferred:
        """Give the leadership to ``target``, or to the fittest voter. Returns when that leads."""
        return await self._ask_leader(partial(TransferLeadership, target=target))  # type: ignore[return-value]  # or it raises

    async def change_members(self, change: MemberChange) -> MembersChanged:
        """Change the members of the log. Returns when the change is committed and applied."""
        return await self._ask_leader(partial(ChangeMembers, change=change))  # type: ignore[return-value]  # or it raises

    async def _ask_leader(self, request: Callable[[int], Input]) -> Result:
        """Give the engine a request that only a leader takes. Raises the error if there is one."""
        if self._refused is not None:
            raise self._refusal
        future = self._loop.create_future()
        # Like a read: if this node ends, its caller may ask again.
        self.give(request(self._callbacks.add_read(partial(_finish, future))))
        return await future  # type: ignore[no-any-return]  # a result that is no error

    # -- reads and status ----------------------------------------------------------------------

    async def fetch(
        self, offset: int, bytes_max: int, wait_s: float = 0.0, session_end: int = 0
    ) -> Fetched:
        """Fetch frames: see :meth:`LogReader.fetch`."""
        return await self._guarded(self._reader.fetch(offset, bytes_max, wait_s, session_end))

    async def offset_at(self, time_us: int) -> int:
        """Find an offset by time: see :meth:`LogReader.offset_at`."""
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
        return self.engine.core.raft.leader if self._refused is None else None

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

    def _plan_turn(self) -> None:
        """Take a turn in the next pass of the loop."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self._chore_schedule.tend(self.engine.settled, now_ms())
        self._second_looks.tend(now_ms())
        self._turn()

    def _turn(self) -> None:
        if self._ended is not None:
            return
        self._turn_due = False
        engine = self.engine
        inputs, self._inbox = self._inbox, []
        end = engine.state.end
        try:
            self._carry_out(engine.turn(inputs, now_ms(), time_ns() // 1000))
            if engine.state.end != end:
                self._reader.moved()
        except Exception as error:  # noqa: BLE001  # the state is unknown after it
            self._halt(error)

    def _carry_out(self, effects: Effects) -> None:
        """Carry out the effects of a turn. A large flush goes to its thread first: the disk writes
        while the messages are copied into their sockets. A small one goes last: its thread would
        take the interpreter from the loop, and the peers would get the messages later."""
        if effects.more:
            self._plan_turn()
        small = self.engine.durability.unwritten_bytes <= SMALL_FLUSH_BYTES
        if effects.flush is not None and not small:
            self._flush(effects.flush)
        if effects.sends:
            self._send(effects.sends)
        if effects.flush is not None and small:
            self._flush(effects.flush)
        if effects.events:
            self._report(effects.events)
        for token, result in effects.answers:
            self._callbacks.answer(token, result)

    def _flush(self, flush: Flush) -> None:
        self._chore_schedule.flushed(now_ms())
        self._disk.flush(flush, self.engine.settled)

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
            self.halted(halt_after(error, self.engine.node))

    def _end(self, why: str) -> None:
        """End the turns. Appends that wait are told that their outcome is unknown, and reads are
        refused."""
        self._take_no_more(why)
        self._ended = why
        self._ticker.cancel()
        self._reader.stop(why)
        self._inbox.clear()
        unknown = OutcomeUnknown(f"{why} before the outcome was known")
        self._callbacks.answer_all(unknown, self._refusal)

    def _take_no_more(self, why: str) -> None:
        """Refuse all requests from now on, also those that arrived and were in no turn yet."""
        self._refused = why
        given, self._inbox = self._inbox, []
        for item in given:
            if isinstance(item, Request):
                self._callbacks.answer(item.token, self._refusal)
            else:
                self._inbox.append(item)

    @property
    def _refusal(self) -> QuorateError:
        return NotLeader(str(self._refused))

    def _refuse(self, callback: Callback) -> None:
        self._loop.call_soon(callback, self._refusal)

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
            drained = self._callbacks.drained() if clean else None
            if drained is None:
                self._leave(clean=clean)
            self._closing = self._loop.create_task(self._give_back(drained, clean=clean))
        await asyncio.shield(self._closing)

    @property
    def _stopping(self) -> str:
        return f"{self.engine.node} is stopping"

    def _leave(self, *, clean: bool) -> None:
        if not clean:
            self._disk.abandon()
        if self._ended is None:
            self._end(self._stopping)

    async def _give_back(self, drained: asyncio.Future[None] | None, *, clean: bool) -> None:
        if drained is not None:
            await asyncio.wait([drained], timeout=DRAIN_S)
            clean = self._ended is None  # the replica may have halted meanwhile
            self._leave(clean=clean)
        try:
            await self._disk.rest()
            if clean:
                await self._disk.close(self.engine.settled)
        finally:
            await self._reader.rest()
            await self._second_looks.rest()
            self._opened.close()


def _finish(future: asyncio.Future[Result], result: Result) -> None:
    """Give a result to a caller that awaits it, unless the caller was cancelled."""
    if future.done():
        return
    if isinstance(result, QuorateError):
        future.set_exception(result)
    else:
        future.set_result(result)


def now_ms() -> int:
    """The clock of all turns, and of the deadlines of appends."""
    return monotonic_ns() // 1_000_000
