"""Adversaries of full disks: no disk gets room, even when all other trouble is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Append, HeartbeatReply, PreVote
from quorate.storage.layout import PAGE
from quorate.types import Index
from verification.disk.simulated import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = ["big_entry", "full_disks", "late_shortage", "lone_big_entry", "replaced_entries"]

FOREVER_US = 10**12
# Leaders that go, for each reserved page of a full disk: the reserve would not last if each of them
# took a page.
LEADERS_PER_PAGE = 1.5
# Steps of a disk until its node knows how much room is left.
ROOM_IS_TOLD_STEPS = 4
# More than the reserve of that play by less than a page; and by so much that peers without room for
# it have more than the reserve.
BIG_BYTES = 18_000
LONE_BYTES = 34_000
# So little that any room is enough.
SMALL_BYTES = 100


def full_disks(stage: ScriptStage) -> Script:
    """Disks are full, those of a majority to the reserve, and one leader after the other goes.
    Reads go on all the same."""
    world = stage.world
    yield stage.until_led()
    for node in stage.all:
        _fill(node)
    full = world.invariants.quorums.settled
    while not full.agreed(lambda name: _is_full(world.nodes[name])):
        leader = world.leader()
        if leader is not None:
            stage.append(leader)
        yield 2 * (world.options.delay_us + world.options.disk_us)
    for _ in range(int(LEADERS_PER_PAGE * world.options.reserve_bytes / PAGE)):
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        # Only entries that may not be committed cost a leader a page.
        yield stage.within(2, _all_know_their_log_committed(stage))
        if stage.pick(2):
            leader.kill()
        else:
            leader.stop()
        yield stage.until_led_by(stage.others(leader))
        yield stage.within(2, lambda leader=leader: not leader.stopping)  # type: ignore[misc]
        stage.start(leader)
        world.sometimes["leader changed on full disks"] += 1
    yield FOREVER_US


def big_entry(stage: ScriptStage, size: int = BIG_BYTES) -> Script:
    """A leader logs a batch for which its peers have no room, restarts, and wins again.

    The noop that it needs to serve stands behind that batch. Another node has to lead, which drops
    the batch.
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


def lone_big_entry(stage: ScriptStage) -> Script:
    """The same with messages so small that the batch goes by itself. The entries behind it reach
    the others, too, and they have more room than the reserve: only the batch makes them full."""
    yield from big_entry(stage, LONE_BYTES)


def late_shortage(stage: ScriptStage) -> Script:
    """The leader does not restart: it is ready, and goes on leading behind that batch. The others
    have room for less, so appends of clients are taken again in the end."""
    yield stage.until_led()
    leader = stage.world.leader()
    if leader is None:
        return
    yield from _log_what_others_lack(stage, leader, LONE_BYTES)
    stage.world.sometimes["ready leader behind a batch without room"] += leader.leads
    stage.mend()
    yield FOREVER_US


def replaced_entries(stage: ScriptStage) -> Script:
    """Two leaders fill their disks, one after the other, with entries that no other node gets. Then
    the third node leads. Its entries replace theirs, and find room only where theirs were."""
    world = stage.world
    yield stage.until_led()
    first = world.leader()
    if first is None:
        return
    second, roomy = stage.others(first)
    yield stage.within(8, lambda: all(_has_spare(node) for node in stage.all))
    for node in (first, second):
        _fill(node)
    yield from _fill_with_appends(stage, first)
    stage.only([second, roomy])
    stage.lose(lambda envelope: type(envelope.message) is PreVote and envelope.source == roomy.name)
    yield stage.until_led_by([second])
    yield stage.until_led()
    yield from _fill_with_appends(stage, second)
    stage.only([roomy, first])
    stage.world.network.intercept = None
    yield stage.until_led_by([roomy])
    stage.mend()
    full = all(_room(node) == 0 for node in (first, second))
    world.sometimes["leader over two disks full of replaced entries"] += full and roomy.leads
    yield FOREVER_US


def _fill_with_appends(stage: ScriptStage, leader: SimulatedNode) -> Script:
    """Append until there is no room on the disk of ``leader``; the entries reach no other node."""
    stage.lose(lambda envelope: type(envelope.message) is Append)
    last = Index(0)
    while leader.leads and _room(leader) > 0 and leader.store.durable.last > last:
        last = leader.store.durable.last
        stage.append(leader, size=SMALL_BYTES)
        yield stage.until_longer(leader, last)
        yield stage.world.options.disk_us * ROOM_IS_TOLD_STEPS


def _log_what_others_lack(stage: ScriptStage, leader: SimulatedNode, size: int) -> Script:
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


def _append_until_left(stage: ScriptStage, leader: SimulatedNode, room: int) -> Script:
    """Append until no other node has more than ``room``, and each has all appended entries."""
    world = stage.world
    while leader.leads and any(_room(node) > room for node in stage.others(leader)):
        last = leader.store.durable.last
        stage.append(leader)
        yield stage.until_longer(leader, last)
        yield stage.until_equal(stage.all)
        yield world.options.disk_us * ROOM_IS_TOLD_STEPS


def _fill(node: SimulatedNode) -> None:
    """No file of ``node`` grows from now on."""
    disk = node.store.disk
    free, _ = disk.space()
    disk.capacity = UNLIMITED - free


def _room(node: SimulatedNode) -> int:
    """Bytes for which a node has room; 0 if it is down, so that the play does not wait for it."""
    room = node.engine.disk_space.room if node.engine is not None else 0
    return UNLIMITED if room is None else room


def _has_spare(node: SimulatedNode) -> bool:
    return node.store.flusher is not None and node.store.flusher.spare.bytes > 0


def _all_know_their_log_committed(stage: ScriptStage) -> Callable[[], bool]:
    def known() -> bool:
        engines = [node.engine for node in stage.all]
        return all(engine is None or engine.core.raft.all_committed for engine in engines)

    return known


def _is_full(node: SimulatedNode) -> bool:
    return node.engine is None or node.engine.core.raft.full
