"""Adversaries of disks: copies that are spoiled, and nodes that forget acknowledged entries."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.storage.layout import PAGE, segment_name
from quorate.types import Index
from verification.sim.proofs import proved_bytes
from verification.sim.rot import rot
from verification.sim.script import Until

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = ["forgetful_voter", "spoiled_copy", "spoiled_old_entry", "torn_catch_up"]

FOREVER_US = 10**12


def spoiled_copy(stage: ScriptStage) -> Script:
    """One node's disk rots again and again, and every time it comes back the leader goes."""
    world = stage.world
    victim = stage.all[stage.pick(len(stage.all))]
    while not victim.dead:
        yield stage.until_led()
        victim.kill()
        rot(victim, Random(stage.pick(1 << 16)))
        victim.start()
        yield stage.election_us
        leader = world.leader()
        if leader is not None and leader is not victim:
            leader.kill()
            yield stage.election_us * 2
            stage.start(leader)
        yield stage.election_us
    yield FOREVER_US


def forgetful_voter(stage: ScriptStage) -> Script:
    """A node acknowledges an entry, and its disk forgets it.

    Only the leader has it besides, and is gone: a node that lacks the entry must not get the vote.
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
        victim.start()
        stage.only(stage.others(leader))
        yield stage.election_us * 4
    yield FOREVER_US


def _forget(node: SimulatedNode) -> None:
    """Cut the last block off the newest segment."""
    proved = proved_bytes(node.store)
    if proved:
        name = max(proved)
        size = max(PAGE, proved[name] - PAGE)
        node.world.losses.note(node, name, size)
        node.store.disk.shorten(name, size)


def spoiled_old_entry(stage: ScriptStage) -> Script:
    """The leader's disk spoils an entry that is not in memory and that only one peer still needs.

    The leader notices it when it reads the entry for that peer: it must not send the spoiled entry,
    and another node has to lead.
    """
    world = stage.world
    while True:
        stage.start(*stage.all)
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        yield stage.until_equal(stage.all)
        victim.kill()
        needed = Index(victim.store.durable.last + 1)
        while leader.leads and not _left_to_disk(leader, needed):
            stage.append(leader)
            yield 4 * (world.options.delay_us + world.options.disk_us)
        if leader.leads and _spoil(leader, needed):
            break
    world.sometimes["entry spoiled that a peer needs"] += 1
    stage.start(victim)
    yield FOREVER_US


def torn_catch_up(stage: ScriptStage) -> Script:
    """A follower that was away loses power while it writes the entries committed meanwhile.

    Its blocks name the committed index, and may name entries that the power cut tore off.
    """
    world = stage.world
    while True:
        stage.start(*stage.all)
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        victim.kill()
        stage.append(leader, 3 + stage.pick(10))
        yield stage.election_us // 2
        victim.start()
        yield Until(_writes_entries(victim), stage.election_us)
        stage.power_cut(victim, 1)
        yield stage.election_us


def _writes_entries(node: SimulatedNode) -> Callable[[], bool]:
    """Whether the next power cut may tear a block of a node that is up."""

    def writes() -> bool:
        disk = node.store.disk
        segments = [name for name in disk.files if name.endswith(".segment")]
        return node.engine is not None and disk.unsynced_in(segments) > 0

    return writes


def _left_to_disk(node: SimulatedNode, index: Index) -> bool:
    """Whether ``index`` stands in a sealed segment of ``node`` and is not in memory."""
    engine, log = node.engine, node.store.log
    if engine is None or log is None or engine.core.raft.log.first_in_memory <= index:
        return False
    return log.sealed > index


def _spoil(node: SimulatedNode, first: Index) -> bool:
    """Flip a bit in the body of an entry from ``first`` on, within its segment."""
    log = node.store.log
    segment = log.segment(first) if log is not None else None
    if segment is None:
        return False
    name = segment_name(segment.number)
    for index in range(first, segment.last.index + 1):
        start, stop = segment.rows.frame(Index(index))
        if stop - start > HEADER_BYTES:
            node.world.losses.note(node, name, start)
            last = node.store.disk.files[name].content[stop - 1]
            node.store.disk.spoil(name, stop - 1, bytes([last ^ 1]))
            return True
    return False
