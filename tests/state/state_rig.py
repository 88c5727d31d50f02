"""One log's entries, made one after the other, and the state that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.commands import OpenProducer
from quorate.entry import Entry, make_entry
from quorate.entry_body import Stamp, pack_batches
from quorate.state.operations import encode_operation
from quorate.state.state import State
from quorate.types import ORIGIN, EntryKind, Term

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.state.operations import Operation
    from quorate.state.producers import ProducerState

SECOND = 1_000_000


def instance(number: int) -> bytes:
    return number.to_bytes(16, "little")


def opening(name: str, number: int = 1, window: int = 4, expiry_s: int = 60) -> OpenProducer:
    """Producer ``name``, opened by its ``number``-th instance."""
    return OpenProducer(name, instance(number), window, expiry_s * SECOND)


class Sent:
    """A batch of ``count`` records, stamped if it has a producer."""

    def __init__(self, count: int = 1, epoch: int | None = None, sequence: int = 1) -> None:
        self.count = count
        self.epoch = epoch
        self.sequence = sequence


class Scribe:
    """Writes entries as a leader does, and applies them to a state of its own."""

    def __init__(self, time: int = 0, term: int = 1) -> None:
        self.state = State()
        self.entries: list[Entry] = []
        # Of the next entry.
        self.time = time
        self.term = Term(term)

    # -- entries that are only made ------------------------------------------------------------

    def make(
        self, kind: EntryKind, body: bytes = b"", count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Entry:
        before = self.entries[-1].position if self.entries else ORIGIN
        return make_entry(
            before, self.term, kind, body, base_offset=self.state.end, count=count,
            append_time=self.time, runs=runs, stamps=stamps,
        )  # fmt: skip

    def batches(self, *sent: Sent) -> Entry:
        stamps = [
            Stamp(run, batch.epoch, batch.sequence)
            for run, batch in enumerate(sent)
            if batch.epoch is not None
        ]
        body = pack_batches([(b"x", batch.count) for batch in sent], stamps)
        count = sum(batch.count for batch in sent)
        return self.make(EntryKind.DATA, body, count, len(sent), len(stamps))

    def operation(self, operation: Operation) -> Entry:
        return self.make(*encode_operation(operation))

    # -- entries that are applied --------------------------------------------------------------

    def apply(self, entry: Entry) -> Entry:
        self.state.apply(entry)
        self.entries.append(entry)
        return entry

    def send(self, *sent: Sent) -> Entry:
        return self.apply(self.batches(*sent))

    def operate(self, operation: Operation) -> Entry:
        return self.apply(self.operation(operation))

    def open(
        self, name: str, number: int = 1, window: int = 4, expiry_s: int = 60
    ) -> ProducerState:
        self.operate(opening(name, number, window, expiry_s))
        return self.producer(name)

    def producer(self, name: str) -> ProducerState:
        found = self.state.producers.get(name)
        assert found is not None, f"no producer {name}"
        return found


def flipped(sections: list[bytes]) -> Iterator[list[bytes]]:
    """The same with one bit changed, for each bit."""
    for place, section in enumerate(sections):
        for bit in range(8 * len(section)):
            spoiled = bytearray(section)
            spoiled[bit // 8] ^= 1 << bit % 8
            yield [*sections[:place], bytes(spoiled), *sections[place + 1 :]]


def cut(sections: list[bytes]) -> Iterator[list[bytes]]:
    """The same, ending after any byte but the last."""
    for place, section in enumerate(sections):
        for length in range(len(section)):
            yield [*sections[:place], *([section[:length]] if length else [])]


def replayed(entries: list[Entry]) -> State:
    """The state that the entries give to somebody who applies them for the first time."""
    state = State()
    for entry in entries:
        state.apply(entry)
    return state
