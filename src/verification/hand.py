"""A cluster moved by hand: it delivers a message, flushes or times out only when a test asks for
it.

For tests that set up one exact situation. Each node runs the real engine over a simulated disk;
messages lie on a table until they are delivered or dropped.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from quorate.config import Config
from quorate.errors import ReplicaHalted
from quorate.membership import Membership
from quorate.replica.engine import Engine
from quorate.replica.engine_io import (
    ChangeMembers,
    Deliver,
    Flushed,
    Input,
    Propose,
    Read,
    Stopping,
    TransferLeadership,
)
from quorate.types import GroupId, NodeId, Role, Term
from verification.disk.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.raft.changes import MemberChange
    from quorate.raft.messages import Envelope
    from quorate.raft.output import Event
    from quorate.replica.engine_io import Result
    from quorate.storage.flusher import Flush
    from verification.disk.inode import Fate

__all__ = ["HandCluster", "HandNode"]

SETTLE_ROUNDS_MAX = 10_000


class HandNode:
    """One node: its disk outlives its engine. ``engine`` is None while the process is down."""

    def __init__(self, name: NodeId, *, first: bool = True) -> None:
        self.name = name
        # R7: only the first voters know that they have acknowledged nothing.
        self.store = Store(name, begins_unsure=not first)
        self.engine: Engine | None = None
        # The flush that is under way; its steps are carried out when a test asks for it.
        self.flush: Flush | None = None
        self.events: list[Event] = []
        self.halted: ReplicaHalted | None = None


class HandCluster:
    """``size`` nodes n1, n2, …, all started; no time has passed for any of them. The first
    ``voters`` of them are the log's first voters; all are, unless it is given."""

    def __init__(
        self,
        size: int,
        config: Config | None = None,
        *,
        seed: int = 0,
        auto_flush: bool = True,
        voters: int | None = None,
    ) -> None:
        self.config = config or Config()
        # With incarnation 0 the first node campaigns at once.
        self.group = GroupId("hand", 0)
        self.names = tuple(NodeId(f"n{number}") for number in range(1, size + 1))
        self.voters = self.names[:voters]
        self.nodes = {name: HandNode(name, first=name in self.voters) for name in self.names}
        # Flushes are carried out at once unless a test wants to hold them.
        self.auto_flush = auto_flush
        # Messages on their way, in the order in which they were sent.
        self.table: list[Envelope] = []
        # Directed links that lose every message.
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.answers: dict[int, Result] = {}
        self._seed = seed
        self.now_ms = 0
        self._token = 0
        for name in self.names:
            self.restart(name)

    # -- processes -----------------------------------------------------------------------------

    def engine(self, name: str) -> Engine:
        engine = self.nodes[NodeId(name)].engine
        if engine is None:
            raise LookupError(f"{name} is down")
        return engine

    def crash(self, name: str, fate: Callable[[], Fate] | None = None) -> None:
        """Kill the process; with ``fate`` the power goes too, as in SimulatedDisk.power_cut."""
        node = self.nodes[NodeId(name)]
        node.engine = None
        node.flush = None
        if fate is not None:
            node.store.disk.power_cut(fate)

    def restart(self, name: str) -> None:
        node = self.nodes[NodeId(name)]
        recovered = node.store.open()
        random = Random(f"{self._seed}/{name}/{recovered.record.boot}")
        membership = Membership(self.voters)
        node.engine = Engine(
            self.group, node.name, membership, self.config, recovered, random, self.now_ms
        )
        node.store.note_memberships(node.engine)
        node.halted = None

    # -- inputs --------------------------------------------------------------------------------

    def turn(self, name: str, inputs: Iterable[Input] = ()) -> None:
        """Give a node ``inputs``; if it halts, it goes down as a process would."""
        node = self.nodes[NodeId(name)]
        if node.engine is None:
            return
        try:
            effects = node.engine.turn(inputs, self.now_ms, self.now_ms * 1000)
        except ReplicaHalted as halt:
            node.halted = halt
            self.crash(name)
            return
        node.events.extend(effects.events)
        self.table.extend(effects.sends)
        for answer in effects.answers:
            self.answers[answer.token] = answer.result
        if effects.flush is not None:
            node.flush = effects.flush
            if self.auto_flush:
                self.flush(name)
        if effects.more:
            self.turn(name)

    def tick(self, name: str | None = None, ticks: int = 1) -> None:
        """Let time pass for one node, or for all."""
        for _ in range(ticks):
            self.now_ms += self.config.timing.tick_ms
            for each in [name] if name else self.names:
                self.turn(each)

    def flush(self, name: str, steps: int | None = None) -> None:
        """Carry out the flush under way; with ``steps`` only its first steps, without its end."""
        node = self.nodes[NodeId(name)]
        if node.flush is None:
            return
        flush, node.flush = node.flush, None
        for _ in islice(node.store.plan(flush), steps):
            pass
        if steps is None:
            self.turn(name, [Flushed(flush.number)])

    def propose(self, name: str, batch: bytes, count: int = 1, term: int | None = None) -> int:
        self._token += 1
        expected = Term(term) if term is not None else None
        self.turn(name, [Propose(self._token, batch, count, expected)])
        return self._token

    def read(self, name: str) -> int:
        self._token += 1
        self.turn(name, [Read(self._token)])
        return self._token

    def transfer(self, name: str, target: str | None = None) -> int:
        """Ask a node to give the leadership to ``target``, or to the fittest voter."""
        self._token += 1
        self.turn(name, [TransferLeadership(self._token, NodeId(target) if target else None)])
        return self._token

    def change(self, name: str, change: MemberChange) -> int:
        """Ask a node to change the members."""
        self._token += 1
        self.turn(name, [ChangeMembers(self._token, change)])
        return self._token

    def stop(self, name: str) -> None:
        """Tell a node that it stops soon. Its process goes on."""
        self.turn(name, [Stopping()])

    # -- the network ---------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose every message from ``source`` to ``target`` from now on."""
        self.cuts.add((NodeId(source), NodeId(target)))

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def heal(self) -> None:
        self.cuts.clear()

    def take(self, keep: Callable[[Envelope], bool]) -> list[Envelope]:
        """Take the messages that ``keep`` picks off the table: lost unless delivered by hand."""
        taken = [envelope for envelope in self.table if keep(envelope)]
        self.table = [envelope for envelope in self.table if not keep(envelope)]
        return taken

    def deliver(self, envelope: Envelope) -> None:
        if (envelope.source, envelope.target) not in self.cuts:
            self.turn(envelope.target, [Deliver(envelope)])

    def deliver_all(self) -> None:
        """Deliver the messages on the table, but not those that they cause."""
        table, self.table = self.table, []
        for envelope in table:
            self.deliver(envelope)

    def settle(self) -> None:
        """Deliver and flush until no message and no flush is left. No time passes."""
        for _ in range(SETTLE_ROUNDS_MAX):
            for name in self.voters:
                self.flush(name)
            if not self.table:
                return
            self.deliver_all()
        raise RuntimeError("the cluster does not come to rest")

    def run(self, ticks: int) -> None:
        """Let time pass for all nodes; deliver and flush at once."""
        for _ in range(ticks):
            self.tick()
            self.settle()

    # -- results -------------------------------------------------------------------------------

    def leader(self) -> NodeId | None:
        """The leader of the highest term."""
        leaders = [
            (node.engine.core.raft.term, name)
            for name, node in self.nodes.items()
            if node.engine is not None and node.engine.role is Role.LEADER
        ]
        return max(leaders)[1] if leaders else None
