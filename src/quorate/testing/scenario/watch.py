"""What no scenario may break, whatever its file says: checked after every turn of every node.

The output of a file can be rewritten, these rules cannot. They are few and look only at results;
the simulator has the full set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import InvariantBroken
from quorate.raft.quorum import majority
from quorate.replica.exchange import ReadAnswer, Receipt, Result
from quorate.testing.scenario.parser import ScenarioError
from quorate.types import Index, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.testing.hand import HandNode
    from quorate.types import BootId, Position, Term

__all__ = ["Watch"]


class Watch:
    """Remembers what was seen of a cluster and compares everything new with it."""

    def __init__(self, nodes: Mapping[NodeId, HandNode]) -> None:
        self._nodes = nodes
        self._leaders: dict[Term, NodeId] = {}
        # What was committed at each index, on whichever node this was seen first.
        self._committed: list[Position] = []
        # How far each boot of each node was seen to be committed.
        self._seen: dict[tuple[NodeId, BootId], Index] = {}
        # The offset below which records were acknowledged, now and when each read was asked.
        self._acknowledged = 0
        self._floors: dict[int, int] = {}

    def node_turned(self, name: NodeId) -> None:
        engine, halted = self._nodes[name].engine, self._nodes[name].halted
        _hold(not isinstance(halted, InvariantBroken), f"{name}: {halted}")
        if engine is None:
            return
        standing = engine.core.standing
        if standing.role is Role.LEADER:
            first = self._leaders.setdefault(standing.term, name)
            _hold(first == name, f"{first} and {name} both lead in term {standing.term}")
        boot = (name, engine.boot)
        seen = self._seen.get(boot, Index(0))
        _hold(standing.committed >= seen, f"{name}: committed fell below {seen}")
        known = len(self._committed)
        for entry in standing.log.entries(Index(known + 1), Index(standing.committed + 1)):
            self._committed.append(entry.position)
        self._seen[boot] = standing.committed
        if standing.committed:
            agreed = self._committed[standing.committed - 1]
            same = standing.log.position(standing.committed) == agreed
            _hold(same, f"{name}: another entry was committed at or below {standing.committed}")

    def read_asked(self, token: int) -> None:
        self._floors[token] = self._acknowledged

    def answered(self, token: int, result: Result) -> None:
        if isinstance(result, Receipt):
            position = self._committed[result.index - 1]
            disks = sum(
                node.store.durable.position(result.index) == position
                for node in self._nodes.values()
            )
            voters = len(self._nodes)
            told = f"index {result.index} was acknowledged and is on {disks} of {voters} disks"
            _hold(disks >= majority(voters), told)
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
