"""A node that is stopped in order leaves its mark, and may die at any step of that."""

from __future__ import annotations

from dataclasses import replace

from quorate.storage.layout import CLEAN
from verification.sim.decisions import Decisions
from verification.sim.options import swarm
from verification.sim.world import World

EVENTS = 2_000


def quiet_world() -> World:
    """Three nodes that nothing happens to."""
    options = swarm(8, EVENTS)
    plain = replace(options, nodes=3, faults=(), noise={}, limits={}, uneven=False, disk_us=200)
    return World(plain, Decisions("stops", []))


def test_a_node_that_stops_in_order_leaves_its_mark_and_starts_again() -> None:
    world = quiet_world()
    world.under_fire()
    node = world.node_at(0)
    world.faults.inject("stop", node, 1_000_000, 0)
    assert node.engine is None
    assert world.run_until(lambda: not node.stopping, world.now + 500_000)
    assert CLEAN in node.store.disk.durable
    assert world.run_until(lambda: node.engine is not None, world.now + 2_000_000)
    assert CLEAN not in node.store.disk.files
    assert world.sometimes["mark of a clean stop found at open"] == 1


def test_a_kill_may_come_between_any_two_steps_of_a_stop() -> None:
    """Each time one step later, until the stop is complete."""
    world = quiet_world()
    world.under_fire()
    node = world.node_at(0)
    for steps in range(20):
        assert world.run_until(lambda: node.engine is not None, world.now + 2_000_000)
        before = node.store.disk.calls
        world.faults.inject("stop", node, 1_000_000, 0)
        world.run_until(
            lambda before=before, steps=steps: (  # type: ignore[misc]
                node.store.disk.calls >= before + steps or not node.stopping
            ),
            world.now + 500_000,
        )
        if not node.stopping:
            break
        node.kill()
        node.start()
    assert world.sometimes["died while it stopped in order"] >= 4
    assert world.sometimes["stopped in order"] == 1
