"""Links that lose, repeat, delay and reorder messages, are cut one way, flap and close."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorate.raft.messages import Envelope
    from quorate.types import NodeId
    from verification.sim.decisions import Decisions
    from verification.sim.options import Options

__all__ = ["Network"]

# A late message comes when all nodes have forgotten it.
LATE_FACTOR_MAX = 20


class Network:
    """Decides when, if and how often each message arrives."""

    def __init__(self, options: Options, decisions: Decisions) -> None:
        self._options = options
        self._decisions = decisions
        self._election_us = options.timing["election_ms"] * 1000
        # Directed links on which no message passes.
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        # While true every message arrives once, in the usual time.
        self.calm = False
        # Adversaries may take messages off the wire: a message for which this returns True is not
        # sent.
        self.intercept: Callable[[Envelope], bool] | None = None

    def arrivals(self, envelope: Envelope) -> list[int]:
        """The delays in microseconds after which the message arrives: once, several times or
        never."""
        if (envelope.source, envelope.target) in self.cuts:
            return []
        if self.intercept is not None and self.intercept(envelope):
            return []
        usual = [self._options.delay_us]
        if self.calm:
            return usual
        stream = self._decisions.stream(f"net {envelope.source}>{envelope.target}")
        return stream.choose(usual, self._draw)

    def _draw(self, random: Random) -> list[int]:
        noise = self._options.noise
        usual = self._options.delay_us
        if random.random() < noise.get("loss", 0):
            return []
        copies = 2 if random.random() < noise.get("duplicate", 0) else 1
        delays = []
        for _ in range(copies):
            delay = usual + int(random.random() * usual)
            if random.random() < noise.get("reorder", 0):
                delay += int(random.random() * 10 * usual)
            if random.random() < noise.get("late", 0):
                delay += int(random.random() * LATE_FACTOR_MAX * self._election_us)
            delays.append(delay)
        return delays

    def draw_stray(self, random: Random, nodes: int) -> int:
        """The number of the node that gets a copy by mistake; -1 for none."""
        return random.randrange(nodes) if random.random() < self._options.noise["stray"] else -1

    def passes(self, source: NodeId, target: NodeId) -> bool:
        return (source, target) not in self.cuts

    def cut(self, links: list[tuple[NodeId, NodeId]]) -> None:
        self.cuts.update(links)

    def mend(self, links: list[tuple[NodeId, NodeId]]) -> None:
        self.cuts.difference_update(links)
