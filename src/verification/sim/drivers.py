"""Clients that stage and publish as the drivers of a distributed query do.

A driver writes one batch after the other: tasks stage the chunks of each partition, some of them
twice at once; then one publish. The contents of a batch follow from its number, so a driver that is
started anew writes the same batch again. It begins after the last batch that the one before noted
as done, which may be one too few; and the one before goes on as a zombie until it is told.

A job is a driver that writes one batch, once and for all: a driver that is started anew is another
job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from quorate.commands import Abort, Aborted, ChunkLabel, ChunkStaged, Part, Publish, Receipt
from quorate.errors import (
    Duplicate,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    ReplayMismatch,
    StageExpired,
    StageFull,
)
from quorate.replica.engine_io import Operate, Stage
from verification.sim.options import BATCH_BYTES_MAX
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from quorate.replica.engine_io import Result
    from verification.sim.clients import Clients, PendingRequest
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Drivers"]

APPS = ("q1", "q2")
# Each job has a name of its own, with this prefix.
JOB = "job"
# The share of drivers in the load.
GAPS = 2


def _chunks(app: str, batch_id: int, partition: int) -> list[int]:
    """The number of records in each chunk of a partition: the query always gives the same."""
    drawn = blake2b(f"{app}/{batch_id}/{partition}".encode(), digest_size=2).digest()
    return [1 + drawn[1] % 2] * (1 + drawn[0] % 3)


def _partitions(app: str, batch_id: int) -> range:
    """Now and then a batch is empty."""
    drawn = blake2b(f"{app}/{batch_id}".encode(), digest_size=1).digest()
    return range((2, 1, 3, 2, 0)[drawn[0] % 5])


@dataclass(slots=True)
class _Task:
    """One attempt at a partition."""

    partition: int
    attempt: bytes
    # The records of each chunk, and the number of chunks that are staged.
    chunks: list[int]
    staged: int = 0
    under_way: bool = False
    # A chunk of the attempt was dropped: the attempt cannot go on.
    failed: bool = False

    @property
    def finished(self) -> bool:
        return self.staged == len(self.chunks)


@dataclass(slots=True)
class _Driver:
    """One run of a query."""

    app: str
    run: bytes
    batch_id: int
    # The driver is a job.
    once: bool = False
    # Attempts at each partition of the batch, oldest first.
    tasks: dict[int, list[_Task]] = field(default_factory=dict)
    publishing: bool = False
    gone: bool = False


class Drivers:
    """All drivers, on a timer of their own."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._choices = world.decisions.stream("drivers")
        self._running = True
        self._ids = 0
        # The newest run of each app, and older ones that do not know yet.
        self._drivers: dict[str, _Driver] = {}
        self._zombies: list[_Driver] = []
        # The batch with which the next run of an app begins.
        self._noted: dict[str, int] = {}

    def start(self) -> None:
        self._world.after(3, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        options = self._world.options
        usual: list[Any] = [GAPS * options.client_gap_us, "nothing", -1, 0]
        gap, kind, where, which = self._choices.choose(usual, self._draw)
        node = self._clients.target(where)
        app = (*APPS, JOB)[which % (len(APPS) + 1)]
        if kind != "nothing":
            self._world.count_event(kind, node.name)
        if kind == "drive":
            self._go_on(node, self._driver(app), which)
        elif kind == "drive zombie" and self._zombies:
            self._go_on(node, self._zombies[which % len(self._zombies)], which)
        elif kind == "speculate":
            self._speculate(self._driver(app), which)
        elif kind == "drive anew":
            self._start_anew(app)
        elif kind == "abort":
            self._abort(node, self._driver(app), which)
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / (GAPS * options.client_gap_us)))
        (kind,) = random.choices(
            ("drive", "drive zombie", "speculate", "drive anew", "abort"), (14, 3, 1.5, 0.7, 0.8)
        )
        where = -1 if random.random() < 0.8 else random.randrange(options.nodes)
        return [gap, kind, where, random.randrange(12)]

    # -- a run ---------------------------------------------------------------------------------

    def _driver(self, app: str) -> _Driver:
        driver = self._drivers.get(app)
        if driver is None or driver.gone:
            run = self._id()
            if app == JOB:
                driver = _Driver(f"{JOB}-{self._ids}", run, 0, once=True)
            else:
                driver = _Driver(app, run, self._noted.get(app, 0))
            self._drivers[app] = driver
            self._begin_batch(driver)
        return driver

    def _start_anew(self, app: str) -> None:
        """The next run takes over; the one before goes on until it is told."""
        older = self._drivers.pop(app, None)
        if older is not None and not older.gone:
            self._zombies.append(older)

    def _id(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "little")

    def _begin_batch(self, driver: _Driver) -> None:
        driver.tasks = {
            partition: [self._task(driver, partition)]
            for partition in _partitions(driver.app, driver.batch_id)
        }

    def _task(self, driver: _Driver, partition: int) -> _Task:
        chunks = _chunks(driver.app, driver.batch_id, partition)
        return _Task(partition, self._id(), chunks)

    def _speculate(self, driver: _Driver, which: int) -> None:
        """A second attempt at a partition, beside the first."""
        if driver.tasks:
            partition = which % len(driver.tasks)
            driver.tasks[partition].append(self._task(driver, partition))

    def _go_on(self, node: SimulatedNode, driver: _Driver, which: int) -> None:
        """Stage the next chunk of some task; publish once every partition has a whole attempt."""
        if node.engine is None or driver.gone or driver.publishing:
            return
        waiting = [
            task
            for tasks in driver.tasks.values()
            for task in tasks
            if not (task.finished or task.failed or task.under_way)
        ]
        winners = [
            next((task for task in tasks if task.finished), None) for tasks in driver.tasks.values()
        ]
        whole = [winner for winner in winners if winner is not None]
        # Speculative attempts may still be under way when the driver publishes.
        if len(whole) == len(winners) and (not waiting or which % 2):
            self._publish(node, driver, whole, which)
        elif waiting:
            self._stage(node, driver, waiting[which % len(waiting)])
        else:
            for partition, tasks in driver.tasks.items():
                if all(task.failed for task in tasks):
                    tasks.append(self._task(driver, partition))

    # -- chunks --------------------------------------------------------------------------------

    def _stage(self, node: SimulatedNode, driver: _Driver, task: _Task) -> None:
        number = task.staged
        label = ChunkLabel(
            driver.app, driver.run, driver.batch_id, task.partition, task.attempt, number
        )
        records = task.chunks[number]
        mark = f"{driver.app}/{driver.batch_id}/{task.partition}/{number}/".encode()
        size = min(self._world.options.batch_bytes, BATCH_BYTES_MAX)  # the cap holds several
        batch = (mark + task.attempt[:4].hex().encode()).ljust(size)
        self._clients.ledger.stages.ask_stage(label, batch, records)
        task.under_way = True

        def answered(attempt: PendingRequest, result: Result | None) -> None:
            task.under_way = False
            self._staged(task, label, len(batch), attempt, result)
            if isinstance(result, StageFull) and driver in self._zombies:
                self._world.sometimes["zombie told that there is no room"] += 1

        self._clients.request(node, lambda token: Stage(token, label, batch, records), answered)

    def _staged(
        self,
        task: _Task,
        label: ChunkLabel,
        size: int,
        attempt: PendingRequest,
        result: Result | None,
    ) -> None:
        stages, sometimes = self._clients.ledger.stages, self._world.sometimes
        if isinstance(result, ChunkStaged):
            if not stages.explains_staged(label, result):
                raise Violation("C1", f"{label} answered {result}, which is not so")
            sometimes["chunk told of its publish" if result.published else "chunk staged"] += 1
            task.staged = max(task.staged, label.number + 1)
        elif isinstance(result, OutOfSequence):
            # The chunks before were dropped.
            task.failed = True
            sometimes["attempt failed"] += 1
        elif isinstance(result, QuorateError):
            sometimes[f"stage answer {result.code}"] += 1
            limits = attempt.node.config.limits
            if _is_final(result) and not stages.explains_stage(
                result.code, label, size, limits, attempt.since
            ):
                raise Violation("C5", f"{label} refused: {result}: was never so")
        elif result is not None:
            raise Violation("one-answer", f"{label} got {result}")

    # -- publishes -----------------------------------------------------------------------------

    def _publish(
        self, node: SimulatedNode, driver: _Driver, winners: list[_Task], which: int
    ) -> None:
        parts = tuple(
            Part(task.partition, task.attempt, len(task.chunks), sum(task.chunks))
            for task in winners
        )
        content = f"{driver.app}/{driver.batch_id}".encode()
        if which == 0:
            content += b"/not the same on replay"
        elif which == 1:
            parts = parts[:1]  # fewer records than on replay
        digest = blake2b(content, digest_size=32).digest()
        ledger = self._clients.ledger
        publish = Publish(
            driver.app, driver.batch_id, parts, digest, ledger.fence, once=driver.once
        )
        ledger.stages.ask_publish(publish)
        driver.publishing = True
        self._clients.request(
            node,
            lambda token: Operate(token, publish),
            lambda attempt, result: self._published(driver, publish, attempt, result),
        )

    def _published(
        self, driver: _Driver, publish: Publish, attempt: PendingRequest, result: Result | None
    ) -> None:
        driver.publishing = False
        ledger, sometimes = self._clients.ledger, self._world.sometimes
        if isinstance(result, Receipt):
            if not ledger.stages.explains_receipt(publish, result):
                raise Violation("C1", f"{publish} answered {result}, which is not so")
            self._clients.check_copies(attempt.node, result)
            sometimes["batch published"] += 1
            self._batch_done(driver)
        elif isinstance(result, QuorateError):
            sometimes[f"publish answer {result.code}"] += 1
            limits = attempt.node.config.limits
            if _is_final(result) and not ledger.stages.explains_publish(
                result.code, publish, limits, attempt.since, ledger.fences
            ):
                raise Violation("C5", f"{publish} refused: {result}: was never so")
            self._refused(driver, result)
        elif result is not None:
            raise Violation("one-answer", f"{publish} got {result}")

    def _batch_done(self, driver: _Driver) -> None:
        if driver.once:
            self._end(driver)
            return
        driver.batch_id += 1
        self._begin_batch(driver)
        if self._drivers.get(driver.app) is driver:
            self._noted[driver.app] = driver.batch_id

    def _refused(self, driver: _Driver, problem: QuorateError) -> None:
        if isinstance(problem, Duplicate):
            self._end(driver)
            # The driver that published it is ahead of the noted batch.
            self._noted[driver.app] = max(self._noted.get(driver.app, 0), driver.batch_id + 1)
        elif isinstance(problem, ReplayMismatch):
            # The publish that came first is kept: the driver takes it for its own.
            self._batch_done(driver)
        elif isinstance(problem, StageExpired) and driver.once:
            self._end(driver)  # a job is not begun again under its name
        elif isinstance(problem, StageExpired):
            self._begin_batch(driver)

    def _end(self, driver: _Driver) -> None:
        driver.gone = True
        if driver in self._zombies:
            self._zombies.remove(driver)

    # -- aborts --------------------------------------------------------------------------------

    def _abort(self, node: SimulatedNode, driver: _Driver, which: int) -> None:
        """Abort an attempt, or a whole batch; some aborts come after the publish."""
        tasks = [task for tasks in driver.tasks.values() for task in tasks]
        attempt = tasks[which % len(tasks)].attempt if tasks and which % 3 else None
        abort = Abort(driver.app, max(0, driver.batch_id - which % 2), attempt)
        ledger = self._clients.ledger
        ledger.stages.ask_abort(abort)

        def answered(_: PendingRequest, result: Result | None) -> None:
            if isinstance(result, Aborted):
                if not ledger.stages.explains_aborted(abort, result.index):
                    raise Violation("C1", f"{abort} answered {result}, some of it is staged")
                self._world.sometimes["batch aborted" if result.attempts else "abort idle"] += 1
            elif isinstance(result, QuorateError) and _is_final(result):
                raise Violation("C5", f"{abort} refused: {result}")

        self._clients.request(node, lambda token: Operate(token, abort), answered)


def _is_final(problem: QuorateError) -> bool:
    return not problem.retriable and not isinstance(problem, OutcomeUnknown)
