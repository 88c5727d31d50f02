"""Adversaries of disks: copies that are spoiled, and nodes that forget what they acknowledged."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorate.storage.layout import PAGE, segment_name
from quorate.testing.sim.rot import rot

if TYPE_CHECKING:
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.script import Script, Stage

__all__ = ["forgetful_voter", "spoiled_copy"]

FOREVER_US = 10**12


def spoiled_copy(stage: Stage) -> Script:
    """One node's disk rots again and again, and every time it comes back the leader goes."""
    world = stage.world
    victim = stage.all[stage.pick(len(stage.all))]
    while not victim.dead:
        yield stage.until_led()
        victim.kill()
        if rot(victim, Random(stage.pick(1 << 16))) is not None:
            world.rotten.add(victim)
        victim.start()
        yield stage.election_us
        leader = world.leader()
        if leader is not None and leader is not victim:
            leader.kill()
            yield stage.election_us * 2
            stage.start(leader)
        yield stage.election_us
    yield FOREVER_US


def forgetful_voter(stage: Stage) -> Script:
    """A node acknowledges an entry, and its disk forgets it.

    Only the leader has it besides, and is gone: whoever lacks the entry must not get the vote.
    """
    world = stage.world
    victim = stage.all[0]
    while not victim.dead:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        leader = world.leader()
        yield stage.until_equal(stage.all)
        if leader is None or leader is victim or victim.engine is None:
            yield stage.election_us
            continue
        stage.only([leader, victim])
        acked = world.clients.acked
        stage.append(leader, 1 + stage.pick(3))
        yield stage.within(2, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
        leader.kill()
        victim.kill()
        _forget(victim)
        world.rotten.add(victim)
        victim.start()
        stage.only(stage.others(leader))
        yield stage.election_us * 4
    yield FOREVER_US


def _forget(node: Node) -> None:
    """The newest segment ends before its last block."""
    log = node.store.log
    if log is not None and log.segments:
        segment = log.segments[-1]
        size = max(PAGE, segment.proved - PAGE)
        node.store.disk.shorten(segment_name(segment.number), size)
