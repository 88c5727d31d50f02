"""The rules that hold after every event, checked against the changes of that event.

Numbers are those of docs/rules.md. Everything is compared by position: the chain stands for all
entries up to it, so one comparison covers a whole log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Ack, Envelope
from quorate.raft.output import Event, EventKind
from quorate.replica.engine_io import Deliver, Effects, Input
from quorate.types import ORIGIN, Index, NodeId, Position, Role, Term
from verification.sim.committed import has_committed, is_committed, position_in
from verification.sim.promises import Promises
from verification.sim.quorums import Quorums
from verification.sim.violation import Violation
from verification.sim.voter_sets import is_membership

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.raft.leader import Leader
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState
    from quorate.replica.engine import Engine
    from verification.sim.node import SimulatedNode
    from verification.sim.voter_sets import LoggedSets, VoterSets
    from verification.sim.world import World

__all__ = ["Invariants"]


class _Seen:
    """The state of one process after its last turn."""

    __slots__ = (
        "acks", "applied", "boots", "committed", "heard", "leading", "log", "matches", "members",
        "persisted", "role", "term",
    )  # fmt: skip

    def __init__(self, engine: Engine, stored: list[Entry]) -> None:
        raft = engine.core.raft
        self.term = raft.term
        self.role = raft.role
        self.committed = Index(0)
        self.applied = Index(0)
        self.persisted = Index(0)
        log = raft.log
        self.log = [*stored, *log.entries(log.first_in_memory, Index(log.last_index + 1))]
        # The members that these entries set.
        self.members: LoggedSets
        # Per peer: the newest boot heard, the index that it acked in this leadership, the time it
        # was heard.
        self.boots: dict[NodeId, int] = {}
        self.acks: dict[NodeId, Index] = {}
        self.heard: dict[NodeId, int] = {}
        self.matches: dict[NodeId, Index] = {}
        self.leading: Leader | None = None


class Invariants:
    """Global knowledge of the run that no node has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[NodeId, _Seen] = {}
        # I1: the process that led each term.
        self._leaders: dict[Term, tuple[NodeId, int]] = {}
        # I2, I14: the one entry that may stand at (index, term).
        self._entries: dict[tuple[Index, Term], Entry] = {}
        # I3, I8: all entries that were ever committed, and how far each term had committed.
        self.committed: list[Entry] = []
        self._committed_by: dict[Term, Index] = {}
        self.promises = Promises(self.committed)
        self.quorums = Quorums(world, self.committed, self.promises)
        self._applied = 0
        # Entries that an adversary put on a disk: no replica made them.
        self.planted: set[Position] = set()

    def started(self, node: SimulatedNode) -> None:
        """A process begins."""
        engine = _engine(node)
        raft = engine.core.raft
        seen = self._seen[node.name] = _Seen(engine, self._entries_on_disk(node, raft))
        self.promises.started(node, raft)
        self._check_new_entries(node, seen.log)
        seen.members = self.quorums.of_log(seen.log)

    def _entries_on_disk(self, node: SimulatedNode, raft: RaftState) -> list[Entry]:
        """The entries that an open found and took for committed: some node had committed them."""
        before = Index(raft.log.first_in_memory - 1)
        if before > len(self.committed) or not has_committed(self.committed, raft, before):
            raise Violation("I8", f"{node.name} starts with {before} committed, no peer has it")
        return self.committed[:before]

    def after_turn(self, node: SimulatedNode, inputs: list[Input], effects: Effects) -> None:
        engine = _engine(node)
        seen = self._seen[node.name]
        raft = engine.core.raft
        for item in inputs:
            if type(item) is Deliver and self._is_meant_for(node, item.envelope):
                self._note_delivery(seen, item.envelope, raft.clock)
        if raft.term < seen.term:
            raise Violation("I6", f"{node.name}: term {seen.term} -> {raft.term}")
        self._check_log(node, seen, raft)
        self._check_role(node, seen, engine)
        self._check_watermarks(node, seen, engine)
        for envelope in effects.sends:
            self.promises.check_send(node, raft, envelope)
        self._check_caps(node, engine)
        seen.term = raft.term
        seen.role = raft.role

    def members_of(self, name: NodeId) -> LoggedSets:
        """The members that the log of a node sets, or that of its last process."""
        return self._seen[name].members

    def newest_of(self, node: SimulatedNode) -> VoterSets:
        """The members that count at ``node``; those that are committed if it never ran."""
        seen = self._seen.get(node.name)
        return self.quorums.settled if seen is None else seen.members.newest

    def ends(self) -> list[Position]:
        """Stands for the contents of all logs: the position at which each ended at its last
        check."""
        return [seen.log[-1].position if seen.log else ORIGIN for seen in self._seen.values()]

    # -- the log -------------------------------------------------------------------------------

    def _check_log(self, node: SimulatedNode, seen: _Seen, raft: RaftState) -> None:
        log = raft.log
        before = seen.log
        if log.last == (before[-1].position if before else ORIGIN):
            return
        common = min(len(before), log.last_index)
        while common and log.position(Index(common)) != before[common - 1].position:
            common -= 1
        if common < len(before):
            if seen.role is Role.LEADER and raft.term == seen.term:
                raise Violation("I5", f"{node.name} leads term {seen.term} and cut its own log")
            if common < seen.committed:
                raise Violation("I8", f"{node.name} cut {common + 1}, committed {seen.committed}")
            if is_committed(self.committed, before[common].position):
                raise Violation("I8", f"{node.name} cut {common + 1}, which is committed somewhere")
            self._world.sometimes["suffix truncated"] += 1
            self.promises.truncated(node, Index(common))
            seen.members.cut(common)
            del before[common:]
        new = log.entries(Index(common + 1), Index(log.last_index + 1))
        self._check_new_entries(node, new)
        for entry in new:
            if is_membership(entry):
                self._take_members(node, seen, entry, raft)
        before.extend(new)

    def _take_members(
        self, node: SimulatedNode, seen: _Seen, entry: Entry, raft: RaftState
    ) -> None:
        before = seen.members.newest.members
        self.quorums.entered(node, seen.members, entry, seen.log)
        for name in set(seen.members.newest.members).difference(before):
            # A leader knows nothing yet about a node that is new, or comes back.
            seen.acks.pop(name, None)
            seen.heard[name] = raft.clock

    def _check_new_entries(self, node: SimulatedNode, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.position in self.planted:
                continue
            key = (entry.index, entry.term)
            first = self._entries.get(key)
            if first is None:
                self._entries[key] = entry
                self._check_new_entry(node, entry)
            elif first.position != entry.position:
                raise Violation("I2", f"{node.name} has another log at (index, term) {key}")
            elif first is not entry and entry.whole and _frame(entry) != _frame(first):
                raise Violation("I14", f"{node.name} has other bytes at (index, term) {key}")

    def _check_new_entry(self, node: SimulatedNode, entry: Entry) -> None:
        limit = node.config.limits.entry_bytes
        batches = len(entry.body) - entry.runs * 8 - entry.stamps * 24
        if entry.runs > 1 and batches > limit:
            raise Violation("I15", f"{node.name}: {entry.runs} batches, {batches} > {limit} bytes")
        self._world.clients.logged(entry)

    # -- leading -------------------------------------------------------------------------------

    def _check_role(self, node: SimulatedNode, seen: _Seen, engine: Engine) -> None:
        raft = engine.core.raft
        leader = engine.core.leader
        if leader is not seen.leading:
            seen.leading = leader
            if leader is not None:
                seen.acks = {}
                seen.matches = {}
                seen.heard = dict.fromkeys(seen.members.newest.members, raft.clock)
                self._check_new_leader(node, raft)
                self.quorums.check_win(node, raft.term, seen.members)
        if leader is None:
            return
        for name in seen.matches.keys() - leader.progress.keys():
            del seen.matches[name]  # a node that was removed and has all that it needs
        for name, progress in leader.progress.items():
            if progress.next <= progress.match:
                raise Violation("I12", f"{node.name}: next {progress.next} of {name} is not new")
            if progress.match != seen.matches.get(name, 0):
                self._check_match(node, seen, name, progress.match, raft)
        timing = self._world.config.timing
        patience = timing.ticks(2 * timing.election_ms + timing.heartbeat_ms) + 2
        heard = {name for name, at in seen.heard.items() if raft.clock - at <= patience}
        heard.add(node.name)
        if not seen.members.newest.agreed(heard.__contains__):
            raise Violation("check-quorum", f"{node.name} leads and heard only {sorted(heard)}")

    def _check_new_leader(self, node: SimulatedNode, raft: RaftState) -> None:
        known = self._leaders.setdefault(raft.term, (node.name, node.life))
        if known != (node.name, node.life):
            raise Violation("I1", f"term {raft.term} is led by {known} and {node.name}")
        committed = max(
            (index for term, index in self._committed_by.items() if term < raft.term),
            default=Index(0),
        )
        if committed and not has_committed(self.committed, raft, committed):
            raise Violation("I3", f"{node.name} leads {raft.term} without entry {committed}")

    def _check_match(
        self, node: SimulatedNode, seen: _Seen, name: NodeId, match: Index, raft: RaftState
    ) -> None:
        if match < seen.matches.get(name, 0) and match > 0:
            raise Violation("I6", f"{node.name}: match of {name} went back to {match}")
        seen.matches[name] = match
        if match > seen.acks.get(name, 0):
            raise Violation("I12", f"{node.name}: this boot of {name} never acked {match}")
        durable_view = self._world.nodes[name].store.durable
        if durable_view.vote is not None and durable_view.vote.term > raft.term:
            # The peer has moved on and may have truncated since; this leader is on its way out.
            return
        position = position_in(self.committed, raft, match)
        if not self._world.was_durable(self._world.nodes[name], position):
            raise Violation("I12", f"{node.name}: {name} lacks entry {match} on its disk")

    def _is_meant_for(self, node: SimulatedNode, envelope: Envelope) -> bool:
        """Whether an envelope is meant for ``node``. A stray one must change nothing, so it proves
        nothing about its sender."""
        return envelope.target == node.name and envelope.group == self._world.group

    def _note_delivery(self, seen: _Seen, envelope: Envelope, clock: int) -> None:
        source = envelope.source
        boot = envelope.boot.counter
        known = seen.boots.get(source, 0)
        if boot < known:
            self._world.sometimes["message of an earlier boot"] += 1
            return
        if boot > known:
            seen.boots[source] = boot
            seen.acks.pop(source, None)
            if known:
                seen.matches.pop(source, None)
        message = envelope.message
        seen.heard[source] = clock
        if type(message) is Ack and seen.leading is not None and message.term == seen.term:
            seen.acks[source] = max(seen.acks.get(source, Index(0)), message.match)

    # -- watermarks ----------------------------------------------------------------------------

    def _check_watermarks(self, node: SimulatedNode, seen: _Seen, engine: Engine) -> None:
        raft = engine.core.raft
        committed, applied = raft.committed, engine.applied
        if committed < seen.committed or applied < seen.applied:
            raise Violation("I6", f"{node.name}: committed {committed}, applied {applied} fell")
        last = raft.log.last_index
        if not applied <= committed <= last or raft.persisted > last:
            raise Violation("I9", f"{node.name}: {applied} <= {committed} <= {last} is broken")
        if raft.persisted != seen.persisted:
            seen.persisted = raft.persisted
            position = position_in(self.committed, raft, raft.persisted)
            if node.store.durable.position(position.index) != position:
                raise Violation("I10", f"{node.name} takes {position} for persisted")
        if raft.log.first_in_memory > applied + 1 and raft.lost != applied + 1:
            raise Violation(
                "I9", f"{node.name} has entry {applied + 1}, to be applied, on disk only"
            )
        if committed > seen.committed:
            self._check_commit(node, seen, raft)
            seen.committed = committed
        if applied > seen.applied:
            seen.applied = applied
            self._note_applied(applied)

    def _check_commit(self, node: SimulatedNode, seen: _Seen, raft: RaftState) -> None:
        index = raft.committed
        position = position_in(self.committed, raft, index)
        # A leader may commit and step down in one turn.
        led = seen.role is Role.LEADER and seen.term == raft.term
        led = led or raft.role is Role.LEADER
        if index > len(self.committed):
            if not led:
                raise Violation("I4", f"{node.name} follows and committed {index} first")
            self.quorums.check_commit(node, position, seen.members, seen.acks)
            new = seen.log[len(self.committed) : index]
            if new[0].term < raft.term:
                self._world.sometimes["entry of an earlier term committed along"] += 1
            self.committed.extend(new)
            self.quorums.committed(new)
        if self.committed[index - 1].position != position:
            raise Violation("I8", f"{node.name} committed another entry at {index}")
        if led:
            self._committed_by[raft.term] = index

    def _note_applied(self, applied: Index) -> None:
        while self._applied < applied:
            self._world.clients.applied(self.committed[self._applied])
            self._applied += 1

    # -- reports of a node ---------------------------------------------------------------------

    def check_events(self, node: SimulatedNode, events: list[Event]) -> None:
        for event in events:
            if event.kind is EventKind.SPLIT_LEADERS:
                raise Violation("I1", f"{node.name} met two leaders in term {event.term}")
            if event.kind is EventKind.PEER_THROTTLED:
                committed = _engine(node).core.raft.committed
                if event.index is None or event.index > committed:
                    raise Violation("throttle", f"{node.name} throttles above {committed}")

    # -- limits --------------------------------------------------------------------------------

    def _check_caps(self, node: SimulatedNode, engine: Engine) -> None:
        """I15: no queue grows past its limit."""
        limits = node.config.limits
        leader = engine.core.leader
        sizes = [
            ("pending_appends", engine.pending_appends, limits.pending_appends),
            ("pending_bytes", engine.pending_bytes, limits.pending_bytes),
            ("held_messages", engine.durability.held, limits.held_messages),
            ("pending_reads", engine.core.reads_waiting, limits.pending_reads),
        ]
        if leader is not None:
            peers = leader.progress.values()
            # One message may begin below the limit and end above it.
            widest = max((_bytes_before_last(peer) for peer in peers), default=0)
            sizes.append(("window_bytes", widest, limits.window_bytes))
            longest = max((len(peer.inflight) for peer in peers), default=0)
            sizes.append(("window_messages", longest, limits.window_messages))
            if longest == limits.window_messages:
                self._world.sometimes["window full"] += 1
        for name, size, limit in sizes:
            if size > limit:
                raise Violation("I15", f"{node.name}: {name} is {size}, limit {limit}")


def _bytes_before_last(peer: Progress) -> int:
    return peer.inflight_bytes - peer.inflight[-1][1] if peer.inflight else 0


def _frame(entry: Entry) -> tuple[bytes, bytes]:
    return entry.header, entry.body


def _engine(node: SimulatedNode) -> Engine:
    engine = node.engine
    if engine is None:
        raise Violation("harness", f"{node.name} is down")
    return engine
