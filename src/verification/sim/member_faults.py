"""Operators who change the members at bad moments, and disks that are lost as a whole.

A node joins, is removed, or is replaced: by another node, by the same one with an empty disk, which
is another member (``n2#2``), or all voters at once by nodes that never voted. A change is asked for
by the members that the asked node knows, mostly the leader, so some requests rest on old ones.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from verification.sim.node import SimulatedNode
    from verification.sim.voter_sets import VoterSets
    from verification.sim.world import World

__all__ = ["MemberFaults"]

# The number of voters that a change gives a log at most, and of members; and the number of nodes
# that a run has at most besides the first ones.
VOTERS_MAX = 5
MEMBERS_MAX = 8
ADDED_MAX = 12
PRIORITIES = (0, 50, 150)
# Replacements out of eight in which no voter stays.
DISJOINT_IN_EIGHT = 1


class MemberFaults:
    """Changes members at random."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The number of the last request.
        self._intent = 0

    def join(self, node: SimulatedNode, detail: int) -> None:
        """Let nodes join: as learners, as voters, or learners become voters."""
        random = Random(detail)
        asked, row = self._asked(node, random)
        voters, learners = list(row.voters), list(row.learners)
        way = random.randrange(4)
        if way == 0:
            self._ask(asked, voters, learners + self._spares(row, 1), random)
            return
        count = 1 if way == 1 else 1 + len(voters) % 2
        waiting = [name for name in learners if name not in self._world.lost_disks.names][:count]
        added = waiting + self._spares(row, count - len(waiting))
        learners = [name for name in learners if name not in added]
        self._ask(asked, voters + added, learners, random)

    def remove(self, node: SimulatedNode, detail: int) -> None:
        """Remove ``node``, or make it a learner."""
        random = Random(detail)
        asked, row = self._asked(node, random)
        leaving = [node.name if node.name in row.members else random.choice(row.members)]
        if leaving[0] in row.voters and len(row.voters) % 2 and random.randrange(4):
            leaving += random.sample(row.voters, 1)
        voters = [name for name in row.voters if name not in leaving]
        learners = [name for name in row.learners if name not in leaving]
        if random.randrange(3) == 0:
            learners += set(leaving).intersection(row.voters)
        self._ask(asked, voters, sorted(learners), random)

    def replace(self, node: SimulatedNode, detail: int) -> None:
        """Replace a voter whose disk is lost, or else ``node``, by another one."""
        random, lost = Random(detail), self._world.lost_disks
        asked, row = self._asked(node, random)
        if random.randrange(8) < DISJOINT_IN_EIGHT:
            self._ask(asked, self._spares(row, random.choice((1, 3))), [], random)
            return
        gone = [name for name in row.members if name in lost.names]
        leaving = gone[0] if gone else node.name
        if leaving not in row.members:
            leaving = random.choice(row.voters)
        if gone or random.randrange(2):
            coming = self._made([lost.next_disk(leaving)])
        else:
            coming = self._spares(row, 1)
        if not coming:
            return
        swap = {leaving: coming[0]}
        voters = [swap.get(name, name) for name in row.voters]
        self._ask(asked, voters, [swap.get(name, name) for name in row.learners], random)

    def wipe(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Lose the disk of ``node``, if a majority of each set is left; it is replaced later."""
        if self._world.lost_disks.allows(node):
            self._world.lost_disks.lose(node)
            self._world.after(duration, self._replace_later, node, detail)

    def _replace_later(self, node: SimulatedNode, detail: int) -> None:
        if not self._world.network.calm:
            self.replace(node, detail)

    # -- nodes ---------------------------------------------------------------------------------

    def _spares(self, row: VoterSets, count: int) -> list[NodeId]:
        """So many nodes that are no members: those that were removed first, then new ones."""
        world = self._world
        found = [
            name
            for name in world.names
            if name not in row.members and name not in world.lost_disks.names
        ][: max(0, count)]
        numbers = range(len(world.names) + 1, len(world.names) + 1 + count - len(found))
        return found + self._made(NodeId(f"n{number}") for number in numbers)

    def _made(self, names: Iterable[NodeId]) -> list[NodeId]:
        """New nodes with these names, as long as there may be more."""
        world = self._world
        room = max(0, world.options.nodes + ADDED_MAX - len(world.names))
        return [world.add_node(name).name for name in islice(names, room)]

    # -- requests ------------------------------------------------------------------------------

    def _asked(self, node: SimulatedNode, random: Random) -> tuple[SimulatedNode, VoterSets]:
        """The node that is asked, mostly the leader, and the members that count there."""
        leader = self._world.leader()
        asked = leader if leader is not None and random.randrange(8) else node
        return asked, self._world.invariants.newest_of(asked)

    def _ask(
        self,
        asked: SimulatedNode,
        voters: list[NodeId],
        learners: list[NodeId],
        random: Random,
    ) -> None:
        world = self._world
        members = [*voters, *learners]
        if not 0 < len(voters) <= VOTERS_MAX or len(members) > MEMBERS_MAX:
            return
        if not world.losses.allows_voters(voters):
            return
        self._intent += 1
        intent = self._intent if random.randrange(4) else random.randrange(self._intent)
        seen = world.invariants.newest_of(asked if random.randrange(4) else world.node_at(0))
        preferred = [name for name in members if random.randrange(8) == 0]
        world.clients.changes.ask(
            asked,
            voters,
            learners,
            priorities=tuple((name, random.choice(PRIORITIES)) for name in sorted(preferred)),
            expect=seen.index if random.randrange(2) else None,
            intent=intent,
            forced=random.randrange(2) == 0,
        )
