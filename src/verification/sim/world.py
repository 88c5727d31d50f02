"""The simulated world: virtual time, nodes, network, clients and faults, in one loop.

A run has two phases. Under fire, safety is checked after every event. Then everything is healed
and the cluster must come back by itself: a leader, reads, appends, equal copies (C11, C10).
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from quorate.errors import DiskFailed, ReplicaHalted, StateDiverged
from quorate.replica.engine_io import Deliver, LinkClosed, LinkRefused
from quorate.types import GroupId, NodeId, Position
from verification.sim.adversaries import ADVERSARIES
from verification.sim.clients import Clients
from verification.sim.faults import Faults
from verification.sim.invariants import Invariants
from verification.sim.losses import Losses
from verification.sim.lost_disks import LostDisks
from verification.sim.network import Network
from verification.sim.node import SimulatedNode
from verification.sim.script import ScriptStage, play
from verification.sim.violation import Violation
from verification.sim.wire import largest_message, over_the_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.raft.messages import Envelope
    from quorate.replica.engine_io import Input
    from verification.sim.decisions import Decisions
    from verification.sim.options import Options

__all__ = ["World"]

# A run that does not reach its events in this virtual time ends all the same.
VIRTUAL_US_MAX = 3_600_000_000
STORM_EVENTS = 200_000
RECONNECT_US = 2_000
RESTART_AFTER_HALT_US = 50_000


class World:
    """The world of one run."""

    def __init__(self, options: Options, decisions: Decisions) -> None:
        self.options = options
        self.decisions = decisions
        self.config = options.config()
        self.now = 0
        self.events = 0
        # More events than any run needs that comes to rest.
        self._events_max = max(STORM_EVENTS, 20 * options.events)
        # Stands for all events of the run, in order: equal for equal runs.
        self.trace = 0
        self.sometimes: Counter[str] = Counter()
        self._heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._sequence = 0
        self.names = tuple(NodeId(f"n{number + 1}") for number in range(options.nodes))
        # The members of the log before an entry changes them.
        self.first_voters = self.names
        self.group = GroupId("sim", options.incarnation)
        self.network = Network(options, decisions)
        self.invariants = Invariants(self)
        self.clients = Clients(self)
        self.faults = Faults(self)
        self.nodes = {
            name: SimulatedNode(self, name, options.config_of(number))
            for number, name in enumerate(self.names)
        }
        self._largest_message = self._find_largest_message()
        # The entries that rot took from the disks.
        self.losses = Losses(self)
        # The disks that are gone as a whole.
        self.lost_disks = LostDisks(self)
        # The reports of replicas that gave up for good.
        self.halts: list[str] = []

    def _find_largest_message(self) -> int:
        return largest_message(node.config.limits for node in self.nodes.values())

    # -- time ----------------------------------------------------------------------------------

    def after(self, delay_us: int, call: Callable[..., Any], *arguments: Any) -> None:
        """Let ``call`` happen ``delay_us`` from now."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_us, self._sequence, call, arguments))

    def run_until(self, done: Callable[[], bool], deadline: int) -> bool:
        """Let time pass until ``done``; False if the deadline came first."""
        heap = self._heap
        while not done():
            if not heap or heap[0][0] > deadline:
                self.now = max(self.now, deadline)
                return done()
            self.now, _, call, arguments = heapq.heappop(heap)
            call(*arguments)
        return True

    def count_event(self, kind: str, name: NodeId) -> None:
        self.events += 1
        if self.events > self._events_max:
            raise Violation("storm", f"{self.events} events: nodes do not stop talking")
        self.trace = crc32c(f"{self.now} {kind} {name}".encode(), self.trace)

    def under_fire(self) -> None:
        """The first phase: until the options' number of events was reached."""
        for node in self.nodes.values():
            node.start()
        self.clients.start()
        self.faults.start()
        if self.options.adversary is not None:
            play(self, ADVERSARIES[self.options.adversary](ScriptStage(self)))
        self.run_until(lambda: self.events >= self.options.events, VIRTUAL_US_MAX)

    def heal(self) -> None:
        """Stop all faults. Messages on their way still arrive."""
        self.faults.stop()
        self.clients.stop()
        self.network.calm = True
        self.network.cuts.clear()
        self.network.intercept = None
        for node in self.nodes.values():
            node.heal()

    # -- nodes and links -----------------------------------------------------------------------

    def add_node(self, name: NodeId) -> SimulatedNode:
        """Add a node with an empty disk, and start it. It is no member until a change names it."""
        node = SimulatedNode(self, name, self.options.config_of(len(self.names)), first=False)
        self.names = (*self.names, name)
        self.nodes[name] = node
        self._largest_message = self._find_largest_message()
        node.start()
        return node

    def node_at(self, position: int) -> SimulatedNode:
        return self.nodes[self.names[position % len(self.names)]]

    def leader(self) -> SimulatedNode | None:
        """The node that leads in the highest term."""
        leaders = [node for node in self.nodes.values() if node.leads]
        return max(leaders, key=lambda node: node.term, default=None)

    def durable_copies(self, position: Position, names: Iterable[NodeId] | None = None) -> int:
        """The number of disks, of ``names`` or of all nodes, that would hold ``position`` after a
        power cut right now, or would have held it before they rotted or were lost."""
        nodes = self.nodes.values() if names is None else (self.nodes[name] for name in names)
        return sum(self.was_durable(node, position) for node in nodes)

    def was_durable(self, node: SimulatedNode, position: Position) -> bool:
        """Whether ``position`` is durable at ``node``, or was until it rotted or its disk was
        lost."""
        durable = node.store.durable.position(position.index) == position
        return durable or self.losses.held(node, position)

    def links_between(self, left: list[NodeId], right: list[NodeId]) -> list[tuple[NodeId, NodeId]]:
        """All links between two sides, both ways."""
        out = [(one, other) for one in left for other in right]
        return out + [(other, one) for one, other in out]

    def send(self, envelope: Envelope) -> None:
        arrivals = self.network.arrivals(envelope)
        if len(arrivals) > 1:
            self.sometimes["message duplicated"] += 1
        elif not arrivals:
            self.sometimes["message lost"] += 1
        if arrivals and self.options.wire:
            envelope = over_the_wire(envelope, self._largest_message)
            self.sometimes["message as bytes"] += 1
        for delay in arrivals:
            self.after(delay, self.arrive, envelope)
        if arrivals and not self.network.calm and "stray" in self.options.noise:
            self._stray(envelope)

    def _stray(self, envelope: Envelope) -> None:
        """A copy that reaches the wrong node, or comes from another cluster or an earlier life."""
        stream = self.decisions.stream("stray")
        drawn = stream.choose(-1, lambda random: self.network.draw_stray(random, len(self.names)))
        if drawn < 0:
            return
        receiver = self.node_at(drawn)
        if receiver.name == envelope.target:
            cluster, incarnation = self.group
            group = GroupId("other", incarnation) if drawn % 2 else GroupId(cluster, -1)
            envelope = replace(envelope, group=group)
        self.after(self.options.delay_us, receiver.give, Deliver(envelope))

    def arrive(self, envelope: Envelope) -> None:
        node = self.nodes[envelope.target]
        self.count_event(type(envelope.message).__name__, envelope.target)
        node.give(Deliver(envelope))

    def process_died(self, node: SimulatedNode) -> None:
        """Tell clients and peers that a process died: its clients wait in vain; its peers see the
        connection close, unless it is cut."""
        self.clients.process_died(node)
        self.note_refusals(node)
        for name in self.names:
            if name != node.name and self.network.passes(node.name, name):
                self.after(self.options.delay_us, self._link_closed, name, node.name)

    def note_refusals(self, node: SimulatedNode) -> None:
        """Count the messages that a process refused, when it ends or the run does."""
        if node.engine is not None:
            for reason, count in node.engine.core.raft.refused.items():
                self.sometimes[f"refused {reason}"] += count

    def close_link(self, one: NodeId, other: NodeId) -> None:
        self._link_closed(one, other)
        self._link_closed(other, one)

    def _link_closed(self, name: NodeId, peer: NodeId) -> None:
        self.count_event("link closed", name)
        self.nodes[name].give(LinkClosed(peer))
        self.after(RECONNECT_US, self._reconnect, name, peer)

    def _reconnect(self, name: NodeId, peer: NodeId) -> None:
        """Dial again. The dial is refused if the host is reached and no process listens; a cut link
        hangs."""
        if self.nodes[peer].engine is None and self.network.passes(name, peer):
            self.count_event("link refused", name)
            self.nodes[name].give(LinkRefused(peer))

    def halted(self, node: SimulatedNode, halt: ReplicaHalted, inputs: list[Input]) -> None:
        """A replica stopped itself. It may do so for its disk, for a message that was forged or a
        state that was made to stray, and for no other reason here."""
        believed = node.lie is not None and Deliver(node.lie) in inputs
        if isinstance(halt, DiskFailed) and node.disk_failed:
            self.sometimes["stopped for a failed disk"] += 1
        elif self.losses.explain_halt(node, halt):
            self.sometimes["stopped for a damaged disk"] += 1
            self.halts.append(str(halt))
            node.dead = True
        elif isinstance(halt, StateDiverged) and any(one.strayed for one in self.nodes.values()):
            # Without a majority that says which state is right the others stop, too. Theirs is
            # right after a restart.
            self.sometimes["stopped for another state"] += 1
            node.dead = node.strayed
        elif believed:
            self.sometimes["stopped rather than drop committed entries"] += 1
        else:
            raise Violation("halt", f"{node.name} stopped: {type(halt).__name__}: {halt}")
        node.kill()
        self.after(RESTART_AFTER_HALT_US, node.start_if_down, node.life)
