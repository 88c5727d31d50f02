"""Adversaries of nodes that leave and come: removed ones that speak, and new ones that lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Append, ReadIndexReply
from verification.sim.adversaries.members import VOTERS, begin
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.raft.messages import Envelope, Message
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = [
    "early_voter",
    "removed_campaigner",
    "removed_leader",
    "returning_disk",
    "unaware_voter",
]


def removed_campaigner(stage: ScriptStage) -> Script:
    """A voter is cut off while it is removed. It comes back, has not heard that it is no member,
    and asks for votes: the leader stays (S30)."""
    world = stage.world
    while True:
        yield from begin(stage)
        leader = world.leader()
        if leader is None or len(stage.voters) < VOTERS:
            continue
        gone = [node for node in stage.voters if node is not leader][stage.pick(2)]
        kept = [node for node in stage.voters if node is not gone]
        stage.only([node for node in stage.all if node is not gone])
        stage.change(leader, [*kept, *stage.spares(1)])
        yield stage.until_settled()
        yield stage.pick(3) * stage.election_us
        led = world.leader()
        if led is None or not stage.settled:
            continue
        term = led.term
        stage.mend()
        for _ in range(6):
            stage.append(led)
            yield stage.election_us
        if not led.leads or led.term != term:
            raise Violation("S30", f"{gone.name}, which was removed, deposed {led.name}")


def removed_leader(stage: ScriptStage) -> Script:
    """The leader removes itself, with requests all the time: another node leads soon, and takes
    appends (S25)."""
    world = stage.world
    while True:
        yield from begin(stage)
        leader = world.leader()
        if leader is None or leader not in stage.voters:
            continue
        others = [node for node in stage.voters if node is not leader]
        new = stage.spares(1 if others else VOTERS)
        if stage.pick(2):
            # The node that is fittest cannot be reached for a while.
            stage.only(
                [node for node in stage.all if node is not others[0]] if others else stage.all
            )
        stage.change(leader, [*others, *new])
        for _ in range(20):
            stage.append(leader)
            world.clients.ask(leader)
            yield 1 + stage.pick(4 * world.options.delay_us)
        yield stage.within(4, lambda leader=leader: not leader.leads)  # type: ignore[misc]
        stage.mend()
        yield stage.until_settled()
        if not stage.settled or leader.leads:
            raise Violation("R10", f"{leader.name}, which was removed, has no successor")


def early_voter(stage: ScriptStage) -> Script:
    """Nodes are asked for as voters that lack entries, or are not sure of them, or do not answer:
    appends go on, and the others elect a leader if this one dies. Or the nodes are learners that
    lack nothing: they do not lead."""
    world = stage.world
    while True:
        yield from begin(stage)
        leader = world.leader()
        if leader is None or leader not in stage.voters:
            continue
        others = [node for node in stage.voters if node is not leader]
        way = stage.pick(4)
        if way == 3:
            yield from stage.until_learn(stage.spares(4))
            leader.kill()
            yield stage.until_led_by(stage.all)
            continue
        new = stage.spares(2) if way < 2 or len(others) < 2 else others[:1]
        stage.lose(_to_early(new, (ReadIndexReply,) if way == 1 else (Append,)))
        if new == others[:1]:
            new[0].kill()
            yield 2 * stage.election_us
            stage.change(leader, new)
        else:
            stage.change(leader, stage.voters, new)
            yield (1 + stage.pick(2)) * stage.election_us
            stage.append(leader, 1 + stage.pick(4))
            yield stage.election_us
            stage.change(leader, [leader, *new])
        for _ in range(3):
            acked = world.clients.acked
            stage.append(leader)
            yield stage.within(3, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
            if leader.leads and world.clients.acked == acked:
                raise Violation("R6", f"{leader.name} waits for voters that are not fit")
        if len(others) == 2:
            if way < 2:
                leader.kill()
            rest = [node for node in (leader, *others, *new) if node.engine is not None]
            yield stage.until_led_by(rest, 20)
            if stage.leader_of(rest) is None:
                raise Violation("R6", f"no leader: {[node.name for node in rest]} wait for others")


def _to_early(
    new: list[SimulatedNode], kinds: tuple[type[Message], ...]
) -> Callable[[Envelope], bool]:
    """Picks the messages of these kinds on their way to the new voters."""
    names = {node.name for node in new}
    return lambda envelope: envelope.target in names and type(envelope.message) in kinds


def returning_disk(stage: ScriptStage) -> Script:
    """A leader is cut off. The others replace one of them by a new disk under another id; the old
    disk comes back beside the old leader: they must decide nothing (S50)."""
    world = stage.world
    while True:
        yield from begin(stage)
        a = world.leader()
        if a is None or len(stage.voters) != VOTERS or a not in stage.voters:
            continue
        rest = [node for node in stage.voters if node is not a]
        stage.only([node for node in stage.all if node is not a])
        yield stage.until_led_by(rest)
        b = stage.leader_of(rest)
        if b is None:
            continue
        c = rest[1 - rest.index(b)]
        new = world.add_node(world.lost_disks.next_disk(c.name))
        network = world.network
        network.cut(world.links_between([a.name], [new.name]))
        stage.change(b, [a, b, new])
        yield stage.within(30, lambda new=new: new in stage.voters)  # type: ignore[misc]
        if new not in stage.voters:
            continue
        c.kill()
        stage.append(b, 3)
        yield stage.election_us
        stage.only([b, new], [a, c])
        stage.start(c)
        world.sometimes["replaced disk came back"] += 1
        for _ in range(4):
            for node in (a, c):
                stage.append(node)
                world.clients.ask(node)
            stage.append(b)
            yield stage.election_us
        if c.leads or a.leads:
            raise Violation("R9", f"{a.name} and the old disk of {c.name} elected a leader")
        if stage.pick(2):
            world.lost_disks.lose(c)


def unaware_voter(stage: ScriptStage) -> Script:
    """A voter is cut off while all others are replaced. It comes back, and the only node that is
    left with it is one that it has never heard of: it votes for it, and follows it (S31)."""
    world = stage.world
    while True:
        yield from begin(stage)
        leader = world.leader()
        if leader is None or leader not in stage.voters or len(stage.voters) < VOTERS:
            continue
        unaware = [node for node in stage.voters if node is not leader][stage.pick(2)]
        stage.only([node for node in stage.all if node is not unaware])
        new = stage.spares(1)
        new.append(world.add_node(world.lost_disks.next_disk(leader.name)))
        network = world.network
        network.cut(world.links_between([unaware.name], [node.name for node in new]))
        stage.change(leader, [unaware, *new])
        names = {node.name for node in new}
        yield stage.within(30, lambda names=names: names <= {each.name for each in stage.voters})  # type: ignore[misc]
        yield stage.within(4, lambda new=new: stage.leader_of(new) is not None)  # type: ignore[misc]
        led = stage.leader_of(new)
        if led is None or len(stage.voters) != VOTERS:
            continue
        if stage.pick(2):
            led.kill()
        left = [node for node in new if node.engine is not None]
        stage.only([unaware, *left])
        yield stage.until_led_by([unaware, *left], 20)
        now = stage.leader_of([unaware, *left])
        if now is None:
            raise Violation("S31", f"{unaware.name} and {left[0].name} elect no leader")
        acked = world.clients.acked
        stage.append(now)
        yield stage.within(8, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
        if now.leads and len(left) == 1 and world.clients.acked == acked:
            raise Violation("S31", f"{unaware.name} does not follow {now.name}")
