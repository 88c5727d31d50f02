"""Adversaries of replication and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.entry import make_entry
from quorate.raft.messages import Ack, Append, Compare, Envelope, Heartbeat, keeps_order
from quorate.storage.flusher import Flush
from quorate.types import EntryKind, Index
from verification.sim.adversaries.elections import SLOW
from verification.sim.script import Until
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.entry import Entry
    from quorate.raft.log import RaftLog
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = [
    "cut_off_follower",
    "delayed_control",
    "eager_leader",
    "figure_8",
    "foreign_entry",
    "forged_append",
    "hung_follower",
    "late_ack",
    "overwritten_suffix",
    "slow_line",
]

FED_WITHIN_US = 1_000_000


def figure_8(stage: ScriptStage) -> Script:
    """An entry of an earlier term is on a majority and must still not count as committed.

    a leads and gives an entry to b alone; e leads c and d with an entry of its own that no other
    node gets; a leads again and completes the majority of its old entry with c, but cannot send an
    entry of its new term; e comes back, wins with its later term and overwrites the entry.
    """
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        a = stage.world.leader()
        if a is None:
            continue
        b, *rest = stage.others(a)
        yield stage.until_equal([a, *rest])
        stage.only([a, b])
        last = b.store.durable.last
        stage.append(a)
        yield stage.until_longer(b, last)
        a.kill()
        stage.only(rest)
        stage.lose(lambda envelope: type(envelope.message) is Append)
        yield stage.until_led_by(rest)
        e = stage.leader_of(rest)
        if e is None:
            continue
        yield stage.election_us // 4  # its noop reaches its own disk
        e.kill()
        stage.start(a)
        c, d = (node for node in rest if node is not e)
        stage.only([a, b, c, d])
        stage.lose(_all_but_old_entries_to(c))
        yield stage.until_led_by([a, b])
        yield stage.election_us // 2
        a.kill()
        b.kill()
        stage.world.network.intercept = None
        stage.start(e)
        stage.only(rest)
        yield stage.until_led_by(rest)
        yield stage.election_us


def _all_but_old_entries_to(target: SimulatedNode) -> Callable[[Envelope], bool]:
    """Pick the appends that carry an entry of their sender's own term or go to another node."""

    def lost(envelope: Envelope) -> bool:
        message = envelope.message
        if type(message) is not Append:
            return False
        return envelope.target != target.name or message.entries[-1].term == message.term

    return lost


