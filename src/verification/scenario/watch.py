"""Rules that no scenario may break, whatever its file says: checked after every turn of every node.

The output of a file can be rewritten, these rules cannot. They are few and look only at results;
the simulator has the full set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.commands import Receipt
from quorate.errors import InvariantBroken
from quorate.membership import decode_membership
from quorate.replica.engine_io import ReadAnswer, Result
from quorate.types import EntryKind, Index, NodeId, Role
from verification.scenario.parser import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quorate.types import BootId, Position, Term
    from verification.hand import HandNode

__all__ = ["Watch"]


class Watch:
    """Remembers the observed state of a cluster and compares every new state with it."""

    def __init__(self, nodes: Mapping[NodeId, HandNode], voters: Sequence[NodeId]) -> None:
        self._nodes = nodes
        # The sets of voters of which each needs a majority, from each index on, in rising order.
        self._sets: list[tuple[Index, tuple[Sequence[NodeId], ...]]] = [(Index(0), (voters,))]
        self._leaders: dict[Term, NodeId] = {}
        # The entry committed at each index, from the node that committed it first.
        self._committed: list[Position] = []
        # The committed index that each boot of each node was seen to have.
        self._seen: dict[tuple[NodeId, BootId], Index] = {}
        # The offset below which records were acknowledged, now and when each read was asked.
        self._acknowledged = 0
        self._floors: dict[int, int] = {}

    def node_turned(self, name: NodeId) -> None:
        engine, halted = self._nodes[name].engine, self._nodes[name].halted
        _hold(not isinstance(halted, InvariantBroken), f"{name}: {halted}")
        if engine is None:
            return
        raft = engine.core.raft
        if raft.role is Role.LEADER:
            first = self._leaders.setdefault(raft.term, name)
            _hold(first == name, f"{first} and {name} both lead in term {raft.term}")
        boot = (name, engine.boot)
        seen = self._seen.get(boot, Index(0))
        _hold(raft.committed >= seen, f"{name}: committed fell below {seen}")
        known = len(self._committed)
        for entry in raft.log.entries(Index(known + 1), Index(raft.committed + 1)):
            self._committed.append(entry.position)
            if entry.kind is EntryKind.MEMBERSHIP:
                members = decode_membership(entry.body)
                sets = tuple(each for each in (members.voters, members.outgoing) if each)
                self._sets.append((entry.index, sets))
        self._seen[boot] = raft.committed
        if raft.committed:
            agreed = self._committed[raft.committed - 1]
            same = raft.log.position(raft.committed) == agreed
            _hold(same, f"{name}: another entry was committed at or below {raft.committed}")

    def read_asked(self, token: int) -> None:
        self._floors[token] = self._acknowledged

    def answered(self, token: int, result: Result) -> None:
        if isinstance(result, Receipt):
            position = self._committed[result.index - 1]
            sets = [each for index, each in self._sets if index <= result.index][-1]
            for voters in sets:
                disks = sum(
                    self._nodes[name].store.durable.position(Index(result.index)) == position
                    for name in voters
                )
                told = f"{result.index} was acknowledged and is on {disks} of {len(voters)} disks"
                _hold(2 * disks > len(voters), f"index {told}")
            self._acknowledged = max(self._acknowledged, result.offset + result.count)
        elif isinstance(result, ReadAnswer):
            floor = self._floors[token]
            _hold(
                result.end_offset >= floor,
                f"a read says that the log ends at {result.end_offset}, "
                f"before it was asked {floor} records had been acknowledged",
            )


def _hold(holds: bool, broken: str) -> None:
    if not holds:
        raise ScenarioError(f"RULE BROKEN: {broken}")
