"""What goes wrong from time to time: each seed turns some of these on."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.replica.exchange import LinkClosed
from quorate.testing.disk.simulated import FATE_BITS, KEPT, LOST, UNLIMITED
from quorate.testing.sim.rot import rot, rot_body, rot_page, rot_tail

if TYPE_CHECKING:
    from quorate.testing.disk.simulated import Fate
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World
    from quorate.types import NodeId

__all__ = ["Faults"]

CLOCK_JUMP_US_MAX = 3_600_000_000
SOME_ROOM = 48 * 1024


def _draw_fate(random: Random) -> Fate:
    """A change arrives, is lost, or arrives in part."""
    return random.choice((KEPT, LOST, random.getrandbits(FATE_BITS)))


class Faults:
    """Draws faults and carries them out; each ends by itself."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.decisions.stream("faults")
        self._running = True
        self.injected = 0

    def start(self) -> None:
        if self._world.options.faults:
            self._world.after(self._world.options.fault_gap_us, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        usual: list[Any] = [self._world.options.fault_gap_us, None, 0, 0, 0]
        gap, kind, who, duration, detail = self._choices.choose(usual, self._draw)
        if kind is not None:
            self.inject(kind, self._world.node_at(who), duration, detail)
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / options.fault_gap_us))
        leader = self._world.leader()
        names = list(self._world.names)
        # Half of the faults hit the leader: that is where most of the rules are.
        hit = leader.name if leader and random.random() < 0.5 else random.choice(names)
        duration = int(random.random() * 4 * options.timing["election_ms"] * 1000)
        kind = random.choice(options.faults)
        return [gap, kind, names.index(hit), duration, random.randrange(1 << 16)]

    def inject(self, kind: str, node: Node, duration: int, detail: int) -> None:
        """Make ``kind`` happen to ``node`` now; ``detail`` settles what is left open."""
        self.injected += 1
        self._world.count_event(f"fault {kind}", node.name)
        self._world.sometimes[f"fault {kind}"] += 1
        getattr(self, f"_{kind}")(node, duration, detail)

    # -- processes -----------------------------------------------------------------------------

    def _kill(self, node: Node, duration: int, detail: int) -> None:
        self._down(node, duration, power=False)

    def _power(self, node: Node, duration: int, detail: int) -> None:
        self._down(node, duration, power=True)

    def _power_all(self, node: Node, duration: int, detail: int) -> None:
        for each in self._world.nodes.values():
            self._down(each, duration, power=True)

    def _stop(self, node: Node, duration: int, detail: int) -> None:
        if node.engine is not None:
            node.stop()
            self._world.after(duration, node.start_if_down, node.life)

    def _down(self, node: Node, duration: int, *, power: bool) -> None:
        if node.engine is not None and node.store.disk.unsynced:
            self._world.sometimes["died between write and sync"] += 1
        node.kill()
        if power:
            fates = self._world.decisions.stream(f"fates {node.name}")
            node.store.disk.power_cut(lambda: fates.choose(KEPT, _draw_fate))
        self._world.after(duration, node.start_if_down, node.life)

    def _pause(self, node: Node, duration: int, detail: int) -> None:
        node.pause()
        self._world.after(duration, node.resume)

    # -- links ---------------------------------------------------------------------------------

    def _cut_for(self, links: list[tuple[NodeId, NodeId]], duration: int, detail: int) -> None:
        self._world.network.cut(links)
        if detail & 1:  # half of the cuts are noticed by the sockets
            for source, target in links:
                self._world.nodes[source].give(LinkClosed(target))
        self._world.after(duration, self._world.network.mend, links)

    def _isolate(self, node: Node, duration: int, detail: int) -> None:
        self._cut_for(self._world.links_between([node.name], self._others(node)), duration, detail)

    def _split(self, node: Node, duration: int, detail: int) -> None:
        left = [name for bit, name in enumerate(self._world.names) if detail >> bit & 1]
        right = [name for name in self._world.names if name not in left]
        self._cut_for(self._world.links_between(left, right), duration, detail >> 8)

    def _one_way(self, node: Node, duration: int, detail: int) -> None:
        out = [(node.name, other) for other in self._others(node)]
        links = out if detail & 2 else [(target, source) for source, target in out]
        self._cut_for(links, duration, detail)

    def _bridge(self, node: Node, duration: int, detail: int) -> None:
        """Two sides that only ``node`` can reach."""
        others = self._others(node)
        middle = len(others) // 2
        links = self._world.links_between(others[:middle], others[middle:])
        self._cut_for(links, duration, detail)

    def _flap(self, node: Node, duration: int, detail: int) -> None:
        """A link closes and can be had again at once."""
        other = self._others(node)[detail % len(self._others(node))] if self._others(node) else None
        if other is not None:
            self._world.close_link(node.name, other)

    def _others(self, node: Node) -> list[NodeId]:
        return [name for name in self._world.names if name != node.name]

    # -- disks and clocks ----------------------------------------------------------------------

    def _slow_disk(self, node: Node, duration: int, detail: int) -> None:
        node.disk_factor = 10 + detail % 1000
        self._world.after(duration, setattr, node, "disk_factor", 1)

    def _disk_error(self, node: Node, duration: int, detail: int) -> None:
        node.store.disk.error = errno.EIO

    def _full_disk(self, node: Node, duration: int, detail: int) -> None:
        """Somebody else fills the disk; later there is room again."""
        disk = node.store.disk
        free, total = disk.space()
        disk.capacity = total - free + detail % 2 * SOME_ROOM
        self._world.after(duration, setattr, disk, "capacity", UNLIMITED)

    def _rot(self, node: Node, duration: int, detail: int) -> None:
        """Most of the time the node is down meanwhile: what rots under a process shows later."""
        world = self._world
        if not world.losses.allows(node):
            return
        if detail % 4:
            self._down(node, duration, power=bool(detail & 4))
        kind = rot(node, Random(detail))
        if kind is not None:
            world.sometimes[f"rot {kind}"] += 1

    def _rot_old(self, node: Node, duration: int, detail: int) -> None:
        """Old entries, on any number of nodes, as long as enough others have each of them."""
        if detail % 4 == 0:
            self._down(node, duration, power=bool(detail & 4))
        random = Random(detail)
        for _ in range(1 + detail % 3):
            if detail & 8:
                self._world.sometimes["rot of an old page"] += rot_page(node, random)
            else:
                self._world.sometimes["rot of an old body"] += rot_body(node, random)

    def _rot_tail(self, node: Node, duration: int, detail: int) -> None:
        """A node is stopped in order, and what its mark stands for rots before it starts again."""
        world = self._world
        if node.engine is None or not world.losses.allows(node):
            return

        def spoil() -> None:
            if rot_tail(node, Random(detail)):
                world.sometimes["rot of a marked tail"] += 1

        node.stop(spoil)
        world.after(duration, node.start_if_down, node.life)

    def _clock_rate(self, node: Node, duration: int, detail: int) -> None:
        node.set_clock_rate(0.5 + 1.5 * (detail % 100) / 100)

    def _clock_jump(self, node: Node, duration: int, detail: int) -> None:
        node.wall_offset_us = (detail - (1 << 15)) * (CLOCK_JUMP_US_MAX >> 15)
