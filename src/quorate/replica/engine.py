"""Everything between the socket and the disk for one log, in one synchronous object.

:meth:`Engine.turn` takes what arrived and gives back what may be done now. Inputs come before
timers, so a stall makes nobody look dead whose message already lies here. The shell with its
threads and the simulator run this same object.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.entry import COUNT_MAX, RUNS_MAX, pack_batches
from quorate.errors import (
    Busy,
    Corrupt,
    DiskFailed,
    DiskFull,
    EmptyBatch,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    TooLarge,
    check,
)
from quorate.raft.core import Core
from quorate.raft.messages import Append, Envelope, Message
from quorate.raft.output import Refusal
from quorate.replica.admission import refusal
from quorate.replica.allowance import Allowance
from quorate.replica.durability import Durability
from quorate.replica.exchange import (
    Answer,
    Deliver,
    Effects,
    Flushed,
    FlushFailed,
    Input,
    LinkClosed,
    LinkRefused,
    Propose,
    Read,
    ReadAnswer,
    Receipt,
    Room,
)
from quorate.state.offsets import Offsets
from quorate.types import BootId, EntryKind, GroupId, Index, NodeId, Role, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from quorate.config import Config
    from quorate.raft.output import Output
    from quorate.storage.recovery import Recovered

__all__ = ["Engine"]


class _Logged(NamedTuple):
    """A proposal that is in the log and waits for its commit."""

    token: int
    size: int
    offset: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own


class Engine:
    """One replica: core, waiting callers and replicated state, and the rule of what waits."""

    __slots__ = (
        "_allowance",
        "_arrived",
        "_arrived_bytes",
        "_boot",
        "_group",
        "_handlers",
        "_leading",
        "_logged",
        "_logged_bytes",
        "_ticked_at",
        "applied",
        "config",
        "core",
        "durability",
        "node",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        group: GroupId,
        node: NodeId,
        voters: tuple[NodeId, ...],
        config: Config,
        recovered: Recovered,
        random: Random,
        now_ms: int,
    ) -> None:
        record = recovered.record
        fresh = not recovered.entries and record.term == 0
        order = sorted(voters)
        self.node = node
        self.config = config
        self._group = group
        self._boot = BootId(record.boot, random.getrandbits(64))
        self.core = Core(
            node,
            voters,
            config,
            random,
            boot=record.boot,
            term=record.term,
            vote=record.vote,
            entries=recovered.entries,
            # Leaders of many new logs spread over the nodes, and none waits for a timeout.
            first_to_campaign=fresh
            and node in order
            and order.index(node) == group.incarnation % len(order),
            sure=not record.unsure,
        )
        last = self.core.standing.log.last_index
        held_max = config.limits.held_messages
        self.durability = Durability(record.term, record.vote, last, held_max)
        self.state = Offsets()
        # Everything up to here is in the state. Never goes back; at most committed.
        self.applied = Index(0)
        # Proposals that are not in the log yet: a failure of these is final.
        self._arrived: deque[Propose] = deque()
        self._arrived_bytes = 0
        # Proposals that are in the log, in its order: without a commit their fate is unknown.
        self._logged: deque[_Logged] = deque()
        self._logged_bytes = 0
        # The term in which this node led when it was last looked at; None while it does not.
        self._leading: Term | None = None
        self._allowance = Allowance(self.durability, config.storage.reserve_bytes)
        self._ticked_at = now_ms
        self._handlers: dict[type[Input], Callable[[Any, Effects], None]] = {
            Deliver: self._on_deliver,
            Propose: self._on_propose,
            Read: self._on_read,
            Flushed: self._on_flushed,
            Room: self._on_room,
            FlushFailed: self._on_flush_failed,
            LinkClosed: self._on_link_closed,
            LinkRefused: self._on_link_refused,
        }

    # -- what others may ask -------------------------------------------------------------------

    @property
    def boot(self) -> BootId:
        return self._boot

    @property
    def pending_appends(self) -> int:
        return len(self._arrived) + len(self._logged)

    @property
    def pending_bytes(self) -> int:
        return self._arrived_bytes + self._logged_bytes

    @property
    def settled(self) -> Index:
        """What is committed and on this disk as it is: it never changes again.

        The disk may still hold a suffix that was truncated in memory, at indexes that are committed
        by now with other entries.
        """
        standing = self.core.standing
        return min(standing.committed, standing.persisted)

    # -- the turn ------------------------------------------------------------------------------

    def turn(self, inputs: Iterable[Input], now_ms: int, wall_us: int = 0) -> Effects:
        """Take ``inputs`` in order, then let time pass. Raises ReplicaHalted to stop for good.

        However long ago the last turn was, at most one tick passes: a process that was stopped
        must hear what waits for it before it judges anybody by silence.
        """
        effects = Effects()
        core = self.core
        self._look_at_room()
        core.standing.wall_time = wall_us
        for item in inputs:
            self._handlers[type(item)](item, effects)
        elapsed_ms = now_ms - self._ticked_at
        if elapsed_ms >= self.config.timing.tick_ms:
            self._ticked_at = now_ms - elapsed_ms % self.config.timing.tick_ms
            core.tick()
        self._end_lost_leadership(effects)
        self._log_arrived()
        output = core.finish()
        self._carry_out(output, effects)
        self._apply(effects)
        self._answer_reads(output, effects)
        effects.flush = self.durability.next_flush(core.standing.committed)
        return effects

    def _carry_out(self, output: Output, effects: Effects) -> None:
        """Stage what changed before looking at what may leave: the order is the rule."""
        self._stage()
        if output.sure:
            self.durability.stage_sure()
        for target, message in output.messages:
            envelope = Envelope(self._group, self.node, target, self._boot, message)
            self.durability.send(envelope, effects.sends)
        effects.events.extend(output.events)

    def _stage(self) -> None:
        """Take what changed in memory into the next flush."""
        standing = self.core.standing
        if standing.vote_changed:
            standing.vote_changed = False
            self.durability.stage_vote(standing.term, standing.vote)
        change = standing.log.take_change()
        if change is not None:
            self.durability.stage_log(change)

    # -- inputs --------------------------------------------------------------------------------

    def _on_deliver(self, item: Deliver, effects: Effects) -> None:
        envelope = item.envelope
        standing = self.core.standing
        reason = refusal(envelope, self._group, self.node, standing.term)
        if reason is not None:
            standing.refuse(reason)
            return
        message: Message | None = envelope.message
        if type(message) is Append:
            message = self._allowance.fitting(message, standing.log)
        if message is None:
            standing.refuse(Refusal.NO_SPACE)
        else:
            self.core.step(envelope.source, envelope.boot, message)

    def _on_flushed(self, item: Flushed, effects: Effects) -> None:
        # A truncation of this very turn must cap what the flush proves before it is counted.
        self._stage()
        durability = self.durability
        durability.finish(item.number, self.core.standing.term, effects.sends)
        if item.room is not None:
            self._allowance.room = item.room
        self.core.persisted(durability.persisted, durability.persisted_term)

    def _look_at_room(self) -> None:
        standing = self.core.standing
        standing.full, standing.cramped = self._allowance.full, self._allowance.cramped

    def _on_room(self, item: Room, effects: Effects) -> None:
        self._allowance.room = item.room
        self._look_at_room()

    def _on_flush_failed(self, item: FlushFailed, effects: Effects) -> None:
        raise DiskFailed(
            f"{self.node}: flush {item.number} failed: {item.error}; what is on disk is no "
            f"longer known: restart after the disk is checked"
        )

    def _on_link_closed(self, item: LinkClosed, effects: Effects) -> None:
        self.core.link_closed(item.peer)

    def _on_link_refused(self, item: LinkRefused, effects: Effects) -> None:
        self.core.link_refused(item.peer)

    def _on_read(self, item: Read, effects: Effects) -> None:
        limit = self.config.limits.pending_reads
        if self.core.standing.hollow:
            lost = min(self.core.standing.hollow)
            problem: QuorateError = Corrupt(
                f"entry {lost} is damaged on this disk: {self.node} cannot answer; ask another"
            )
            effects.answers.append(Answer(item.token, problem))
        elif self.core.reads_waiting >= limit:
            problem = Busy(f"{limit} reads wait already (limits.pending_reads)")
            effects.answers.append(Answer(item.token, problem))
        else:
            self.core.read(item.token)

    def _on_propose(self, item: Propose, effects: Effects) -> None:
        # Whoever proposes to a leader elected in this very turn has nothing to do with those
        # who waited for the one before.
        self._end_lost_leadership(effects)
        problem = self._refuse_proposal(item)
        if problem is not None:
            effects.answers.append(Answer(item.token, problem))
        else:
            self._arrived.append(item)
            self._arrived_bytes += len(item.batch)

    # -- proposals -----------------------------------------------------------------------------

    def _refuse_proposal(self, item: Propose) -> QuorateError | None:
        """Every answer of this function means: nothing was logged."""
        limits = self.config.limits
        standing = self.core.standing
        size = len(item.batch)
        if item.count < 1:
            return EmptyBatch("a batch has at least one record")
        if item.count > COUNT_MAX:
            return TooLarge(f"batch of {item.count} records, limit {COUNT_MAX}")
        if size > limits.batch_bytes:
            return TooLarge(f"batch of {size} bytes, limit {limits.batch_bytes} (batch_bytes)")
        leader = self.core.leader
        if leader is None:
            return NotLeader(f"{self.node} does not lead; leader: {standing.leader or 'none'}")
        if item.expected_term not in (None, standing.term):
            return NotLeader(f"term is {standing.term}, expected {item.expected_term}")
        batches = len(self._arrived) + 1
        if not leader.has_room or not self._allowance.takes(self._arrived_bytes + size, batches):
            return DiskFull(
                f"no room for {size} bytes on the disks of a majority, {self.node} included; make "
                f"room (storage.disk_usage_max, storage.segment_bytes)"
            )
        if self.pending_appends >= limits.pending_appends:
            return Busy(f"{limits.pending_appends} appends wait already (limits.pending_appends)")
        if self.pending_bytes + size > limits.pending_bytes:
            return Busy(f"{self.pending_bytes} bytes wait already (limits.pending_bytes)")
        if leader.uncommitted_bytes + self._arrived_bytes + size > limits.uncommitted_bytes:
            return Busy(
                f"{leader.uncommitted_bytes} bytes are not committed yet (limits.uncommitted_bytes)"
            )
        return None

    def _end_lost_leadership(self, effects: Effects) -> None:
        """What was logged may still commit under another leader; what was not, cannot."""
        leader = self.core.leader
        term = leader.term if leader is not None else None
        if term == self._leading:
            return
        lost, self._leading = self._leading, term
        for logged in self._logged:
            problem = OutcomeUnknown(
                f"index {logged.index} was logged in term {lost}, which ended before its commit "
                f"was known"
            )
            effects.answers.append(Answer(logged.token, problem))
        for item in self._arrived:
            effects.answers.append(Answer(item.token, NotLeader("leadership ended before logging")))
        self._logged.clear()
        self._arrived.clear()
        self._logged_bytes = self._arrived_bytes = 0

    def _log_arrived(self) -> None:
        """Wrap what arrived into as few entries as fit, once the noop of the term is applied:
        only then does this leader know the state that it must not contradict."""
        leader = self.core.leader
        if not self._arrived or leader is None or self.applied < leader.start:
            return
        while self._arrived:
            self._log(self._take_arrived())

    def _take_arrived(self) -> list[Propose]:
        """As many of the proposals at hand as share one entry; at least one."""
        limit = self.config.limits.entry_bytes
        chosen: list[Propose] = []
        size = count = 0
        while self._arrived and len(chosen) < RUNS_MAX:
            item = self._arrived[0]
            size += len(item.batch)
            count += item.count
            if chosen and (size > limit or count > COUNT_MAX):
                break
            chosen.append(self._arrived.popleft())
            self._arrived_bytes -= len(item.batch)
        return chosen

    def _log(self, chosen: list[Propose]) -> None:
        body = pack_batches([(item.batch, item.count) for item in chosen])
        count = sum(item.count for item in chosen)
        entry = self.core.append(EntryKind.DATA, body, count, len(chosen))
        offset = entry.base_offset
        for item in chosen:
            size = len(item.batch)
            self._logged.append(_Logged(item.token, size, offset, item.count, entry.index))
            self._logged_bytes += size
            offset += item.count

    # -- applying ------------------------------------------------------------------------------

    def _apply(self, effects: Effects) -> None:
        """Bring the state up to committed; answer those who waited for that."""
        standing = self.core.standing
        target = standing.committed
        if standing.hollow:
            target = min(target, Index(min(standing.hollow) - 1))  # what is lost is not applied
        if self.applied < target:
            for entry in standing.log.entries(Index(self.applied + 1), Index(target + 1)):
                self.state.apply(entry)
            self.applied = target
            self._answer_appends(effects)

    def _answer_appends(self, effects: Effects) -> None:
        leader = self.core.leader
        if leader is None:
            check(not self._logged, "only a leader has proposals in the log")
            return
        while self._logged and self._logged[0].index <= self.applied:
            token, size, offset, count, index = self._logged.popleft()
            self._logged_bytes -= size
            receipt = Receipt(offset, count, index, leader.term, leader.synced(index))
            effects.answers.append(Answer(token, receipt))

    def _answer_reads(self, output: Output, effects: Effects) -> None:
        """Everything committed is applied by now, so a confirmed read shows what it must."""
        for token, _ in output.reads_confirmed:
            effects.answers.append(Answer(token, ReadAnswer(self.applied, self.state.end)))
        for token in output.reads_refused:
            problem = NoQuorum(f"no leader confirmed the read in {self.config.timing.read_ms} ms")
            effects.answers.append(Answer(token, problem))

    @property
    def role(self) -> Role:
        return self.core.standing.role
