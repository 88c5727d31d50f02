"""Adversaries of changes of the members: two majorities, of which one lacks what the other has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Ack, Append
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.raft.messages import Envelope
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = [
    "VOTERS",
    "begin",
    "disjoint_voters",
    "diverging_changes",
    "one_half",
    "orphaned_joint",
    "reverted_change",
]

VOTERS = 3


def begin(stage: ScriptStage) -> Script:
    """Heal all, and wait until no change is under way: with all nodes up every change ends."""
    stage.reset_clock_rates()
    stage.held.clear()
    stage.mend()
    stage.start(*stage.all)
    yield stage.election_us // 4
    yield stage.until_settled()
    if not stage.settled:
        raise Violation("C15", f"no members are settled: {stage.world.invariants.quorums.in_play}")


def reverted_change(stage: ScriptStage) -> Script:
    """A joint membership reaches no old voter but its leader, and another leader overwrites it: its
    new voters count no more, and are needed no more."""
    world = stage.world
    while True:
        yield from begin(stage)
        new = stage.spares(2)
        yield from stage.until_learn(new)
        a = world.leader()
        if a is None or a not in stage.voters or len(stage.voters) < VOTERS:
            continue
        rest = [node for node in stage.voters if node is not a]
        stage.only([a, *new], rest)
        stage.append(a)
        stage.change(a, [a, *new])
        yield stage.until_joint(a, *new)
        yield stage.until_led_by(rest)
        b = stage.leader_of(rest)
        if b is None:
            continue
        stage.append(b, 3)
        stage.only([*rest, a, *new] if stage.pick(2) else [*rest, a])
        yield stage.until_final(a)
        if stage.is_joint(a):
            continue
        others = [node for node in rest if node is not b]
        # Now a and one old voter decide; the voters that were to come are cut off, or alone with a.
        alone = stage.pick(3) == 0
        b.kill()
        stage.only([a, *new] if alone else [a, *others])
        yield stage.until_led_by([a, *others], 12)
        led = stage.leader_of([a, *others]) is not None
        if alone and a.leads:
            raise Violation("R1", f"{a.name} leads with voters of a membership that is gone")
        if not alone and not led:
            raise Violation("R1", f"{a.name} and {others[0].name} elect none: do they miss others?")


def diverging_changes(stage: ScriptStage) -> Script:
    """Two leaders change the members, neither with the other's change: two that add, two that
    remove, or one of each. Both come back, one after the other (Ongaro 2015, S29)."""
    world = stage.world
    while True:
        yield from begin(stage)
        new = stage.spares(2)
        yield from stage.until_learn(new)
        a = world.leader()
        if a is None or a not in stage.voters or len(stage.voters) < VOTERS:
            # Grow again after a change that removed voters.
            if a is not None:
                stage.change(a, [*stage.members][:VOTERS])
            continue
        voters = stage.voters
        rest = [node for node in voters if node is not a]
        helper = new[: stage.pick(3)]
        stage.only([a, *helper], [*rest, *(node for node in new if node not in helper)])
        stage.change(a, _another(stage, a, voters, new))
        yield stage.until_led_by(rest)
        b = stage.leader_of(rest)
        if b is None:
            continue
        stage.change(b, _another(stage, b, voters, new))
        stage.append(b)
        yield 1 + stage.pick(8 * (world.options.delay_us + 4 * world.options.disk_us))
        b.kill()
        # The first leader, with a node that may have neither change.
        friends = [node for node in rest if node is not b]
        stage.only([a, *helper, *friends] if stage.pick(2) else [a, *new, *friends])
        yield stage.until_led_by([a, *friends, *new])
        again = stage.leader_of([a, *friends, *new])
        if again is not None:
            stage.append(again)
            stage.change(again, _another(stage, again, voters, new))
        yield stage.pick(2 * stage.election_us)
        stage.start(b)
        stage.only([b, *friends, *new])
        yield 2 * stage.election_us


def _another(
    stage: ScriptStage, leader: SimulatedNode, voters: list[SimulatedNode], new: list[SimulatedNode]
) -> list[SimulatedNode]:
    """Other voters than ``voters``: more of them, fewer, or others beside ``leader``."""
    way = stage.pick(4)
    if way == 0:
        return [*voters, *new]
    if way == 1:
        return [leader]
    if way == 2:
        return [leader, *(node for node in new if node is not leader)]
    return [*voters, new[stage.pick(len(new))]]


def one_half(stage: ScriptStage) -> Script:
    """While a membership is joint, only one of the two majorities can be reached: no node wins, no
    entry is committed, and no read is answered."""
    world = stage.world
    while True:
        yield from begin(stage)
        new = stage.spares(VOTERS)
        yield from stage.until_learn(new)
        a = world.leader()
        if a is None or a not in stage.voters:
            continue
        rest = [node for node in stage.voters if node is not a]
        if stage.pick(2):
            yield from _read_with_one_half(stage, a, rest, new)
        else:
            yield from _win_with_one_half(stage, a, rest, new)


def _read_with_one_half(
    stage: ScriptStage, a: SimulatedNode, rest: list[SimulatedNode], new: list[SimulatedNode]
) -> Script:
    """The leader has a joint membership and hears its new voters. The old ones, which lack it,
    elect another leader: from then on each read of the first would be stale."""
    world = stage.world
    stage.only([a, *new], rest)
    stage.set_clock_rates(rest, [a, *new])
    stage.change(a, new)
    stage.append(a)
    yield stage.until_led_by(rest)
    b = stage.leader_of(rest)
    if b is None:
        return
    acked = world.clients.acked
    stage.append(b)
    yield stage.within(2, lambda: world.clients.acked > acked)
    for _ in range(4):
        stage.append(a)
        world.clients.ask(a)
        yield stage.election_us // 2
    # As long as the clocks of the new voters tell: the leader must have gone.
    yield 6 * stage.election_us


def _win_with_one_half(
    stage: ScriptStage, a: SimulatedNode, rest: list[SimulatedNode], new: list[SimulatedNode]
) -> Script:
    """All have the joint membership, which is not committed; then one half is alone."""
    world = stage.world
    stage.lose(_acks_of_joint(stage, a))
    stage.change(a, new)
    yield stage.until_joint(a, *rest, *new)
    yield stage.until_equal([a, *rest, *new])
    # Acks that are on their way may commit entries before it.
    joint = world.invariants.newest_of(a)
    half = [a, *rest] if stage.pick(2) else new
    stage.only(half)
    world.network.intercept = None
    for node in half:
        stage.append(node)
        world.clients.ask(node)
    yield 4 * stage.election_us
    if joint.outgoing and len(world.invariants.committed) >= joint.index:
        names = [node.name for node in half]
        raise Violation("R2", f"{names} committed {joint}, the other voters are cut off")


def _acks_of_joint(stage: ScriptStage, leader: SimulatedNode) -> Callable[[Envelope], bool]:
    """Picks the acks of a joint membership of ``leader``."""

    def picks(envelope: Envelope) -> bool:
        message = envelope.message
        row = stage.world.invariants.newest_of(leader)
        return type(message) is Ack and bool(row.outgoing) and message.match >= row.index

    return picks


def orphaned_joint(stage: ScriptStage) -> Script:
    """The leader dies at a step of a change, or the new voters die once the membership is joint,
    and come back: the change goes forward (S27)."""
    world = stage.world
    while True:
        yield from begin(stage)
        leader = world.leader()
        if leader is None:
            continue
        new = stage.spares(1 + stage.pick(VOTERS))
        stays = stage.voters[: stage.pick(2)]
        stage.append(leader, 2)
        stage.change(leader, [*stays, *new])
        if stage.pick(3):
            yield stage.until_joint(leader)
        yield stage.pick(4 * (world.options.delay_us + 4 * world.options.disk_us))
        dying = [leader] if stage.pick(2) else new
        for node in dying:
            world.faults.inject("power" if stage.pick(2) else "kill", node, 10**9, 0)
        yield (1 + stage.pick(4)) * stage.election_us
        now = world.leader()
        if now is not None:
            stage.append(now)
        stage.start(*dying)


def disjoint_voters(stage: ScriptStage) -> Script:
    """No old voter stays, only one of them gets the joint membership or the final one, and the
    leader dies: the one that is left is no voter any more, and only its log is long enough to
    win."""
    world = stage.world
    while True:
        yield from begin(stage)
        new = stage.spares(VOTERS)
        yield from stage.until_learn(new)
        a = world.leader()
        voters = stage.voters
        if a is None or a not in voters or len(voters) < VOTERS:
            continue
        b = [node for node in voters if node is not a][stage.pick(2)]
        final = bool(stage.pick(2))
        stage.lose(_members_to_others(stage, a, b, new, final=final))
        stage.change(a, new)
        yield stage.until_joint(b)
        if final:
            yield stage.until_final(b)
        yield stage.until_equal([a, b])
        a.kill()
        world.network.intercept = None
        yield stage.until_led_by(stage.all, 20)
        if stage.leader_of(stage.all) is None:
            raise Violation("C11", f"{a.name} died in a change, and no other node leads")


def _members_to_others(
    stage: ScriptStage,
    leader: SimulatedNode,
    one: SimulatedNode,
    new: list[SimulatedNode],
    *,
    final: bool,
) -> Callable[[Envelope], bool]:
    """Picks the joint membership with the voters ``new``, or the final one, on its way from
    ``leader`` to all nodes but ``one``."""
    voters = {node.name for node in new}

    def picks(envelope: Envelope) -> bool:
        row = stage.world.invariants.newest_of(leader)
        message = envelope.message
        return (
            envelope.source == leader.name
            and envelope.target != one.name
            and voters == {*row.voters}
            and bool(row.outgoing) != final
            and type(message) is Append
            and message.last_index >= row.index
        )

    return picks
