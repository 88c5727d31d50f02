"""What scripted adversaries are written in: generators that watch a world and act on it.

A script yields how long to wait, or a condition to wait for. It knows roles, which no random fault
does, and so walks into situations that random faults reach once in a million runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World
    from quorate.types import Index

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

    def leader_of(self, nodes: list[Node]) -> Node | None:
        """Whoever of ``nodes`` leads, in the highest term."""
        return max((node for node in nodes if node.leads), key=lambda node: node.term, default=None)

    def until_led_by(self, nodes: list[Node]) -> Until:
        return self.within(8, lambda: self.leader_of(nodes) is not None)

    def until_longer(self, node: Node, last: Index) -> Until:
        """Until more than ``last`` entries are durable at ``node``."""
        return self.within(2, lambda: node.store.durable.last > last)

    def until_equal(self, nodes: list[Node]) -> Until:
        """Until as many entries are durable at each of ``nodes``."""
        return self.within(8, lambda: len({node.store.durable.last for node in nodes}) == 1)

    def until_led(self) -> Until:
        """Until somebody leads and its noop is committed."""
        return self.within(20, self._ready)

    def _ready(self) -> bool:
        node = self.world.leader()
        engine = node.engine if node is not None else None
        leader = engine.core.leader if engine is not None else None
        return leader is not None and leader.ready

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.world.nodes.values() if node not in nodes]

    @property
    def all(self) -> list[Node]:
        return list(self.world.nodes.values())

    def only(self, *groups: list[Node]) -> None:
        """Let messages pass within each group and nowhere else."""
        network = self.world.network
        network.cuts.clear()
        for one in self.world.nodes.values():
            for other in self.world.nodes.values():
                together = any(one in group and other in group for group in groups)
                if one is not other and not together:
                    network.cuts.add((one.name, other.name))

    def set_clock_rates(self, fast: list[Node], slow: list[Node]) -> None:
        """Within what a real cluster may see, so that ``slow`` ones believe what is long over."""
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

    def start(self, *nodes: Node) -> None:
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
        """Deliver what was held."""
        held, self.held = self.held, []
        for envelope in held:
            self.world.after(1, self.world.arrive, envelope)

    def power_cut(self, node: Node, down_us: int) -> None:
        self.world.faults.inject("power", node, down_us, 0)

    def append(self, node: Node, count: int = 1, size: int | None = None) -> None:
        for _ in range(count):
            self.world.clients.append(node, size=size)
