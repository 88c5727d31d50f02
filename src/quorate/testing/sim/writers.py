"""Clients that insist: producers that send again until they know, conditional appends, fences.

A producer is the client's own: what it sends next, and what an answer means to it, is decided by
the window that real producers use. Here is its world, and a judge of what it reports. Now and then
a second one takes over its name: the first goes on as a zombie until it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quorate.client import results
from quorate.client.retries import Lost
from quorate.client.tickets import Ticket
from quorate.client.window import Window
from quorate.errors import Duplicate, Fenced, OutcomeUnknown, QuorateError, TooManyProducers
from quorate.replica.exchange import FenceChanged, Receipt
from quorate.state.judge import AppendTerms, Opened, ProducerStamp
from quorate.state.operations import OpenProducer, SetFence
from quorate.testing.sim.ledger import Sent
from quorate.testing.sim.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from quorate.client.window import Attempt as Sending
    from quorate.replica.exchange import Result
    from quorate.testing.sim.clients import Attempt, Clients
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World

__all__ = ["Writers"]

NAMES = ("p1", "p2")
AHEAD = 3
# So long a batch may be on its way before its producer gives up; few runs last that long.
PATIENCE_US = 3_000_000
# As short as it may be: some runs last that long.
EXPIRY_US = 1_000_000
# The shortest forgets where a batch went while its producer still asks.
WINDOWS = (4, 1, 2)
# Writers make a part of the load.
GAPS = 2


@dataclass(slots=True)
class _Producer:
    """One instance under a name."""

    name: str
    instance: bytes
    # None until it is open.
    window: Window | None = None
    # What was sent and is not judged yet, by payload.
    tickets: dict[int, Ticket] = field(default_factory=dict)

    @property
    def gone(self) -> bool:
        """Whether it ended and has nothing more on its way."""
        return self.window is not None and self.window.error is not None and self.window.idle


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
        if older is not None and older.window is not None:
            self._zombies.append(older)

    def _produce(self, node: Node, name: str, count: int) -> None:
        producer = self._producers.get(name)
        if producer is None or producer.gone:
            self._instances += 1
            instance = self._instances.to_bytes(16, "little")
            producer = self._producers[name] = _Producer(name, instance)
        if producer.window is not None:
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
            known = producer.window.epoch if producer.window is not None else result.epoch
            first = min(known, result.epoch)
            if known != result.epoch and not ledger.has_expired(producer.name, first):
                raise Violation("C3", f"{producer.name} opened as {known} and as {result}")
            if producer.window is None:
                producer.window = Window(producer.name, *result, AHEAD)
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
        window = producer.window
        if window is None or node.engine is None:
            return
        window.expire(self._world.now)
        self._judge(producer)
        sending = window.next()
        if sending is None and window.room:
            self._payload -= 1  # below all that other clients send
            ticket = producer.tickets[self._payload] = Ticket()
            ticket.data, ticket.count = str(self._payload).encode(), count
            window.add(ticket, self._world.now + PATIENCE_US)
            sending = window.next()
        if sending is not None:
            self._send(node, producer, window, sending)

    def _send(self, node: Node, producer: _Producer, window: Window, sending: Sending) -> None:
        ticket = sending.ticket
        stamp = ProducerStamp(producer.name, window.epoch, ticket.sequence)
        payload = int(ticket.data)
        # The terms of an attempt are those of the first: a fence that came since refuses it.
        known = self._clients.ledger.known(payload)
        fence = known.terms.fence if known is not None else self._clients.ledger.fence
        sent = Sent(ticket.count, AppendTerms(stamp, fence))
        self._check_same(payload, sent)

        def answered(attempt: Attempt, result: Result | None) -> None:
            window.answered(sending, self._understood(attempt, result))
            self._judge(producer)

        self._clients.send(node, payload, sent, answered)

    def _check_same(self, payload: int, sent: Sent) -> None:
        """A batch keeps its sequence and its records in every attempt."""
        known = self._clients.ledger.known(payload)
        if known not in (None, sent):
            raise Violation("C4", f"batch {payload} was sent as {known}, now as {sent}")

    def _understood(self, attempt: Attempt, result: Result | None) -> results.Receipt | Exception:
        """What a client makes of an answer, which is checked before it is believed."""
        if result is None:
            return Lost("the process died")
        if isinstance(result, Receipt):
            self._clients.check_receipt(attempt.payload, result)
            return results.Receipt(*result)
        return self._clients.check_problem(attempt, result)

    def _judge(self, producer: _Producer) -> None:
        """Hold what the window reports against the log, once for each batch."""
        for payload, ticket in list(producer.tickets.items()):
            if ticket.outcome is not None:
                del producer.tickets[payload]
                self._judge_outcome(payload, ticket.outcome)
        if producer.gone and producer in self._zombies:
            self._zombies.remove(producer)
            self._world.sometimes["zombie told"] += 1

    def _judge_outcome(self, payload: int, outcome: results.Receipt | QuorateError) -> None:
        ledger, sometimes = self._clients.ledger, self._world.sometimes
        placed = ledger.placed.get(payload)
        if isinstance(outcome, results.Receipt):
            if placed != (outcome.index, outcome.offset):
                raise Violation("C1", f"batch {payload} has {outcome}, applied at {placed}")
            sometimes["producer acked"] += 1
        elif isinstance(outcome, Duplicate):
            if placed is None:
                raise Violation("C1", f"batch {payload} is called a duplicate, applied nowhere")
            sometimes["producer told of a duplicate"] += 1
        elif isinstance(outcome, OutcomeUnknown):
            sometimes["producer left in doubt"] += 1
        else:
            if payload in ledger.logged:
                raise Violation("C5", f"batch {payload} failed with {outcome.code}, yet logged")
            ledger.refused.add(payload)
            sometimes["producer refused"] += 1

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
