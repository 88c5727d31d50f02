"""One replica of a simulated node: a real engine over the real storage on a simulated disk."""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from quorate.errors import NotLeader
from quorate.membership import Membership
from quorate.replica.engine import Engine
from quorate.replica.engine_io import ChangeMembers, Deliver, Flushed, Propose, Read, Room
from quorate.storage.recovery.open import check_boot, open_log
from quorate.storage.recovery.result import Recovered
from quorate.types import GroupId, Index, Role

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.raft.changes import MemberChange
    from quorate.raft.messages import Envelope
    from quorate.replica.engine_io import Effects, Input, Result
    from quorate.state.judge import AppendConditions
    from quorate.storage.flusher import Flush, Flusher
    from quorate.storage.log import SegmentLog
    from quorate.types import NodeId
    from verification.fleet.process import Process

__all__ = ["CLUSTER", "FleetReplica", "Question", "open_replica"]

CLUSTER = "fleet"


class Question:
    """A request to a replica, and its answer once there is one."""

    def __init__(self) -> None:
        self.result: Result | None = None


def open_replica(
    process: Process, incarnation: int, nodes: tuple[NodeId, ...]
) -> Generator[str, None, FleetReplica]:
    """The plan of an open, as replica/opening.py has it."""
    world, node = process.world, process.node
    directory = node.directory
    random = Random(f"{world.seed}/{process.number}/{incarnation}")
    config = world.config
    files = directory.log_vfs(incarnation)
    identity = directory.log_id(incarnation)
    check_boot(files, identity, process.manifest.logs[incarnation].boot)
    log, flusher = yield from open_log(
        files,
        identity,
        config.storage.segment_bytes,
        lambda: random.getrandbits(64),
        least_bytes=config.least_segment_bytes,
        reserve_bytes=config.storage.reserve_bytes,
    )
    for _ in process.kept_manifest.note_boot(incarnation, log.record.boot):
        yield "save manifest"
    group = GroupId(CLUSTER, incarnation)
    now_ms = world.now // 1000
    engine = Engine(group, node.name, Membership(nodes), config, Recovered.of(log), random, now_ms)
    flusher.note_memberships(engine.core.raft.memberships.indexes)
    return FleetReplica(process, incarnation, engine, log, flusher)


class FleetReplica:
    """Runs the turns of an engine and the plans of its disk, one plan at a time."""

    def __init__(
        self,
        process: Process,
        incarnation: int,
        engine: Engine,
        log: SegmentLog,
        flusher: Flusher,
    ) -> None:
        self._process = process
        self._world = process.world
        self.incarnation = incarnation
        self.engine = engine
        self._log = log
        self._flusher = flusher
        self.closed = False
        # The plan under way, and the flush that waits for it.
        self._plan: Iterator[str] | None = None
        self._next_flush: Flush | None = None
        self._asked: dict[int, Question] = {}
        # The index up to which all entries were compared with the one history.
        self.checked = Index(0)
        self.led = False
        self._world.history.opened(self)
        self.give(Room(flusher.room, flusher.spare.shortage))
        self._tick()

    @property
    def leads(self) -> bool:
        return self.engine.role is Role.LEADER

    @property
    def serves(self) -> bool:
        leader = self.engine.core.leader
        return leader is not None and self.engine.applied >= leader.start

    @property
    def process_number(self) -> int:
        return self._process.number

    @property
    def place(self) -> str:
        """For messages: the node, its process and the log."""
        return f"{self._process.node.name}#{self._process.number}/{self.incarnation:x}"

    def close(self) -> None:
        """Leave the disk as a kill leaves it; no question of this replica is answered any more."""
        self.closed = True
        for question in self._asked.values():
            question.result = NotLeader("the replica was closed")
        self._asked.clear()

    # -- turns ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.closed:
            self.turn(())
            self._process.after(self._world.config.timing.tick_ms * 1000, self._tick)

    def deliver(self, envelope: Envelope) -> None:
        self.give(Deliver(envelope))

    def read(self) -> Question:
        return self._ask(Read(self._world.next_token()))

    def append(self, batch: bytes, conditions: AppendConditions) -> Question:
        return self._ask(Propose(self._world.next_token(), batch, 1, conditions=conditions))

    def change_members(self, change: MemberChange) -> Question:
        return self._ask(ChangeMembers(self._world.next_token(), change))

    def _ask(self, item: Read | Propose | ChangeMembers) -> Question:
        question = self._asked[item.token] = Question()
        self.give(item)
        return question

    def give(self, item: Input) -> None:
        if not self.closed:
            self.turn((item,))

    def turn(self, inputs: tuple[Input, ...]) -> None:
        effects = self.engine.turn(inputs, self._world.now // 1000, self._world.now)
        self._world.history.turned(self)
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        for envelope in effects.sends:
            self._process.send(envelope)
        for answer in effects.answers:
            question = self._asked.pop(answer.token, None)
            if question is not None:
                question.result = answer.result
        if effects.more:
            self._process.after(1, self.turn, ())
        if effects.flush is not None:
            self._next_flush = effects.flush
            self._feed()

    # -- the disk ------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Begin the next flush, if there is one and the disk is free."""
        flush = self._next_flush
        if flush is not None and self._plan is None:
            self._next_flush = None
            self._run(self._flusher.plan(flush), flush.number)

    def _run(self, plan: Iterator[str], number: int | None) -> None:
        self._plan = plan
        self._process.after(self._world.disk_us(), self._step, plan, number)

    def _step(self, plan: Iterator[str], number: int | None) -> None:
        """One step of the plan is done; a crash may come before the next."""
        if self.closed:
            return
        if next(plan, None) is not None:
            self._process.after(self._world.disk_us(), self._step, plan, number)
            return
        if number is None:
            self._plan = None
            self.give(Room(self._flusher.room, self._flusher.spare.shortage))
            while self._log.findings:
                self.give(self._log.findings.popleft())
            self._feed()
            self._keep_state()
        else:
            # The next flush waits for the chores: it may need the spare segment.
            self.give(Flushed(number, self._flusher.room))
            chores = self._flusher.chores(self.engine.settled)
            self._run(chain(self._flusher.allocate_ahead(), chores), None)

    def _keep_state(self) -> None:
        """Put the state beside the log if a segment may have been sealed."""
        if self._plan is None and not self.closed:
            checkpoint = self.engine.checkpoint(self._log.sealed)
            if checkpoint is not None:
                self._run(self._flusher.keep(checkpoint), None)
