"""Clients of a simulated fleet: they create, delete, append and read, and try again.

A try that no node answers in time is tried again elsewhere, with the same incarnation. Some calls
are repeated long after they were answered: a network may do that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.commands import Receipt
from quorate.errors import (
    InvalidArgument,
    LogExists,
    LogNotFound,
    LogRecreated,
    OffsetMismatch,
    QuorateError,
)
from quorate.replica.engine_io import ReadAnswer
from verification.fleet import calls
from verification.fleet.world import ELECTION_MS
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Generator

    from verification.fleet.manifest import Work
    from verification.fleet.process import Process
    from verification.fleet.world import FleetWorld

__all__ = ["ClientCall", "DrawnLog", "FleetClients"]

NAMES = ("orders", "clicks", "audit", "trades")
PRIORITIES = (0, 50, 100, 200)
TRIES = 8
TIMEOUT_US = 3 * ELECTION_MS * 1000
PAUSE_US = 100_000
GAP_US = 25_000
# The share of incarnations that claim a draw offset beyond the end of the catalog.
FROM_THE_FUTURE = 0.15
# A call with one of these answers is over.
FINAL = (InvalidArgument, LogExists, LogNotFound, LogRecreated, OffsetMismatch)


class DrawnLog(NamedTuple):
    """A log as a client drew it."""

    name: str
    incarnation: int
    drawn_at: int


@dataclass(slots=True)
class ClientCall:
    """A request of a client, asked until it has a final answer."""

    kind: Literal["create", "delete", "set", "append", "read"]
    log: DrawnLog
    patient: bool = False
    # The priorities that are to be set.
    priorities: dict[str, int] = field(default_factory=dict)
    tries: int = 0
    # The answer that ended the call; None as long as it is open, or if the client gave up.
    answer: object = None
    over: bool = False

    @property
    def succeeded(self) -> bool:
        return self.over and self.answer is not None and not isinstance(self.answer, QuorateError)


class FleetClients:
    """All clients of a fleet."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._random = world.random
        # Logs that were drawn, live or not.
        self.drawn: list[DrawnLog] = []
        # Logs whose creation a client was told, and logs whose deletion a client was told.
        self.told_made: set[int] = set()
        self.told_deleted: set[int] = set()
        self._batches = 0

    def run(self) -> None:
        """Begin a call now, and others after pauses, until the world is calm."""
        if not self._world.calm:
            self._ask_something()
            self._world.after(self._random.randrange(1, 2 * GAP_US), self.run)

    def _ask_something(self) -> None:
        random = self._random
        roll = random.random()
        made = [log for log in self.drawn if log.incarnation in self.told_made] or self.drawn
        if roll < 0.06 or not self.drawn:
            self.begin(ClientCall("create", self.draw(random.choice(NAMES))))
        elif roll < 0.09:
            self.begin(ClientCall("delete", random.choice(self.drawn[-6:])))
        elif roll < 0.095:
            for log in made[-len(NAMES) :]:
                self.begin(ClientCall("delete", log))
        elif roll < 0.15:
            # Repeat a call long after the first one was answered, or after the deletion of its log.
            self.begin(
                ClientCall(random.choice(("create", "create", "delete")), random.choice(made))
            )
        elif roll < 0.18:
            nodes = random.sample(sorted(self._world.nodes), random.choice((1, 1, 2)))
            priorities = {str(node): random.choice(PRIORITIES) for node in nodes}
            log = random.choice(made[-4:])
            self.begin(ClientCall("set", log, priorities=priorities))
        else:
            self.begin(ClientCall("append" if roll < 0.7 else "read", random.choice(made[-4:])))

    def draw(self, name: str) -> DrawnLog:
        """A log that no client has asked for yet. A client asks any node for the end of the
        catalog; the answer may be old."""
        ends = [
            process.catalog.applied
            for node in self._world.nodes.values()
            if (process := node.process) is not None and node.good and process.takes_part
        ]
        drawn_at = self._random.choice(ends) if ends else 0
        if self._random.random() < FROM_THE_FUTURE:
            # A real client never does that. It must not bring a deleted log back.
            drawn_at += self._random.choice((1, 3, 1000))
        log = DrawnLog(name, self._random.getrandbits(128), drawn_at)
        self.drawn.append(log)
        return log

    # -- one call ------------------------------------------------------------------------------

    def begin(self, call: ClientCall) -> ClientCall:
        """Ask, and ask again until there is a final answer or the client gives up."""
        world, (_, incarnation, _) = self._world, call.log
        if call.kind == "create" and incarnation in world.history.deleted:
            world.sometimes["create retried after delete"] += 1
        if call.kind == "delete" and incarnation in world.history.deleted:
            world.sometimes["delete retried"] += 1
        self._try(call)
        return call

    def _try(self, call: ClientCall) -> None:
        if call.over:
            return
        if call.tries >= TRIES and not call.patient:
            call.over = True
            return
        call.tries += 1
        process = self._choose(call)
        if process is None:
            self._world.after(PAUSE_US, self._try, call)
            return
        number = call.tries
        process.run(process.begin, self._serve(process, call))
        self._world.after(TIMEOUT_US, self._time_out, call, number)

    def _choose(self, call: ClientCall) -> Process | None:
        """Send half of the tries to the node that is said to lead, the others to any node."""
        incarnation = call.log.incarnation
        if call.kind in ("create", "delete", "set"):
            incarnation = self._world.catalog
        running = [
            node.process
            for node in self._world.nodes.values()
            if node.process is not None and node.process.takes_part
        ]
        leaders = [
            process
            for process in running
            if (replica := process.replicas.get(incarnation)) is not None and replica.leads
        ]
        pool = leaders if leaders and self._random.random() < 0.8 else running
        return self._random.choice(pool) if pool else None

    def _time_out(self, call: ClientCall, number: int) -> None:
        if call.tries == number:
            self._try(call)

    def _serve(self, process: Process, call: ClientCall) -> Work:
        """Try a call once, on a node. The answer reaches the client unless the process ends
        before."""
        history, log = self._world.history, call.log
        deleted_before = log.incarnation in history.deleted
        end_before = history.log(log.incarnation).end
        number = call.tries
        self._batches += 1
        batch = b"batch %d" % self._batches
        try:
            answer = yield from self._work(process, call, batch)
        except QuorateError as error:
            answer = error
        if isinstance(answer, QuorateError):
            self._refused(call, number, answer)
            return
        if isinstance(answer, Receipt):
            history.appended(log.incarnation, answer, batch)
        elif isinstance(answer, ReadAnswer):
            history.read(log.incarnation, end_before, answer.end_offset)
        elif call.kind == "create":
            history.created(log.incarnation, deleted_before=deleted_before)
            self.told_made.add(log.incarnation)
        elif call.kind == "set":
            assert isinstance(answer, int)
            history.placed(log.incarnation, answer)
        else:
            history.removed(log.incarnation)
            self.told_deleted.add(log.incarnation)
        self._world.sometimes[f"{call.kind} answered"] += 1
        call.answer, call.over = answer or True, True

    def _work(
        self, process: Process, call: ClientCall, batch: bytes
    ) -> Generator[int, None, object]:
        name, incarnation, drawn_at = call.log
        if call.kind == "create":
            yield from calls.create(process, name, incarnation, drawn_at)
            return True
        if call.kind == "delete":
            yield from calls.delete(process, name, incarnation)
            return True
        if call.kind == "set":
            return (yield from calls.set_priorities(process, name, incarnation, call.priorities))
        if call.kind == "append":
            return (yield from calls.append(process, incarnation, batch))
        return (yield from calls.read(process, incarnation))

    def _refused(self, call: ClientCall, number: int, problem: QuorateError) -> None:
        if call.over or call.tries != number:
            return
        if isinstance(problem, FINAL):
            self._world.sometimes[f"{call.kind} refused: {problem.code}"] += 1
            call.answer, call.over = problem, True
            self._judge_refusal(call, problem)
        else:
            self._world.after(PAUSE_US, self._try, call)

    def _judge_refusal(self, call: ClientCall, problem: QuorateError) -> None:
        """A log that was never deleted is not said to be gone once its creation was told."""
        log, history = call.log, self._world.history
        lost = log.incarnation in self.told_made and log.incarnation not in history.deleted
        if lost and isinstance(problem, LogNotFound):
            raise Violation("acknowledged", f"{log} was created and is refused: {problem}")
