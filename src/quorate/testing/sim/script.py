"""What scripted adversaries are written in: generators that watch a world and act on it.

A script yields how long to wait, or a condition to wait for. It knows roles, which no random fault
does, and so walks into situations that random faults reach once in a million runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.messages import Append

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World
    from quorate.types import Index, NodeId

__all__ = ["Script", "Stage", "Until", "play"]

POLL_US = 500


class Until(NamedTuple):
    """Wait until ``condition`` holds, at most ``timeout_us``."""

    condition: Callable[[], bool]
    timeout_us: int


Script = Iterator[int | Until]


def play(world: World, script: Script) -> None:
    """Go on with ``script`` until it waits."""
    if world.network.calm:
        return  # healed: the play is over
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


class Stage:
    """A world as a script sees it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._choices = world.decisions.stream("adversary")
        # Messages taken off the wire, to be delivered when they hurt.
        self.held: list[Envelope] = []

    @property
    def election_us(self) -> int:
        return self.world.config.timing.election_ms * 1000

    def pick(self, count: int) -> int:
        """A number below ``count``."""
        return self._choices.choose(0, lambda random: random.randrange(count))

    def within(self, elections: int, condition: Callable[[], bool]) -> Until:
        return Until(condition, elections * self.election_us)

    def leader_among(self, names: tuple[NodeId, ...]) -> Node | None:
        led = [self.world.nodes[name] for name in names if self.world.nodes[name].leads]
        return max(led, key=lambda node: node.term, default=None)

    def led(self) -> bool:
        """Whether somebody leads and its noop is committed."""
        node = self.world.leader()
        engine = node.engine if node is not None else None
        leader = engine.core.leader if engine is not None else None
        return leader is not None and leader.ready

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.world.nodes.values() if node not in nodes]

    def last(self, node: Node) -> Index:
        """The last index that is durable at ``node``."""
        return node.disk.durable_last

    def only(self, *groups: list[Node]) -> None:
        """Let messages pass within each group and nowhere else."""
        network = self.world.network
        network.cuts.clear()
        for one in self.world.nodes.values():
            for other in self.world.nodes.values():
                together = any(one in group and other in group for group in groups)
                if one is not other and not together:
                    network.cuts.add((one.name, other.name))

    def mend(self) -> None:
        self.world.network.cuts.clear()
        self.world.network.intercept = None

    def raise_all(self) -> None:
        """Start whoever is down."""
        for node in self.world.nodes.values():
            if not node.wanted_up:
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
        """Deliver what was held."""
        held, self.held = self.held, []
        for envelope in held:
            self.world.after(1, self.world.arrive, envelope)

    def power_cut(self, node: Node, down_us: int) -> None:
        self.world.faults.inject("power", node, down_us, 0)

    def append(self, node: Node, count: int = 1) -> None:
        for _ in range(count):
            self.world.clients.append(node)


def carries_entries(envelope: Envelope) -> bool:
    return type(envelope.message) is Append
