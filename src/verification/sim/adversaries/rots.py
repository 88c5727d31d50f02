"""Adversaries of disks that rot in several places, or while no node reads them."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorate.raft.messages import Append
from quorate.storage.layout import CLEAN, PAGE
from quorate.types import Index
from verification.disk.inode import FileWrite
from verification.sim.losses import checkpointed
from verification.sim.proofs import proved_bytes
from verification.sim.rot import rot_tail, spoil_body, spoil_page, stop_before
from verification.sim.script import Until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.raft.messages import Envelope
    from verification.disk.durable import FramePlace
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = [
    "marked_tail",
    "returned_mark",
    "returned_page",
    "rotten_replay",
    "torn_cut",
    "two_new_rots",
    "two_old_rots",
]

FOREVER_US = 10**12
# Calls of an open that cuts off a rotten end, and a few more.
OPEN_STEPS = 24
# Entries that are cut off: more than are written in their place.
DROPPED = 10


def marked_tail(stage: ScriptStage) -> Script:
    """A node stops in order and its newest entries rot, with the proof behind them. The open that
    notices it dies at some step.

    Only the leader has the last of them besides, and is gone: a node that lacks it must not get the
    vote.
    """
    world = stage.world
    victim = stage.all[0]
    while not victim.dead:
        leader = yield from _appended_with(stage, victim)
        if leader is None:
            continue
        if rot_tail(victim, Random(stage.pick(1 << 16))):
            world.sometimes["rot of a marked tail"] += 1
        leader.kill()
        victim.start()
        yield Until(_has_made_calls(victim, 1 + stage.pick(OPEN_STEPS)), stage.election_us)
        world.sometimes["died while it opened a rotten disk"] += not _is_up(victim)
        if stage.pick(2):
            victim.kill()
            victim.start()
        else:
            stage.power_cut(victim, 1)
        stage.only(stage.others(leader))
        yield stage.election_us * 4
    yield FOREVER_US


def returned_mark(stage: ScriptStage) -> Script:
    """A disk loses the mark of a clean stop: that of the stop before is back.

    Only the leader has the entries of the time in between besides, and is gone.
    """
    victim, before = stage.all[0], b""
    while not victim.dead:
        leader = yield from _appended_with(stage, victim)
        if leader is None:
            continue
        before = _bring_back(victim, before)
        leader.kill()
        victim.start()
        stage.only(stage.others(leader))
        yield stage.election_us * 4
    yield FOREVER_US


def _bring_back(node: SimulatedNode, before: bytes) -> bytes:
    """Put the mark ``before`` in the place of that of the last clean stop; return the latter."""
    if CLEAN not in node.store.disk.files:
        return before
    written = bytes(node.store.disk.files[CLEAN].content)
    if before:
        node.store.disk.spoil(CLEAN, 0, before)
        node.world.sometimes["earlier mark of a clean stop returned"] += 1
    return written


def _appended_with(
    stage: ScriptStage, victim: SimulatedNode
) -> Generator[int | Until, None, SimulatedNode | None]:
    """Append to two nodes only, the leader and ``victim``, which then stops in order. The leader;
    None if there is no other one than ``victim``."""
    stage.mend()
    stage.start(*stage.all)
    yield stage.until_led()
    leader = stage.world.leader()
    yield stage.until_equal(stage.all)
    if leader is victim:
        victim.kill()
        yield stage.until_led_by(stage.others(victim))
        return None
    if leader is None or victim.engine is None:
        yield stage.election_us
        return None
    stage.only([leader, victim])
    yield from _append_acked(stage, leader, 1 + stage.pick(3))
    victim.stop()
    yield stage.within(2, lambda: not victim.stopping)
    return leader


def _is_up(node: SimulatedNode) -> bool:
    return node.engine is not None


def _has_made_calls(node: SimulatedNode, calls: int) -> Callable[[], bool]:
    """Whether the disk of ``node`` has received so many calls from now on."""
    before = node.store.disk.calls
    return lambda: node.store.disk.calls >= before + calls


def _append_acked(stage: ScriptStage, node: SimulatedNode, count: int) -> Script:
    """Append at ``node`` and wait until an append is acknowledged."""
    clients = stage.world.clients
    acked = clients.acked
    stage.append(node, count)
    yield stage.within(2, lambda: clients.acked > acked)


def _one_away(
    stage: ScriptStage,
) -> Generator[int | Until, None, tuple[SimulatedNode, SimulatedNode, SimulatedNode] | None]:
    """Kill one of three nodes that have the same log: the leader, another node and the one that is
    away. None if no node leads."""
    stage.start(*stage.all)
    yield stage.until_led()
    leader = stage.world.leader()
    if leader is None:
        return None
    away = stage.others(leader)[stage.pick(2)]
    other = stage.others(leader, away)[0]
    yield stage.until_equal(stage.all)
    away.kill()
    return leader, other, away


def two_old_rots(stage: ScriptStage) -> Script:
    """Two nodes lose an old entry each that the other has, or a page of them, and the third was
    away and needs both.

    The two agree on all new entries: one of them has to lead, although it cannot feed the third.
    """
    world = stage.world
    spoil = _spoil_page_after if stage.pick(2) else _spoil_body_after
    while True:
        left = yield from _one_away(stage)
        if left is None:
            continue
        leader, other, away = left
        last = away.store.durable.last
        while leader.leads and not (_spoilable(leader, last) and _spoilable(other, last)):
            stage.append(leader)
            yield 4 * (world.options.delay_us + world.options.disk_us)
        if not leader.leads:
            continue
        for node in (leader, other):
            spoil(stage, node, last)
        world.sometimes["two old entries rotten on two nodes"] += 1
        break
    stage.start(away)
    yield FOREVER_US


def _spoil_body_after(stage: ScriptStage, node: SimulatedNode, last: Index) -> None:
    places = _spoilable(node, last)
    if places:
        spoil_body(node, places[stage.pick(len(places))], Random(stage.pick(1 << 16)))


def _spoil_page_after(stage: ScriptStage, node: SimulatedNode, last: Index) -> None:
    pages = [
        page
        for page, places in sorted(stage.world.losses.spoilable_pages(node).items())
        if places[0].position.index > last
    ]
    if pages:
        spoil_page(node, pages[stage.pick(len(pages))], Random(stage.pick(1 << 16)))
        stage.world.sometimes["old pages rotten on two nodes"] += 1


def _spoilable(node: SimulatedNode, after: Index) -> list[FramePlace]:
    """Entries that ``node`` may lose and that a node which ends with ``after`` lacks."""
    places = node.world.losses.spoilable_bodies(node)
    return [place for place in places if place.position.index > after]


def two_new_rots(stage: ScriptStage) -> Script:
    """Two nodes are killed and lose an entry each that they have to apply again and that the other
    has, and the third was away and lacks both.

    No node can serve: the two have to feed the third by turns.
    """
    world = stage.world
    while not world.losses.stopped:
        left = yield from _one_away(stage)
        if left is None:
            continue
        leader, other, away = left
        last = away.store.durable.last
        stage.append(leader, DROPPED)
        yield stage.until_equal([leader, other])
        yield stage.election_us  # the last flush is proved
        leader.kill()
        other.kill()
        _stop_both(stage, leader, other, last)
    stage.start(*stage.all)
    yield FOREVER_US


def _stop_both(stage: ScriptStage, one: SimulatedNode, other: SimulatedNode, last: Index) -> None:
    losses, random = stage.world.losses, Random(stage.pick(1 << 16))
    mine = [place for place in losses.spoilable_new_bodies(one) if place.position.index > last]
    theirs = [place for place in losses.spoilable_new_bodies(other) if place.position.index > last]
    if len(mine) > 1 and len(theirs) > 1:
        stop_before(one, mine[0], random)
        stop_before(other, theirs[-1], random)
        stage.world.sometimes["two new entries rotten on two nodes"] += 1


def rotten_replay(stage: ScriptStage) -> Script:
    """A node is killed when it has sealed a segment and no checkpoint covers that yet, and an entry
    there loses its body.

    An open takes the bodies of a sealed segment for whole: only the replay reads them. It has to
    stop before that entry.
    """
    world, victim = stage.world, stage.all[0]
    yield stage.until_led()
    while not world.losses.stopped:
        yield stage.within(4, partial(_has_sealed_more_than_kept, victim))
        sealed = _sealed(victim)
        victim.kill()
        places = [
            place
            for place in world.losses.spoilable_new_bodies(victim)
            if place.position.index <= sealed
        ]
        if places:
            place = places[stage.pick(len(places))]
            stop_before(victim, place, Random(stage.pick(1 << 16)))
            world.sometimes["entry rotten that a replay comes to"] += 1
        victim.start()
        yield stage.election_us * 2
    yield FOREVER_US


def _sealed(node: SimulatedNode) -> Index:
    return node.store.log.sealed if node.engine is not None and node.store.log else Index(0)


def _has_sealed_more_than_kept(node: SimulatedNode) -> bool:
    return _sealed(node) > checkpointed(node)


def returned_page(stage: ScriptStage) -> Script:
    """A cut within a block is undone: the page of that block falls back to its earlier content.

    Behind it stand blocks that were written since, so the loss can be seen. The last entry of them
    is acknowledged, and the leader that has it besides is gone.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        old = world.leader()
        yield stage.until_equal(stage.all)
        if old is None or not old.leads:
            continue
        last = old.store.durable.last
        stage.lose(_appends_after(old, last))
        stage.append(old, DROPPED)
        yield stage.until_longer(old, last)
        others = stage.others(old)
        stage.only([old], others)
        yield stage.until_led_by(others)
        new = stage.leader_of(others)
        stage.mend()
        if new is None:
            continue
        yield stage.until_equal(stage.all)
        stage.only([old, new])
        yield from _append_acked(stage, new, 1)
        new.kill()
        old.kill()
        if world.losses.allows(old) and _undo_cut(old, stage):
            world.sometimes["page of a cut returned"] += 1
        old.start()
        stage.only(stage.others(new))
        yield stage.election_us * 4


