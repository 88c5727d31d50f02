"""The result of the committed entries, worked out apart from the replicas: the judge of every
answer.

A second, plain account of the same rules. An answer to a client must hold in the state after some
index between its request and its answer; a client must have asked for every entry in the log, under
conditions that the state before it met.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import OpenProducer, SetFence
from quorate.config import Timing
from quorate.entry_body import unpack_batches, unpack_chunks, unpack_stamps
from quorate.errors import (
    Duplicate,
    Fenced,
    OffsetMismatch,
    QuorateError,
    UnknownProducer,
)
from quorate.state.operations import ExpireProducers, decode_operation
from quorate.types import EntryKind, Index, Term
from verification.sim.stages import Stages
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.commands import ProducerOpened, ProducerStamp
    from quorate.entry import Entry
    from quorate.entry_body import Stamp
    from quorate.state.judge import AppendConditions

__all__ = ["Ledger", "Sent", "Shown", "payload_of"]

PAYLOAD_MARK = b"|"
TIMING = Timing()


class Sent(NamedTuple):
    """A batch that reached a node, once or more often."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    conditions: AppendConditions
    expected_term: Term | None = None


class Shown(NamedTuple):
    """Records that readers see together: of a data entry, or of a chunk that was published."""

    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    # The entry that holds them, its bytes, and the append time that is shown.
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    size: int
    time: int
    # The publish that shows them; the entry itself if it needs none.
    by: Index

    @property
    def published(self) -> bool:
        return self.by != self.index


@dataclass(slots=True)
class _ProducerAccount:
    """All facts that the log records about one producer name."""

    # (index, epoch): from that index on the producer has that epoch; 0 once it expired.
    epochs: list[tuple[Index, int]] = field(default_factory=list)
    # The instance that opened it, and its last sequence then, by epoch.
    openings: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    # The epoch that each opening replaced, by epoch; 0 if the name was free.
    replaced: dict[int, int] = field(default_factory=dict)
    # The last sequence of each epoch that another opening or the expiry ended.
    ended: dict[int, int] = field(default_factory=dict)
    # The instance of the last opening.
    instance: bytes | None = None
    expiry_us: int = 0
    last_sequence: int = 0
    # The batches whose places are remembered: as many as its window.
    kept: deque[int] = field(default_factory=deque)
    # The age of the log at its newest batch or opening.
    active_us: int = 0

    def epoch(self, index: int) -> int:
        """The epoch of the producer after ``index``; 0 if it was not open."""
        return next((epoch for since, epoch in reversed(self.epochs) if since <= index), 0)


