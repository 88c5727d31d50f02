"""The language of scripted adversaries: generators that watch a world and act on it.

A script yields how long to wait, or a condition to wait for. A script knows roles, which no random
fault does, and so walks into situations that random faults reach once in a million runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from quorate.types import NodeId
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from quorate.types import Index
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Script", "ScriptStage", "Until", "play"]

POLL_US = 500
# Election timeouts until a change of members has ended, if no fault lasts.
SETTLED_ELECTIONS = 60


class Until(NamedTuple):
    """Wait until ``condition`` holds, at most ``timeout_us``."""

    condition: Callable[[], bool]
    timeout_us: int


Script = Iterator[int | Until]


def play(world: World, script: Script) -> None:
    """Go on with ``script`` until it waits."""
    if world.network.calm:
        return  # the world is healed: the script ends
    wait = next(script, None)
    if isinstance(wait, Until):
        _poll(world, script, wait.condition, world.now + wait.timeout_us)
    elif wait is not None:
        world.after(wait, play, world, script)


def _poll(world: World, script: Script, condition: Callable[[], bool], deadline: int) -> None:
    if world.network.calm or condition() or world.now >= deadline:
        play(world, script)
    else:
        world.after(POLL_US, _poll, world, script, condition, deadline)


class ScriptStage:
    """A script's view of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._choices = world.decisions.stream("adversary")
        # Messages taken off the wire, to be delivered at the worst moment.
        self.held: list[Envelope] = []

    @property
    def election_us(self) -> int:
        return self.world.config.timing.election_ms * 1000

    def pick(self, count: int) -> int:
        """A number below ``count``."""
        return self._choices.choose(0, lambda random: random.randrange(count))

    def within(self, elections: int, condition: Callable[[], bool]) -> Until:
        return Until(condition, elections * self.election_us)

    def leader_of(self, nodes: list[SimulatedNode]) -> SimulatedNode | None:
        """The node that leads in the highest term among ``nodes``."""
        return max((node for node in nodes if node.leads), key=lambda node: node.term, default=None)

    def until_led_by(self, nodes: list[SimulatedNode], elections: int = 8) -> Until:
        return self.within(elections, lambda: self.leader_of(nodes) is not None)

    def until_longer(self, node: SimulatedNode, last: Index) -> Until:
        """Wait until more than ``last`` entries are durable at ``node``."""
        return self.within(2, lambda: node.store.durable.last > last)

    def until_equal(self, nodes: list[SimulatedNode]) -> Until:
        """Wait until as many entries are durable at each of ``nodes``."""
        return self.within(8, lambda: len({node.store.durable.last for node in nodes}) == 1)

    def until_led(self) -> Until:
        """Wait until a node leads and its noop is committed."""
        return self.within(20, self._ready)

    def _ready(self) -> bool:
        node = self.world.leader()
        engine = node.engine if node is not None else None
        leader = engine.core.leader if engine is not None else None
        return leader is not None and leader.ready

    def others(self, *nodes: SimulatedNode) -> list[SimulatedNode]:
        return [node for node in self.world.nodes.values() if node not in nodes]

    @property
    def all(self) -> list[SimulatedNode]:
        return list(self.world.nodes.values())

    def only(self, *groups: list[SimulatedNode]) -> None:
        """Let messages pass within each group and on no other link."""
        network = self.world.network
        network.cuts.clear()
        for one in self.world.nodes.values():
            for other in self.world.nodes.values():
                together = any(one in group and other in group for group in groups)
                if one is not other and not together:
                    network.cuts.add((one.name, other.name))

    # -- members -------------------------------------------------------------------------------

    @property
    def members(self) -> list[SimulatedNode]:
        """The nodes that hold the log by the last membership that was committed."""
        return [self.world.nodes[name] for name in self.world.invariants.quorums.settled.members]

    @property
    def voters(self) -> list[SimulatedNode]:
        """The nodes that vote by the last membership that was committed."""
        return [self.world.nodes[name] for name in self.world.invariants.quorums.settled.voters]

    def spares(self, count: int) -> list[SimulatedNode]:
        """So many nodes that are no members: those that were removed first, then new ones."""
        world, members = self.world, self.members
        found = [node for node in self.all if node not in members and not node.dead][:count]
        for number in range(len(world.names) + 1, len(world.names) + 1 + count - len(found)):
            found.append(world.add_node(NodeId(f"n{number}")))
        return found

    def change(
        self,
        node: SimulatedNode,
        voters: Iterable[SimulatedNode],
        learners: Iterable[SimulatedNode] = (),
    ) -> None:
        """Ask ``node`` for these members."""
        names = [each.name for each in voters]
        token = self.world.clients.changes.ask(
            node, names, [each.name for each in learners], forced=True
        )
        if token is None:
            raise Violation("harness", f"{names} are no voters")

    @property
    def settled(self) -> bool:
        """Whether no change is under way, and all members have the whole log."""
        world = self.world
        row, leader = world.invariants.quorums.settled, world.leader()
        return (
            self._ready()
            and leader is not None
            and leader.name in row.voters
            and not world.clients.changes.wanted
            and world.invariants.newest_of(leader) == row
            and not row.outgoing
            and len({node.store.durable.last for node in self.members}) == 1
        )

    def until_settled(self) -> Until:
        return self.within(SETTLED_ELECTIONS, lambda: self.settled)

    def until_learn(self, learners: list[SimulatedNode]) -> Script:
        """Let ``learners`` receive the log, beside the voters: they could vote at once then."""
        leader = self.world.leader()
        if leader is not None:
            self.change(leader, self.voters, learners)
        yield self.until_settled()

    def is_joint(self, node: SimulatedNode) -> bool:
        """Whether the newest members in the log of ``node`` have outgoing voters."""
        return bool(self.world.invariants.newest_of(node).outgoing)

    def until_joint(self, *nodes: SimulatedNode) -> Until:
        """Wait until the newest members in the log of each of ``nodes`` have outgoing voters."""
        return self.within(4, lambda: all(map(self.is_joint, nodes)))

    def until_final(self, node: SimulatedNode) -> Until:
        """Wait until the newest members in the log of ``node`` have no outgoing voters."""
        return self.within(8, lambda: not self.is_joint(node))

    # -- clocks --------------------------------------------------------------------------------

    def set_clock_rates(self, fast: list[SimulatedNode], slow: list[SimulatedNode]) -> None:
        """Set clock rates that real clocks may have, so that ``slow`` nodes rely on leases that are
        over."""
        for node in fast:
            node.set_clock_rate(2.0)
        for node in slow:
            node.set_clock_rate(0.5)

    def reset_clock_rates(self) -> None:
        for node in self.all:
            node.set_clock_rate(1.0)

    def mend(self) -> None:
        self.world.network.cuts.clear()
        self.world.network.intercept = None

    def start(self, *nodes: SimulatedNode) -> None:
        """Start those of ``nodes`` that are down."""
        for node in nodes:
            if not node.wanted_up and not node.dead:
                node.start()

    def hold(self, condition: Callable[[Envelope], bool]) -> None:
        """From now on keep the messages that ``condition`` picks."""

        def take(envelope: Envelope) -> bool:
            if condition(envelope):
                self.held.append(envelope)
                return True
            return False

        self.world.network.intercept = take

    def lose(self, condition: Callable[[Envelope], bool]) -> None:
        """From now on lose the messages that ``condition`` picks."""
        self.world.network.intercept = condition

    def release(self) -> None:
        """Deliver the held messages."""
        held, self.held = self.held, []
        for envelope in held:
            self.world.after(1, self.world.arrive, envelope)

    def power_cut(self, node: SimulatedNode, down_us: int) -> None:
        self.world.faults.inject("power", node, down_us, 0)

    def append(self, node: SimulatedNode, count: int = 1, size: int | None = None) -> None:
        for _ in range(count):
            self.world.clients.append(node, size=size)
