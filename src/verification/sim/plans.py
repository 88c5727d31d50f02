"""The writer of one simulated process: the plan of the disk under way, and the plans after it.

Takes the steps of the real writer (replica/log_writer.py) in virtual time: a crash may come between
any two steps.
"""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING

from quorate.errors import Busy, Damaged
from quorate.replica.engine_io import Flushed, FlushFailed, Room
from quorate.storage.layout import PAGE, segment_name
from verification.disk.simulated import UNLIMITED
from verification.sim.proofs import is_proved
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.replica.engine import Engine
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.flusher import Flush, Flusher
    from quorate.types import Index
    from verification.sim.node import SimulatedNode

__all__ = ["LOOK_FOR_ROOM_US", "Plans"]

PROVE_US = 10_000
LOOK_FOR_ROOM_US = 500_000


class Plans:
    """The plans of one process: made with its engine, and of no use to the next process."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._world = node.world
        self._store = node.store
        self._life = node.life
        # The plan under way, and the flush that waits for it.
        self._plan: Iterator[str] | None = None
        self._next_flush: Flush | None = None
        # Chores that are under way, or stopped for a flush and go on after it.
        self._chores: Iterator[str] | None = None
        # The plan that proves the last flush.
        self._proof: Iterator[str] | None = None
        # The number of flushes so far.
        self._flushes = 0
        # The index that was settled when the process began to stop in order; None unless it does.
        # And the plan that leaves the mark of the stop.
        self._closing: Index | None = None
        self._mark: Iterator[str] | None = None
        self._then: Callable[[], None] = lambda: None
        if self._store.log is not None:
            self._store.log.looks_later = True
        self._world.after(LOOK_FOR_ROOM_US, self._look_for_room)
        self._world.after(PROVE_US, self._prove, self._flushes)

    @property
    def _engine(self) -> Engine | None:
        """The engine; None once the process is gone, or another one has the disk."""
        return self._node.engine if self._life == self._node.life else None

    # -- flushes -------------------------------------------------------------------------------

    def flush(self, flush: Flush) -> None:
        """Make ``flush`` durable: now, or as soon as the plan under way has ended."""
        self._next_flush = flush
        self._feed()

    def _feed(self) -> None:
        """Begin the next flush, if there is one and the disk is free."""
        flush = self._next_flush
        if flush is not None and self._plan is None:
            self._next_flush = None
            self._run(self._store.plan(flush), flush.number)

    def _run(self, plan: Iterator[str], number: int | None) -> None:
        self._plan = plan
        self._world.after(self._node.disk_delay(), self._step, plan, number)

    def _step(self, plan: Iterator[str], number: int | None) -> None:
        """One step of the plan is done; a crash may come before the next."""
        node = self._node
        if self._life != node.life:
            return
        self._world.count_event("disk", node.name)
        try:
            step = next(plan, None)
        except OSError as error:
            full = error.errno == errno.ENOSPC and plan is not self._mark
            if full and not self._lacks_newest():
                raise Violation("space", f"{node.name} ran out of room in a flush") from error
            self._failed(number, error)
            return
        except Damaged as error:
            # A truncation reads the entry with which the log will end: on a spoiled disk that entry
            # may be bad.
            if node not in self._world.losses:
                raise Violation("damage", f"{node.name} writes: {error}") from error
            self._failed(number, error)
            return
        except Exception as error:
            raise Violation("crash", f"{node.name} writes: {error!r}") from error
        if step is not None and not self._parks(plan, step):
            self._world.after(node.disk_delay(), self._step, plan, number)
        elif self._closing is not None:
            self._close_on(plan)
        elif number is None:
            if plan is self._proof:
                self._judge_proof()
            self._leave(plan, parked=step is not None)
        else:
            node.give(Flushed(number, self.room.room))
            if self._engine is not None:
                self._tend()

    def _failed(self, number: int | None, error: Exception) -> None:
        if self._closing is not None:
            self._world.sometimes["no mark of a clean stop could be left"] += 1
            self._node.stopping = False
        else:
            failed = FlushFailed(number or 0, str(error), isinstance(error, Damaged))
            self._node.give(failed)

    def _parks(self, plan: Iterator[str], step: str) -> bool:
        """Whether ``plan`` stops here for a flush. The flush may need the spare."""
        waited_for = plan is self._chores and self._next_flush is not None
        parks = self._world.options.parks and self._closing is None
        return parks and waited_for and not step.endswith("spare")

    # -- chores --------------------------------------------------------------------------------

    def _leave(self, plan: Iterator[str], *, parked: bool) -> None:
        """Leave ``plan``, which is done or stops for a flush: the flush that waits comes next."""
        self._plan = None
        if parked:
            self._world.sometimes["chores stopped for a flush"] += 1
        elif plan is self._chores:
            self._chores = None
        self._node.give(self.room)
        self._feed()
        self._keep_state()

    def _tend(self) -> None:
        """A flush has ended: do the chores, then take the next; prove the last one if none comes.

        The next block would prove the last flush, too.
        """
        engine, flusher = self._engine, self._store.flusher
        if engine is None or flusher is None:
            return
        self._do_chores(engine, flusher)
        self._flushes += 1
        self._world.after(PROVE_US, self._prove, self._flushes)

    def _do_chores(self, engine: Engine, flusher: Flusher) -> None:
        """Go on with those that stopped; the spare comes first in any case."""
        chores = self._chores or flusher.chores(engine.settled)
        self._chores = chain(flusher.allocate_ahead(), chores)
        self._run(self._chores, None)

    def _keep_state(self) -> None:
        """Put the state beside the log if a segment may have been sealed."""
        engine, log, flusher = self._engine, self._store.log, self._store.flusher
        if self._plan is not None or engine is None or log is None or flusher is None:
            return
        try:
            checkpoint = engine.checkpoint(log.sealed)
        except Busy:
            return  # the next seal brings the next one
        if checkpoint is not None:
            self._judge_checkpoint(checkpoint)
            self._world.sometimes["checkpoint written"] += 1
            self._chores = flusher.keep(checkpoint)
            self._run(self._chores, None)

    def _judge_checkpoint(self, checkpoint: Checkpoint) -> None:
        """A checkpoint must hold only entries that no power cut could take from the log beside
        it."""
        node, position = self._node, checkpoint.position
        if self._store.durable.position(position.index) != position:
            raise Violation("checkpoint", f"{node.name} keeps the state at {position}, lacks it")

    @property
    def room(self) -> Room:
        flusher = self._store.flusher
        return Room(None) if flusher is None else Room(flusher.room, flusher.spare.shortage)

    def _look_for_room(self) -> None:
        """A disk that was full may have room again; no append is sent to it until the node looks
        for room."""
        engine, flusher = self._engine, self._store.flusher
        if engine is None or flusher is None:
            return
        log = self._store.log
        wanted = log is not None and log.wanted
        short = engine.core.raft.full or flusher.spare.shortage
        if self._plan is None and (short or wanted):
            self._do_chores(engine, flusher)
        self._world.after(LOOK_FOR_ROOM_US, self._look_for_room)

    def _prove(self, flushes: int) -> None:
        """Prove the last flush, if no other flush came for a while."""
        engine, flusher = self._engine, self._store.flusher
        if flushes != self._flushes or engine is None or flusher is None:
            return
        if self._plan is None and flusher.wants_proof(engine.settled):
            self._proof = flusher.prove(engine.settled)
            self._run(self._proof, None)
        elif self._plan is not None or flusher.unproven:
            self._world.after(PROVE_US, self._prove, flushes)
        else:
            self._judge_proof()

    def _judge_proof(self) -> None:
        """Every flush is proved by now, unless the disk is full: its last pages are reserved for
        messages without which a group cannot go on."""
        store = self._store
        full = store.disk.capacity != UNLIMITED or self.room.shortage
        gone = self._node in self._world.losses and self._lacks_newest()
        if not (full or gone or is_proved(store)):
            raise Violation("proof", f"{self._node.name} does not prove its last flush")
        self._world.sometimes["last flush proved"] += 1

    def _lacks_newest(self) -> bool:
        """Whether the newest segment has no name on the disk, or no end of a page: rot may take it
        away while the process still writes to it, or leave no room for a proof in it."""
        log, files = self._store.log, self._store.disk.files
        if log is None or not log.segments:
            return False
        newest = files.get(segment_name(log.segments[-1].number))
        return newest is None or len(newest.content) % PAGE != 0

    # -- a clean stop --------------------------------------------------------------------------

    def close(self, settled: Index, then: Callable[[], None]) -> None:
        """Stop the process in order: end the plan under way, drop the flush that waits, finish the
        chores that stopped, leave the mark; then call ``then``."""
        self._closing = settled
        self._then = then
        self._next_flush = None
        if self._plan is None:
            self._close_on(None)

    def _close_on(self, done: Iterator[str] | None) -> None:
        """``done`` has ended: begin the next plan, or end the process."""
        flusher, settled = self._store.flusher, self._closing
        assert flusher is not None and settled is not None  # only an open log is closed
        if done is not None and done is self._mark:
            self._node.stopping = False
            self._world.sometimes["stopped in order"] += 1
            self._then()
            return
        if done is self._chores:
            self._chores = None
        self._mark = chain(self._chores or (), flusher.close(settled))
        self._run(self._mark, None)
