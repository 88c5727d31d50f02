"""The engine of one replica: all logic between the socket and the disk, in one synchronous object.

:meth:`Engine.turn` takes the inputs that arrived and returns the effects to carry out. Inputs come
before timers, so after a stall no peer whose message has already arrived looks dead. The shell with
its threads and the simulator run this same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.errors import (
    Busy,
    Corrupt,
    Damaged,
    DiskFailed,
    InvalidArgument,
    NoQuorum,
    QuorateError,
)
from quorate.raft.core import Core
from quorate.raft.log import LogStart
from quorate.raft.messages import ROOM_UNBOUNDED, Append, Envelope, Message, StateHash
from quorate.raft.output import Happening, Refusal
from quorate.replica.admission import refusal
from quorate.replica.agreement import COMPARED_EVERY, Agreement
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
    Operate,
    Propose,
    Read,
    ReadAnswer,
    Room,
    Stage,
)
from quorate.replica.gate import Gate
from quorate.replica.proposals import Proposals
from quorate.state.state import State
from quorate.storage.checkpoint import Checkpoint
from quorate.types import BootId, GroupId, Index, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from quorate.config import Config
    from quorate.raft.output import Output
    from quorate.replica.exchange import Request
    from quorate.storage.recovered import Recovered

__all__ = ["Engine"]

# Election timeouts that replicas with different states wait for a majority to decide.
PATIENCE_ELECTIONS = 10
# Interval at which a leader looks for expired producers, staged chunks and apps.
EXPIRY_LOOK_MS = 10_000
# Maximum entries that this may log: a noop, and one each for producers, staged chunks and apps.
EXPIRY_ENTRIES = 4


class Engine:
    """One replica: core, waiting requests and replicated state, and the order of their effects."""

    __slots__ = (
        "_agreement", "_boot", "_checkpointed", "_expired_at", "_gate", "_group", "_handlers",
        "_proposals", "_ticked_at", "allowance", "config", "core", "durability", "node", "state",
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
        fresh = record.term == 0
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
            start=LogStart(
                recovered.before, recovered.next_offset, recovered.append_time, recovered.archive
            ),
            committed=recovered.committed,
            hollow=recovered.hollow,
            # Leaders of many new logs spread over the nodes, and none waits for a timeout.
            first_to_campaign=fresh
            and node in order
            and order.index(node) == group.incarnation % len(order),
            sure=not record.unsure,
        )
        last = self.core.standing.log.last_index
        held_max = config.limits.held_messages
        self.durability = Durability(record.term, record.vote, last, held_max)
        self.state = State()
        if recovered.checkpoint is not None:
            self._restore(recovered.checkpoint)
        # The newest checkpoint holds all entries up to here.
        self._checkpointed = self.applied
        self._replay()
        self.state.take_work()
        patience = PATIENCE_ELECTIONS * config.timing.ticks(config.timing.election_ms)
        self._agreement = Agreement(node, len(voters), patience)
        self._proposals = Proposals(self.core, config)
        self._expired_at = 0
        self.allowance = Allowance(self.durability, config.storage.reserve_bytes)
        self._gate = Gate(self.core, config, self._proposals, self.allowance)
        self._ticked_at = now_ms
        self._handlers: dict[type[Input], Callable[[Any, Effects], None]] = {
            Deliver: self._on_deliver,
            Propose: self._on_request,
            Stage: self._on_request,
            Operate: self._on_request,
            Read: self._on_read,
            Flushed: self._on_flushed,
            Room: self._on_room,
            FlushFailed: self._on_flush_failed,
            LinkClosed: self._on_link_closed,
            LinkRefused: self._on_link_refused,
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Start from ``checkpoint``; from the beginning of the log if it cannot be decoded."""
        standing, index = self.core.standing, checkpoint.position.index
        try:
            self.state = State.decode(checkpoint.sections)
        except InvalidArgument as odd:
            detail = f"unusable checkpoint: {odd}; the log was replayed from its beginning"
            standing.report(Happening.DAMAGED, index=index, detail=detail)
        else:
            standing.applied = index

    def _replay(self) -> None:
        """Apply the entries after the checkpoint that this disk proves to be committed."""
        standing, last = self.core.standing, self._applicable
        for entry in standing.log.walk_whole(Index(self.applied + 1), Index(last + 1)):
            self.state.apply(entry)
            standing.applied = entry.index
        if standing.applied < last:
            # A sealed segment is verified only when it is read: the damage is found only now.
            standing.hollow.add(Index(standing.applied + 1))

    # -- progress ------------------------------------------------------------------------------

    @property
    def boot(self) -> BootId:
        return self._boot

    @property
    def applied(self) -> Index:
        """The index of the last entry in the state."""
        return self.core.standing.applied

    @property
    def pending_appends(self) -> int:
        return self._proposals.waiting

    @property
    def pending_bytes(self) -> int:
        return self._proposals.waiting_bytes

    @property
    def settled(self) -> Index:
        """The last index that is committed and on this disk: entries up to it never change again.

        The disk may still hold a suffix that was truncated in memory, at indexes that are committed
        by now with other entries.
        """
        standing = self.core.standing
        return min(standing.committed, standing.persisted)

    # -- the turn ------------------------------------------------------------------------------

    def turn(self, inputs: Iterable[Input], now_ms: int, wall_us: int = 0) -> Effects:
        """Take ``inputs`` in order, then let time pass. Raises ReplicaHalted to stop for good.

        However long ago the last turn was, at most one tick passes: a process that was stopped
        must take the messages that wait for it before it judges a peer by its silence.
        """
        effects = Effects()
        core = self.core
        self._look_at_room()
        core.standing.wall_time = wall_us
        for item in inputs:
            self._handlers[type(item)](item, effects)
        elapsed_ms = now_ms - self._ticked_at
        if elapsed_ms >= self.config.timing.tick_ms:
            tick_ms = self.config.timing.tick_ms
            self._ticked_at = now_ms - elapsed_ms % tick_ms
            core.tick(missed=elapsed_ms // tick_ms - 1)
            doubted = self._agreement.tick(core.standing.clock)
            if doubted is not None:
                for peer in core.standing.peers:
                    self._tell_state(peer, *doubted, effects, asks=True)
        proposals = self._proposals
        proposals.end_lost_leadership(effects.answers)
        self._expire()
        proposals.log_arrived(self.state, core.standing.applied, effects.answers)
        output = core.finish()
        self._carry_out(output, effects)
        self._apply(effects)
        self._answer(output, effects)
        effects.flush = self.durability.next_flush(core.standing.committed)
        self._forget()
        effects.more, effects.fetched = proposals.behind or output.more, output.fetched
        effects.work = self.state.take_work() + proposals.take_work()
        return effects

    def _carry_out(self, output: Output, effects: Effects) -> None:
        """Stage the changes, then decide which messages may leave: the order is the rule."""
        self._stage()
        if output.sure:
            self.durability.stage_sure()
        for target, message in output.messages:
            envelope = Envelope(self._group, self.node, target, self._boot, message)
            self.durability.send(envelope, effects.sends)
        effects.events.extend(output.events)

    def _stage(self) -> None:
        """Take the changes of vote and log in memory into the next flush."""
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
        if type(message) is StateHash:
            if self.core.admits(envelope.source, envelope.boot, StateHash):
                own = self._agreement.note_peer(envelope.source, message)
                if own is not None:
                    self._tell_state(envelope.source, message.index, own, effects)
            return
        try:
            if type(message) is Append and message.term >= standing.term:
                # The entries that came before it in this turn have taken their room.
                self._stage()
                message = self.allowance.fitting(message, standing.log)
            if message is None:
                standing.refuse(Refusal.NO_SPACE)
            else:
                self.core.step(envelope.source, envelope.boot, message)
        except Busy:
            # The message is about an entry that is only on disk, and no file can be opened now: it
            # counts as lost, and its sender sends it again. It has changed no state: entries are
            # looked up before the log, the commit or a peer's progress moves.
            standing.refuse(Refusal.NOT_READABLE)

    def _on_flushed(self, item: Flushed, effects: Effects) -> None:
        # A truncation of this very turn must cap the flush's proof before the proof is counted.
        self._stage()
        durability = self.durability
        durability.finish(item.number, self.core.standing.term, effects.sends)
        if item.room is not None:
            self.allowance.room = item.room
            # The room comes first: messages made from now on acknowledge entries of this flush.
            self._look_at_room()
        self.core.persisted(durability.persisted, durability.persisted_term)

    def _look_at_room(self) -> None:
        standing, allowance = self.core.standing, self.allowance
        allowance.in_term(standing.term)
        standing.cramped = allowance.cramped
        if allowance.shortage or standing.room != ROOM_UNBOUNDED:
            standing.room, standing.lacking = allowance.offer, allowance.lacking
            standing.full = allowance.full

    def _on_room(self, item: Room, effects: Effects) -> None:
        self.allowance.room, self.allowance.shortage = item.room, item.shortage
        self._look_at_room()

    def _on_flush_failed(self, item: FlushFailed, effects: Effects) -> None:
        if item.damaged:
            raise Damaged(f"{self.node}: {item.error}")
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
        lost = self.core.standing.lost
        if lost is not None:
            effects.answers.append(Answer(item.token, self._damaged(lost)))
        elif self.core.reads_waiting >= limit:
            problem: QuorateError = Busy(f"{limit} reads wait already (limits.pending_reads)")
            effects.answers.append(Answer(item.token, problem))
        else:
            self.core.read(item.token)

    def _on_request(self, item: Request, effects: Effects) -> None:
        problem = self._gate.refusal(item)
        # A request to a leader elected in this very turn is kept apart from the requests that
        # waited for the leader before.
        self._proposals.end_lost_leadership(effects.answers)
        if problem is not None:
            effects.answers.append(Answer(item.token, problem))
        else:
            self._proposals.take(item)

    def _expire(self) -> None:
        """Now and then forget producers, staged chunks and apps that were idle for too long."""
        standing = self.core.standing
        if standing.clock >= self._expired_at:
            self._expired_at = standing.clock + standing.ticks(EXPIRY_LOOK_MS)
            # On a full disk expiry can wait; a state that stopped at a lost entry is too old.
            leader = self.core.leader if standing.lost is None else None
            allowance, size = self.allowance, self._proposals.expiry_room
            entries = self._proposals.arrived[0] + EXPIRY_ENTRIES
            needs = allowance.needs(size, entries)
            if leader is not None and allowance.takes(size, entries) and leader.has_room_now(needs):
                self._proposals.expire()

    # -- applying ------------------------------------------------------------------------------

    def _apply(self, effects: Effects) -> None:
        """Apply the committed entries to the state."""
        standing, target = self.core.standing, self._applicable
        if standing.applied >= target:
            return
        for entry in standing.log.entries(Index(standing.applied + 1), Index(target + 1)):
            self.state.apply(entry)
            if entry.index % COMPARED_EVERY == 0:
                self._compare(entry.index, effects)
        standing.applied = target

    @property
    def _applicable(self) -> Index:
        """The last committed index before the first entry that this disk lost: none is skipped."""
        standing = self.core.standing
        committed, lost = standing.committed, standing.lost
        return committed if lost is None else min(committed, Index(lost - 1))

    def _damaged(self, lost: Index) -> Corrupt:
        return Corrupt(
            f"entry {lost} is damaged on this disk: {self.node} cannot answer; ask another"
        )

    def _compare(self, index: Index, effects: Effects) -> None:
        """Compare the state with the foreseen one and with a majority's; send its digest to all."""
        digest = self.state.digest()
        self._proposals.check_applied(index, digest)
        self._agreement.note_own(index, digest)
        for peer in self.core.standing.peers:
            self._tell_state(peer, index, digest, effects)

    def _tell_state(
        self, peer: NodeId, index: Index, digest: int, effects: Effects, *, asks: bool = False
    ) -> None:
        message = StateHash(self.core.standing.term, index, digest, asks)
        envelope = Envelope(self._group, self.node, peer, self._boot, message)
        self.durability.send(envelope, effects.sends)

    def _answer(self, output: Output, effects: Effects) -> None:
        """Answer requests and reads. All committed entries are applied by now, unless this disk
        lost some of them: a confirmed read that needs a lost entry gets an error."""
        proposals, answers = self._proposals, effects.answers
        applied = self.core.standing.applied
        for token, index in output.reads_confirmed:
            if proposals.confirmed(token):
                continue
            lost = self.core.standing.lost
            if lost is not None and index > applied:
                answers.append(Answer(token, self._damaged(lost)))
            else:
                answers.append(Answer(token, ReadAnswer(applied, self.state.end)))
        for token in output.reads_refused:
            if not proposals.unconfirmed(token, answers):
                limit = self.config.timing.read_ms
                problem = NoQuorum(f"no leader confirmed the read in {limit} ms{self._hindrance}")
                answers.append(Answer(token, problem))
        proposals.answer(applied, answers)

    @property
    def _hindrance(self) -> str:
        """The reason why this node does not lead, if an operator can remove it; else empty."""
        standing = self.core.standing
        if not standing.cramped or standing.all_committed:
            return ""
        return (
            f"; {self.node} has not even room for the first entry of a leader: free some space, or "
            f"raise storage.disk_usage_max"
        )

    def _forget(self) -> None:
        """Drop entries from memory beyond its limit: those that are on disk and applied, or that
        cannot be applied because of a lost entry."""
        log = self.core.standing.log
        limit = self.config.limits.log_memory_bytes
        if log.window_bytes > limit:
            done = min(self.applied, self.settled)
            log.forget(done if self.core.standing.lost is None else self.settled, limit // 4 * 3)

    def checkpoint(self, sealed: Index) -> Checkpoint | None:
        """The next checkpoint, if one is due: after every segment that is sealed. Its sections are
        made on demand from a copy of the state: the state changes meanwhile.

        None is due while the state is ahead of this disk: it would hold entries that a crash loses.
        """
        standing = self.core.standing
        if sealed <= self._checkpointed or self.applied > standing.persisted:
            return None
        if self.applied == self._checkpointed:
            return None  # a lost entry stops the state: it did not change
        self._checkpointed = self.applied
        return Checkpoint(standing.log.position(self.applied), self.state.copy().sections())

    @property
    def role(self) -> Role:
        return self.core.standing.role
