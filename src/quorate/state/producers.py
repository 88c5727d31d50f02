"""The producers of a log: the table by which a batch that is sent again is recognised.

A producer numbers its records from 1. The log takes only the next number, and keeps the places of
the newest batches. The epoch of a producer is the index of the entry that opened it last. It tells
the instance that may write under a name from all instances that wrote under it before.

The table has a digest: a sum of hashes, one per producer, which covers its runs as well. The cost
of an update is that of the changed producers, and the digest does not depend on the order of
changes.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.entry_body import unpack_counts, unpack_stamps
from quorate.errors import InvariantBroken, check
from quorate.state.operations import EPOCHS_MAX
from quorate.state.runs import Run, Runs, pack_run
from quorate.state.untracked import UntrackedDict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.commands import OpenProducer
    from quorate.entry import Entry

__all__ = ["ProducerState", "Producers", "hash_item"]

# Maximum number of changed producers hashed at once, which bounds the time to make the digest.
UNHASHED_MAX = 256

# The first byte of a hashed item is its kind, so that items of two kinds never have equal bytes.
_PRODUCER_ITEM = 1
_PRODUCER = struct.Struct("<BQQQQIHI16s")


def hash_item(item: bytes) -> int:
    """A hash of 64 bits, the same on every machine, unlike Python's own hash."""
    return int.from_bytes(blake2b(item, digest_size=8).digest(), "little")


class ProducerState(NamedTuple):
    """A producer: a name under which one instance writes. Immutable: a change makes a new one."""

    name: str
    # The index of the entry that opened it last. An append with a lower epoch is fenced off.
    epoch: int
    # The instance that opened it last.
    instance: bytes
    # The sequence of its newest record in the log; 0 if there is none. The count goes on when the
    # name is opened again.
    last_sequence: int
    # The newest batches, oldest first and without a gap, up to last_sequence; at most ``window``.
    runs: Runs
    window: int
    expiry_us: int
    # The age of the log at its newest batch, or at its opening if that was later.
    active_us: int

    def idle(self, age: int) -> bool:
        """True if the producer sent no batch for its whole expiry."""
        return age - self.active_us >= self.expiry_us


# The place of the epoch in a packed producer; the expiry and the age at the newest batch are last.
_EPOCH = 1


def _pack(producer: ProducerState) -> tuple[object, ...]:
    name, epoch, instance, last_sequence, runs, window, expiry_us, active_us = producer
    return name, epoch, instance, last_sequence, *runs.version, window, expiry_us, active_us


def _unpack(row: tuple[Any, ...]) -> ProducerState:
    name, epoch, instance, last_sequence, buffer, start, stop, window, expiry_us, active_us = row
    runs = Runs(buffer, start, stop)
    return ProducerState(name, epoch, instance, last_sequence, runs, window, expiry_us, active_us)


def _hash(producer: ProducerState) -> int:
    """The share of a producer in the digest. It covers the runs by their number and their checksum:
    a thousand runs cost little more than one."""
    name, epoch, instance, last_sequence, runs, window, expiry_us, active_us = producer
    fields = _PRODUCER.pack(
        _PRODUCER_ITEM, epoch, last_sequence, expiry_us, active_us, window, len(runs),
        runs.checksum, instance,
    )  # fmt: skip
    return hash_item(fields + name.encode())


