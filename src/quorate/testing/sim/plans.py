"""The disk of one simulated process: which plan is under way, and what comes after it.

Does what the real writer does (replica/writer.py), step by step in virtual time: a crash may come
between any two steps.
"""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING

from quorate.errors import Busy, Damaged
from quorate.replica.exchange import Flushed, FlushFailed, Room
from quorate.testing.disk.simulated import UNLIMITED
from quorate.testing.sim.proofs import is_proved
from quorate.testing.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.replica.engine import Engine
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.flusher import Flush, Flusher
    from quorate.testing.sim.node import Node
    from quorate.types import Index

__all__ = ["LOOK_FOR_ROOM_US", "Plans"]

PROVE_US = 10_000
LOOK_FOR_ROOM_US = 500_000


class Plans:
    """One for each process: made when its engine is, and of no use to the next."""

    def __init__(self, node: Node) -> None:
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
        # How many flushes there were.
        self._flushes = 0
        # What was settled when the process began to stop in order; None unless it does. And the
        # plan that leaves the mark of it.
        self._closing: Index | None = None
        self._mark: Iterator[str] | None = None
        self._then: Callable[[], None] = lambda: None
        if self._store.log is not None:
            self._store.log.looks_later = True
        self._world.after(LOOK_FOR_ROOM_US, self._look_for_room)
        self._world.after(PROVE_US, self._prove, self._flushes)

    @property
    def _engine(self) -> Engine | None:
        """None once the process is gone, or another one has the disk."""
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
            if error.errno == errno.ENOSPC and plan is not self._mark:
                raise Violation("space", f"{node.name} ran out of room in a flush") from error
            self._failed(number, error)
            return
        except Damaged as error:
            # A truncation looks up where the log will end: on a spoiled disk that may be bad.
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
        """Whether ``plan`` stops here for a flush. The spare may be what the flush needs."""
        waited_for = plan is self._chores and self._next_flush is not None
        parks = self._world.options.parks and self._closing is None
        return parks and waited_for and not step.endswith("spare")

    # -- chores --------------------------------------------------------------------------------

    def _leave(self, plan: Iterator[str], *, parked: bool) -> None:
        """Nobody waits for ``plan``, and it is done or stops: a flush that waits comes next."""
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

        What is written after it proves it, too.
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
        """A segment may have been sealed: then the state is put beside the log."""
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
        """It must know nothing that a power cut could take from the log beside it."""
        node, position = self._node, checkpoint.position
        if self._store.durable.position(position.index) != position:
            raise Violation("checkpoint", f"{node.name} keeps the state at {position}, lacks it")

    @property
    def room(self) -> Room:
        flusher = self._store.flusher
        return Room(None) if flusher is None else Room(flusher.room, flusher.shortage)

    def _look_for_room(self) -> None:
        """A disk that was full may have room again; nobody appends until it is looked for."""
        engine, flusher = self._engine, self._store.flusher
        if engine is None or flusher is None:
            return
        log = self._store.log
        wanted = log is not None and log.wanted
        if self._plan is None and (engine.core.standing.full or wanted):
            self._do_chores(engine, flusher)
        self._world.after(LOOK_FOR_ROOM_US, self._look_for_room)

    def _prove(self, flushes: int) -> None:
        """Nothing was flushed for a while: prove the last flush."""
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
        """What was flushed is proved by now, unless the disk is full: the last pages are kept for
        what a group cannot do without."""
        full = self._store.disk.capacity != UNLIMITED or self.room.shortage
        if not full and not is_proved(self._store):
            raise Violation("proof", f"{self._node.name} does not prove its last flush")
        self._world.sometimes["last flush proved"] += 1

    # -- a clean stop --------------------------------------------------------------------------

    def close(self, settled: Index, then: Callable[[], None]) -> None:
        """The process stops in order: end the plan under way, drop the flush that waits, finish
        the chores that stopped, leave the mark; then do ``then``."""
        self._closing = settled
        self._then = then
        self._next_flush = None
        if self._plan is None:
            self._close_on(None)

    def _close_on(self, done: Iterator[str] | None) -> None:
        """``done`` has ended: what comes next, or the end of the process."""
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
