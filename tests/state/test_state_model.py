"""Random lives of a log, beside a model of plain lists: dense offsets, every record once.

A leader judges what comes against the state that is ahead, batch by batch, and writes entries. Now
and then they are committed, or lost with the leader. The model knows all records that are in the
log, and nothing about epochs in tables, windows of runs or digests.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from state_rig import SECOND, Scribe, Sent, instance, replayed

from core_rig import FUZZ
from quorate.commands import OpenProducer, ProducerOpened, ProducerStamp, SetFence
from quorate.entry_body import Stamp
from quorate.errors import QuorateError
from quorate.state.judge import AppendConditions, judge_append, judge_fence, judge_open
from quorate.state.operations import ExpireProducers
from quorate.state.runs import Run
from quorate.state.state import State
from quorate.types import Index, Term

PRODUCERS_MAX = 2

# -- the model ---------------------------------------------------------------------------------


@dataclass
class Writer:
    """A producer as the model knows it: all that it ever sent under its name since its first
    opening, as (sequence, count, offset)."""

    epoch: int
    instance: int
    window: int
    expiry: int
    active: int
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    # How many of ``sent`` are kept.
    kept: int = 0

    @property
    def last(self) -> int:
        return sum(count for _, count, _ in self.sent)


@dataclass
class Model:
    # Who wrote the record at each offset: the first epoch of a life and the sequence, or nobody.
    records: list[tuple[str, int] | None] = field(default_factory=list)
    writers: dict[str, Writer] = field(default_factory=dict)
    fence: str | None = None

    def append(self, count: int, conditions: AppendConditions) -> str | int | None:
        """None: it is to be logged; an offset: it is there; or the code of the refusal."""
        stamp, fence, expected = conditions
        if stamp is not None:
            writer = self.writers.get(stamp.name)
            if writer is None or stamp.epoch > writer.epoch:
                return "UNKNOWN_PRODUCER"
            if stamp.epoch < writer.epoch:
                return "FENCED"
            if stamp.sequence > writer.last + 1:
                return "OUT_OF_SEQUENCE"
            if stamp.sequence != writer.last + 1:
                return self._repeat(writer, stamp.sequence, count)
        if fence != self.fence:
            return "FENCED"
        if expected not in (None, len(self.records)):
            return "OFFSET_MISMATCH"
        return None

    @staticmethod
    def _repeat(writer: Writer, sequence: int, count: int) -> str | int:
        kept = writer.sent[len(writer.sent) - writer.kept :]
        for batch in kept:
            if batch[:2] == (sequence, count):
                return batch[2]
        asked = set(range(sequence, sequence + count))
        known = {number for first, many, _ in kept for number in range(first, first + many)}
        there = asked <= set(range(1, writer.last + 1))
        return "DUPLICATE" if there and not asked & known else "INVALID_ARGUMENT"

    def log(self, count: int, stamp: ProducerStamp | None, time: int) -> None:
        if stamp is None:
            self.records += [None] * count
            return
        writer = self.writers[stamp.name]
        writer.sent.append((stamp.sequence, count, len(self.records)))
        writer.kept = min(writer.kept + 1, writer.window)
        writer.active = time
        self.records += [(stamp.name, stamp.sequence + n) for n in range(count)]


# -- what may happen ---------------------------------------------------------------------------


class Open(NamedTuple):
    name: str
    instance: int
    window: int
    expiry: int


class Send(NamedTuple):
    name: str | None
    # Added to the producer's epoch and to its next sequence.
    epoch: int
    ahead: int
    records: int
    # None shows the fence that is set.
    fence: str | None
    # Added to where the log ends.
    expect: int | None


class Again(NamedTuple):
    """A batch that was sent before: the newest, or one further back."""

    name: str
    back: int


class Fence(NamedTuple):
    fence: str | None
    expect: str | None


class Pass(NamedTuple):
    """Time, in seconds."""

    seconds: int


class Cut(NamedTuple):
    """The entry at hand gets no more batches. Then all that is logged may be committed, or lost."""

    then: str


Step = Open | Send | Again | Fence | Pass | Cut

NAMES = ("a", "a", "a", "b", "b", "c")
# Mostly what a sound client does, so that a log comes about.
EPOCHS = (0,) * 12 + (-1, 1)
STEPS = (0,) * 12 + (-1, -2, -3, -4, -5, -6, -7, -8, 1, 2)
FENCES = (None,) * 12 + ("f", "g")
EXPECTS = (None,) * 12 + (0, 1)


def drawn(chance: Random) -> Step:
    pick = chance.choice
    die = chance.random()
    if die < 0.6:
        name, records = pick((*NAMES, None)), pick((1, 2, 2, 3))
        return Send(name, pick(EPOCHS), pick(STEPS), records, pick(FENCES), pick(EXPECTS))
    if die < 0.75:
        return Again(pick(NAMES), chance.randint(1, 6))
    if die < 0.88:
        return Cut(pick(("", "", "commit", "commit", "lose", "restart")))
    if die < 0.94:
        return Open(pick(NAMES), chance.randint(1, 3), chance.randint(1, 3), pick((2, 9, 9, 9)))
    if die < 0.97:
        return Fence(pick((None, None, "f")), pick((None, None, "f")))
    return Pass(chance.randint(0, 2))


class Life:
    """One log, led and applied, with the model at its side."""

    def __init__(self) -> None:
        # What all entries lead to, by applying them; and the same by accepting their batches.
        self.scribe = Scribe()
        self.ahead = State()
        self.model = Model()
        # Batches of the entry at hand.
        self.batches: list[Sent] = []
        # What is committed, and the model as it was then.
        self.applied = State()
        self.committed = 0
        self.model_then = Model()

    # -- appends -------------------------------------------------------------------------------

    def send(self, send: Send) -> None:
        end = len(self.model.records)
        fence = self.model.fence if send.fence is None else send.fence
        expect = None if send.expect is None else end + send.expect
        stamp = None
        if send.name is not None:
            writer = self.model.writers.get(send.name, Writer(1, 0, 1, 1, 0))
            sequence = writer.last + 1 + send.ahead
            stamp = ProducerStamp(send.name, writer.epoch + send.epoch, sequence)
        self.append(send.records, AppendConditions(stamp, fence, expect))

    def send_again(self, name: str, back: int) -> None:
        """Whatever fence it shows: it is in the log."""
        writer = self.model.writers.get(name)
        if writer is not None and len(writer.sent) >= back:
            sequence, count, _ = writer.sent[-back]
            self.append(
                count, AppendConditions(ProducerStamp(name, writer.epoch, sequence), "x", 0)
            )

    def append(self, count: int, conditions: AppendConditions) -> None:
        verdict = judge_append(self.ahead, count, conditions)
        expected = self.model.append(count, conditions)
        if isinstance(verdict, QuorateError):
            assert verdict.code == expected, verdict
        elif isinstance(verdict, Run):
            stamp = conditions.producer
            assert stamp is not None
            assert verdict[:3] == (stamp.sequence, count, expected)
            records = self.model.records[verdict.offset : verdict.offset + count]
            assert records == [(stamp.name, stamp.sequence + n) for n in range(count)]
        else:
            assert expected is None
            self.log(count, conditions.producer)

    def log(self, count: int, stamp: ProducerStamp | None) -> None:
        time, entries = self.scribe.time, self.scribe.entries
        sent = Sent(count) if stamp is None else Sent(count, stamp.epoch, stamp.sequence)
        row = None if stamp is None else Stamp(len(self.batches), stamp.epoch, stamp.sequence)
        place = self.ahead.accept(count, row, Index(len(entries) + 1), Term(1), time)
        assert place.offset == len(self.model.records)
        self.model.log(count, stamp, time)
        self.batches.append(sent)

    # -- operations ----------------------------------------------------------------------------

    def open(self, name: str, number: int, window: int, expiry: int) -> None:
        self.cut()
        operation = OpenProducer(name, instance(number), window, expiry * SECOND)
        verdict = judge_open(self.ahead, operation, PRODUCERS_MAX)
        writer = self.model.writers.get(name)
        if writer is not None and writer.instance == number:
            assert verdict == ProducerOpened(writer.epoch, writer.last)
        elif writer is None and len(self.model.writers) == PRODUCERS_MAX:
            assert isinstance(verdict, QuorateError)
            assert verdict.code == "TOO_MANY_PRODUCERS"
        else:
            assert verdict is None
            epoch = len(self.scribe.entries) + 1
            sent = writer.sent if writer is not None else []
            kept = min(writer.kept, window) if writer is not None else 0
            opened = Writer(epoch, number, window, expiry * SECOND, self.scribe.time, sent, kept)
            self.model.writers[name] = opened
            self.ahead.apply(self.scribe.operate(operation))

    def set_fence(self, fence: str | None, expect: str | None) -> None:
        self.cut()
        verdict = judge_fence(self.ahead, SetFence(fence, expect))
        if expect != self.model.fence:
            assert isinstance(verdict, QuorateError)
            assert verdict.code == "FENCED"
        else:
            assert verdict is None
            self.model.fence = fence
            self.ahead.apply(self.scribe.operate(SetFence(fence, expect)))

    def expire(self) -> None:
        """As a leader does: whoever is idle in the state that is ahead."""
        self.cut()
        time = self.scribe.time
        idle = {
            name: writer.epoch
            for name, writer in self.model.writers.items()
            if time - writer.active >= writer.expiry
        }
        expired = self.ahead.expired(time)
        assert expired == tuple(sorted(idle.values()))
        if expired:
            for name in idle:
                del self.model.writers[name]
                # A life ends here: what comes under that name is another's.
                renamed = f"{name}, gone {len(self.scribe.entries)}"
                self.model.records = [
                    (renamed, record[1]) if record is not None and record[0] == name else record
                    for record in self.model.records
                ]
            self.ahead.apply(self.scribe.operate(ExpireProducers(expired)))

    # -- entries -------------------------------------------------------------------------------

    def cut(self) -> None:
        if self.batches:
            self.scribe.send(*self.batches)
            self.batches = []
        assert self.ahead == self.scribe.state
        assert self.ahead.digest() == self.scribe.state.digest()

    def commit(self) -> None:
        for entry in self.scribe.entries[self.committed :]:
            self.applied.apply(entry)
        self.committed = len(self.scribe.entries)
        self.model_then = copy.deepcopy(self.model)
        assert self.applied == self.ahead
        assert self.applied.digest() == self.ahead.digest()

    def lose(self) -> None:
        """Another leader goes on from what was committed."""
        del self.scribe.entries[self.committed :]
        self.scribe.state, self.ahead = self.applied.copy(), self.applied.copy()
        self.model = copy.deepcopy(self.model_then)

    def restart(self) -> None:
        """From a checkpoint of what was committed."""
        self.applied = State.decode(self.applied.sections())
        self.lose()

    def happen(self, step: Step) -> None:
        match step:
            case Open():
                self.open(*step)
            case Send():
                self.send(step)
            case Again():
                self.send_again(*step)
            case Fence():
                self.set_fence(*step)
            case Pass(seconds):
                self.cut()
                self.scribe.time += seconds * SECOND
                self.expire()
            case Cut(then):
                self.cut()
                if then:
                    getattr(self, then)()

    def examine(self) -> None:
        """What users rely on, read from the log itself."""
        self.cut()
        assert [entry.base_offset for entry in self.scribe.entries] == [
            sum(before.count for before in self.scribe.entries[:place])
            for place in range(len(self.scribe.entries))
        ]
        assert self.ahead.end == len(self.model.records)
        by_writer: dict[str, list[int]] = {}
        for record in self.model.records:
            if record is not None:
                by_writer.setdefault(record[0], []).append(record[1])
        for sequences in by_writer.values():
            assert sequences == [*range(1, len(sequences) + 1)]
        again = replayed(self.scribe.entries)
        assert again == self.ahead
        assert again.digest() == self.ahead.digest()
        decoded = State.decode(self.ahead.sections())
        assert decoded == self.ahead
        assert decoded.digest() == self.ahead.digest()


@FUZZ
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 150))
def test_every_record_is_in_the_log_once_at_a_dense_offset(seed: int, length: int) -> None:
    chance, life = Random(seed), Life()
    # Without producers from the start most appends would only be refused.
    life.open("a", 1, 2, 9)
    life.open("b", 1, 3, 9)
    for _ in range(length):
        life.happen(drawn(chance))
    life.examine()
