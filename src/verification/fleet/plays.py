"""Scripted beginnings: the schedules that lose a history if a node trusts the wrong disk.

Random faults hardly ever walk into them. Each is a generator that yields how long to wait, in
microseconds; random faults follow when it has ended. Three nodes play, in some of them five.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verification.fleet.world import ELECTION_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from verification.fleet.faults import FleetFaults
    from verification.fleet.node import FleetNode
    from verification.fleet.world import FleetWorld

    Play = Generator[int, None, None]

__all__ = ["FIVE", "PLAYS"]

ELECTION_US = ELECTION_MS * 1000


def stranger(world: FleetWorld, faults: FleetFaults) -> Play:
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


def older_copy(world: FleetWorld, faults: FleetFaults) -> Play:
    """A node acknowledges entries that a second one misses, and is rolled back behind them. Then it
    is alone with the second one: together they must not elect a leader."""
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


def told_start(world: FleetWorld, faults: FleetFaults) -> Play:
    """A node knows of the newest start of another one only because a third told it, and forgets all
    facts that are not on its disk. Then it is alone with an older copy."""
    [old] = faults.spoilable
    for node in world.nodes.values():
        node.start()
    yield 8 * ELECTION_US
    shown, told = (node for node in world.nodes.values() if node is not old)
    faults.copy(old)
    world.cut(old.name, told.name)
    old.kill()
    old.start()
    yield 2 * ELECTION_US
    # Nodes exchange their knowledge when a connection begins.
    shown.kill()
    shown.start()
    yield 2 * ELECTION_US
    # The nodes start in this order: one that starts again hears it once more from one that runs.
    shown.kill()
    told.kill()
    told.start()
    yield ELECTION_US
    faults.roll_back(old)
    old.start()
    world.cuts.clear()
    yield 6 * ELECTION_US
    shown.start()
    yield 4 * ELECTION_US


def two_disks(world: FleetWorld, faults: FleetFaults) -> Play:
    """Two nodes know each other, and then each meets another disk of the third: neither may take
    over the disk that the other one knows."""
    [wiped] = faults.spoilable
    first, second = (node for node in world.nodes.values() if node is not wiped)
    for node in (first, second):
        node.start()
    yield 2 * ELECTION_US
    for one, other in ((first, second), (second, wiped)):
        world.cut(one.name, other.name)
    wiped.start()
    yield 2 * ELECTION_US
    faults.wipe(wiped)
    world.cuts.clear()
    for node in (second, wiped):
        world.cut(first.name, node.name)
    for _ in range(3):
        wiped.kill()
        wiped.start()
        yield ELECTION_US
    yield 2 * ELECTION_US
    world.cuts.clear()
    yield 4 * ELECTION_US


def copy_beside(world: FleetWorld, faults: FleetFaults) -> Play:
    """A copy of the directory of a node that runs is started elsewhere for a while: it is refused,
    and the node goes on."""
    [copied] = faults.spoilable
    for node in world.nodes.values():
        node.start()
    yield 8 * ELECTION_US
    copy = copied.start_copy()
    yield 8 * ELECTION_US
    copy.kill()
    if copied.process is not None and all(
        node.process is not None and node.process.linked(copied.name)
        for node in world.nodes.values()
        if node is not copied
    ):
        world.sometimes["node outlived a copy of it"] += 1
    # The next start of the node itself is let in.
    copied.kill()
    copied.start()
    yield 4 * ELECTION_US


def lists_that_overlap(world: FleetWorld, faults: FleetFaults) -> Play:
    """Each node is started with another list of the nodes: none may begin. Then the lists are
    mended."""
    nodes = [*world.nodes.values()]
    world.random.shuffle(nodes)
    names = tuple(world.nodes)
    first, second, third = nodes
    first.listed, third.listed = (first.name, second.name), (second.name, third.name)
    for node in nodes:
        node.start()
    yield 12 * ELECTION_US
    began = any(node.process is not None and node.process.takes_part for node in nodes)
    world.sometimes["lists that overlap held a first start"] += not began
    for node in (first, third):
        node.kill()
        node.listed = names
        node.start()
    yield 8 * ELECTION_US


def told_on(world: FleetWorld, faults: FleetFaults) -> Play:
    """Five nodes. One knows of the newest start of another only because a third told it, and the
    third is gone. Two that were away hear of that start from the one that was told; with an older
    copy they would be a majority, and would have none of the acknowledged entries."""
    old, *_ = faults.spoilable
    shown, told, *away = (node for node in world.nodes.values() if node is not old)
    for node in world.nodes.values():
        node.start()
    yield 10 * ELECTION_US
    for node in away:
        node.kill()
    copy = old.directory.copy()
    world.cut(old.name, told.name)
    old.kill()
    old.start()
    yield 2 * ELECTION_US
    # Nodes exchange their knowledge when a connection begins.
    shown.kill()
    shown.start()
    yield 4 * ELECTION_US
    shown.kill()
    old.kill()
    for node in away:
        node.start()
    yield 2 * ELECTION_US
    if all(node.process is not None and node.process.linked(told.name) for node in away):
        world.sometimes["older copy met nodes that were told of a told start"] += 1
        faults.restore(old, copy)
    world.cuts.clear()
    yield 8 * ELECTION_US
    shown.start()
    yield 4 * ELECTION_US


def _forsaken(
    world: FleetWorld, faults: FleetFaults, unsuspecting: FleetNode
) -> Generator[int, None, bool]:
    """Five nodes. The first serves with the second and the third while two others are away. Then it
    is rolled back to before that, and no other node is up. ``unsuspecting`` may let the older copy
    in until it is told more. Returns whether all of that happened."""
    old, shown, other, *away = _cast(world, faults)
    for node in world.nodes.values():
        node.start()
    yield 10 * ELECTION_US
    for node in away:
        node.kill()
    copy = old.directory.copy()
    old.kill()
    old.start()
    yield 8 * ELECTION_US
    took_part = old.process is not None and old.process.takes_part
    knowing = all(world.history.knows_later(node, old, 1) for node in (shown, other))
    for node in (old, shown, other):
        node.kill()
    if not (took_part and knowing and old.good):
        return False
    old.roll_back(copy)
    old.unsuspected_by = {unsuspecting.name}
    world.sometimes["rolled back"] += 1
    # The next start is its second one: that of the node itself was another process.
    old.start()
    old.kill()
    return True


def _cast(world: FleetWorld, faults: FleetFaults) -> list[FleetNode]:
    """All nodes, first the one that is spoiled."""
    old, *_ = faults.spoilable
    return [old, *(node for node in world.nodes.values() if node is not old)]


def _tempt(world: FleetWorld, old: FleetNode, one: FleetNode, other: FleetNode) -> Play:
    """Two nodes that were away start again and hear of each other. With the older copy they would
    be a majority, and would have none of the acknowledged entries."""
    for node in (old, one, other):
        node.kill()
    for node in (one, other):
        node.start()
    yield 2 * ELECTION_US
    if one.process is not None and one.process.linked(other.name):
        old.start()
    yield 8 * ELECTION_US
    for node in world.nodes.values():
        node.start()
    yield 4 * ELECTION_US


def told_earlier(world: FleetWorld, faults: FleetFaults) -> Play:
    """A node lets an older copy in that was started twice. Its next process is told an earlier
    start, which the copy was not. Its third process must know that."""
    old, shown, _, told, last = _cast(world, faults)
    if not (yield from _forsaken(world, faults, told)):
        return
    old.start()
    told.start()
    yield 2 * ELECTION_US
    old.kill()
    told.kill()
    for node in (told, shown):
        node.start()
    yield 2 * ELECTION_US
    if told.process is not None and told.process.linked(shown.name):
        world.sometimes["a node was told an earlier start than it was shown"] += 1
        shown.kill()
        yield from _tempt(world, old, told, last)


def told_twice(world: FleetWorld, faults: FleetFaults) -> Play:
    """A node is told a start of another, and by a second node a later one of an older copy. It must
    not take the one for the other."""
    old, shown, _, told, last = _cast(world, faults)
    if not (yield from _forsaken(world, faults, last)):
        return
    for node in (shown, told):
        node.start()
    yield 2 * ELECTION_US
    heard = told.process is not None and told.process.linked(shown.name)
    for node in (shown, told):
        node.kill()
    for node in (old, last):
        node.start()
    yield 2 * ELECTION_US
    old.kill()
    last.kill()
    if heard:
        world.sometimes["a node was told two starts that contradict each other"] += 1
        yield from _tempt(world, old, told, last)


# The plays of three nodes.
PLAYS: tuple[Callable[[FleetWorld, FleetFaults], Play], ...] = (
    stranger,
    older_copy,
    told_start,
    two_disks,
    copy_beside,
    lists_that_overlap,
)
# The plays of five nodes.
FIVE: tuple[Callable[[FleetWorld, FleetFaults], Play], ...] = (told_on, told_earlier, told_twice)
