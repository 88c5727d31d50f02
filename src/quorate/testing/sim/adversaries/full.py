"""Adversaries of full disks: nobody makes room, not even when all other trouble is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.layout import PAGE
from quorate.testing.disk.simulated import UNLIMITED

if TYPE_CHECKING:
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.script import Script, Stage

__all__ = ["big_entry", "full_disks"]

FOREVER_US = 10**12
# Of the pages that are kept on a full disk, the share that leaders may use up: one each.
PAGES_USED = 0.75
# A batch that needs more than the room that is left, and a node that is not full yet.
BIG_BYTES = 6000


def full_disks(stage: Stage) -> Script:
    """All disks are full, and one leader after the other goes. Reads go on all the same."""
    world = stage.world
    yield stage.until_led()
    for node in stage.all:
        _fill(node)
    while not all(_is_full(node) for node in stage.all):
        leader = world.leader()
        if leader is not None:
            stage.append(leader)
        yield 2 * (world.options.delay_us + world.options.disk_us)
    for _ in range(int(PAGES_USED * world.options.reserve_bytes / PAGE)):
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        if stage.pick(2):
            leader.kill()
        else:
            leader.stop()
        yield stage.until_led_by(stage.others(leader))
        yield stage.within(2, lambda leader=leader: not leader.stopping)  # type: ignore[misc]
        stage.start(leader)
        world.sometimes["leader changed on full disks"] += 1
    yield FOREVER_US


def big_entry(stage: Stage) -> Script:
    """A leader logs a batch for which its peers have no room, restarts, and wins again.

    What it needs to serve stands behind that batch. Somebody else has to lead, who drops it.
    """
    world = stage.world
    yield stage.until_led()
    leader = world.leader()
    if leader is None:
        return
    others = stage.others(leader)
    for node in others:
        _fill(node)
    while leader.leads and not all(_room(node) < BIG_BYTES for node in others):
        stage.append(leader)
        yield 2 * (world.options.delay_us + world.options.disk_us)
    last = leader.store.durable.last
    stage.append(leader, size=BIG_BYTES)
    yield stage.until_longer(leader, last)
    world.sometimes["batch logged that peers have no room for"] += leader.leads
    leader.kill()
    leader.start()
    # The others do not hear each other until it has won.
    world.network.cut(world.links_between([others[0].name], [node.name for node in others[1:]]))
    yield stage.until_led_by([leader])
    stage.mend()
    yield FOREVER_US


def _fill(node: Node) -> None:
    """No file of ``node`` grows from now on."""
    disk = node.store.disk
    free, _ = disk.space()
    disk.capacity = UNLIMITED - free


def _room(node: Node) -> int:
    """Bytes for which there is room; one that is down holds nobody up."""
    room = node.engine.allowance.room if node.engine is not None else 0
    return UNLIMITED if room is None else room


def _is_full(node: Node) -> bool:
    return node.engine is None or node.engine.core.standing.full
