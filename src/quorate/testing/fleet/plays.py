"""Scripted beginnings: the schedules that lose a history if a node trusts the wrong disk.

Random faults hardly ever walk into them. Each is a generator that yields how long to wait, in
microseconds; random faults follow when it has ended. Three nodes play.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.testing.fleet.world import ELECTION_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.testing.fleet.faults import Faults
    from quorate.testing.fleet.world import World

    Play = Generator[int, None, None]

__all__ = ["PLAYS"]

ELECTION_US = ELECTION_MS * 1000


def stranger(world: World, faults: Faults) -> Play:
    """Two nodes of three are started, and one of them loses its disk. The third, which met neither,
    is started while the other is down: it must not begin a second history with the empty disk."""
    [wiped] = faults.spoilable
    other, third = (node for node in world.nodes.values() if node is not wiped)
    for node in (wiped, other):
        node.start()
    yield 8 * ELECTION_US
    other.kill()
    faults.wipe(wiped)
    wiped.start()
    third.start()
    yield 12 * ELECTION_US
    other.start()
    yield 4 * ELECTION_US


def older_copy(world: World, faults: Faults) -> Play:
    """A node acknowledges what a second one misses, and is rolled back behind that. Then it is
    alone with the second one: together they must not elect a leader."""
    [old] = faults.spoilable
    for node in world.nodes.values():
        node.start()
    yield 8 * ELECTION_US
    others = [node for node in world.nodes.values() if node is not old]
    others.sort(key=lambda node: not node.leads_catalog)
    ahead, behind = others
    faults.copy(old)
    old.kill()
    old.start()
    yield 4 * ELECTION_US
    for node in (old, ahead):
        world.cut(behind.name, node.name)
    yield 8 * ELECTION_US
    ahead.kill()
    faults.roll_back(old)
    old.start()
    world.cuts.clear()
    yield 10 * ELECTION_US
    ahead.start()
    yield 4 * ELECTION_US


PLAYS: tuple[Callable[[World, Faults], Play], ...] = (stranger, older_copy)
