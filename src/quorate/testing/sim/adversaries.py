"""Scripted adversaries: one for each deep case that random faults hardly ever reach.

Each repeats its play until the run has its events. ``SETTINGS`` says what a play needs of the
options; everything else is drawn as for any other seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.entry import make_entry
from quorate.raft.messages import (
    Append,
    Compare,
    Envelope,
    Heartbeat,
    ReadIndexReply,
    VoteReply,
)
from quorate.testing.sim.script import Script, Stage, Until, carries_entries
from quorate.testing.sim.violation import Violation
from quorate.types import EntryKind, Index, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.testing.sim.node import Node

__all__ = ["ADVERSARIES", "SETTINGS"]


def figure_8(stage: Stage) -> Script:
    """An entry of an earlier term is on a majority and must still not count as committed.

    a leads and gives an entry to b alone; e leads c and d with an entry of its own that nobody
    else gets; a leads again and completes the majority of its old entry with c, but cannot send
    anything of its new term; e comes back, wins with its later term and overwrites the entry.
    """
    while True:
        stage.mend()
        stage.raise_all()
        yield stage.within(20, stage.led)
        a = stage.world.leader()
        if a is None:
            continue
        b, *rest = stage.others(a)
        yield stage.within(5, lambda a=a, rest=rest: _equal(stage, [a, *rest]))  # type: ignore[misc]
        stage.only([a, b])
        stage.append(a)
        last = stage.last(b)
        yield stage.within(2, lambda b=b, last=last: stage.last(b) > last)  # type: ignore[misc]
        a.kill()
        stage.only(rest)
        stage.lose(carries_entries)
        names = tuple(node.name for node in rest)
        yield stage.within(8, lambda names=names: stage.leader_among(names) is not None)  # type: ignore[misc]
        e = stage.leader_among(names)
        if e is None:
            continue
        yield stage.election_us // 4  # its noop reaches its own disk
        e.kill()
        _start(a)
        c = next(node for node in rest if node is not e)
        stage.only([a, b, *(node for node in rest if node is not e)])
        stage.lose(lambda envelope, c=c: _new_or_not_to(envelope, c))  # type: ignore[misc]
        names = (a.name, b.name)
        yield stage.within(8, lambda names=names: stage.leader_among(names) is not None)  # type: ignore[misc]
        yield stage.election_us // 2
        a.kill()
        b.kill()
        stage.world.network.intercept = None
        _start(e)
        stage.only(rest)
        yield stage.within(8, lambda rest=rest: stage.leader_among(_names(rest)) is not None)  # type: ignore[misc]
        yield stage.election_us


def _new_or_not_to(envelope: Envelope, target: Node) -> bool:
    """Whether an append carries an entry of its sender's own term or goes to anybody else."""
    message = envelope.message
    if type(message) is not Append:
        return False
    return envelope.target != target.name or message.entries[-1].term == message.term


