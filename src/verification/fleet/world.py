"""The simulated world of whole nodes: virtual time, nodes, links between them, power and disks."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.config import Config, Limits, Storage, Timing
from quorate.server.logs.catalog import catalog_incarnation
from quorate.types import NodeId
from verification.disk.inode import FATE_BITS, KEPT, LOST
from verification.fleet.history import FleetHistory
from verification.fleet.node import FleetNode
from verification.fleet.replica import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.raft.messages import Envelope
    from verification.disk.inode import Fate
    from verification.fleet.process import Process

__all__ = ["ELECTION_MS", "FleetWorld"]

ELECTION_MS = 400
DELAY_US = 1000
DISK_US = 300
DOWN_US = 600_000


class FleetWorld:
    """One world with one history; its seed decides everything."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.seed = seed
        self.random = Random(f"fleet/{seed}")
        self.now = 0
        self.events = 0
        # While true every message arrives, in the usual time.
        self.calm = False
        self.sometimes: Counter[str] = Counter()
        self.config = Config(
            Timing(tick_ms=20, heartbeat_ms=100, election_ms=ELECTION_MS, resend_ms=100,
                   read_ms=2 * ELECTION_MS, hint_min_ms=20, hint_max_ms=100),
            Limits(batch_bytes=8192, log_memory_bytes=self.random.choice((0, 1000, 1 << 20))),
            Storage(segment_bytes=64 << 10, reserve_bytes=4096),
        )  # fmt: skip
        self.loss = self.random.choice((0.0, 0.0, 0.02, 0.1))
        # A node writes its table down after so many records of the catalog.
        self.table_every = self.random.choice((1, 3, 1000))
        # A first start that takes longer has waited for a node that was late.
        self.late_us = 2 * ELECTION_MS * 1000
        self.catalog = catalog_incarnation(CLUSTER)
        self.history = FleetHistory(self)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = self._tokens = self._processes = 0
        names = [NodeId(f"n{number}") for number in range(1, nodes + 1)]
        self.nodes = {name: FleetNode(self, name) for name in names}
        for node in self.nodes.values():
            node.listed = tuple(names)
        # Nodes on copies of directories that are in use, at addresses that no node dials.
        self.copies: list[FleetNode] = []
        # Pairs of nodes between which no message passes.
        self.cuts: set[frozenset[NodeId]] = set()

    @property
    def quorum(self) -> int:
        return len(self.nodes) // 2 + 1

    # -- time ----------------------------------------------------------------------------------

    def after(self, delay_us: int, act: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_us, self._sequence, act, arguments))

    def pass_time(self, until: int, reached: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until a moment, or until ``reached`` holds; return whether it held."""
        while self._heap and self._heap[0][0] <= until:
            if reached():
                return True
            self.now, _, act, arguments = heapq.heappop(self._heap)
            self.events += 1
            act(*arguments)
        self.now = max(self.now, until)
        return reached()

    def next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def runs(self, number: int | None) -> bool:
        """Whether a process runs, a process on a copy of a directory included."""
        nodes = (*self.nodes.values(), *self.copies)
        return any(node.process is not None and node.process.number == number for node in nodes)

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    def disk_us(self) -> int:
        """The time of the next step of a disk."""
        return DISK_US if self.calm else self.random.randrange(DISK_US, 4 * DISK_US)

    def draw_fate(self) -> Fate:
        """The fate of a change that was not synced, in a power cut."""
        return self.random.choice((KEPT, LOST, self.random.getrandbits(FATE_BITS)))

    def start_later(self, node: FleetNode) -> None:
        """Start the node again after a while, as a supervisor does."""
        self.after(self.random.randrange(1, DOWN_US), node.start)

    # -- links ---------------------------------------------------------------------------------

    def _delay_us(self) -> int:
        return DELAY_US if self.calm else self.random.randrange(DELAY_US, 10 * DELAY_US)

    def passes(self, one: NodeId, other: NodeId) -> bool:
        return frozenset((one, other)) not in self.cuts

    def cut(self, one: NodeId, other: NodeId) -> None:
        """Cut the link between two nodes: no message passes, and their connections end."""
        self.cuts.add(frozenset((one, other)))
        for node, peer in ((one, other), (other, one)):
            process = self.nodes[node].process
            if process is not None:
                process.lose_links(peer)

    def dial(self, process: Process, peer: NodeId) -> None:
        """Connect to a peer: HELLO is on its way."""
        if self.passes(process.node.name, peer):
            said = process.roster.introduce()
            self.after(self._delay_us(), self._hello, process, peer, said)

    def _hello(self, dialler: Process, peer: NodeId, said: Any) -> None:
        name, other = dialler.node.name, self.nodes[peer].process
        if not self.passes(name, peer) or dialler.ended:
            return
        if other is None:
            self.after(self._delay_us(), dialler.run, dialler.refused_link, peer)
        else:
            other.run(self._judge_hello, other, dialler, said)

    def _judge_hello(self, other: Process, dialler: Process, said: Any) -> None:
        name = dialler.node.name
        problem = other.roster.judge(name, said, linked=other.linked(name))
        if problem is not None:
            self._count_refusal(dialler.node, other.node)
            known = other.roster.seen(name) if name in other.manifest.nodes else None
            hear = dialler.roster.hear_refusal
            self.after(self._delay_us(), dialler.run, hear, other.node.name, known)
            return
        self.history.accepted(other.node, dialler.node, said)
        other.let_in[dialler.node.name] = dialler.number
        other.learnt()
        welcome = other.roster.introduce()
        self.after(self._delay_us(), dialler.run, self._judge_welcome, dialler, other, welcome)

    def _judge_welcome(self, dialler: Process, other: Process, welcome: Any) -> None:
        peer = other.node.name
        if not self.passes(dialler.node.name, peer):
            return
        problem = dialler.roster.judge(peer, welcome, linked=dialler.linked(peer))
        if problem is not None:
            self._count_refusal(other.node, dialler.node)
            return
        if not other.ended:  # its disk may be another one by now
            self.history.accepted(dialler.node, other.node, welcome)
        dialler.learnt()
        if not other.ended and other.let_in.get(dialler.node.name) == dialler.number:
            dialler.links[peer] = other.number

    def _count_refusal(self, one: FleetNode, other: FleetNode) -> None:
        for node in (one, other):
            if node.wiped:
                self.sometimes["wiped node refused"] += 1
            if node.rolled_back:
                self.sometimes["rolled-back node refused"] += 1

    def send(self, process: Process, envelope: Envelope) -> None:
        """Send a message over a link that is open."""
        if self.calm or self.random.random() >= self.loss:
            number = process.links[envelope.target]
            self.after(self._delay_us(), self._arrive, process.number, number, envelope)

    def _arrive(self, sender: int, receiver: int, envelope: Envelope) -> None:
        """Deliver a message if the process at its target still lets in the process that sent it."""
        process = self.nodes[envelope.target].process
        if process is None or process.number != receiver:
            return
        if process.let_in.get(envelope.source) == sender:
            process.run(process.deliver, envelope)
