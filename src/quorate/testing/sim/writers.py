"""Clients that insist: producers that send again until they know, conditional appends, fences.

A producer numbers its batches, sends a few ahead, and after anything but a receipt begins again at
the lowest without one, with the same bytes. Now and then a second one takes over its name: the
first goes on as a zombie until it is told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quorate.errors import (
    Duplicate,
    Fenced,
    OutcomeUnknown,
    QuorateError,
    TooManyProducers,
    UnknownProducer,
)
from quorate.replica.exchange import FenceChanged, Receipt
from quorate.state.judge import AppendTerms, Opened, ProducerStamp
from quorate.state.operations import OpenProducer, SetFence
from quorate.testing.sim.ledger import Sent
from quorate.testing.sim.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from quorate.replica.exchange import Result
    from quorate.testing.sim.clients import Attempt, Clients
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World

__all__ = ["Writers"]

NAMES = ("p1", "p2")
AHEAD = 3
# As short as it may be: some runs last that long.
EXPIRY_US = 1_000_000
# The shortest forgets where a batch went while its producer still asks.
WINDOWS = (4, 1, 2)
# Writers make a part of the load.
GAPS = 2


@dataclass(slots=True)
class _Batch:
    """One batch of a producer: the same bytes in every attempt."""

    payload: int
    sequence: int
    count: int
    sent: bool = False


@dataclass(slots=True)
class _Producer:
    """One instance under a name."""

    name: str
    instance: bytes
    epoch: int = 0
    opening: bool = False
    next_sequence: int = 0
    # Without a receipt, in order.
    unacked: deque[_Batch] = field(default_factory=deque)
    gone: bool = False


class Writers:
    """All of them, on a timer of their own."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._choices = world.decisions.stream("writers")
        self._running = True
        self._instances = 0
        self._payload = 0
        # The newest instance of each name, and older ones that do not know yet.
        self._producers: dict[str, _Producer] = {}
        self._zombies: list[_Producer] = []
        self._fences = 0

    def start(self) -> None:
        self._world.after(2, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        options = self._world.options
        usual: list[Any] = [GAPS * options.client_gap_us, "nothing", -1, 0, 1]
        gap, kind, where, which, count = self._choices.choose(usual, self._draw)
        node = self._clients.target(where)
        if kind != "nothing":
            self._world.count_event(kind, node.name)
        if kind == "produce":
            self._produce(node, NAMES[which % len(NAMES)], count)
        elif kind == "zombie" and self._zombies:
            self._go_on(node, self._zombies[which % len(self._zombies)], count)
        elif kind == "replace":
            self._replace(NAMES[which % len(NAMES)])
        elif kind == "expect":
            self._append_at(node, which)
        elif kind == "fence":
            self._set_fence(node, which)
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / (GAPS * options.client_gap_us)))
        (kind,) = random.choices(
            ("produce", "zombie", "replace", "expect", "fence"), (12, 3, 0.5, 3, 0.7)
        )
        where = -1 if random.random() < 0.8 else random.randrange(options.nodes)
        return [gap, kind, where, random.randrange(6), random.choice((1, 2))]

    # -- producers -----------------------------------------------------------------------------

    def _replace(self, name: str) -> None:
        """The next instance takes over; the one before goes on until it is told."""
        older = self._producers.pop(name, None)
        if older is not None and older.epoch:
            self._zombies.append(older)

    def _produce(self, node: Node, name: str, count: int) -> None:
        producer = self._producers.get(name)
        if producer is None or producer.gone:
            self._instances += 1
            instance = self._instances.to_bytes(16, "little")
            producer = self._producers[name] = _Producer(name, instance)
        if producer.epoch:
            self._go_on(node, producer, count)
        else:
            # Asked again and again, with the same instance: the answer must be the same.
            window = WINDOWS[producer.instance[0] % len(WINDOWS)]
            operation = OpenProducer(name, producer.instance, window, EXPIRY_US)
            self._clients.operate(
                node,
                operation,
                lambda attempt, result: self._opened(producer, operation, attempt, result),
            )

    def _opened(
        self, producer: _Producer, operation: OpenProducer, attempt: Attempt, result: Result | None
    ) -> None:
        ledger = self._clients.ledger
        if isinstance(result, Opened):
            if not ledger.explains_opening(operation, result):
                raise Violation("C3", f"{operation} answered {result}, which is not in the log")
            known = producer.epoch or result.epoch
            first = min(known, result.epoch)
            if known != result.epoch and not ledger.has_expired(producer.name, first):
                raise Violation("C3", f"{producer.name} opened as {known} and as {result}")
            if not producer.epoch:
                producer.epoch = result.epoch
                producer.next_sequence = result.last_sequence + 1
                self._world.sometimes["producer opened"] += 1
        elif isinstance(result, TooManyProducers):
            limit = attempt.node.config.limits.producers
            if not ledger.explains_crowd(limit, attempt.since):
                raise Violation("C5", f"{producer.name} was not opened: {result}: was never so")
            self._world.sometimes["too many producers"] += 1
        elif isinstance(result, QuorateError) and _is_final(result):
            raise Violation("C5", f"{producer.name} was not opened: {result}")

    def _go_on(self, node: Node, producer: _Producer, count: int) -> None:
        """Send what was not sent, or one more batch."""
        if producer.gone:
            return
        waiting = next((batch for batch in producer.unacked if not batch.sent), None)
        if waiting is None and len(producer.unacked) < AHEAD:
            self._payload -= 1  # below all that other clients send
            waiting = _Batch(self._payload, producer.next_sequence, count)
            producer.next_sequence += count
            producer.unacked.append(waiting)
        if waiting is not None:
            self._send(node, producer, waiting)

    def _send(self, node: Node, producer: _Producer, batch: _Batch) -> None:
        if node.engine is None:
            return
        batch.sent = True
        stamp = ProducerStamp(producer.name, producer.epoch, batch.sequence)
        # The terms of an attempt are those of the first: a fence that came since refuses it.
        known = self._clients.ledger.known(batch.payload)
        fence = known.terms.fence if known is not None else self._clients.ledger.fence
        sent = Sent(batch.count, AppendTerms(stamp, fence))
        self._clients.send(
            node,
            batch.payload,
            sent,
            lambda attempt, result: self._answered(producer, batch, attempt, result),
        )

    def _answered(
        self, producer: _Producer, batch: _Batch, attempt: Attempt, result: Result | None
    ) -> None:
        if isinstance(result, Receipt):
            self._clients.check_receipt(batch.payload, result)
            self._acked(producer, batch)
            return
        if result is not None:
            problem = self._clients.check_problem(attempt, result)
            if isinstance(problem, Duplicate):
                self._world.sometimes["producer told of a duplicate"] += 1
                self._acked(producer, batch)
                return
            if isinstance(problem, Fenced | UnknownProducer):
                self._retire(producer)
                return
        # Ambiguous, or not now: everything from the lowest without a receipt goes again, in order.
        for one in producer.unacked:
            one.sent = False

    def _acked(self, producer: _Producer, batch: _Batch) -> None:
        self._world.sometimes["producer acked"] += 1
        if batch in producer.unacked:
            producer.unacked.remove(batch)

    def _retire(self, producer: _Producer) -> None:
        producer.gone = True
        if producer in self._zombies:
            self._zombies.remove(producer)
            self._world.sometimes["zombie told"] += 1

    # -- conditions and fences -----------------------------------------------------------------

    def _append_at(self, node: Node, which: int) -> None:
        """Most name the end as it is known, some another one."""
        ledger = self._clients.ledger
        end = ledger.ends[-1] + (which - 4 if which > 3 else 0)
        terms = AppendTerms(fence=ledger.fence, expect_offset=max(0, end))
        self._clients.append(node, terms=terms)

    def _set_fence(self, node: Node, which: int) -> None:
        """Most replace the fence that is set, some one that never was."""
        self._fences += 1
        known = self._clients.ledger.fence
        expect = known if which else f"never-{self._fences}"
        fence = None if which > 3 and known is not None else f"f{self._fences}"
        operation = SetFence(fence, expect)
        self._clients.operate(
            node,
            operation,
            lambda attempt, result: self._fence_answered(operation, attempt, result),
        )

    def _fence_answered(self, operation: SetFence, attempt: Attempt, result: Result | None) -> None:
        ledger = self._clients.ledger
        if isinstance(result, FenceChanged):
            if ledger.fences[result.index] != operation.fence:
                raise Violation("fence", f"{operation} answered {result}, it is not set there")
            self._world.sometimes["fence set"] += 1
        elif isinstance(result, Fenced):
            if not ledger.explains_fence(operation, attempt.since):
                raise Violation("C5", f"{operation} refused: {result}: was never so")
            self._world.sometimes["fence refused"] += 1
        elif isinstance(result, QuorateError) and _is_final(result):
            raise Violation("C5", f"{operation} refused: {result}")


def _is_final(problem: QuorateError) -> bool:
    return not problem.retriable and not isinstance(problem, OutcomeUnknown)
