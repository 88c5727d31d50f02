"""Clients that append and read, and the record of the answers that they got.

Checks the promises to a client: an acknowledged append stays where the receipt says, a refused one
never appears, an unknown one appears at most once, a refusal was right when it was given, and a
read shows every record that was acknowledged or read before it began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quorate.commands import Receipt
from quorate.entry_body import pack_runs
from quorate.errors import OutcomeUnknown, QuorateError, TooLarge
from quorate.replica.engine_io import (
    ChangeMembers,
    Operate,
    Propose,
    Read,
    ReadAnswer,
    TransferLeadership,
)
from quorate.state.judge import UNCONDITIONAL, AppendConditions
from quorate.types import Index, Term
from verification.sim.changes import ChangeRequests
from verification.sim.drivers import Drivers
from verification.sim.ledger import PAYLOAD_MARK, Ledger, Sent
from verification.sim.options import UNEVEN_BATCHES
from verification.sim.readers import Readers
from verification.sim.retriers import Retriers
from verification.sim.transfers import TransferRequests
from verification.sim.violation import Violation
from verification.sim.writers import WriterClients

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorate.commands import OpenProducer, SetFence
    from quorate.entry import Entry
    from quorate.replica.engine_io import Answer, Request, Result
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Clients", "PendingRequest"]

# The number of batches that are now and then proposed together, and the bit from which on their
# payloads differ.
TOGETHER = 3
TOGETHER_SHIFT = 40


@dataclass(slots=True)
class PendingRequest:
    """A request that is under way."""

    node: SimulatedNode
    # The highest index applied at any node when the request was sent, and the node's clock then.
    since: Index
    clock: int
    # Called with the answer, or with None if the process died first.
    answered: Callable[[PendingRequest, Result | None], None]
    # The batch of the request; 0 if it has none.
    payload: int = 0
    # The highest index that a client had seen before the request was sent.
    shown: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself


class Clients:
    """All clients of a run: they share one view of the promises."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.decisions.stream("clients")
        self._token = 0
        self._running = True
        self._open: dict[int, PendingRequest] = {}
        # The highest index that was acknowledged or seen by a finished read.
        self._shown = Index(0)
        self.ledger = Ledger(world.config.timing)
        # The sizes in bytes of batches that differ from the usual size.
        self._sizes: dict[int, int] = {}
        self.acked = 0
        self.read = 0
        self._writers = WriterClients(world, self)
        self._drivers = Drivers(world, self)
        self._retriers = Retriers(world, self)
        self.readers = Readers(world, self)
        self.transfers = TransferRequests(world, self)
        self.changes = ChangeRequests(world, self)

    # -- operations ----------------------------------------------------------------------------

    def start(self) -> None:
        self._world.after(1, self._next)
        self._writers.start()
        self._drivers.start()
        self._retriers.start()
        self.readers.start()

    def stop(self) -> None:
        self._running = False
        self._writers.stop()
        self._drivers.stop()
        self._retriers.stop()
        self.readers.stop()

    def _next(self) -> None:
        if not self._running:
            return
        options = self._world.options
        usual: list[Any] = [options.client_gap_us, "append", -1, 1]
        gap, kind, where, count = self._choices.choose(usual, self._draw)
        node = self.target(where)
        self._world.count_event("client", node.name)
        if kind == "append":
            self.append(node, count, self._expected_term(node))
        else:
            self.ask(node)
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / options.client_gap_us))
        kind = "read" if random.random() < options.reads else "append"
        # Most requests go to the leader, by the node's own view; some to any node.
        where = -1 if random.random() < 0.8 else random.randrange(options.nodes)
        return [gap, kind, where, random.choice((1, 1, 3))]

    def target(self, where: int) -> SimulatedNode:
        nodes = list(self._world.nodes.values())
        if where >= 0:
            # Nodes that came later have their share of the requests.
            added = len(nodes) - self._world.options.nodes
            return nodes[where + added * (self._token % 2)]
        leaders = [node for node in nodes if node.leads]
        return leaders[self._token % len(leaders)] if leaders else nodes[0]

    def _expected_term(self, node: SimulatedNode) -> Term | None:
        """The term that a request expects: for some that of the node, for a few the one before."""
        if self._token % 5:
            return None
        return Term(node.term - (self._token % 3 == 0))

    def append(
        self,
        node: SimulatedNode,
        count: int = 1,
        expected_term: Term | None = None,
        conditions: AppendConditions | None = None,
        size: int | None = None,
    ) -> int:
        """Append ``count`` records at ``node``, under drawn conditions; return the token.

        ``size``: bytes of the batch, if it differs from the usual size.
        """
        payload = self._token + 1
        if size is None and self._world.options.uneven_sizes:
            size = UNEVEN_BATCHES[payload % len(UNEVEN_BATCHES)]
        if size is not None:
            self._sizes[payload] = size
        if conditions is None:
            conditions = AppendConditions(fence=self.ledger.fence)
        sent = Sent(count, conditions, expected_term)
        limits = node.config.limits
        together = TOGETHER * len(self._batch(payload))
        if (
            conditions == UNCONDITIONAL
            and size is None
            and payload % 4 == 0
            and together <= min(limits.batch_bytes, limits.entry_bytes)
        ):
            return self._append_together(node, payload, sent)
        return self.send(node, payload, sent, self._append_answered)

    def _append_together(self, node: SimulatedNode, payload: int, sent: Sent) -> int:
        """Batches that came together: they are answered together, and each is judged by itself."""
        payloads = [payload + (place << TOGETHER_SHIFT) for place in range(TOGETHER)]
        if node.engine is not None:
            for one in payloads:
                self.ledger.send(one, sent)
        token = self._begin(node, partial(self._together_answered, payloads, sent.count), payload)
        batches = [self._batch(one) for one in payloads]
        rows = pack_runs((len(batch), sent.count) for batch in batches)
        count = TOGETHER * sent.count
        node.give(
            Propose(token, b"".join(batches), count, sent.expected_term, sent.conditions, rows)
        )
        return token

    def _together_answered(
        self, payloads: list[int], count: int, attempt: PendingRequest, result: Result | None
    ) -> None:
        if isinstance(result, Receipt):
            self._world.sometimes["batches appended together"] += 1
            if result.count != count * len(payloads):
                raise Violation("C1", f"{result} for {len(payloads)} batches of {count}")
        for place, payload in enumerate(payloads):
            answer = result
            if isinstance(result, Receipt):
                answer = result._replace(offset=result.offset + place * count, count=count)
            self._append_answered(replace(attempt, payload=payload), answer)

    def _batch(self, payload: int) -> bytes:
        mark = str(payload).encode() + PAYLOAD_MARK
        size = self._sizes.get(payload, self._world.options.batch_bytes)
        return mark + bytes(max(0, size - len(mark)))

    def send(
        self,
        node: SimulatedNode,
        payload: int,
        sent: Sent,
        answered: Callable[[PendingRequest, Result | None], None],
    ) -> int:
        """Send a batch, for the first time or again."""
        if node.engine is not None:  # without a process, no request was sent
            self.ledger.send(payload, sent)
        token = self._begin(node, answered, payload)
        batch = self._batch(payload)
        node.give(Propose(token, batch, sent.count, sent.expected_term, sent.conditions))
        return token

    def operate(
        self,
        node: SimulatedNode,
        operation: OpenProducer | SetFence,
        answered: Callable[[PendingRequest, Result | None], None],
    ) -> None:
        self.request(node, lambda token: Operate(token, operation), answered)

    def request(
        self,
        node: SimulatedNode,
        make: Callable[[int], Request | TransferLeadership | ChangeMembers],
        answered: Callable[[PendingRequest, Result | None], None],
    ) -> int:
        """Send the request that ``make`` gives for a token. Returns the token."""
        token = self._begin(node, answered)
        node.give(make(token))
        return token

    def ask(self, node: SimulatedNode) -> int:
        """Begin a linearizable read at ``node``."""
        token = self._begin(node, self._read_answered)
        node.give(Read(token))
        return token

    def _begin(
        self,
        node: SimulatedNode,
        answered: Callable[[PendingRequest, Result | None], None],
        payload: int = 0,
    ) -> int:
        self._token += 1
        if node.engine is not None:
            clock = node.engine.core.raft.clock
            self._open[self._token] = PendingRequest(
                node, self.ledger.index, clock, answered, payload, self._shown
            )
        return self._token

    def open(self, token: int) -> bool:
        """Whether the operation has no answer yet."""
        return token in self._open

    @property
    def idle(self) -> bool:
        """Whether every operation has its answer, or will never get one."""
        return not self._open

    # -- answers -------------------------------------------------------------------------------

    def process_died(self, node: SimulatedNode) -> None:
        """The requests to this process stay without an answer."""
        for token in [token for token, one in self._open.items() if one.node is node]:
            attempt = self._open.pop(token)
            attempt.answered(attempt, None)

    def answered(self, node: SimulatedNode, answers: list[Answer]) -> None:
        for token, result in answers:
            attempt = self._open.pop(token, None)
            if attempt is None:
                raise Violation("one-answer", f"{node.name} answered token {token} twice")
            if isinstance(result, OutcomeUnknown):
                self.transfers.note_unknown(node)
            attempt.answered(attempt, result)

    def _append_answered(self, attempt: PendingRequest, result: Result | None) -> None:
        """Check the answer to a batch that is sent once: a refused batch must never appear."""
        if result is None:
            return
        payload = attempt.payload
        if isinstance(result, Receipt):
            self.check_receipt(attempt.node, payload, result)
            return
        problem = self.check_problem(attempt, result)
        if isinstance(problem, OutcomeUnknown):
            if payload not in self.ledger.logged:
                raise Violation("C5", f"batch {payload} was never logged, its fate said unknown")
            return
        if payload in self.ledger.logged:
            raise Violation("C5", f"batch {payload} refused with {problem.code}, yet logged")
        self.ledger.refused.add(payload)

    def check_receipt(self, node: SimulatedNode, payload: int, receipt: Receipt) -> None:
        """The batch is where the receipt of ``node`` says, and on a majority of disks."""
        world, ledger = self._world, self.ledger
        placed = ledger.placed.get(payload)
        if placed != (receipt.index, receipt.offset):
            raise Violation("C1", f"batch {payload} acked at {receipt}, applied at {placed}")
        sent = ledger.sent(payload)
        entry = world.invariants.committed[receipt.index - 1]
        if receipt.count != sent.count or receipt.term != entry.term:
            raise Violation("C1", f"{receipt} for {sent} in an entry of {entry.term}")
        if sent.expected_term not in (None, receipt.term):
            raise Violation("C5", f"batch {payload}: {sent}, got {receipt}")
        self.check_copies(node, receipt)

    def check_copies(self, node: SimulatedNode, receipt: Receipt) -> None:
        """Check that as many voters have the entry on disk as the receipt says, and a majority of
        those that had to agree, at its commit or later."""
        world = self._world
        entry = world.invariants.committed[receipt.index - 1]
        members = world.invariants.members_of(node.name)
        copies = world.durable_copies(entry.position, members.newest.deciding)
        fewest = min(row.fewest for row in members.since(entry.index))
        if not fewest <= receipt.synced <= copies:
            raise Violation("C1", f"{receipt} with {copies} copies on disk")
        self.acked += 1
        self._shown = max(self._shown, Index(receipt.index))

    def check_problem(self, attempt: PendingRequest, result: Result) -> QuorateError:
        """A final refusal must have been right between the question and the answer."""
        if not isinstance(result, QuorateError):
            raise Violation("one-answer", f"batch {attempt.payload} got {result}")
        self._world.sometimes[f"answer {result.code}"] += 1
        if result.retriable or isinstance(result, OutcomeUnknown):
            return result
        if isinstance(result, TooLarge) and self._is_too_large(attempt):
            self._world.sometimes["batch too large for this node alone"] += 1
            return result
        if not self.ledger.explains(result, attempt.payload, attempt.since):
            raise Violation("C5", f"{attempt.node.name}: {result.code}: {result}: was never so")
        return result

    def _is_too_large(self, attempt: PendingRequest) -> bool:
        """Whether the node that was asked takes no batch of this size."""
        size = self._sizes.get(attempt.payload, 0)
        return size > attempt.node.config.limits.batch_bytes

    def _read_answered(self, attempt: PendingRequest, result: Result | None) -> None:
        node, world = attempt.node, self._world
        if result is None:
            return
        self._check_in_time(attempt)
        if isinstance(result, QuorateError):
            world.sometimes[f"read answer {result.code}"] += 1
            return
        if not isinstance(result, ReadAnswer):
            raise Violation("one-answer", f"a read got {result}")
        if result.index < attempt.shown:
            raise Violation(
                "C6", f"{node.name} read at {result.index}, {attempt.shown} was shown before"
            )
        if result.end_offset != self.ledger.ends[result.index]:
            raise Violation("C6", f"end {result.end_offset} at index {result.index}")
        self.read += 1
        self._shown = max(self._shown, result.index)
        if not node.leads:
            world.sometimes["read answered by a follower"] += 1

    def _check_in_time(self, attempt: PendingRequest) -> None:
        """Check that a read ends at its deadline, by the clock of the node that was asked."""
        config, node = self._world.config, attempt.node
        clock = node.engine.core.raft.clock if node.engine is not None else attempt.clock
        waited = clock - attempt.clock
        if waited > config.timing.ticks(config.timing.read_ms):
            raise Violation("C11", f"{node.name} answered a read {waited} ticks later")

    def applied(self, entry: Entry) -> None:
        """Take note that ``entry`` was applied for the first time at any node."""
        expired = self.ledger.expired
        self.ledger.apply(entry)
        if self.ledger.expired > expired:
            self._world.sometimes["producer expired"] += 1
        if self.ledger.stages.dropped is not None:
            self._world.sometimes[self.ledger.stages.dropped] += 1

    def logged(self, entry: Entry) -> None:
        """Take note that ``entry`` is new in a log, for the first time at any node."""
        self.ledger.note_logged(entry)