def overwritten_suffix(stage: ScriptStage) -> Script:
    """A leader cut off with a long suffix comes back, and loses power while it is overwritten.

    Every other time its disk is so slow that the suffix is still on its way there.
    """
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.only([old], others)
        slow = bool(stage.pick(2))
        if slow:
            old.disk_factor = SLOW
        stage.append(old, 1 + stage.pick(5))
        yield stage.until_led_by(others)
        old.disk_factor = 1
        new = stage.leader_of(others)
        if new is None:
            continue
        yield stage.election_us // 4
        stage.append(new, 1 + stage.pick(5))
        yield stage.election_us // 4
        stage.mend()
        if slow:
            yield stage.election_us * 2
        yield 1 + stage.pick(20 * (stage.world.options.delay_us + stage.world.options.disk_us))
        stage.power_cut(old, stage.election_us // 4)
        yield stage.election_us


def eager_leader(stage: ScriptStage) -> Script:
    """A deposed leader gets true appends of the new one while its disk is busy with the new term.

    No comparison came before: the message is true, so the follower has to cope with it.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        old = world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.only([old], others)
        stage.append(old, 1 + stage.pick(5))
        yield stage.until_led_by(others)
        yield stage.election_us // 4
        new = stage.leader_of(others)
        if new is None or new.engine is None or old.engine is None:
            continue
        led = new.engine.core.leader
        raft = new.engine.core.raft
        log = raft.log
        common = _common_index(old.engine.core.raft.log, log)
        if led is None or common == log.last_index:
            continue
        number = led.progress[old.name].number
        entries = log.slice(Index(common + 1), 1 + stage.pick(4), 1000)
        beat = Heartbeat(led.term, led.round, log.position(raft.committed))
        append = Append(led.term, number, log.position(common), entries, raft.committed)
        busy = stage.pick(2)
        for message in (beat, append):
            world.arrive(Envelope(world.group, new.name, old.name, new.engine.boot, message))
            if busy:
                old.pause()  # the append and the end of the flush will be taken in one turn
            else:
                yield 1 + stage.pick(4 * world.options.disk_us)
        yield 10 * world.options.disk_us
        old.resume()


def _common_index(one: RaftLog, other: RaftLog) -> Index:
    """The last index up to which two logs agree."""
    index = min(one.last_index, other.last_index)
    while one.position(index) != other.position(index):
        index = Index(index - 1)
    return index


def delayed_control(stage: ScriptStage) -> Script:
    """All messages of an old leader to a follower arrive after a new election."""
    while True:
        stage.mend()
        yield stage.until_led()
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        victim = others[stage.pick(len(others))]
        stage.hold(_sent_by_leader(old, victim))
        stage.append(old, 3)
        yield stage.election_us // 2
        stage.only([old], others)
        stage.append(old, 2)
        yield stage.until_led_by(others)
        new = stage.leader_of(others)
        if new is not None:
            yield stage.election_us // 4
            stage.append(new, 3)
            yield stage.election_us // 2
            stage.release()
            yield stage.election_us // 2


def _sent_by_leader(source: SimulatedNode, target: SimulatedNode) -> Callable[[Envelope], bool]:
    def picked(envelope: Envelope) -> bool:
        link = (envelope.source, envelope.target)
        kind = type(envelope.message)
        return link == (source.name, target.name) and kind in (Append, Compare, Heartbeat)

    return picked


def late_ack(stage: ScriptStage) -> Script:
    """Acks for a leadership that ended arrive when the same node leads again.

    The leader has heard no message of that peer since: it cannot know the peer's log.
    """
    world = stage.world
    while True:
        stage.held.clear()
        stage.mend()
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        peer, third = stage.others(leader)
        stage.hold(_ack(peer, leader))
        stage.append(leader, 3)
        yield stage.within(1, lambda: bool(stage.held))
        stage.only()
        yield stage.within(4, lambda node=leader: not node.leads)  # type: ignore[misc]
        stage.only([leader, third])
        yield stage.until_led_by([leader, third])
        if leader.leads:
            stage.release()
        yield stage.election_us // 2


def _ack(source: SimulatedNode, target: SimulatedNode) -> Callable[[Envelope], bool]:
    def picked(envelope: Envelope) -> bool:
        link = (envelope.source, envelope.target)
        return link == (source.name, target.name) and type(envelope.message) is Ack

    return picked


def foreign_entry(stage: ScriptStage) -> Script:
    """A follower's disk holds, at an index and term that the leader used, another entry.

    Only the chain tells them apart: index and term agree.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        leader = world.leader()
        engine = leader.engine if leader is not None else None
        if leader is None or engine is None:
            continue
        victim, third = stage.others(leader)[:2]
        yield stage.until_equal(stage.all)
        stage.only([leader, third])
        victim.kill()
        last = victim.store.durable.last
        stage.append(leader)
        yield stage.until_longer(third, last)
        before = victim.store.durable.position(last)
        log = engine.core.raft.log
        if before is not None and log.last_index > last and log.position(last) == before:
            term = log.term_at(Index(last + 1))
            foreign = make_entry(before, term, EntryKind.NOOP, b"another", append_time=1)
            _plant(victim, foreign)
            world.invariants.planted.add(foreign.position)
        stage.start(victim)
        stage.mend()
        yield stage.election_us


def _plant(victim: SimulatedNode, entry: Entry) -> None:
    """Append ``entry`` to the log of a node that is down, as its own storage would."""
    recovered = victim.store.open()
    cut = entry.index if entry.index <= recovered.before.index + len(recovered.entries) else None
    victim.store.write(Flush(1, truncate_from=cut, entries=(entry,)))


def cut_off_follower(stage: ScriptStage) -> Script:
    """A follower misses more than any window holds; the link heals; it must be fed in a second."""
    world = stage.world
    while True:
        stage.mend()
        yield stage.until_led()
        leader = world.leader()
        engine = leader.engine if leader is not None else None
        if leader is None or engine is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        stage.only(stage.others(victim))
        for _ in range(stage.pick(60)):
            stage.append(leader)
            yield 4 * world.options.delay_us
        stage.mend()
        match = _match(leader, victim)
        yield Until(_moved(leader, victim, match), FED_WITHIN_US)
        behind = _match(leader, victim) < engine.core.raft.committed
        if leader.leads and _match(leader, victim) <= match and behind:
            raise Violation("C11", f"{victim.name} was cut off and is not fed after a second")


def hung_follower(stage: ScriptStage) -> Script:
    """A follower takes all messages and sends none: appends go on without it."""
    world = stage.world
    while True:
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        victim.pause()
        yield stage.election_us
        # The other follower may have entries to catch up with first.
        yield stage.until_equal(stage.others(victim))
        acked = world.clients.acked
        for _ in range(20):
            stage.append(leader)
            yield 10 * (world.options.delay_us + world.options.disk_us)
        if leader.leads and world.clients.acked == acked:
            raise Violation("S49", f"{victim.name} hangs and no append is acked any more")
        victim.resume()
        yield stage.election_us


def slow_line(stage: ScriptStage) -> Script:
    """Entries are long on their way to a follower, and with them messages that must not overtake
    them. None of them may be sent again meanwhile: the copies would wait behind each other."""
    world = stage.world
    while True:
        stage.mend()
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        stage.hold(_in_order(leader, victim))
        stage.append(leader, 1 + stage.pick(5))
        yield (2 + stage.pick(4)) * world.config.timing.resend_ms * 1000
        _see_none_twice(stage.held)
        stage.mend()
        stage.release()
        yield stage.election_us


def _in_order(source: SimulatedNode, target: SimulatedNode) -> Callable[[Envelope], bool]:
    def picked(envelope: Envelope) -> bool:
        link = (envelope.source, envelope.target)
        return link == (source.name, target.name) and keeps_order(envelope.message)

    return picked


def _see_none_twice(held: list[Envelope]) -> None:
    seen = set()
    for envelope in held:
        message = envelope.message
        for entry in message.entries if type(message) is Append else ():
            if (message.term, entry.index) in seen:
                what = f"{entry.index} to {envelope.target}, to which it is on its way"
                raise Violation("resend", f"{envelope.source} sends entry {what}")
            seen.add((message.term, entry.index))


def _moved(leader: SimulatedNode, peer: SimulatedNode, match: Index) -> Callable[[], bool]:
    return lambda: _match(leader, peer) > match


def _match(leader: SimulatedNode, peer: SimulatedNode) -> Index:
    led = leader.engine.core.leader if leader.engine is not None else None
    return led.progress[peer.name].match if led is not None else Index(0)


def forged_append(stage: ScriptStage) -> Script:
    """A message that could only come from a broken leader: another entry where one is committed.

    The follower must stop; it must not truncate a committed entry.
    """
    world = stage.world
    while True:
        yield stage.until_led()
        yield stage.election_us
        leader = world.leader()
        victim = stage.others(leader)[stage.pick(2)] if leader is not None else None
        if leader is None or leader.engine is None or victim is None or victim.engine is None:
            continue
        raft = victim.engine.core.raft
        if raft.leader != leader.name or not raft.committed:
            continue
        before = raft.log.position(Index(raft.committed - 1))
        forged = make_entry(before, raft.term, EntryKind.NOOP, b"forged")
        lie = Append(raft.term, 0, before, (forged,), Index(0))
        boot = leader.engine.boot
        victim.lie = Envelope(world.group, leader.name, victim.name, boot, lie)
        world.arrive(victim.lie)
        yield stage.election_us
