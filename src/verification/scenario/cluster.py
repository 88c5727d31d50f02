"""The cluster of a scenario: one moved by hand, with a transcript and with faults.

Each node has its own clock. A process can be paused, a disk can hang or fail, and messages can be
held back or lost by rule; everything else is :class:`verification.hand.HandCluster`.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from quorate.commands import Receipt
from quorate.errors import ReplicaHalted
from quorate.raft.output import EventKind
from quorate.replica.engine_io import FlushFailed, LinkClosed, LinkRefused
from quorate.types import NodeId, Role
from verification.hand import HandCluster
from verification.scenario.parser import ScenarioError
from verification.scenario.rendering import answer_line, event_text
from verification.scenario.transcript import Transcript
from verification.scenario.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.config import Config
    from quorate.raft.messages import Envelope
    from quorate.replica.engine_io import Input
    from verification.disk.inode import Fate
    from verification.scenario.words import Selection

__all__ = ["Loss", "ScenarioCluster"]

CAMPAIGNS_MAX = 4


class Loss:
    """A lossy network: of the messages it selects one in so many never arrives.

    Which messages are lost is drawn, always in the same way: counting would fall into step with
    repeated messages, and lose the same message for ever.
    """

    def __init__(self, selected: Selection, one_in: int) -> None:
        self._selected = selected
        self._one_in = one_in
        self._random = Random(one_in)

    def takes(self, envelope: Envelope) -> bool:
        return self._selected(envelope) and self._random.randrange(self._one_in) == 0


class ScenarioCluster(HandCluster):
    """A cluster moved by hand that also keeps the events since the last command."""

    def __init__(self, size: int, config: Config, voters: int | None = None) -> None:
        names = [NodeId(f"n{number}") for number in range(1, size + 1)]
        self.clocks = dict.fromkeys(names, 0)
        # The inputs that arrived for a stopped process: its sockets keep them.
        self.paused: dict[NodeId, list[Input]] = {}
        # Disks that do not answer, and disks whose next flush fails after so many steps.
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
        self.happened: Counter[tuple[NodeId, EventKind]] = Counter()
        self.labels: dict[int, str] = {}
        self._tokens: dict[str, int] = {}
        self._reported: set[int] = set()
        self._transcript = Transcript()
        self._committed = dict.fromkeys(names, 0)
        super().__init__(size, config, voters=voters)
        self.watch = Watch(self.nodes, self.voters)

    # -- inputs and outputs --------------------------------------------------------------------

    def turn(self, name: str, inputs: Iterable[Input] = ()) -> None:
        node = NodeId(name)
        if node in self.paused:
            self.paused[node].extend(inputs)
            return
        self.now_ms = self.clocks[node]
        super().turn(name, inputs)
        self._report(node)

    def tick(self, name: str | None = None, ticks: int = 1) -> None:
        for _ in range(ticks):
            for each in [NodeId(name)] if name else self.names:
                self.clocks[each] += self.config.timing.tick_ms
                self.turn(each)

    def restart(self, name: str) -> None:
        node = NodeId(name)
        self.now_ms = self.clocks[node]
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

    # -- faults --------------------------------------------------------------------------------

    def _fail(self, node: NodeId) -> None:
        flush = self.nodes[node].flush
        assert flush is not None  # asked by the caller
        for _ in islice(self.nodes[node].store.plan(flush), self.failing.pop(node)):
            pass
        self.nodes[node].flush = None
        self.turn(node, [FlushFailed(flush.number, "input/output error")])

    def flush_by_hand(self, name: str, steps: int | None) -> None:
        """Carry out the flush that a stuck disk was given; the disk stays stuck."""
        node = NodeId(name)
        if self.nodes[node].flush is None:
            raise ScenarioError(f"{name} has no flush under way")
        super().flush(name, steps)

    def pause(self, name: str) -> None:
        self.paused.setdefault(NodeId(name), [])

    def resume(self, name: str) -> None:
        """Resume a process: all messages that arrived meanwhile come in one turn, as from a
        socket."""
        self.turn(name, self.paused.pop(NodeId(name), []))

    def close_link(self, name: str, peer: str, *, refused: bool) -> None:
        self.turn(name, [LinkRefused(NodeId(peer)) if refused else LinkClosed(NodeId(peer))])

    def release(self) -> None:
        """Put the held messages back on their way, and hold no more."""
        self.table[:0] = self.held
        self.held = []
        self.holds = []

    # -- common situations ---------------------------------------------------------------------

    def campaign(self, name: str) -> None:
        """Let time pass for this node alone until it looks for votes."""
        node = NodeId(name)
        before = self.happened[node, EventKind.PRE_CAMPAIGNS]
        timing = self.config.timing
        for _ in range(2 * timing.ticks(timing.election_ms)):
            self.tick(name)
            if self.happened[node, EventKind.PRE_CAMPAIGNS] > before:
                return
        raise ScenarioError(f"{name} does not campaign")

    def time_out(self, names: Iterable[str]) -> None:
        """Let nodes hear no leader for an election timeout; their messages are lost meanwhile."""
        timing = self.config.timing
        on_their_way = list(self.table)
        for name in names:
            self.tick(name, timing.ticks(timing.election_ms))
        self.table = on_their_way

    def elect(self, name: str) -> None:
        """Let each follower of a leader time out, and let ``name`` be the first to stand."""
        leaders = {
            other: node.engine.core.raft.leader
            for other, node in self.nodes.items()
            if node.engine is not None and other != name
        }
        self.time_out(other for other, leader in leaders.items() if leader not in (None, other))
        for _ in range(CAMPAIGNS_MAX):
            self.campaign(name)
            self.settle()
            if self.engine(name).role is Role.LEADER:
                return
        raise ScenarioError(f"{name} does not win")

    def call(self, label: str, ask: Callable[[], int]) -> None:
        """Send a request to a node; its answer is known by ``label``."""
        if label in self._tokens:
            raise ScenarioError(f"{label!r} was asked for already")
        token = self._token + 1
        self.labels[token] = label
        self._tokens[label] = token
        self.watch.read_asked(token)
        ask()

    def answer_of(self, label: str) -> str:
        """``OK``, ``end=3``, ``leader=n2``, an error code, or ``none``."""
        if label not in self._tokens:
            raise ScenarioError(f"{label!r} was never asked for")
        result = self.answers.get(self._tokens[label])
        if result is None:
            return "none"
        if isinstance(result, Receipt):
            return "OK"
        line = answer_line("", result).removeprefix(" -> ")
        return (
            line.replace("end ", "end=").replace("leader ", "leader=").replace("index ", "index=")
        )

    def receipts(self) -> dict[str, Receipt]:
        """The receipts of acknowledged appends so far, by value."""
        found = ((self.labels[token], answer) for token, answer in self.answers.items())
        return {label: answer for label, answer in found if isinstance(answer, Receipt)}

    # -- the transcript ------------------------------------------------------------------------

    def forget(self) -> None:
        """Count and report from here on: the events before only led to the situation."""
        self.take_transcript()
        self.happened.clear()
        self.arrived.clear()

    def take_transcript(self) -> list[str]:
        """The events since the last call; at the end, the nodes that know of more committed
        entries."""
        lines = self._transcript.take()
        risen = []
        for name, node in self.nodes.items():
            if node.engine is None:
                continue
            committed = node.engine.core.raft.committed
            if committed > self._committed[name]:
                risen.append(f"{name} {committed}")
            self._committed[name] = committed
        return [*lines, f"committed: {', '.join(risen)}"] if risen else lines

    def _report(self, name: NodeId) -> None:
        self.watch.node_turned(name)
        node = self.nodes[name]
        for event in node.events:
            self.happened[name, event.kind] += 1
            # The other events of the same turn tell why a node left its role, if there are any.
            leaderless = event.kind is EventKind.FOLLOWS and event.peer is None
            if not leaderless or len(node.events) == 1:
                self._transcript.tell(name, event_text(event))
        node.events.clear()
        for token, result in self.answers.items():
            if token not in self._reported:
                self._reported.add(token)
                self._transcript.answered(self.labels[token], result)
                self.watch.answered(token, result)
