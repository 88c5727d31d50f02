"""Adversaries of full disks: nobody makes room, not even when all other trouble is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import HeartbeatReply
from quorate.storage.layout import PAGE
from quorate.testing.disk.simulated import UNLIMITED

if TYPE_CHECKING:
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.script import Script, Stage

__all__ = ["big_entry", "full_disks", "late_shortage", "lone_big_entry"]

FOREVER_US = 10**12
# Of the pages that are kept on a full disk, the share that leaders may use up: one each.
PAGES_USED = 0.75
# Steps of a disk until its node knows how much room is left.
ROOM_IS_TOLD_STEPS = 4
# More than the reserve of that play by less than a page; and by so much that peers without room for
# it have more than the reserve.
BIG_BYTES = 18_000
LONE_BYTES = 34_000


def full_disks(stage: Stage) -> Script:
    """Disks are full, those of a majority to the reserve, and one leader after the other goes.
    Reads go on all the same."""
    world = stage.world
    yield stage.until_led()
    for node in stage.all:
        _fill(node)
    while sum(_is_full(node) for node in stage.all) < world.quorum:
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


def big_entry(stage: Stage, size: int = BIG_BYTES) -> Script:
    """A leader logs a batch for which its peers have no room, restarts, and wins again.

    What it needs to serve stands behind that batch. Somebody else has to lead, who drops it.
    """
    world = stage.world
    yield stage.until_led()
    leader = world.leader()
    if leader is None:
        return
    others = stage.others(leader)
    yield from _log_what_others_lack(stage, leader, size)
    world.sometimes["batch logged that peers have no room for"] += leader.leads
    leader.kill()
    leader.start()
    stage.mend()
    # The others do not hear each other until it has won.
    world.network.cut(world.links_between([others[0].name], [node.name for node in others[1:]]))
    yield stage.until_led_by([leader])
    stage.mend()
    yield FOREVER_US


def lone_big_entry(stage: Stage) -> Script:
    """The same with messages so small that the batch goes by itself. What follows it reaches the
    others, too, and they have more room than the reserve: only the batch makes them full."""
    yield from big_entry(stage, LONE_BYTES)


def late_shortage(stage: Stage) -> Script:
    """The leader does not restart: it is ready, and goes on leading behind that batch. The others
    have room for less, so what clients append is taken again in the end."""
    yield stage.until_led()
    leader = stage.world.leader()
    if leader is None:
        return
    yield from _log_what_others_lack(stage, leader, LONE_BYTES)
    stage.world.sometimes["ready leader behind a batch without room"] += leader.leads
    stage.mend()
    yield FOREVER_US


def _log_what_others_lack(stage: Stage, leader: Node, size: int) -> Script:
    """Let ``leader`` log a batch of ``size`` bytes; the others have room for a little less, and it
    has not heard of that."""
    world = stage.world
    yield stage.within(8, lambda: all(_has_spare(node) for node in stage.all))
    for node in stage.others(leader):
        _fill(node)
    needed = size + world.options.reserve_bytes
    yield from _append_until_left(stage, leader, needed + 2 * PAGE)
    yield stage.election_us // 2
    # From now on the leader does not hear how little room is left.
    stage.lose(lambda envelope: type(envelope.message) is HeartbeatReply)
    yield from _append_until_left(stage, leader, size)
    last = leader.store.durable.last
    stage.append(leader, size=size)
    yield stage.until_longer(leader, last)


def _append_until_left(stage: Stage, leader: Node, room: int) -> Script:
    """Append until no other node has more than ``room``, and each has all that was appended."""
    world = stage.world
    while leader.leads and any(_room(node) > room for node in stage.others(leader)):
        last = leader.store.durable.last
        stage.append(leader)
        yield stage.until_longer(leader, last)
        yield stage.until_equal(stage.all)
        yield world.options.disk_us * ROOM_IS_TOLD_STEPS


def _fill(node: Node) -> None:
    """No file of ``node`` grows from now on."""
    disk = node.store.disk
    free, _ = disk.space()
    disk.capacity = UNLIMITED - free


def _room(node: Node) -> int:
    """Bytes for which there is room; one that is down holds nobody up."""
    room = node.engine.allowance.room if node.engine is not None else 0
    return UNLIMITED if room is None else room


def _has_spare(node: Node) -> bool:
    return node.store.flusher is not None and node.store.flusher.has_spare


def _is_full(node: Node) -> bool:
    return node.engine is None or node.engine.core.standing.full
