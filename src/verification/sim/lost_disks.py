"""The disks that are gone as a whole, with all that they held, and those that may still go.

A node whose disk is lost never comes back: another disk is another member (R9). What the disk held
counts as durable to the end: its acks were true, and may arrive late.

The budget: of each set of voters that may have to agree, now or by a change that is under way,
fewer than half are lost or unfit. So a majority of each set is left, which elects a leader that has
all that was committed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["LostDisks"]

# Between the name of a node and the number of its disk, from the second one on.
DISK_MARK = "#"


class LostDisks:
    """The lost disks of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.names: set[NodeId] = set()

    def sets_in_play(self) -> Iterator[tuple[NodeId, ...]]:
        """The sets of voters of which a majority may be needed, now or later."""
        rows = self._world.invariants.quorums.in_play
        wanted = self._world.clients.changes.wanted
        return chain((each for row in rows for each in row.sets), wanted)

    def leaves_majorities(self, gone: Collection[NodeId]) -> bool:
        """Whether a majority of each set is left without the nodes of ``gone``."""
        return all(2 * len({*gone}.intersection(each)) < len(each) for each in self.sets_in_play())

    def allows(self, node: SimulatedNode) -> bool:
        """Whether the disk of ``node`` may be lost."""
        gone = {*self.names, *self._world.losses.unfit, node.name}
        return node.name not in self.names and self.leaves_majorities(gone)

    def lose(self, node: SimulatedNode) -> None:
        """Lose the disk of ``node``, and the process with it."""
        self.names.add(node.name)
        node.dead = True
        node.kill()
        self._world.sometimes["disk lost"] += 1

    def next_disk(self, name: NodeId) -> NodeId:
        """The member that the next disk of a node is: ``n2#2`` after ``n2``, then ``n2#3``."""
        node = name.partition(DISK_MARK)[0]
        disks = sum(each.partition(DISK_MARK)[0] == node for each in self._world.names)
        return NodeId(f"{node}{DISK_MARK}{disks + 1}")
