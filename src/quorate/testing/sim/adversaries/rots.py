"""Adversaries of disks that rot in several places, or while nobody looks."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorate.raft.messages import Append
from quorate.storage.layout import PAGE
from quorate.testing.disk.simulated import Write
from quorate.testing.sim.proofs import proved_bytes
from quorate.testing.sim.rot import rot_tail, spoil_body, spoil_page, stop_before
from quorate.testing.sim.script import Until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.raft.messages import Envelope
    from quorate.testing.disk.durable import Place
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.script import Script, Stage
    from quorate.types import Index

__all__ = ["marked_tail", "returned_page", "torn_cut", "two_new_rots", "two_old_rots"]

FOREVER_US = 10**12
# Steps of an open, and a few more.
OPEN_STEPS = 12
# Entries that are cut off: more than are written in their place.
DROPPED = 10


def marked_tail(stage: Stage) -> Script:
    """A node stops in order and its newest entries rot, with the proof behind them. The open that
    finds it out dies at some step.

    Only the leader has the last of them besides, and is gone: whoever lacks it must not get the
    vote.
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
        yield from _append_acked(stage, leader, 1 + stage.pick(3))
        victim.stop()
        yield stage.within(2, lambda: not victim.stopping)
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


def _is_up(node: Node) -> bool:
    return node.engine is not None


def _has_made_calls(node: Node, calls: int) -> Callable[[], bool]:
    """Whether the disk of ``node`` was called so often from now on."""
    before = node.store.disk.calls
    return lambda: node.store.disk.calls >= before + calls


def _append_acked(stage: Stage, node: Node, count: int) -> Script:
    """Append at ``node`` and wait until something is acknowledged."""
    clients = stage.world.clients
    acked = clients.acked
    stage.append(node, count)
    yield stage.within(2, lambda: clients.acked > acked)


def _one_away(stage: Stage) -> Generator[int | Until, None, tuple[Node, Node, Node] | None]:
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


def two_old_rots(stage: Stage) -> Script:
    """Two nodes lose an old entry each that the other has, or a page of them, and the third was
    away and needs both.

    The two agree on all that is new: one of them has to lead, although it cannot feed the third.
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


def _spoil_body_after(stage: Stage, node: Node, last: Index) -> None:
    places = _spoilable(node, last)
    if places:
        spoil_body(node, places[stage.pick(len(places))], Random(stage.pick(1 << 16)))


def _spoil_page_after(stage: Stage, node: Node, last: Index) -> None:
    pages = [
        page
        for page, places in sorted(stage.world.losses.spoilable_pages(node).items())
        if places[0].position.index > last
    ]
    if pages:
        spoil_page(node, pages[stage.pick(len(pages))], Random(stage.pick(1 << 16)))
        stage.world.sometimes["old pages rotten on two nodes"] += 1


def _spoilable(node: Node, after: Index) -> list[Place]:
    """Entries that ``node`` may lose and that a node which ends with ``after`` lacks."""
    places = node.world.losses.spoilable_bodies(node)
    return [place for place in places if place.position.index > after]


def two_new_rots(stage: Stage) -> Script:
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


def _stop_both(stage: Stage, one: Node, other: Node, last: Index) -> None:
    losses, random = stage.world.losses, Random(stage.pick(1 << 16))
    mine = [place for place in losses.spoilable_new_bodies(one) if place.position.index > last]
    theirs = [place for place in losses.spoilable_new_bodies(other) if place.position.index > last]
    if len(mine) > 1 and len(theirs) > 1:
        stop_before(one, mine[0], random)
        stop_before(other, theirs[-1], random)
        stage.world.sometimes["two new entries rotten on two nodes"] += 1


def returned_page(stage: Stage) -> Script:
    """A cut within a block is undone: the page of that block is again what it was before.

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


def torn_cut(stage: Stage) -> Script:
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


def _appends_to(node: Node) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.target == node.name and type(envelope.message) is Append


def _either(
    one: Callable[[Envelope], bool], other: Callable[[Envelope], bool]
) -> Callable[[Envelope], bool]:
    return lambda envelope: one(envelope) or other(envelope)


def _is_cut_within_page(node: Node) -> bool:
    """Whether ``node`` has not yet synced a write that begins within a page of a segment."""
    return any(
        isinstance(change, Write) and change.position % PAGE
        for name, inode in node.store.disk.files.items()
        if name.endswith(".segment")
        for change in inode.pending
    )


def _appends_after(node: Node, last: Index) -> Callable[[Envelope], bool]:
    """Picks what ``node`` sends but for the first entry after ``last``."""

    def picks(envelope: Envelope) -> bool:
        message = envelope.message
        return (
            envelope.source == node.name
            and type(message) is Append
            and message.entries[-1].index > last + 1
        )

    return picks


def _undo_cut(node: Node, stage: Stage) -> bool:
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
