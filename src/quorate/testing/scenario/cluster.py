"""The cluster of a scenario: one moved by hand, with a transcript and what goes wrong around it.

Each node has its own clock. A process can be paused, a disk can hang or fail, and messages can be
held back or lost by rule; all else is :class:`quorate.testing.hand.HandCluster`.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from quorate.errors import ReplicaHalted
from quorate.raft.output import Happening
from quorate.replica.exchange import FlushFailed, LinkClosed, LinkRefused, Receipt
from quorate.testing.hand import HandCluster
from quorate.testing.scenario.parser import ScenarioError
from quorate.testing.scenario.rendering import answer_line, event_text
from quorate.testing.scenario.transcript import Transcript
from quorate.testing.scenario.watch import Watch
from quorate.types import NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.config import Config
    from quorate.raft.messages import Envelope
    from quorate.replica.exchange import Input
    from quorate.testing.disk.simulated import Fate
    from quorate.testing.scenario.words import Selection

__all__ = ["Loss", "ScenarioCluster"]

CAMPAIGNS_MAX = 4


class Loss:
    """A lossy network: of the messages it selects one in so many never arrives.

    Which ones is drawn, always in the same way: counting would fall into step with what is sent
    again, and lose the same message for ever.
    """

    def __init__(self, selected: Selection, one_in: int) -> None:
        self._selected = selected
        self._one_in = one_in
        self._random = Random(one_in)

    def takes(self, envelope: Envelope) -> bool:
        return self._selected(envelope) and self._random.randrange(self._one_in) == 0


class ScenarioCluster(HandCluster):
    """Keeps, besides, what happened since it was last asked."""

    def __init__(self, size: int, config: Config) -> None:
        names = [NodeId(f"n{number}") for number in range(1, size + 1)]
        self.clocks = dict.fromkeys(names, 0)
        # What arrived for a process that is stopped: its sockets keep it.
        self.paused: dict[NodeId, list[Input]] = {}
        # Disks that answer nothing, and disks whose next flush fails after so many steps.
        self.stuck: set[NodeId] = set()
        self.failing: dict[NodeId, int] = {}
        self.losses: list[Loss] = []
        # Messages that match one of these are put aside instead of delivered.
        self.holds: list[Selection] = []
        self.held: list[Envelope] = []
        # Copies that were made of messages, by name, to arrive as often as wanted.
        self.copies: dict[str, list[Envelope]] = {}
        # Every message that reached its target.
        self.arrived: list[Envelope] = []
        self.happened: Counter[tuple[NodeId, Happening]] = Counter()
        self.labels: dict[int, str] = {}
        self._tokens: dict[str, int] = {}
        self._reported: set[int] = set()
        self._transcript = Transcript()
        self._committed = dict.fromkeys(names, 0)
        super().__init__(size, config)
        self.watch = Watch(self.nodes)

    # -- what is different ---------------------------------------------------------------------

    def turn(self, name: str, inputs: Iterable[Input] = ()) -> None:
        node = NodeId(name)
        if node in self.paused:
            self.paused[node].extend(inputs)
            return
        self._now_ms = self.clocks[node]
        super().turn(name, inputs)
        self._report(node)

    def tick(self, name: str | None = None, ticks: int = 1) -> None:
        for _ in range(ticks):
            for each in [NodeId(name)] if name else self.voters:
                self.clocks[each] += self.config.timing.tick_ms
                self.turn(each)

    def restart(self, name: str) -> None:
        node = NodeId(name)
        self._now_ms = self.clocks[node]
        self._committed[node] = 0
        try:
            super().restart(name)
        except ReplicaHalted as halt:
            self.nodes[node].halted = halt
            self._transcript.tell(name, f"does not start: {type(halt).__name__}")

    def crash(self, name: str, fate: Callable[[], Fate] | None = None) -> None:
        node = self.nodes[NodeId(name)]
        if node.engine is not None and node.halted is not None:
            self._report(node.name)
            self._transcript.tell(name, f"halts: {type(node.halted).__name__}")
        self.paused.pop(node.name, None)
        super().crash(name, fate)

    def flush(self, name: str, steps: int | None = None) -> None:
        node = NodeId(name)
        if node in self.paused or node in self.stuck or self.nodes[node].flush is None:
            return
        if node in self.failing:
            self._fail(node)
        else:
            super().flush(name, steps)

    def deliver(self, envelope: Envelope) -> None:
        if any(loss.takes(envelope) for loss in self.losses):
            return
        if any(selected(envelope) for selected in self.holds):
            self.held.append(envelope)
            return
        if (envelope.source, envelope.target) not in self.cuts:
            self.arrived.append(envelope)
        super().deliver(envelope)

    # -- what goes wrong -----------------------------------------------------------------------

    def _fail(self, node: NodeId) -> None:
        flush = self.nodes[node].flush
        assert flush is not None  # asked by the caller
        for _ in islice(self.nodes[node].store.plan(flush), self.failing.pop(node)):
            pass
        self.nodes[node].flush = None
        self.turn(node, [FlushFailed(flush.number, "input/output error")])

    def flush_by_hand(self, name: str, steps: int | None) -> None:
        """Carry out what a stuck disk has lying there; the disk stays stuck."""
        node = NodeId(name)
        if self.nodes[node].flush is None:
            raise ScenarioError(f"{name} has nothing to flush")
        super().flush(name, steps)

    def pause(self, name: str) -> None:
        self.paused.setdefault(NodeId(name), [])

    def resume(self, name: str) -> None:
        """All that arrived meanwhile comes in one turn, as from a socket."""
        self.turn(name, self.paused.pop(NodeId(name), []))

    def close_link(self, name: str, peer: str, *, refused: bool) -> None:
        self.turn(name, [LinkRefused(NodeId(peer)) if refused else LinkClosed(NodeId(peer))])

    def release(self) -> None:
        """What was held is on its way again, and nothing is held any more."""
        self.table[:0] = self.held
        self.held = []
        self.holds = []

    # -- what scenarios do again and again -----------------------------------------------------

    def campaign(self, name: str) -> None:
        """Let time pass for this node alone until it looks for votes."""
        node = NodeId(name)
        before = self.happened[node, Happening.PRE_CAMPAIGNS]
        timing = self.config.timing
        for _ in range(2 * timing.ticks(timing.election_ms)):
            self.tick(name)
            if self.happened[node, Happening.PRE_CAMPAIGNS] > before:
                return
        raise ScenarioError(f"{name} does not campaign")

    def doubt(self, names: Iterable[str]) -> None:
        """These hear of no leader for an election timeout; what they say meanwhile is lost."""
        timing = self.config.timing
        on_their_way = list(self.table)
        for name in names:
            self.tick(name, timing.ticks(timing.election_ms))
        self.table = on_their_way

    def elect(self, name: str) -> None:
        """Whoever follows a leader doubts it, and ``name`` is the first to stand."""
        leaders = {
            other: node.engine.core.standing.leader
            for other, node in self.nodes.items()
            if node.engine is not None and other != name
        }
        self.doubt(other for other, leader in leaders.items() if leader not in (None, other))
        for _ in range(CAMPAIGNS_MAX):
            self.campaign(name)
            self.settle()
            if self.engine(name).role is Role.LEADER:
                return
        raise ScenarioError(f"{name} does not win")

    def call(self, label: str, ask: Callable[[], int]) -> None:
        """Ask a node for something; the answer is known by ``label``."""
        if label in self._tokens:
            raise ScenarioError(f"{label!r} was asked for already")
        token = self._token + 1
        self.labels[token] = label
        self._tokens[label] = token
        self.watch.read_asked(token)
        ask()

    def answer_of(self, label: str) -> str:
        """``OK``, ``end=3``, an error code, or ``none``."""
        if label not in self._tokens:
            raise ScenarioError(f"{label!r} was never asked for")
        result = self.answers.get(self._tokens[label])
        if result is None:
            return "none"
        if isinstance(result, Receipt):
            return "OK"
        return answer_line("", result).removeprefix(" -> ").replace("end ", "end=")

    def receipts(self) -> dict[str, Receipt]:
        """By value: what was acknowledged so far."""
        found = ((self.labels[token], answer) for token, answer in self.answers.items())
        return {label: answer for label, answer in found if isinstance(answer, Receipt)}

    # -- the transcript ------------------------------------------------------------------------

    def forget(self) -> None:
        """Count and tell from here on: what came before was only to get here."""
        self.take_transcript()
        self.happened.clear()
        self.arrived.clear()

    def take_transcript(self) -> list[str]:
        """What happened since the last call; last of all who knows of more committed entries."""
        lines = self._transcript.take()
        risen = []
        for name, node in self.nodes.items():
            if node.engine is None:
                continue
            committed = node.engine.core.standing.committed
            if committed > self._committed[name]:
                risen.append(f"{name} {committed}")
            self._committed[name] = committed
        return [*lines, f"committed: {', '.join(risen)}"] if risen else lines

    def _report(self, name: NodeId) -> None:
        self.watch.node_turned(name)
        node = self.nodes[name]
        for event in node.events:
            self.happened[name, event.happening] += 1
            # Why a node left its role is told by what else it did in that turn, if anything.
            leaderless = event.happening is Happening.FOLLOWS and event.peer is None
            if not leaderless or len(node.events) == 1:
                self._transcript.tell(name, event_text(event))
        node.events.clear()
        for token, result in self.answers.items():
            if token not in self._reported:
                self._reported.add(token)
                self._transcript.answered(self.labels[token], result)
                self.watch.answered(token, result)
