"""The engine of one replica: all logic between the socket and the disk, in one synchronous object.

:meth:`Engine.turn` takes the inputs that arrived and returns the effects to carry out. Inputs come
before timers, so after a stall no peer whose message has already arrived looks dead. A
:class:`Replica` with its threads and the simulator run this same object.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quorate.errors import (
    Busy,
    Damaged,
    DiskFailed,
    NoQuorum,
    QuorateError,
)
from quorate.raft.core import Core
from quorate.raft.log import LogStart
from quorate.raft.messages import ROOM_UNBOUNDED, Append, Envelope, StateHash
from quorate.raft.output import EventKind, Refusal
from quorate.replica.applying import Applier
from quorate.replica.disk_space import ENTRY_OVERHEAD, DiskSpace
from quorate.replica.durability import Durability
from quorate.replica.engine_io import (
    Answer,
    ChangeMembers,
    Deliver,
    Effects,
    FilesAwaited,
    Flushed,
    FlushFailed,
    Input,
    LinkClosed,
    LinkRefused,
    Operate,
    Propose,
    Read,
    Room,
    Stage,
    Stopping,
    TransferLeadership,
)
from quorate.replica.expiry import Expiry
from quorate.replica.peer_filter import refusal
from quorate.replica.proposals import Proposals
from quorate.replica.request_filter import RequestFilter
from quorate.replica.state_check import StateCheck
from quorate.storage.checkpoint import Checkpoint
from quorate.storage.damage import DiskFinding
from quorate.types import BootId, GroupId, Index, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from quorate.config import Config
    from quorate.membership import Membership
    from quorate.raft.output import Output
    from quorate.replica.engine_io import Request
    from quorate.storage.recovery.result import Recovered

__all__ = ["Engine"]

# Election timeouts that replicas with different states wait for a majority to decide.
PATIENCE_ELECTIONS = 10


class Engine:
    """One replica: core, waiting requests and replicated state, and the order of their effects."""

    __slots__ = (
        "_applier", "_boot", "_checkpointed", "_expiry", "_group", "_handlers",
        "_proposals", "_request_filter", "_state_check", "_ticked_at", "config", "core",
        "disk_space", "durability", "node", "state",
    )  # fmt: skip

    def __init__(
        self,
        group: GroupId,
        node: NodeId,
        membership: Membership,
        config: Config,
        recovered: Recovered,
        random: Random,
        now_ms: int,
    ) -> None:
        record = recovered.record
        fresh = record.term == 0
        order = sorted(membership.voters)
        self.node = node
        self.config = config
        self._group = group
        self._boot = BootId(record.boot, random.getrandbits(64))
        self.core = Core(
            node,
            membership,
            config,
            random,
            boot=record.boot,
            term=record.term,
            vote=record.vote,
            entries=recovered.entries,
            start=LogStart(
                recovered.before, recovered.next_offset, recovered.append_time, recovered.stored
            ),
            committed=recovered.committed,
            without_body=recovered.without_body,
            # Leaders of many new logs spread over the nodes, and none waits for a timeout.
            first_to_campaign=fresh
            and node in order
            and order.index(node) == group.incarnation % len(order),
            sure=not record.unsure,
        )
        last = self.core.raft.log.last_index
        held_max = config.limits.held_messages
        self.durability = Durability(record.term, record.vote, last, held_max)
        apply_max = config.limits.apply_entries
        self._applier = Applier(self.core.raft, recovered.checkpoint, apply_max)
        self.state = self._applier.state
        # The newest checkpoint holds all entries up to here.
        self._checkpointed = self.applied
        self._applier.replay(recovered.membership)
        patience = PATIENCE_ELECTIONS * config.timing.ticks(config.timing.election_ms)
        self._state_check = StateCheck(node, self.core.raft.memberships, patience)
        self._proposals = Proposals(self.core, config)
        self.disk_space = DiskSpace(self.durability, config.storage.reserve_bytes)
        self._request_filter = RequestFilter(self.core, config, self._proposals, self.disk_space)
        self._expiry = Expiry(self.core, self._proposals, self.disk_space)
        self._ticked_at = now_ms
        self._handlers: dict[type[Input], Callable[[Any, Effects], None]] = {
            Deliver: self._on_deliver,
            Propose: self._on_request,
            Stage: self._on_request,
            Operate: self._on_request,
            Read: self._on_read,
            TransferLeadership: self._on_transfer,
            ChangeMembers: self._on_change_members,
            Stopping: self._on_stopping,
            Flushed: self._on_flushed,
            Room: self._on_room,
            FlushFailed: self._on_flush_failed,
            FilesAwaited: self._on_files_awaited,
            DiskFinding: self._on_finding,
            LinkClosed: self._on_link_closed,
            LinkRefused: self._on_link_refused,
        }

    # -- progress ------------------------------------------------------------------------------

    @property
    def boot(self) -> BootId:
        return self._boot

    @property
    def applied(self) -> Index:
        """The index of the last entry in the state."""
        return self.core.raft.applied

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
        raft = self.core.raft
        return min(raft.committed, raft.persisted)

    # -- the turn ------------------------------------------------------------------------------

    def turn(self, inputs: Iterable[Input], now_ms: int, wall_us: int = 0) -> Effects:
        """Take ``inputs`` in order, then let time pass. Raises ReplicaHalted to stop for good.

        However long ago the last turn was, at most one tick passes: a process that was stopped
        must take the messages that wait for it before it judges a peer by its silence.
        """
        effects = Effects()
        core = self.core
        self._look_at_room()
        core.raft.wall_time = wall_us
        for item in inputs:
            self._handlers[type(item)](item, effects)
        elapsed_ms = now_ms - self._ticked_at
        if elapsed_ms >= self.config.timing.tick_ms:
            tick_ms = self.config.timing.tick_ms
            self._ticked_at = now_ms - elapsed_ms % tick_ms
            core.tick(missed=elapsed_ms // tick_ms - 1)
            told = self._state_check.tick(core.raft.clock)
            if told is not None:
                for peer in core.raft.peers:
                    self._tell_state(peer, *told, effects, asks=True)
        proposals = self._proposals
        proposals.end_lost_leadership(effects.answers)
        self._expiry.look()
        proposals.log_arrived(self.state, core.raft.applied, now_ms, effects.answers)
        output = core.finish()
        self._carry_out(output, effects)
        behind = self._apply(effects)
        self._answer(output, effects)
        effects.flush = self.durability.next_flush(core.raft.committed)
        self._forget()
        effects.more = proposals.behind or output.more or behind or core.turn_due
        effects.fetched = output.fetched
        effects.work += proposals.take_work()
        return effects

    def _carry_out(self, output: Output, effects: Effects) -> None:
        """Stage the changes, then decide which messages may leave: the order is the rule."""
        self._stage()
        if output.sure:
            self.durability.note_sure()
        for target, message in output.messages:
            envelope = Envelope(self._group, self.node, target, self._boot, message)
            self.durability.send(envelope, effects.sends)
        effects.events.extend(output.events)

    def _stage(self) -> None:
        """Take the changes of vote and log in memory into the next flush."""
        raft = self.core.raft
        if raft.vote_changed:
            raft.vote_changed = False
            self.durability.note_vote(raft.term, raft.vote)
        change = raft.log.take_change()
        if change is not None:
            self.durability.note_log(change)
            raft.free = self.disk_space.may_log

    # -- inputs --------------------------------------------------------------------------------

    def _on_deliver(self, item: Deliver, effects: Effects) -> None:
        envelope = item.envelope
        raft = self.core.raft
        reason = refusal(envelope, self._group, self.node, raft.term)
        if reason is not None:
            raft.refuse(reason)
            return
        message = envelope.message
        if type(message) is StateHash:
            if self.core.admits(envelope.source, envelope.boot, StateHash):
                own = self._state_check.note_peer(envelope.source, message)
                if own is not None:
                    self._tell_state(envelope.source, message.index, own, effects)
            return
        try:
            takes = None
            if type(message) is Append and message.term >= raft.term:
                # The entries that came before it in this turn have taken their room.
                self._stage()
                takes = self.disk_space.fitting(message, raft.log)
                if takes is None:
                    raft.refuse(Refusal.NO_SPACE)
                    return
            self.core.step(envelope.source, envelope.boot, message, takes)
            if takes is not None:
                # Messages made from now on know whether an entry found no room.
                self._look_at_room()
        except Busy:
            # The message is about an entry that is only on disk, and no file can be opened now: it
            # counts as lost, and its sender sends it again. It has changed no state: entries are
            # looked up before the log, the commit or a peer's progress moves.
            raft.refuse(Refusal.NOT_READABLE)

    def _on_flushed(self, item: Flushed, effects: Effects) -> None:
        # A truncation of this very turn must cap the flush's proof before the proof is counted.
        self._stage()
        durability = self.durability
        durability.finish(item.number, self.core.raft.term, effects.sends)
        if item.room is not None:
            self.disk_space.room = item.room
            # The room comes first: messages made from now on acknowledge entries of this flush.
            self._look_at_room()
        self.core.persisted(durability.persisted, durability.persisted_term)

    def _look_at_room(self) -> None:
        raft, disk_space = self.core.raft, self.disk_space
        disk_space.in_term(raft.term)
        raft.free = disk_space.may_log
        raft.without_room = raft.free < ENTRY_OVERHEAD
        if disk_space.shortage or raft.room != ROOM_UNBOUNDED:
            raft.room, raft.lacking = disk_space.offer, disk_space.lacking
            raft.on_reserve, raft.turned_down = disk_space.on_reserve, disk_space.turned_down

    def _on_room(self, item: Room, effects: Effects) -> None:
        self.disk_space.room, self.disk_space.shortage = item.room, item.shortage
        self._look_at_room()

    def _on_flush_failed(self, item: FlushFailed, effects: Effects) -> None:
        if item.damaged:
            raise Damaged(f"{self.node}: {item.error}")
        raise DiskFailed(
            f"{self.node}: flush {item.number} failed: {item.error}; what is on disk is no "
            f"longer known: restart after the disk is checked"
        )

    def _on_files_awaited(self, item: FilesAwaited, effects: Effects) -> None:
        self.core.raft.report(EventKind.LACKS_FILES, detail=item.advice)

    def _on_finding(self, item: DiskFinding, effects: Effects) -> None:
        self._applier.note_finding(item)

    def _on_link_closed(self, item: LinkClosed, effects: Effects) -> None:
        self.core.link_closed(item.peer)

    def _on_link_refused(self, item: LinkRefused, effects: Effects) -> None:
        self.core.link_refused(item.peer)

    def _on_read(self, item: Read, effects: Effects) -> None:
        limit = self.config.limits.pending_reads
        lost = self.core.raft.lost
        if lost is not None:
            effects.answers.append(Answer(item.token, self._applier.damaged(lost)))
        elif self.core.reads_waiting + len(self._applier.reads) >= limit:
            problem: QuorateError = Busy(f"{limit} reads wait already (limits.pending_reads)")
            effects.answers.append(Answer(item.token, problem))
        else:
            self.core.read(item.token)

    def _on_transfer(self, item: TransferLeadership, effects: Effects) -> None:
        self.core.transfer(item.token, item.target)

    def _on_change_members(self, item: ChangeMembers, effects: Effects) -> None:
        self.core.change(item.token, item.change)

    def _on_stopping(self, item: Stopping, effects: Effects) -> None:
        self.core.stop()

    def _on_request(self, item: Request, effects: Effects) -> None:
        problem = self._request_filter.refusal(item)
        # A request to a leader elected in this very turn is kept apart from the requests that
        # waited for the leader before.
        self._proposals.end_lost_leadership(effects.answers)
        if problem is not None:
            effects.answers.append(Answer(item.token, problem))
        else:
            self._proposals.take(item)

    # -- applying ------------------------------------------------------------------------------

    def _apply(self, effects: Effects) -> bool:
        """Apply committed entries. Returns whether entries are left for another turn at once."""
        raft = self.core.raft
        if raft.applied == raft.committed:
            return False  # as in most turns
        behind = self._applier.apply(partial(self._compare, effects))
        effects.work += self.state.take_work()
        return behind

    def _compare(self, effects: Effects, index: Index) -> None:
        """Compare the state with the foreseen one and with a majority's; send its digest to all."""
        digest = self.state.digest()
        self._proposals.check_applied(index, digest)
        self._state_check.note_own(index, digest)
        for peer in self.core.raft.peers:
            self._tell_state(peer, index, digest, effects)

    def _tell_state(
        self, peer: NodeId, index: Index, digest: int, effects: Effects, *, asks: bool = False
    ) -> None:
        message = StateHash(self.core.raft.term, index, digest, asks)
        envelope = Envelope(self._group, self.node, peer, self._boot, message)
        self.durability.send(envelope, effects.sends)

    def _answer(self, output: Output, effects: Effects) -> None:
        """Answer the requests and reads whose entries are applied, and refuse the others that ended
        in this turn."""
        proposals, answers = self._proposals, effects.answers
        for token, index in output.reads_confirmed:
            if not proposals.confirmed(token):
                self._applier.confirm(token, index)
        if self._applier.reads:
            self._applier.answer_reads(answers)
        for token in output.reads_refused:
            if not proposals.unconfirmed(token, answers):
                limit = self.config.timing.read_ms
                what = f"no leader confirmed the read in {limit} ms"
                problem = NoQuorum(what + self.core.raft.hindrance)
                answers.append(Answer(token, problem))
        proposals.answer(self.core.raft.applied, answers)
        if output.ended:
            answers.extend(map(Answer._make, output.ended))

    def _forget(self) -> None:
        """Drop entries from memory beyond its limit: those that are on disk and applied. If the
        next entry is lost, none is applied any more, and all that are settled may go."""
        raft, limit = self.core.raft, self.config.limits.log_memory_bytes
        if raft.log.window_bytes > limit:
            stopped = raft.lost == raft.applied + 1
            done = self.settled if stopped else min(raft.applied, self.settled)
            raft.log.forget(done, limit // 4 * 3)

    def checkpoint(self, sealed: Index) -> Checkpoint | None:
        """The next checkpoint, if one is due: after every segment that is sealed. Its sections are
        made on demand from a copy of the state: the state changes meanwhile.

        None is due while the state is ahead of this disk: it would hold entries that a crash loses.
        """
        raft = self.core.raft
        if sealed <= self._checkpointed or self.applied > raft.persisted:
            return None
        if self.applied == self._checkpointed:
            return None  # a lost entry stops the state: it did not change
        position = raft.log.position(self.applied)  # it may not be readable now
        self._checkpointed = self.applied
        return Checkpoint(position, self.state.copy().sections())

    @property
    def role(self) -> Role:
        return self.core.raft.role
