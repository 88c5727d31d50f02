"""Clients without a producer, which may repeat only an append that was refused.

The rules of real clients decide when to send again and which result to report, with the time of
this world. So a plain append that is sent twice although it may have been logged shows as a batch
that is applied twice, and an append that was logged but reported as failed shows, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.client.retries import Idempotency, Lost, Retries, RetryLimits, Unreachable
from quorate.commands import Receipt
from quorate.errors import NotLeader, OutcomeUnknown, QuorateError
from quorate.state.judge import AppendConditions
from verification.sim.ledger import Sent
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.replica.engine_io import Result
    from verification.sim.clients import Clients, PendingRequest
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Retriers"]

# Far below the payloads of producers.
FIRST_PAYLOAD = -1_000_000_000
AT_ONCE = 4
GAPS = 4
TIMEOUT_S = 2.0
RETRY_LIMITS = RetryLimits()


@dataclass(slots=True)
class _Append:
    """One append, from its first attempt to the result for its caller."""

    payload: int
    sent: Sent
    attempts: Retries
    # Its deadline, by the world's clock.
    deadline_us: int
    told: bool = False


class Retriers:
    """All clients of this kind, on a timer of their own."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._choices = world.decisions.stream("retriers")
        self._running = True
        self._payload = FIRST_PAYLOAD
        self._open = 0

    def start(self) -> None:
        self._world.after(3, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        options = self._world.options
        gap, where = self._choices.choose([GAPS * options.client_gap_us, -1], self._draw)
        if self._open < AT_ONCE:
            self._begin(self._clients.target(where))
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / (GAPS * options.client_gap_us)))
        return [gap, -1 if random.random() < 0.7 else random.randrange(options.nodes)]

    def _begin(self, node: SimulatedNode) -> None:
        self._payload -= 1
        self._open += 1
        append = _Append(
            self._payload,
            Sent(1, AppendConditions(fence=self._clients.ledger.fence)),
            Retries("append", Idempotency.UNSAFE, TIMEOUT_S, RETRY_LIMITS, Random(self._payload)),
            self._world.now + int(TIMEOUT_S * 1e6),
        )
        self._world.after(int(TIMEOUT_S * 1e6), lambda: self._expire(append))
        self._send(append, node)

    def _send(self, append: _Append, node: SimulatedNode) -> None:
        if append.told:
            return
        if node.engine is None:
            self._failed(append, Unreachable(f"{node.name} is down"))
            return
        append.attempts.sent = True
        self._clients.send(
            node,
            append.payload,
            append.sent,
            lambda attempt, result: self._answered(append, attempt, result),
        )

    def _answered(self, append: _Append, attempt: PendingRequest, result: Result | None) -> None:
        """An answer that comes after the result was reported is checked all the same, but not
        reported."""
        if isinstance(result, Receipt):
            self._clients.check_receipt(attempt.node, append.payload, result)
            self._tell(append, None)
        elif result is None:
            self._failed(append, Lost("the process died"))
        else:
            self._failed(append, self._clients.check_problem(attempt, result))

    def _failed(self, append: _Append, error: Exception) -> None:
        if append.told:
            return
        try:
            pause_s = append.attempts.failed(error, redirected=isinstance(error, NotLeader))
        except QuorateError as outcome:
            self._tell(append, outcome)
            return
        left_s = (append.deadline_us - self._world.now) / 1e6 - pause_s
        if append.attempts.worthwhile(left_s):
            self._world.sometimes["plain append sent again"] += 1
            self._world.after(1 + int(pause_s * 1e6), lambda: self._again(append))
        else:
            self._tell(append, append.attempts.expired())

    def _again(self, append: _Append) -> None:
        """Repeat an append, unless the run is to come to rest."""
        if self._running:
            self._send(append, self._clients.target(-1))
        else:
            self._expire(append)

    def _expire(self, append: _Append) -> None:
        if not append.told:
            self._tell(append, append.attempts.expired())

    def _tell(self, append: _Append, outcome: QuorateError | None) -> None:
        if append.told:
            return
        append.told = True
        self._open -= 1
        ledger = self._clients.ledger
        if isinstance(outcome, OutcomeUnknown):
            self._world.sometimes["plain append with an unknown outcome"] += 1
        elif outcome is not None:
            if append.payload in ledger.logged:
                problem = f"append {append.payload} failed with {outcome.code}, yet logged"
                raise Violation("C5", problem)
            ledger.refused.add(append.payload)
            self._world.sometimes["plain append given up"] += 1
