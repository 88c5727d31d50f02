"""Requests to transfer the leadership, and the promises to those that ask.

A transfer ends in time, and one that succeeds leaves no request with an unknown outcome (C14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.errors import OutcomeUnknown, QuorateError
from quorate.raft.output import Transferred
from quorate.replica.engine_io import TransferLeadership
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.replica.engine_io import Result
    from quorate.types import NodeId
    from verification.sim.clients import Clients, PendingRequest
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["TransferRequests"]

# One for the target to come near the end of the log, one to drain, one for the target to win, and
# one until the new leader is heard.
ANSWER_ELECTIONS = 4


@dataclass(slots=True)
class _PendingTransfer:
    """A transfer that a node was asked for."""

    node: SimulatedNode
    # The number of requests at this node whose outcome is unknown since then.
    unknown: int = 0


class TransferRequests:
    """The transfers that a run asked for."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._open: list[_PendingTransfer] = []
        # The number of transfers that succeeded.
        self.done = 0

    def ask(self, node: SimulatedNode, target: NodeId | None) -> int:
        """Ask ``node`` to give the leadership to ``target``. Returns the token of the request."""
        pending = _PendingTransfer(node)
        if node.engine is not None:
            self._open.append(pending)

        def answered(attempt: PendingRequest, result: Result | None) -> None:
            self._open.remove(pending)
            self._judge(pending, attempt, target, result)

        return self._clients.request(
            node, lambda token: TransferLeadership(token, target), answered
        )

    def note_unknown(self, node: SimulatedNode) -> None:
        """Note that the outcome of a request at ``node`` is unknown."""
        for pending in self._open:
            pending.unknown += pending.node is node

    def _judge(
        self,
        pending: _PendingTransfer,
        attempt: PendingRequest,
        target: NodeId | None,
        result: Result | None,
    ) -> None:
        node, world = pending.node, self._world
        if result is None:
            return  # the process died
        self._check_in_time(attempt)
        if isinstance(result, QuorateError) and not isinstance(result, OutcomeUnknown):
            world.sometimes[f"transfer answer {result.code}"] += 1
            return
        if not isinstance(result, Transferred) or target not in (None, result.leader):
            raise Violation("one-answer", f"a transfer to {target} got {result}")
        if pending.unknown:
            raise Violation(
                "C14",
                f"{node.name} gave the leadership to {result.leader}, and left "
                f"{pending.unknown} requests with an unknown outcome",
            )
        self.done += 1
        world.sometimes["leadership transferred"] += 1

    def _check_in_time(self, attempt: PendingRequest) -> None:
        config, node = self._world.config, attempt.node
        clock = node.engine.core.raft.clock if node.engine is not None else attempt.clock
        waited = clock - attempt.clock
        if waited > ANSWER_ELECTIONS * config.timing.ticks(config.timing.election_ms):
            raise Violation("C14", f"{node.name} answered a transfer {waited} ticks later")