def overwritten_suffix(stage: Stage) -> Script:
    """A leader cut off with a long suffix comes back, and loses power while it is overwritten."""
    while True:
        stage.mend()
        stage.raise_all()
        yield stage.within(20, stage.led)
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.only([old], others)
        stage.append(old, 1 + stage.pick(5))
        yield stage.within(8, lambda others=others: stage.leader_among(_names(others)) is not None)  # type: ignore[misc]
        new = stage.leader_among(_names(others))
        if new is None:
            continue
        yield stage.election_us // 4
        stage.append(new, 1 + stage.pick(5))
        yield stage.election_us // 4
        stage.mend()
        yield 1 + stage.pick(20 * (stage.world.options.delay_us + stage.world.options.disk_us))
        stage.power_cut(old, stage.election_us // 4)
        yield stage.election_us


def delayed_control(stage: Stage) -> Script:
    """Everything that an old leader sent to a follower arrives when a new one is followed."""
    while True:
        stage.mend()
        yield stage.within(20, stage.led)
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        victim = others[stage.pick(len(others))]
        stage.hold(lambda envelope, old=old, victim=victim: _control(envelope, old, victim))  # type: ignore[misc]
        stage.append(old, 3)
        yield stage.election_us // 2
        stage.only([old], others)
        stage.append(old, 2)
        yield stage.within(8, lambda others=others: stage.leader_among(_names(others)) is not None)  # type: ignore[misc]
        new = stage.leader_among(_names(others))
        if new is not None:
            yield stage.election_us // 4
            stage.append(new, 3)
            yield stage.election_us // 2
            stage.release()
            yield stage.election_us // 2


def _control(envelope: Envelope, source: Node, target: Node) -> bool:
    passes = (envelope.source, envelope.target) == (source.name, target.name)
    return passes and type(envelope.message) in (Append, Compare, Heartbeat)


def lost_vote(stage: Stage) -> Script:
    """The only node that two candidates reach votes, loses power and is asked again."""
    world = stage.world
    nodes = list(world.nodes.values())
    while True:
        stage.mend()
        world.faults.inject("power_all", nodes[0], 1, 0)
        shift = stage.pick(len(nodes))
        voter, one, other = (nodes[shift:] + nodes[:shift])[:3]
        stage.only([voter, one], [voter, other])
        voted = len(stage.held)

        def votes(envelope: Envelope, voter: Node = voter) -> bool:
            message = envelope.message
            if envelope.source == voter.name and type(message) is VoteReply and message.granted:
                stage.held.append(envelope)
            return False

        world.network.intercept = votes
        yield stage.within(6, lambda voted=voted: len(stage.held) > voted)  # type: ignore[misc]
        if len(stage.held) > voted:
            winner = world.nodes[stage.held[-1].target]
            stage.power_cut(voter, 1)
            yield stage.world.options.delay_us * 3
            loser = other if winner is one else one
            stage.only([voter, loser])
            yield stage.election_us * 3
        stage.held.clear()
        stage.mend()
        yield stage.election_us * 2


def stale_read(stage: Stage) -> Script:
    """A leader that was replaced and does not know it is asked to read."""
    while True:
        stage.mend()
        yield stage.within(20, stage.led)
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.only([old], others)
        if stage.pick(2):
            old.pause()
        yield stage.within(8, lambda others=others: stage.leader_among(_names(others)) is not None)  # type: ignore[misc]
        new = stage.leader_among(_names(others))
        if new is not None:
            stage.append(new, 2)
            stage.world.clients.ask(old)
            yield stage.election_us // 4
            stage.world.clients.ask(old)
        old.resume()
        yield stage.election_us // 4
        stage.world.clients.ask(old)


def answer_of_an_earlier_boot(stage: Stage) -> Script:
    """A read's answer arrives when the asker has restarted and asked again by the same number."""
    while True:
        stage.held.clear()
        stage.mend()
        yield stage.within(20, stage.led)
        leader = stage.world.leader()
        if leader is None:
            continue
        asker = stage.others(leader)[0]
        asker.kill()
        asker.start()
        yield stage.within(4, lambda asker=asker: asker.engine is not None)  # type: ignore[misc]
        yield stage.election_us // 2
        stage.hold(lambda envelope, asker=asker: _read_answer(envelope, asker))  # type: ignore[misc]
        stage.world.clients.ask(asker)
        yield stage.within(2, lambda: bool(stage.held))
        asker.kill()
        asker.start()
        yield stage.within(4, lambda asker=asker: _caught_up(asker))  # type: ignore[misc]
        stage.lose(lambda envelope, asker=asker: envelope.target == asker.name)  # type: ignore[misc]
        stage.append(leader)
        yield stage.election_us // 4
        stage.world.clients.ask(asker)
        yield 2 * stage.world.options.delay_us
        stage.release()
        yield stage.election_us // 2


def _read_answer(envelope: Envelope, asker: Node) -> bool:
    return envelope.target == asker.name and type(envelope.message) is ReadIndexReply


def _caught_up(node: Node) -> bool:
    engine = node.engine
    if engine is None:
        return False
    return 0 < engine.core.standing.log.last_index == engine.applied


def flapping_link(stage: Stage) -> Script:
    """Links to the leader close and can be had again at once: nobody may be deposed by that."""
    world = stage.world
    yield stage.within(20, stage.led)
    yield stage.election_us * 2
    leader = world.leader()
    if leader is None:
        raise Violation("S35", "a quiet cluster has no leader")
    term = leader.term
    while True:
        for other in stage.others(leader):
            world.close_link(leader.name, other.name)
        yield 1 + stage.pick(stage.election_us // 4)
        if not leader.leads or leader.term != term:
            raise Violation("S35", f"{leader.name} lost term {term} to a flapping link")


def foreign_entry(stage: Stage) -> Script:
    """A follower's disk holds, at an index and term that the leader used, another entry.

    Only the chain tells them apart: index and term agree.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.raise_all()
        yield stage.within(20, stage.led)
        leader = world.leader()
        engine = leader.engine if leader is not None else None
        if leader is None or engine is None:
            continue
        victim, third = stage.others(leader)[:2]
        yield stage.within(8, lambda: _equal(stage, list(world.nodes.values())))
        stage.only([leader, third])
        victim.kill()
        last = stage.last(victim)
        stage.append(leader)
        yield stage.within(2, lambda last=last, third=third: stage.last(third) > last)  # type: ignore[misc]
        before = victim.disk.durable_position(last)
        log = engine.core.standing.log
        if before is not None and log.last_index > last and log.position(last) == before:
            term = log.term_at(Index(last + 1))
            foreign = make_entry(before, term, EntryKind.NOOP, b"another", append_time=1)
            victim.disk.plant(foreign)
            world.invariants.planted.add(foreign.position)
        victim.start()
        stage.mend()
        yield stage.election_us


def cut_off_follower(stage: Stage) -> Script:
    """A follower misses more than any window holds; the link heals; it must be fed in a second."""
    world = stage.world
    while True:
        yield stage.within(20, stage.led)
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
        yield Until(lambda: _match(leader, victim) > match, 1_000_000)  # noqa: B023
        behind = _match(leader, victim) < engine.core.standing.committed
        if leader.leads and _match(leader, victim) <= match and behind:
            raise Violation("C11", f"{victim.name} was cut off and is not fed after a second")


def hung_follower(stage: Stage) -> Script:
    """A follower takes everything and answers nothing: appends go on without it."""
    world = stage.world
    while True:
        yield stage.within(20, stage.led)
        leader = world.leader()
        if leader is None:
            continue
        victim = stage.others(leader)[stage.pick(2)]
        victim.pause()
        yield stage.election_us
        acked = world.clients.acked
        for _ in range(20):
            stage.append(leader)
            yield 10 * (world.options.delay_us + world.options.disk_us)
        if leader.leads and world.clients.acked == acked:
            raise Violation("S49", f"{victim.name} hangs and nothing is acked any more")
        victim.resume()
        yield stage.election_us


def forged_append(stage: Stage) -> Script:
    """A message that could only come from a broken leader: another entry where one is committed.

    The follower must stop; it must not truncate what was committed.
    """
    world = stage.world
    while True:
        yield stage.within(20, stage.led)
        yield stage.election_us
        leader = world.leader()
        victim = stage.others(leader)[stage.pick(2)] if leader is not None else None
        if leader is None or leader.engine is None or victim is None or victim.engine is None:
            continue
        standing = victim.engine.core.standing
        if standing.leader != leader.name or not standing.committed:
            continue
        before = standing.log.position(Index(standing.committed - 1))
        forged = make_entry(before, standing.term, EntryKind.NOOP, b"forged")
        lie = Append(standing.term, 0, before, (forged,), Index(0))
        victim.lied_to = True
        world.arrive(Envelope(world.group, leader.name, victim.name, leader.engine.boot, lie))
        yield stage.election_us


def behind_campaigner(stage: Stage) -> Script:
    """A node that lacks entries may ask for pre-votes and must not get them."""
    world = stage.world
    while True:
        stage.mend()
        stage.raise_all()
        yield stage.within(20, stage.led)
        leader = world.leader()
        if leader is None:
            continue
        behind, ahead = stage.others(leader)[:2]
        yield stage.within(5, lambda: _equal(stage, list(world.nodes.values())))
        stage.only([leader, ahead])
        stage.append(leader, 2)
        last = stage.last(behind)
        yield stage.within(2, lambda ahead=ahead, last=last: stage.last(ahead) > last)  # type: ignore[misc]
        yield stage.election_us // 4
        leader.kill()
        if stage.last(ahead) == last:
            continue
        stage.only([behind, ahead])
        term = max(behind.term, ahead.term)
        yield stage.within(
            6,
            lambda ahead=ahead, behind=behind: ahead.leads or _campaigns(behind),  # type: ignore[misc]
        )
        if _campaigns(behind) and behind.term == term + 1 and ahead.term <= behind.term:
            raise Violation("S5", f"{behind.name} lacks entries and was let campaign")


def _campaigns(node: Node) -> bool:
    return node.engine is not None and node.engine.role is Role.CANDIDATE


def _match(leader: Node, peer: Node) -> Index:
    led = leader.engine.core.leader if leader.engine is not None else None
    return led.progress[peer.name].match if led is not None else Index(0)


def _start(node: Node) -> None:
    if not node.wanted_up:
        node.start()


def _names(nodes: list[Node]) -> tuple[Any, ...]:
    return tuple(node.name for node in nodes)


def _equal(stage: Stage, nodes: list[Node]) -> bool:
    return len({stage.last(node) for node in nodes}) == 1


ADVERSARIES: dict[str, Callable[[Stage], Script]] = {
    script.__name__: script
    for script in (
        figure_8,
        overwritten_suffix,
        delayed_control,
        lost_vote,
        stale_read,
        answer_of_an_earlier_boot,
        flapping_link,
        foreign_entry,
        cut_off_follower,
        hung_follower,
        forged_append,
        behind_campaigner,
    )
}

# What a play needs; the rest of the options is drawn.
QUIET: dict[str, Any] = {"noise": {}}
SETTINGS: dict[str, dict[str, Any]] = {
    "figure_8": {**QUIET, "nodes": 5, "limits": {"append_entries": 1}},
    "flapping_link": {**QUIET, "limits": {}},
    "foreign_entry": {**QUIET, "limits": {}},
    "cut_off_follower": {**QUIET, "limits": {"window_messages": 2, "append_entries": 1}},
    "hung_follower": {**QUIET, "limits": {}},
    "forged_append": QUIET,
    "behind_campaigner": {**QUIET, "limits": {}},
    "answer_of_an_earlier_boot": {**QUIET, "limits": {}},
}