class Producers:
    """All producers of one log. A change is made as a whole, or raises and leaves the table
    as it was."""

    __slots__ = ("_by_epoch", "_digest", "_epochs", "_hashes", "_unhashed", "work")

    def __init__(self) -> None:
        # In rising order of epoch: an opening has the highest, and a change keeps its place.
        self._by_epoch = UntrackedDict(_pack, _unpack)
        # The epoch of each name.
        self._epochs: dict[str, int] = {}
        # The share of each producer in the digest when it was hashed last, and the sum of these.
        self._hashes: dict[int, int] = {}
        self._digest = 0
        # The epochs of producers that were added, changed or removed since. At most UNHASHED_MAX. A
        # producer that goes on writing is hashed when the digest is asked for, not at each batch.
        self._unhashed: set[int] = set()
        # The number of producers that were examined one by one, hashed or changed. Not part of the
        # contents: it measures the cost of a turn, in the same way on any machine.
        self.work = 0

    def __len__(self) -> int:
        return len(self._by_epoch)

    def __iter__(self) -> Iterator[ProducerState]:
        """All producers, in rising order of epoch."""
        return self._by_epoch.values()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producers) and [*self] == [*other]

    def get(self, name: str) -> ProducerState | None:
        epoch = self._epochs.get(name)
        return None if epoch is None else self._by_epoch[epoch]

    def copy(self) -> Producers:
        other = Producers()
        other._by_epoch = self._by_epoch.copy()
        other._epochs = self._epochs.copy()
        other._digest, other._hashes = self._digest, self._hashes.copy()
        other._unhashed = self._unhashed.copy()
        return other

    def digest(self) -> int:
        """The sum of the hashes of all producers. It depends on the contents only."""
        self.work += len(self._unhashed)
        for epoch in self._unhashed:
            self._digest -= self._hashes.pop(epoch, 0)
            producer = self._by_epoch.get(epoch)
            if producer is not None:
                self._hashes[epoch] = hashed = _hash(producer)
                self._digest += hashed
        self._unhashed.clear()
        return self._digest

    def expired(self, age: int) -> tuple[int, ...]:
        """The epochs of producers that were idle for their expiry: as many as one entry takes."""
        self.work += len(self._by_epoch)
        epochs = (row[_EPOCH] for row in self._by_epoch.rows() if age - row[-1] >= row[-2])
        return tuple(islice(epochs, EPOCHS_MAX))

    # -- changes -------------------------------------------------------------------------------

    def add(self, producer: ProducerState) -> None:
        """Add a producer whose epoch is above all others and whose name no other producer has."""
        self._epochs[producer.name] = producer.epoch
        self._put(producer.epoch, producer)

    def _remove(self, producer: ProducerState) -> None:
        del self._epochs[producer.name]
        self._put(producer.epoch, None)

    def _put(self, epoch: int, after: ProducerState | None) -> None:
        """Set or remove the producer with this epoch. The table changes nowhere else."""
        if len(self._unhashed) == UNHASHED_MAX:
            self.digest()
        self._unhashed.add(epoch)
        self.work += 1
        if after is None:
            del self._by_epoch[epoch]
        else:
            self._by_epoch[epoch] = after

    def open(self, operation: OpenProducer, entry: Entry, age: int) -> None:
        """Open a producer. A new name begins without runs; a known one goes on with a new epoch."""
        name, instance, window = operation.name, operation.instance, operation.window
        last_sequence, runs = 0, Runs.of()
        before = self.get(name)
        if before is not None:
            check(
                before.instance != instance,
                f"entry {entry.index} opens producer {name!r} again for the instance that has it",
            )
            last_sequence, runs = before.last_sequence, before.runs.newest(window)
            self._remove(before)
        opened = ProducerState(
            name, entry.index, instance, last_sequence, runs, window, operation.expiry_us, age
        )
        self.add(opened)

    def expire(self, epochs: tuple[int, ...], entry: Entry, age: int) -> None:
        """Forget these producers. They are idle by the age of the log, not by any clock."""
        gone = [self._current(epoch, entry) for epoch in epochs]
        for producer in gone:
            check(
                producer.idle(age),
                f"entry {entry.index} expires producer {producer.name!r}, which is not idle",
            )
        for producer in gone:
            self._remove(producer)

    def accept(self, epoch: int, run: Run, age: int) -> None:
        """Take one stamped batch of an entry that is being made."""
        last_sequence = run.sequence + run.count - 1
        self._extend(self._by_epoch[epoch], pack_run(*run), last_sequence, age)

    def append(self, entry: Entry, age: int) -> None:
        """Take the stamped batches of a data entry."""
        for producer, rows, last_sequence in self._new_runs(entry):
            self._extend(producer, rows, last_sequence, age)

    def _new_runs(self, entry: Entry) -> list[tuple[ProducerState, bytearray, int]]:
        """The packed runs that each producer has in ``entry``, and its last sequence after them."""
        counts = unpack_counts(entry)
        offsets = [*accumulate(counts, initial=entry.base_offset)]
        if offsets[-1] != entry.base_offset + entry.count:
            raise InvariantBroken(
                f"entry {entry.index} has {entry.count} records, its runs have {sum(counts)}"
            )
        found: dict[int, tuple[ProducerState, bytearray, int]] = {}
        index, term = entry.index, entry.term
        for row, epoch, sequence in unpack_stamps(entry):
            known = found.get(epoch)
            if known is None:
                producer = self._current(epoch, entry)
                rows, last = bytearray(), producer.last_sequence
            else:
                producer, rows, last = known
            count = counts[row]
            if sequence != last + 1 or not count:
                raise InvariantBroken(
                    f"entry {entry.index} has {count} records from sequence {sequence} of "
                    f"producer {producer.name!r} in run {row}, the log has it up to {last}"
                )
            rows += pack_run(sequence, count, offsets[row], index, term)
            found[epoch] = producer, rows, last + count
        return [*found.values()]

    def _current(self, epoch: int, entry: Entry) -> ProducerState:
        """The producer that has this epoch now."""
        producer = self._by_epoch.get(epoch)
        if producer is None:
            raise InvariantBroken(f"entry {entry.index} names epoch {epoch}, which no producer has")
        return producer

    def _extend(
        self, producer: ProducerState, rows: bytes | bytearray, last_sequence: int, active_us: int
    ) -> None:
        """Add packed runs to a producer, which keeps the newest of its runs."""
        name, epoch, instance, _, runs, window, expiry_us, _ = producer
        runs = runs.extended(rows, window)
        after = ProducerState(
            name, epoch, instance, last_sequence, runs, window, expiry_us, active_us
        )
        self._put(epoch, after)
