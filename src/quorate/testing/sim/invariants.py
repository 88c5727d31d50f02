"""The rules that hold after every event, checked against what changed.

Numbers are those of docs/rules.md. Everything is compared by position: the chain stands for all
entries up to it, so one comparison covers a whole log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Ack, Append, Envelope, Vote, VoteReply
from quorate.raft.output import Event, Happening
from quorate.replica.exchange import Deliver, Effects, Input
from quorate.testing.sim.violation import Violation
from quorate.types import ORIGIN, Index, NodeId, Position, Role, Term

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.raft.leader import Leader
    from quorate.raft.progress import Progress
    from quorate.raft.roles import Standing
    from quorate.replica.engine import Engine
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World

__all__ = ["Invariants"]


class _Seen:
    """What one process looked like after its last turn."""

    __slots__ = (
        "acks", "applied", "boots", "committed", "heard", "leading", "log", "matches", "persisted",
        "role", "term",
    )  # fmt: skip

    def __init__(self, engine: Engine, archived: list[Entry]) -> None:
        standing = engine.core.standing
        self.term = standing.term
        self.role = standing.role
        self.committed = Index(0)
        self.applied = Index(0)
        self.persisted = Index(0)
        log = standing.log
        self.log = [*archived, *log.entries(log.first_in_memory, Index(log.last_index + 1))]
        # Per peer: the newest boot heard, what it acked in this leadership, when it was heard.
        self.boots: dict[NodeId, int] = {}
        self.acks: dict[NodeId, Index] = {}
        self.heard: dict[NodeId, int] = {}
        self.matches: dict[NodeId, Index] = {}
        self.leading: Leader | None = None


class Invariants:
    """Global knowledge that no node has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[NodeId, _Seen] = {}
        # I1: the process that led each term.
        self._leaders: dict[Term, tuple[NodeId, int]] = {}
        # I2, I14: the one entry that may stand at (index, term).
        self._entries: dict[tuple[Index, Term], Entry] = {}
        # I3, I8: all that was ever committed, and how far each term had committed.
        self.committed: list[Entry] = []
        self._committed_by: dict[Term, Index] = {}
        # I6: votes and terms that others may have seen.
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._terms_sent: dict[NodeId, Term] = {}
        # I13: what each node ever acknowledged and has not truncated since, rising.
        self._acked: dict[NodeId, list[Position]] = {}
        self._applied = 0
        # Entries that an adversary put on a disk: no replica made them.
        self.planted: set[Position] = set()

    def started(self, node: Node) -> None:
        """A process begins: it may have forgotten nothing that anybody has seen."""
        engine = _engine(node)
        seen = self._seen[node.name] = _Seen(engine, self._archived(node, engine.core.standing))
        known = self._terms_sent.get(node.name, Term(0))
        if seen.term < known:
            raise Violation("I6", f"{node.name} restarts in term {seen.term}, sent {known} before")
        cast = self._votes.get((node.name, seen.term))
        if cast is not None and engine.core.standing.vote != cast:
            raise Violation("I6", f"{node.name} forgot its vote for {cast} in term {seen.term}")
        self._check_new_entries(node, seen.log)

    def _archived(self, node: Node, standing: Standing) -> list[Entry]:
        """What a process left on its disk, taken for committed: it was, by somebody."""
        before = Index(standing.log.first_in_memory - 1)
        if before > len(self.committed) or not self.has_committed(standing, before):
            raise Violation("I8", f"{node.name} starts with {before} committed, nobody else has it")
        return self.committed[:before]

    def after_turn(self, node: Node, inputs: list[Input], effects: Effects) -> None:
        engine = _engine(node)
        seen = self._seen[node.name]
        standing = engine.core.standing
        for item in inputs:
            if type(item) is Deliver and self._is_meant_for(node, item.envelope):
                self._note_delivery(seen, item.envelope, standing.clock)
        if standing.term < seen.term:
            raise Violation("I6", f"{node.name}: term {seen.term} -> {standing.term}")
        self._check_log(node, seen, standing)
        self._check_role(node, seen, engine)
        self._check_marks(node, seen, engine)
        for envelope in effects.sends:
            self._check_send(node, envelope)
        self._check_caps(node, engine)
        seen.term = standing.term
        seen.role = standing.role

    def ends(self) -> list[Position]:
        """Where every log ended when it was last looked at: stands for all that is in them."""
        return [seen.log[-1].position if seen.log else ORIGIN for seen in self._seen.values()]

    # -- the log -------------------------------------------------------------------------------

    def _check_log(self, node: Node, seen: _Seen, standing: Standing) -> None:
        log = standing.log
        before = seen.log
        if log.last == (before[-1].position if before else ORIGIN):
            return
        common = min(len(before), log.last_index)
        while common and log.position(Index(common)) != before[common - 1].position:
            common -= 1
        if common < len(before):
            if seen.role is Role.LEADER and standing.term == seen.term:
                raise Violation("I5", f"{node.name} leads term {seen.term} and cut its own log")
            if common < seen.committed:
                raise Violation("I8", f"{node.name} cut {common + 1}, committed {seen.committed}")
            if self._is_committed(before[common]):
                raise Violation("I8", f"{node.name} cut {common + 1}, which is committed somewhere")
            self._world.sometimes["suffix truncated"] += 1
            acks = self._acked.get(node.name, [])
            while acks and acks[-1].index > common:
                acks.pop()
            del before[common:]
        new = log.entries(Index(common + 1), Index(log.last_index + 1))
        self._check_new_entries(node, new)
        before.extend(new)

    def _is_committed(self, entry: Entry) -> bool:
        """Whether anybody ever committed ``entry``."""
        index = entry.index
        return index <= len(self.committed) and self.committed[index - 1].position == entry.position

    def _check_new_entries(self, node: Node, entries: list[Entry]) -> None:
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

    def _check_new_entry(self, node: Node, entry: Entry) -> None:
        limit = node.config.limits.entry_bytes
        batches = len(entry.body) - entry.runs * 8 - entry.stamps * 24
        if entry.runs > 1 and batches > limit:
            raise Violation("I15", f"{node.name}: {entry.runs} batches, {batches} > {limit} bytes")
        self._world.clients.logged(entry)

    # -- leading -------------------------------------------------------------------------------

    def _check_role(self, node: Node, seen: _Seen, engine: Engine) -> None:
        standing = engine.core.standing
        leader = engine.core.leader
        if leader is not seen.leading:
            seen.leading = leader
            seen.acks = {}
            seen.matches = {}
            seen.heard = dict.fromkeys(standing.peers, standing.clock)
            if leader is not None:
                self._check_new_leader(node, standing)
        if leader is None:
            return
        for name, progress in leader.progress.items():
            if progress.next <= progress.match:
                raise Violation("I12", f"{node.name}: next {progress.next} of {name} is not new")
            if progress.match != seen.matches.get(name, 0):
                self._check_match(node, seen, name, progress.match, standing)
        timing = self._world.config.timing
        patience = timing.ticks(2 * timing.election_ms + timing.heartbeat_ms) + 2
        heard = sum(standing.clock - at <= patience for at in seen.heard.values())
        if heard + 1 < self._world.quorum:
            raise Violation("check-quorum", f"{node.name} leads and heard only {heard} peers")

    def _check_new_leader(self, node: Node, standing: Standing) -> None:
        known = self._leaders.setdefault(standing.term, (node.name, node.life))
        if known != (node.name, node.life):
            raise Violation("I1", f"term {standing.term} is led by {known} and {node.name}")
        committed = max(
            (index for term, index in self._committed_by.items() if term < standing.term),
            default=Index(0),
        )
        if committed and not self.has_committed(standing, committed):
            raise Violation("I3", f"{node.name} leads {standing.term} without entry {committed}")

    def has_committed(self, standing: Standing, index: Index) -> bool:
        """Whether the log of ``standing`` holds what was committed at ``index``."""
        log = standing.log
        # Below the window the disk may be spoiled; where the window begins stands for it all.
        index = max(index, Index(log.first_in_memory - 1))
        if index == 0:
            return True
        return index <= log.last_index and (
            log.position(index) == self.committed[index - 1].position
        )

    def _position(self, standing: Standing, index: Index) -> Position:
        """Where a log stands at ``index``. What left its memory was committed: nobody has to read
        a disk for it, which may be spoiled."""
        if 0 < index < standing.log.first_in_memory - 1 and index <= len(self.committed):
            return self.committed[index - 1].position
        return standing.log.position(index)

    def _check_match(
        self, node: Node, seen: _Seen, name: NodeId, match: Index, standing: Standing
    ) -> None:
        if match < seen.matches.get(name, 0) and match > 0:
            raise Violation("I6", f"{node.name}: match of {name} went back to {match}")
        seen.matches[name] = match
        if match > seen.acks.get(name, 0):
            raise Violation("I12", f"{node.name}: this boot of {name} never acked {match}")
        durable_view = self._world.nodes[name].store.durable
        if durable_view.vote is not None and durable_view.vote.term > standing.term:
            return  # it has moved on and may have truncated since; this leader is on its way out
        if not self._world.was_durable(self._world.nodes[name], self._position(standing, match)):
            raise Violation("I12", f"{node.name}: {name} lacks entry {match} on its disk")

    def _is_meant_for(self, node: Node, envelope: Envelope) -> bool:
        """A stray envelope must change nothing, and so says nothing about its sender."""
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

    def _check_marks(self, node: Node, seen: _Seen, engine: Engine) -> None:
        standing = engine.core.standing
        committed, applied = standing.committed, engine.applied
        if committed < seen.committed or applied < seen.applied:
            raise Violation("I6", f"{node.name}: committed {committed}, applied {applied} fell")
        last = standing.log.last_index
        if not applied <= committed <= last or standing.persisted > last:
            raise Violation("I9", f"{node.name}: {applied} <= {committed} <= {last} is broken")
        if standing.persisted != seen.persisted:
            seen.persisted = standing.persisted
            position = self._position(standing, standing.persisted)
            if not self._is_durable(node, position):
                raise Violation("I10", f"{node.name} takes {position} for persisted")
        if committed > seen.committed:
            self._check_commit(node, seen, standing)
            seen.committed = committed
        if applied > seen.applied:
            seen.applied = applied
            self._note_applied(applied)

    def _check_commit(self, node: Node, seen: _Seen, standing: Standing) -> None:
        index = standing.committed
        position = self._position(standing, index)
        # A leader may commit and step down in one turn.
        led = seen.role is Role.LEADER and seen.term == standing.term
        led = led or standing.role is Role.LEADER
        if index > len(self.committed):
            if not led:
                raise Violation("I4", f"{node.name} follows and committed {index} first")
            self._check_durable(node, position)
            new = seen.log[len(self.committed) : index]
            if new[0].term < standing.term:
                self._world.sometimes["entry of an earlier term committed along"] += 1
            self.committed.extend(new)
        if self.committed[index - 1].position != position:
            raise Violation("I8", f"{node.name} committed another entry at {index}")
        if led:
            self._committed_by[standing.term] = index

    def _check_durable(self, node: Node, position: Position) -> None:
        copies = self._world.durable_copies(position)
        if copies < self._world.quorum:
            raise Violation("I7", f"{node.name} committed {position}, {copies} copies on disk")

    def _note_applied(self, applied: Index) -> None:
        while self._applied < applied:
            self._world.clients.applied(self.committed[self._applied])
            self._applied += 1

    # -- what leaves ---------------------------------------------------------------------------

    def _check_send(self, node: Node, envelope: Envelope) -> None:
        """I10: nothing leaves that depends on what a power cut could still take away."""
        message = envelope.message
        record = node.store.durable.vote
        if record is None or record.term < message.term:
            raise Violation("I10", f"{node.name} speaks in term {message.term}, has {record}")
        self._terms_sent[node.name] = max(self._terms_sent.get(node.name, Term(0)), message.term)
        if type(message) is VoteReply and message.granted:
            self._check_vote(node, message.term, envelope.target)
        elif type(message) is Vote:
            self._check_vote(node, message.term, node.name)
        elif type(message) is Append:
            self._check_append(node, message)
        elif type(message) is Ack:
            position = self._position(_engine(node).core.standing, message.match)
            if not self._is_durable(node, position):
                raise Violation("I10", f"{node.name} acks {position}, which is not on its disk")
            self._note_ack(node, position)

    def _check_append(self, node: Node, message: Append) -> None:
        if not all(entry.whole for entry in message.entries):
            raise Violation("I14", f"{node.name} sends an entry without its body")
        limits = node.config.limits
        size = sum(entry.size for entry in message.entries)
        count = len(message.entries)
        if count > limits.append_entries or (count > 1 and size > limits.append_bytes):
            raise Violation("I15", f"{node.name}: an append of {count} entries, {size} bytes")

    def _is_durable(self, node: Node, position: Position) -> bool:
        return node.store.durable.position(position.index) == position

    def _note_ack(self, node: Node, position: Position) -> None:
        acks = self._acked.setdefault(node.name, [])
        if position.index > (acks[-1].index if acks else 0):
            acks.append(position)

    def _check_nothing_lost(self, node: Node) -> None:
        """I13: whoever votes has everything that was committed with its help."""
        standing = _engine(node).core.standing
        for acked in reversed(self._acked.get(node.name, [])):
            index = acked.index
            if index <= len(self.committed) and self.committed[index - 1].position == acked:
                if not self.has_committed(standing, index):
                    raise Violation("I13", f"{node.name} votes, lost {index} that it acked")
                return

    def _check_vote(self, node: Node, term: Term, candidate: NodeId) -> None:
        self._check_nothing_lost(node)
        cast = self._votes.setdefault((node.name, term), candidate)
        if cast != candidate:
            raise Violation("I6", f"{node.name} voted for {cast} and {candidate} in term {term}")
        record = node.store.durable.vote
        if record is None or (record.term, record.vote) != (term, candidate):
            raise Violation("I10", f"{node.name} votes for {candidate} in {term}, has {record}")

    # -- what a node reports -------------------------------------------------------------------

    def check_events(self, node: Node, events: list[Event]) -> None:
        for event in events:
            if event.happening is Happening.SPLIT_LEADERS:
                raise Violation("I1", f"{node.name} met two leaders in term {event.term}")
            if event.happening is Happening.PEER_THROTTLED:
                committed = _engine(node).core.standing.committed
                if event.index is None or event.index > committed:
                    raise Violation("throttle", f"{node.name} throttles above {committed}")

    # -- limits --------------------------------------------------------------------------------

    def _check_caps(self, node: Node, engine: Engine) -> None:
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


def _engine(node: Node) -> Engine:
    engine = node.engine
    if engine is None:
        raise Violation("harness", f"{node.name} is down")
    return engine
