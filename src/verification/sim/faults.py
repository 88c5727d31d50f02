"""Draws faults and carries them out. Each seed turns on some kinds."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.replica.engine_io import LinkClosed
from verification.disk.inode import FATE_BITS, KEPT, LOST
from verification.disk.simulated import UNLIMITED
from verification.sim.member_faults import MemberFaults
from verification.sim.options import MEMBER_FAULTS
from verification.sim.rot import rot, rot_body, rot_page, rot_tail

if TYPE_CHECKING:
    from quorate.types import NodeId
    from verification.disk.inode import Fate
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Faults"]

# Mean time between two changes of the members, in election timeouts.
CHANGE_ELECTIONS = 2
CLOCK_JUMP_US_MAX = 3_600_000_000
SOME_ROOM = 48 * 1024


def _draw_fate(random: Random) -> Fate:
    """A change arrives, is lost, or arrives in part."""
    return random.choice((KEPT, LOST, random.getrandbits(FATE_BITS)))


class Faults:
    """Draws faults and carries them out. Most end by themselves; ``World.heal`` ends the others."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.decisions.stream("faults")
        options = world.options
        # Members change on a timer of their own, so that the other faults of a run stay as they
        # would be without.
        self._kinds = [kind for kind in options.faults if kind not in MEMBER_FAULTS]
        self._changes = [kind for kind in options.faults if kind in MEMBER_FAULTS]
        self._change_choices = world.decisions.stream("changes")
        self._change_gap_us = CHANGE_ELECTIONS * options.timing["election_ms"] * 1000
        self._members = MemberFaults(world)
        self._running = True
        self.injected = 0

    def start(self) -> None:
        if self._kinds:
            self._world.after(self._world.options.fault_gap_us, self._next)
        if self._changes:
            self._world.after(self._change_gap_us, self._next_change)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        usual: list[Any] = [self._world.options.fault_gap_us, None, 0, 0, 0]
        self._world.after(self._carry_out(self._choices.choose(usual, self._draw)), self._next)

    def _next_change(self) -> None:
        if not self._running:
            return
        usual: list[Any] = [self._change_gap_us, None, 0, 0, 0]
        chosen = self._change_choices.choose(usual, self._draw_change)
        self._world.after(self._carry_out(chosen), self._next_change)

    def _carry_out(self, chosen: list[Any]) -> int:
        """Make the chosen fault happen; return the time until the next one."""
        gap, kind, who, duration, detail = chosen
        if kind is not None:
            self.inject(kind, self._world.node_at(who), duration, detail)
        return int(gap)

    def _draw(self, random: Random) -> list[Any]:
        return self._draw_one(random, self._kinds, self._world.options.fault_gap_us)

    def _draw_change(self, random: Random) -> list[Any]:
        return self._draw_one(random, self._changes, self._change_gap_us)

    def _draw_one(self, random: Random, kinds: list[str], gap_us: int) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / gap_us))
        leader = self._world.leader()
        names = list(self._world.names)
        # Half of the faults hit the leader: most rules concern it.
        hit = leader.name if leader and random.random() < 0.5 else random.choice(names)
        duration = int(random.random() * 4 * options.timing["election_ms"] * 1000)
        kind = random.choice(kinds)
        return [gap, kind, names.index(hit), duration, random.randrange(1 << 16)]

    def inject(self, kind: str, node: SimulatedNode, duration: int, detail: int) -> None:
        """Make ``kind`` happen to ``node`` now; ``detail`` decides everything else about it."""
        self.injected += 1
        self._world.count_event(f"fault {kind}", node.name)
        self._world.sometimes[f"fault {kind}"] += 1
        getattr(self, f"_{kind}")(node, duration, detail)

    # -- processes -----------------------------------------------------------------------------

    def _kill(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._down(node, duration, power=False)

    def _power(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._down(node, duration, power=True)

    def _power_all(self, node: SimulatedNode, duration: int, detail: int) -> None:
        for each in self._world.nodes.values():
            self._down(each, duration, power=True)

    def _stop(self, node: SimulatedNode, duration: int, detail: int) -> None:
        if node.engine is not None:
            node.stop()
            self._world.after(duration, node.start_if_down, node.life)

    def _down(self, node: SimulatedNode, duration: int, *, power: bool) -> None:
        if node.engine is not None and node.store.disk.unsynced:
            self._world.sometimes["died between write and sync"] += 1
        node.kill()
        if power:
            fates = self._world.decisions.stream(f"fates {node.name}")
            node.store.disk.power_cut(lambda: fates.choose(KEPT, _draw_fate))
        self._world.after(duration, node.start_if_down, node.life)

    def _pause(self, node: SimulatedNode, duration: int, detail: int) -> None:
        node.pause()
        self._world.after(duration, node.resume)

    def _transfer(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Ask a node, mostly the leader, to give the leadership to another one, or to itself, or
        to the node that it finds fittest."""
        names = [*self._world.names, None, None]
        self._world.clients.transfers.ask(node, names[detail % len(names)])

    # -- members -------------------------------------------------------------------------------

    def _join(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._members.join(node, detail)

    def _remove(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._members.remove(node, detail)

    def _replace(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._members.replace(node, detail)

    def _wipe(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._members.wipe(node, duration, detail)

    # -- links ---------------------------------------------------------------------------------

    def _cut_for(self, links: list[tuple[NodeId, NodeId]], duration: int, detail: int) -> None:
        self._world.network.cut(links)
        if detail & 1:  # half of the cuts are noticed by the sockets
            for source, target in links:
                self._world.nodes[source].give(LinkClosed(target))
        self._world.after(duration, self._world.network.mend, links)

    def _isolate(self, node: SimulatedNode, duration: int, detail: int) -> None:
        self._cut_for(self._world.links_between([node.name], self._others(node)), duration, detail)

    def _split(self, node: SimulatedNode, duration: int, detail: int) -> None:
        left = [name for bit, name in enumerate(self._world.names) if detail >> bit & 1]
        right = [name for name in self._world.names if name not in left]
        self._cut_for(self._world.links_between(left, right), duration, detail >> 8)

    def _one_way(self, node: SimulatedNode, duration: int, detail: int) -> None:
        out = [(node.name, other) for other in self._others(node)]
        links = out if detail & 2 else [(target, source) for source, target in out]
        self._cut_for(links, duration, detail)

    def _bridge(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Split the other nodes into two sides that only ``node`` can reach."""
        others = self._others(node)
        middle = len(others) // 2
        links = self._world.links_between(others[:middle], others[middle:])
        self._cut_for(links, duration, detail)

    def _flap(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Close a link, which can be opened again at once."""
        other = self._others(node)[detail % len(self._others(node))] if self._others(node) else None
        if other is not None:
            self._world.close_link(node.name, other)

    def _others(self, node: SimulatedNode) -> list[NodeId]:
        return [name for name in self._world.names if name != node.name]

    # -- disks and clocks ----------------------------------------------------------------------

    def _slow_disk(self, node: SimulatedNode, duration: int, detail: int) -> None:
        node.disk_factor = 10 + detail % 1000
        self._world.after(duration, setattr, node, "disk_factor", 1)

    def _disk_error(self, node: SimulatedNode, duration: int, detail: int) -> None:
        node.store.disk.error = errno.EIO

    def _full_disk(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Fill the disk with other files; later there is room again."""
        disk = node.store.disk
        free, total = disk.space()
        disk.capacity = total - free + detail % 2 * SOME_ROOM
        self._world.after(duration, setattr, disk, "capacity", UNLIMITED)

    def _rot(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Rot a disk. Most of the time the node is down meanwhile: rot under a running process
        shows later."""
        world = self._world
        if not world.losses.allows(node):
            return
        if detail % 4:
            self._down(node, duration, power=bool(detail & 4))
        kind = rot(node, Random(detail))
        if kind is not None:
            world.sometimes[f"rot {kind}"] += 1

    def _rot_old(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Rot old entries, on any number of nodes, as long as enough others have each of them."""
        if detail % 4 == 0:
            self._down(node, duration, power=bool(detail & 4))
        random = Random(detail)
        for _ in range(1 + detail % 3):
            if detail & 8:
                self._world.sometimes["rot of an old page"] += rot_page(node, random)
            else:
                self._world.sometimes["rot of an old body"] += rot_body(node, random)

    def _rot_tail(self, node: SimulatedNode, duration: int, detail: int) -> None:
        """Stop a node in order, and rot the pages that its mark stands for before it starts
        again."""
        world = self._world
        if node.engine is None or not world.losses.allows(node):
            return

        def spoil() -> None:
            if rot_tail(node, Random(detail)):
                world.sometimes["rot of a marked tail"] += 1

        node.stop(spoil)
        world.after(duration, node.start_if_down, node.life)

    def _clock_rate(self, node: SimulatedNode, duration: int, detail: int) -> None:
        node.set_clock_rate(0.5 + 1.5 * (detail % 100) / 100)

    def _clock_jump(self, node: SimulatedNode, duration: int, detail: int) -> None:
        node.wall_offset_us = (detail - (1 << 15)) * (CLOCK_JUMP_US_MAX >> 15)