class Ledger:
    """The account of a run; it grows with every entry that is applied for the first time at any
    node."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self.stages = Stages(timing)
        self._sent: dict[int, Sent] = {}
        # The batches that stand in some log, applied or not.
        self.logged: set[int] = set()
        # (index, offset) of every batch that was applied at any node.
        self.placed: dict[int, tuple[Index, int]] = {}
        # Batches of which every attempt was refused.
        self.refused: set[int] = set()
        # After each index: the end of the records, and the fence.
        self.ends: list[int] = [0]
        self.fences: list[str | None] = [None]
        # The records that readers see, in order.
        self.shown: list[Shown] = []
        self._producers: dict[str, _ProducerAccount] = {}
        # The number of producers that were forgotten.
        self.expired = 0
        self._append_time = 0

    @property
    def index(self) -> Index:
        return Index(len(self.ends) - 1)

    @property
    def fence(self) -> str | None:
        return self.fences[-1]

    def send(self, payload: int, sent: Sent) -> None:
        self._sent[payload] = sent

    def sent(self, payload: int) -> Sent:
        return self._sent[payload]

    def known(self, payload: int) -> Sent | None:
        """The earlier request of a batch, if it was sent before."""
        return self._sent.get(payload)

    # -- entries -------------------------------------------------------------------------------

    def note_logged(self, entry: Entry) -> None:
        """Take note that ``entry`` is new in a log, for the first time at any node."""
        if entry.kind is EntryKind.DATA:
            self.logged.update(payload_of(batch) for batch, _ in unpack_batches(entry))

    def apply(self, entry: Entry) -> None:
        """Take note that ``entry`` was applied for the first time at any node."""
        if entry.base_offset != self.ends[-1]:
            raise Violation("dense-offsets", f"entry {entry.index} at {entry.base_offset}")
        if entry.append_time < self._append_time:
            raise Violation("append-time", f"entry {entry.index}: append time went back")
        self._append_time = entry.append_time
        end, fence = self.ends[-1], self.fences[-1]
        if entry.kind is EntryKind.PUBLISH:
            self._show_chunks(entry)
        end += self.stages.apply(entry, fence)
        if entry.kind is EntryKind.DATA:
            row = (entry.base_offset, entry.count, entry.index, entry.size, entry.append_time)
            self.shown.append(Shown(*row, entry.index))
            end = self._apply_batches(entry, end)
        elif entry.kind in (EntryKind.PRODUCER, EntryKind.FENCE):
            fence = self._apply_operation(entry, fence)
        self.ends.append(end)
        self.fences.append(fence)

    def _show_chunks(self, entry: Entry) -> None:
        """Show the chunks of a publish, with its offsets and time; the stages check the chunks."""
        offset = entry.base_offset
        for chunk in unpack_chunks(entry)[0]:
            row = (offset, chunk.records, chunk.index, chunk.size, entry.append_time)
            self.shown.append(Shown(*row, entry.index))
            offset += chunk.records

    def _apply_batches(self, entry: Entry, offset: int) -> int:
        stamps = {stamp.run: stamp for stamp in unpack_stamps(entry)}
        for run, (batch, count) in enumerate(unpack_batches(entry)):
            payload = payload_of(batch)
            if payload not in self._sent:
                raise Violation("C2", f"batch {payload} was never sent")
            if payload in self.placed:
                raise Violation("C3", f"batch {payload} applied twice")
            if payload in self.refused:
                raise Violation("C5", f"batch {payload} was refused, now applied")
            self._check_conditions(payload, count, offset, stamps.get(run))
            self.placed[payload] = (entry.index, offset)
            offset += count
        return offset

    def _check_conditions(self, payload: int, count: int, offset: int, stamp: Stamp | None) -> None:
        conditions = self._sent[payload].conditions
        if conditions.fence != self.fence:
            raise Violation(
                "fence", f"batch {payload} shows {conditions.fence}, set is {self.fence}"
            )
        if conditions.expect_offset not in (None, offset):
            raise Violation(
                "expect", f"batch {payload} at {offset}, not {conditions.expect_offset}"
            )
        producer = conditions.producer
        if (stamp is None) != (producer is None):
            raise Violation("C3", f"batch {payload} of {producer} is stamped {stamp}")
        if producer is None or stamp is None:
            return
        name, epoch, sequence = producer
        known = self._producers.get(name)
        if known is None or known.epoch(self.index) != epoch:
            raise Violation("C3", f"batch {payload} of {producer}, which is fenced off")
        last = known.last_sequence
        if (stamp.epoch, stamp.sequence) != (epoch, sequence) or sequence != last + 1:
            raise Violation("C4", f"batch {payload} of {producer} stamped {stamp} after {last}")
        known.last_sequence = sequence + count - 1
        known.kept.append(payload)
        known.active_us = self.stages.age

    def _apply_operation(self, entry: Entry, fence: str | None) -> str | None:
        operation = decode_operation(entry.kind, entry.body)
        if isinstance(operation, SetFence):
            if operation.expect != fence:
                raise Violation("fence", f"{operation} in entry {entry.index}, set is {fence}")
            return operation.fence
        if isinstance(operation, OpenProducer):
            self._open(operation, entry)
        elif isinstance(operation, ExpireProducers):
            self._expire(operation, entry)
        return fence

    def _open(self, operation: OpenProducer, entry: Entry) -> None:
        one = self._producers.setdefault(operation.name, _ProducerAccount())
        if one.instance == operation.instance:
            raise Violation("C3", f"{operation} stands twice, in entry {entry.index} again")
        replaced = one.replaced[entry.index] = one.epochs[-1][1] if one.epochs else 0
        one.ended[replaced] = one.last_sequence
        one.epochs.append((entry.index, entry.index))
        one.openings[entry.index] = operation.instance, one.last_sequence
        one.instance, one.expiry_us = operation.instance, operation.expiry_us
        one.kept = deque(one.kept, maxlen=operation.window)
        one.active_us = self.stages.age

    def _expire(self, operation: ExpireProducers, entry: Entry) -> None:
        for epoch in operation.epochs:
            one = next(one for one in self._producers.values() if one.epoch(self.index) == epoch)
            if self.stages.age - one.active_us < one.expiry_us:
                raise Violation("expiry", f"entry {entry.index} expires {epoch}, which is not idle")
            one.epochs.append((entry.index, 0))
            one.ended[epoch] = one.last_sequence
            one.instance, one.last_sequence = None, 0
            one.kept.clear()
            self.expired += 1

    # -- answers -------------------------------------------------------------------------------

    def explains(self, problem: QuorateError, payload: int, since: int) -> bool:
        """Whether a final refusal of ``payload`` was right at some index from ``since`` on."""
        conditions = self._sent[payload].conditions
        states = range(since, self.index + 1)
        if isinstance(problem, Duplicate):
            return payload in self.placed and not self._keeps(payload)
        if isinstance(problem, OffsetMismatch):
            return any(self.ends[index] != conditions.expect_offset for index in states)
        if isinstance(problem, Fenced):
            fenced = any(self.fences[index] != conditions.fence for index in states)
            return fenced or self._other_epoch(conditions.producer, states)
        if isinstance(problem, UnknownProducer):
            return self._other_epoch(conditions.producer, states)
        return False

    def _keeps(self, payload: int) -> bool:
        return any(payload in one.kept for one in self._producers.values())

    def _other_epoch(self, producer: ProducerStamp | None, states: range) -> bool:
        if producer is None:
            return False
        known = self._producers.get(producer.name)
        return known is None or any(known.epoch(index) != producer.epoch for index in states)

    def explains_fence(self, operation: SetFence, since: int) -> bool:
        """Whether refusing to set the fence was right at some index from ``since`` on."""
        return any(fence != operation.expect for fence in self.fences[since:])

    def explains_crowd(self, limit: int, since: int) -> bool:
        """Whether there were ``limit`` producers at some index from ``since`` on."""
        known = self._producers.values()
        return any(
            sum(one.epoch(index) > 0 for one in known) >= limit
            for index in range(since, self.index + 1)
        )

    def replaced(self, name: str, epoch: int) -> int:
        """The epoch that the opening with ``epoch`` replaced; 0 if the name was free."""
        return self._producers[name].replaced[epoch]

    def explains_held(self, operation: OpenProducer, held: ProducerOpened) -> bool:
        """Whether another instance opened the name as the answer says, with an epoch that
        ``operation`` did not know."""
        one = self._producers.get(operation.name)
        if one is None or held.epoch not in one.openings:
            return False
        instance, _ = one.openings[held.epoch]
        return instance != operation.instance and held.epoch > (operation.known or 0)

    def explains_opening(self, operation: OpenProducer, opened: ProducerOpened) -> bool:
        """Whether ``operation`` opened the producer as the answer says."""
        one = self._producers.get(operation.name)
        if one is None or opened.epoch not in one.openings:
            return False
        instance, before = one.openings[opened.epoch]
        # If an opening is repeated, its answer may include batches of the same instance.
        newest = one.ended.get(opened.epoch, one.last_sequence)
        return instance == operation.instance and before <= opened.last_sequence <= newest


def payload_of(batch: bytes) -> int:
    return int(batch.partition(PAYLOAD_MARK)[0])
