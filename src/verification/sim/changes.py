"""Requests to change the members of the log, and the promise to those that ask: a change that
succeeded is committed, and its members are those that were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, QuorateError
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.raft.output import MembersChanged
from quorate.replica.engine_io import ChangeMembers
from verification.sim.violation import Violation
from verification.sim.voter_sets import first_sets, is_membership, read_sets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.replica.engine_io import Result
    from quorate.types import Index, NodeId
    from verification.sim.clients import Clients, PendingRequest
    from verification.sim.node import SimulatedNode
    from verification.sim.voter_sets import VoterSets
    from verification.sim.world import World

__all__ = ["ChangeRequests", "require_settled_members"]

# Election timeouts that the new voters of a change may take to catch up.
PATIENCE_ELECTIONS = 20
# Election timeouts until a change of the members has ended: its voters may take some to catch up,
# and leaders may change meanwhile.
SETTLED_ELECTIONS = 3 * PATIENCE_ELECTIONS


@dataclass(slots=True, eq=False)
class _PendingChange:
    """A change that a node was asked for."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    intent: int


class ChangeRequests:
    """The changes of members that a run asked for."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._open: list[_PendingChange] = []

    @property
    def wanted(self) -> list[tuple[NodeId, ...]]:
        """The voters that open requests want."""
        return [pending.voters for pending in self._open]

    def ask(
        self,
        node: SimulatedNode,
        voters: Iterable[NodeId],
        learners: Iterable[NodeId] = (),
        *,
        priorities: tuple[tuple[NodeId, int], ...] = (),
        expect: Index | None = None,
        intent: int = 0,
        forced: bool = False,
    ) -> int | None:
        """Ask ``node`` for these members. Returns the token of the request; None if no such members
        can be."""
        voters, learners = tuple(voters), tuple(learners)
        try:
            wanted = Membership(voters, learners, priorities=priorities, intent=intent)
        except InvalidArgument:
            return None
        patience = PATIENCE_ELECTIONS * self._world.config.timing.election_ms
        change = MemberChange(wanted, expect, patience, forced)
        pending = _PendingChange(voters, learners, intent)
        if node.engine is not None:
            self._open.append(pending)

        def answered(attempt: PendingRequest, result: Result | None) -> None:
            self._open.remove(pending)
            if result is not None:
                self._judge(attempt.node, pending, result)

        return self._clients.request(node, lambda token: ChangeMembers(token, change), answered)

    def _judge(self, node: SimulatedNode, pending: _PendingChange, result: Result) -> None:
        world = self._world
        if isinstance(result, QuorateError):
            world.sometimes[f"change answer {result.code}"] += 1
            return
        if not isinstance(result, MembersChanged):
            raise Violation("one-answer", f"a change to {pending} got {result}")
        row = self._row_at(result.index)
        asked = ({*pending.voters}, {*pending.learners}, pending.intent)
        if row is None or row.outgoing or ({*row.voters}, {*row.learners}, row.intent) != asked:
            raise Violation("C15", f"{node.name} changed members to {pending}: {row}")
        world.sometimes["members changed"] += 1

    def _row_at(self, index: Index) -> VoterSets | None:
        """The members that the committed entry at ``index`` sets."""
        if index == 0:
            return first_sets(self._world.first_voters)
        committed = self._world.invariants.committed
        if index > len(committed) or not is_membership(committed[index - 1]):
            return None
        return read_sets(committed[index - 1])


def require_settled_members(world: World) -> None:
    """A change of the members that is under way ends: its caller has an answer, and the members are
    those of one membership that is committed, without outgoing voters; one of the voters leads."""
    if not world.invariants.quorums.changed:
        return
    election_us = world.config.timing.election_ms * 1000

    def settled() -> bool:
        quorums = world.invariants.quorums
        leader = world.leader()
        return (
            not world.clients.changes.wanted
            and not quorums.settled.outgoing
            and leader is not None
            and leader.name in quorums.settled.voters  # one that is removed steps down soon
            and world.invariants.newest_of(leader) == quorums.settled
        )

    if not world.run_until(settled, world.now + SETTLED_ELECTIONS * election_us):
        found = world.invariants.quorums.in_play
        raise Violation("C15", f"a change of the members does not end: {found}")
    world.sometimes["members settled"] += 1
