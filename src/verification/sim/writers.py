"""Clients that insist: producers that send again until they know, conditional appends, fences.

A producer is the client's own: the window of real producers decides on its next batch and on the
meaning of an answer. This module is its world, and a judge of its reports. Now and then a second
instance takes over its name: the first goes on as a zombie until an answer tells it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quorate.client.produce.tickets import Ticket
from quorate.client.produce.window import Window
from quorate.client.retries import Lost
from quorate.commands import (
    FenceChanged,
    OpenProducer,
    ProducerOpened,
    ProducerStamp,
    Receipt,
    SetFence,
)
from quorate.errors import Duplicate, Fenced, OutcomeUnknown, QuorateError, TooManyProducers
from quorate.state.judge import AppendConditions
from verification.sim.ledger import Sent
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from quorate.client.produce.window import SendAttempt as Sending
    from quorate.replica.engine_io import Result
    from verification.sim.clients import Clients, PendingRequest
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["WriterClients"]

NAMES = ("p1", "p2")
AHEAD = 3
# A producer gives up a batch after so long; few runs last that long.
PATIENCE_US = 3_000_000
# The shortest expiry that is allowed: some runs last that long.
EXPIRY_US = 1_000_000
# The shortest window forgets the place of a batch while its producer still asks for it.
WINDOWS = (4, 1, 2)
# The share of writers in the load.
GAPS = 2


@dataclass(slots=True)
class _Producer:
    """One instance under a name."""

    name: str
    instance: bytes
    # The window of the producer; None until it is open.
    window: Window | None = None
    # The batches that were sent and not judged yet, by payload.
    tickets: dict[int, Ticket] = field(default_factory=dict)

    # The highest epoch of another instance that an answer named.
    known: int = 0

    @property
    def gone(self) -> bool:
        """Whether the producer ended and has no more batches on their way."""
        return self.window is not None and self.window.error is not None and self.window.idle


class WriterClients:
    """All writers, on a timer of their own."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._choices = world.decisions.stream("writers")
        self._running = True
        self._instances = 0
        self._payload = 0
        # The newest instance of each name, and older ones that do not know of it yet.
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
        elif kind == "open late" and self._zombies:
            self._open(node, self._zombies[which % len(self._zombies)], known=0)
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
            ("produce", "zombie", "open late", "replace", "expect", "fence"),
            (12, 3, 0.5, 0.5, 3, 0.7),
        )
        where = -1 if random.random() < 0.8 else random.randrange(options.nodes)
        return [gap, kind, where, random.randrange(6), random.choice((1, 2))]

    # -- producers -----------------------------------------------------------------------------

    def _replace(self, name: str) -> None:
        """Replace an instance by the next one; the one before goes on until an answer tells it."""
        older = self._producers.pop(name, None)
        if older is not None and older.window is not None:
            self._zombies.append(older)

    def _produce(self, node: SimulatedNode, name: str, count: int) -> None:
        producer = self._producers.get(name)
        if producer is None or producer.gone:
            self._instances += 1
            instance = self._instances.to_bytes(16, "little")
            producer = self._producers[name] = _Producer(name, instance)
        if producer.window is not None:
            self._go_on(node, producer, count)
        else:
            # The opening is repeated with the same instance: the answer must be the same.
            self._open(node, producer, producer.known)

    def _open(self, node: SimulatedNode, producer: _Producer, known: int) -> None:
        """Send the opening of ``producer``, or a copy that comes late."""
        window = WINDOWS[producer.instance[0] % len(WINDOWS)]
        operation = OpenProducer(producer.name, producer.instance, window, EXPIRY_US, known)
        self._clients.operate(
            node,
            operation,
            lambda attempt, result: self._opened(producer, operation, attempt, result),
        )

    def _opened(
        self,
        producer: _Producer,
        operation: OpenProducer,
        attempt: PendingRequest,
        result: Result | None,
    ) -> None:
        ledger = self._clients.ledger
        if isinstance(result, ProducerOpened) and result.held:
            if not ledger.explains_held(operation, result):
                raise Violation("C3", f"{operation} answered {result}, which no other instance has")
            if producer.window is None:
                producer.known = max(producer.known, result.epoch)
            else:
                self._world.sometimes["late opening found a successor"] += 1
        elif isinstance(result, ProducerOpened):
            if not ledger.explains_opening(operation, result):
                raise Violation("C3", f"{operation} answered {result}, which is not in the log")
            if ledger.replaced(producer.name, result.epoch) > producer.known:
                raise Violation("C3", f"{operation} fenced off an instance that it did not know")
            known = producer.window.epoch if producer.window is not None else result.epoch
            # A late copy opens a name again that was forgotten meanwhile.
            later = max(known, result.epoch)
            if known != result.epoch and ledger.replaced(producer.name, later):
                raise Violation("C3", f"{producer.name} opened as {known} and as {result}")
            if producer.window is None:
                producer.window = Window(producer.name, result.epoch, result.last_sequence, AHEAD)
                self._world.sometimes["producer opened"] += 1
        elif isinstance(result, TooManyProducers):
            limit = attempt.node.config.limits.producers
            if not ledger.explains_crowd(limit, attempt.since):
                raise Violation("C5", f"{producer.name} was not opened: {result}: was never so")
            self._world.sometimes["too many producers"] += 1
        elif isinstance(result, QuorateError) and _is_final(result):
            raise Violation("C5", f"{producer.name} was not opened: {result}")

    def _go_on(self, node: SimulatedNode, producer: _Producer, count: int) -> None:
        """Send the waiting batches, or one more batch."""
        window = producer.window
        if window is None or node.engine is None:
            return
        window.expire(self._world.now)
        self._judge(producer)
        sending = window.next()
        if sending is None and window.room:
            self._payload -= 1  # below the payloads of all other clients
            ticket = producer.tickets[self._payload] = Ticket()
            ticket.data, ticket.count = str(self._payload).encode(), count
            window.add(ticket, self._world.now + PATIENCE_US)
            sending = window.next()
        if sending is not None:
            self._send(node, producer, window, sending)

    def _send(
        self, node: SimulatedNode, producer: _Producer, window: Window, sending: Sending
    ) -> None:
        ticket = sending.ticket
        stamp = ProducerStamp(producer.name, window.epoch, ticket.sequence)
        payload = int(ticket.data)
        # An attempt has the conditions of the first one: a fence that was set since refuses it.
        known = self._clients.ledger.known(payload)
        fence = known.conditions.fence if known is not None else self._clients.ledger.fence
        sent = Sent(ticket.count, AppendConditions(stamp, fence))
        self._check_same(payload, sent)

        def answered(attempt: PendingRequest, result: Result | None) -> None:
            window.answered(sending, self._understood(attempt, result))
            self._judge(producer)

        self._clients.send(node, payload, sent, answered)

    def _check_same(self, payload: int, sent: Sent) -> None:
        """A batch keeps its sequence and its records in every attempt."""
        known = self._clients.ledger.known(payload)
        if known not in (None, sent):
            raise Violation("C4", f"batch {payload} was sent as {known}, now as {sent}")

    def _understood(self, attempt: PendingRequest, result: Result | None) -> Receipt | Exception:
        """The client's reading of an answer, which is checked before it is believed."""
        if result is None:
            return Lost("the process died")
        if isinstance(result, Receipt):
            self._clients.check_receipt(attempt.node, attempt.payload, result)
            return result
        return self._clients.check_problem(attempt, result)

    def _judge(self, producer: _Producer) -> None:
        """Compare the reports of the window with the log, once for each batch."""
        for payload, ticket in list(producer.tickets.items()):
            if ticket.outcome is not None:
                del producer.tickets[payload]
                self._judge_outcome(payload, ticket.outcome)
        if producer.gone and producer in self._zombies:
            self._zombies.remove(producer)
            self._world.sometimes["zombie told"] += 1

    def _judge_outcome(self, payload: int, outcome: Receipt | QuorateError) -> None:
        ledger, sometimes = self._clients.ledger, self._world.sometimes
        placed = ledger.placed.get(payload)
        if isinstance(outcome, Receipt):
            if placed != (outcome.index, outcome.offset):
                raise Violation("C1", f"batch {payload} has {outcome}, applied at {placed}")
            sometimes["producer acked"] += 1
        elif isinstance(outcome, Duplicate):
            if placed is None:
                raise Violation("C1", f"batch {payload} is called a duplicate, applied nowhere")
            sometimes["producer told of a duplicate"] += 1
        elif isinstance(outcome, OutcomeUnknown):
            sometimes["producer with an unknown outcome"] += 1
        else:
            if payload in ledger.logged:
                raise Violation("C5", f"batch {payload} failed with {outcome.code}, yet logged")
            ledger.refused.add(payload)
            sometimes["producer refused"] += 1

    # -- conditions and fences -----------------------------------------------------------------

    def _append_at(self, node: SimulatedNode, which: int) -> None:
        """Append under a condition: mostly with the end as it is known, sometimes with another
        one."""
        ledger = self._clients.ledger
        end = ledger.ends[-1] + (which - 4 if which > 3 else 0)
        conditions = AppendConditions(fence=ledger.fence, expect_offset=max(0, end))
        self._clients.append(node, conditions=conditions)

    def _set_fence(self, node: SimulatedNode, which: int) -> None:
        """Set a fence: mostly in the place of the one that is set, sometimes of one that never
        was."""
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

    def _fence_answered(
        self, operation: SetFence, attempt: PendingRequest, result: Result | None
    ) -> None:
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