def torn_cut(stage: ScriptStage) -> Script:
    """The power goes while a log is cut within a page, and takes the entries before the cut along.

    One of them is acknowledged, and the only other node that has it is gone: the third may not be
    elected with the vote of a node that lost it.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        old = world.leader()
        yield stage.until_equal(stage.all)
        if old is None or not old.leads:
            continue
        last = old.store.durable.last
        partner, third = stage.others(old)
        stage.lose(_either(_appends_after(old, last), _appends_to(third)))
        stage.append(old, DROPPED)
        yield stage.until_longer(partner, last)
        yield stage.until_longer(old, last)
        stage.only([old], [partner, third])
        yield stage.until_led_by([partner])
        stage.mend()
        stage.lose(_appends_to(third))
        yield stage.within(4, partial(_is_cut_within_page, old))
        if _is_cut_within_page(old):
            partner.kill()
            stage.power_cut(old, 1)
            stage.mend()
        yield stage.election_us * 8


def _appends_to(node: SimulatedNode) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.target == node.name and type(envelope.message) is Append


def _either(
    one: Callable[[Envelope], bool], other: Callable[[Envelope], bool]
) -> Callable[[Envelope], bool]:
    return lambda envelope: one(envelope) or other(envelope)


def _is_cut_within_page(node: SimulatedNode) -> bool:
    """Whether ``node`` has not yet synced a write that begins within a page of a segment."""
    return any(
        isinstance(change, FileWrite) and change.position % PAGE
        for name, inode in node.store.disk.files.items()
        if name.endswith(".segment")
        for change in inode.pending
    )


def _appends_after(node: SimulatedNode, last: Index) -> Callable[[Envelope], bool]:
    """Pick the messages of ``node`` that lack the first entry after ``last``."""

    def picks(envelope: Envelope) -> bool:
        message = envelope.message
        return (
            envelope.source == node.name
            and type(message) is Append
            and message.entries[-1].index > last + 1
        )

    return picks


def _undo_cut(node: SimulatedNode, stage: ScriptStage) -> bool:
    """Bring back a page of the newest segment that was written over and is proved."""
    files = node.store.disk.files
    proved = proved_bytes(node.store)
    name = max(proved, default="")
    if name not in files:
        return False
    inode = files[name]
    pages = [
        page
        for page, before in sorted(inode.older.items())
        if page < proved[name] and bytes(inode.durable[page : page + len(before)]) != before
    ]
    if not pages:
        return False
    page = pages[stage.pick(len(pages))]
    node.world.losses.note(node, name, page)
    node.store.disk.spoil(name, page, inode.older[page])
    return True
