"""Records that wait to be sent: they become batches by size and by time, within a limit of memory.

Sans-IO: the clock is given. Any thread may add records; one takes batches. A record costs its
caller a few list appends; all else, and waking the taker, is done once per batch.

A signal handler may raise at any point of :meth:`Accumulator.add`, as Ctrl-C does, and so may an
allocation. Each change is therefore one step: before it the record was not taken, after it the
record is in a batch that the taker finds, and its bytes count until that batch has its outcome.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from quorate.batch import encode_batch
from quorate.client.produce.tickets import WHOLE, Ticket, anew
from quorate.client.waiting import lock_for_loop
from quorate.errors import InvalidArgument, QuorateError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.client.produce.settings import ProducerSettings

    Header = tuple[str, bytes]

__all__ = ["HEADER_OVERHEAD", "RECORD_OVERHEAD", "Accumulator", "BatchLimits"]

# Maximum bytes of a batch apart from its columns, and of a record or header apart from its content.
BATCH_OVERHEAD = 256
RECORD_OVERHEAD = 24
HEADER_OVERHEAD = 8

TIME_LIMIT = 1 << 63


class BatchLimits(NamedTuple):
    """The limits of one node."""

    node: str
    record_bytes: int
    batch_bytes: int


class _Batch:
    """A batch that waits: open while it takes records, then complete."""

    __slots__ = (
        "before", "complete", "due", "headers", "keys", "size", "taken", "ticket", "times",
        "values",
    )  # fmt: skip

    def __init__(self, before: int, due: float) -> None:
        self.ticket = Ticket()
        # A record is in the batch once its value is; its other columns come first.
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Sequence[Header]] = []
        self.times: list[int] = []
        # Bytes of all batches before this one, and an upper bound of the bytes of its own records.
        self.before = before
        self.size = 0
        # The batch waits until this time.
        self.due = due
        # It takes no more records.
        self.complete = False
        # It waits no more: the taker has it, or it has its outcome.
        self.taken = False

    def trim(self) -> None:
        """Remove the columns of a record that was interrupted before its value was added."""
        count = len(self.values)
        del self.keys[count:], self.headers[count:], self.times[count:]

    def seal(self) -> None:
        """Complete the batch. If this is interrupted, the batch is open as before."""
        if self.complete:
            return
        self.trim()
        count = len(self.values)
        self.ticket.data = encode_batch(
            self.values,
            keys=self.keys if self.keys.count(None) < count else None,
            times=self.times if count > 1 else self.times[0],
            headers=self.headers if any(self.headers) else None,
        )
        self.ticket.count = count
        self.complete = True
        for column in (self.values, self.keys, self.headers, self.times):
            column.clear()


class Accumulator:
    """The records of one producer before their batches are numbered."""

    def __init__(
        self,
        settings: ProducerSettings,
        limits: BatchLimits,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._limits = limits
        # Bytes of records that a batch has room for, and with which it is full.
        self._room = limits.batch_bytes - BATCH_OVERHEAD
        self._full = settings.batch_bytes - BATCH_OVERHEAD
        self._memory_bytes = settings.memory_bytes
        self._linger = settings.linger_ms / 1000
        self._clock = clock
        # Called, without the lock, when there is a batch to take or to wait for.
        self._wake = wake
        # Guards all fields below. The thread that takes batches waits for it.
        self._lock, self._held_here = lock_for_loop()
        # Batches in order; only the newest may be open. The newest stays here after it was taken,
        # because the bytes are counted from it.
        self._batches: deque[_Batch] = deque([_Batch(0, 0.0)])
        self._batches[0].complete = self._batches[0].taken = True
        # Bytes of all batches that have an outcome.
        self._released = 0
        # How often the taker had to be woken, and the newest of these times at which it was. They
        # differ after an interruption; then the next caller wakes it.
        self._wakes_due = 0
        self._wakes_made = 0
        # Callbacks of those that wait for room; each is called once.
        self._waiting: list[Callable[[], None]] = []
        # The error that refuses further records; None while they are taken.
        self._refusal: QuorateError | None = None
        # The batches that waited have their outcome.
        self._ended = False

    # -- adding --------------------------------------------------------------------------------

    def add(
        self,
        value: bytes,
        key: bytes | None,
        headers: Sequence[Header] | None,
        timestamp: int | None,
    ) -> tuple[Ticket, int] | None:
        """Add a record. Returns its batch and its place there; None if there is no room for it."""
        if type(value) is not bytes:
            value = _checked_bytes("value", value)
        size = RECORD_OVERHEAD + len(value)
        if key is not None:
            key = _checked_bytes("key", key)
            size += len(key)
        if headers is not None:
            headers, header_bytes = _checked_headers(headers)
            size += header_bytes
        if size > self._limits.record_bytes:
            self._check_record(value, key, headers)
        if timestamp is None:
            timestamp = time.time_ns() // 1000
        else:
            _check_timestamp(timestamp)
        if self._held_here():
            raise _amid_another()
        with self._lock:
            # First of all: a caller told to wait for room is called back at once after the end.
            self._check_ended()
            newest = batch = self._batches[-1]
            held = newest.before + newest.size - self._released
            if held + size > self._memory_bytes and held:
                return None
            if newest.complete or newest.size + size > self._room:
                batch = self._begin(size)
            place = len(batch.values)
            if len(batch.keys) > place:
                batch.trim()
            batch.keys.append(key)
            batch.headers.append(headers or ())
            batch.times.append(timestamp)
            batch.size += size
            batch.values.append(value)
            if batch is not newest:
                self._queue(batch)
            if batch.size >= self._full:
                self._wakes_due += 1
                batch.seal()
            due = self._wakes_due
        if self._wakes_made < due:
            self._rouse(due)
        return batch.ticket, place

    def add_batch(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Sequence[Header]] | None,
        timestamps: Sequence[int] | int | None,
    ) -> tuple[Ticket, int] | None:
        """Add records as a batch of their own."""
        times = time.time_ns() // 1000 if timestamps is None else timestamps
        data = encode_batch(values, keys=keys, times=times, headers=headers)
        size = len(data)
        if size > self._limits.batch_bytes:
            raise TooLarge(
                f"a batch of {size} bytes; limits.batch_bytes of {self._limits.node} is "
                f"{self._limits.batch_bytes}"
            )
        if size > self._limits.record_bytes:
            for place, value in enumerate(values):
                self._check_record(
                    value, keys[place] if keys else None, headers[place] if headers else None
                )
        if self._held_here():
            raise _amid_another()
        with self._lock:
            self._check_ended()
            held = self._held
            if held and held + size > self._memory_bytes:
                return None
            batch = self._after_newest(0.0)
            batch.ticket.data, batch.ticket.count = data, len(values)
            batch.size, batch.complete = size, True
            self._queue(batch)
            due = self._wakes_due
        self._rouse(due)
        return batch.ticket, WHOLE

    def _begin(self, size: int) -> _Batch:
        """The batch for a record of ``size`` bytes: the newest one has no room for it."""
        if size > self._room:
            raise TooLarge(
                f"a record of up to {BATCH_OVERHEAD + size} bytes in its batch; limits.batch_bytes "
                f"of {self._limits.node} is {self._limits.batch_bytes}"
            )
        return self._after_newest(self._clock() + self._linger)

    def _after_newest(self, due: float) -> _Batch:
        """A batch to be queued once it has a record."""
        newest = self._batches[-1]
        newest.seal()
        batch = _Batch(newest.before + newest.size, due)
        batch.ticket.when_known(lambda: self._release(batch.size))
        return batch

    def _queue(self, batch: _Batch) -> None:
        """Take a batch with its records, in one step."""
        self._wakes_due += 1
        self._batches.append(batch)

    def _rouse(self, due: int) -> None:
        """Wake the taker for all batches that were queued when the lock was released. An
        interruption leaves this to the next caller."""
        self._wake()
        self._wakes_made = due

    def _check_record(
        self, value: bytes, key: bytes | None, headers: Sequence[Header] | None
    ) -> None:
        size, limit = len(value) + len(key or b""), self._limits.record_bytes
        size += sum(len(name.encode()) + len(content) for name, content in headers or ())
        if size > limit:
            raise TooLarge(
                f"a record of {size} bytes; limits.record_bytes of {self._limits.node} is {limit}"
            )

    def _check_ended(self) -> None:
        if self._refusal is not None:
            raise anew(self._refusal)

    @property
    def _held(self) -> int:
        """Bytes of all records without an outcome."""
        newest = self._batches[-1]
        return newest.before + newest.size - self._released

    # -- room ----------------------------------------------------------------------------------

    def when_room(self, call: Callable[[], None]) -> None:
        """Call ``call`` once there is more room, or no reason to wait.

        Records that could join the open batch have to wait themselves, so lingering gains nothing.
        """
        with self._lock:
            waits = self._held > 0 and self._refusal is None
            if waits:
                self._waiting.append(call)
        if waits:
            self.end_linger()
        else:
            call()

    def _release(self, size: int) -> None:
        with self._lock:
            self._released += size
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    # -- taking --------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """When there is a batch to take; None if no record waits."""
        with self._lock:
            batch = self._oldest()
            if batch is None:
                return None
            return 0.0 if batch.complete else batch.due

    def take(self, now: float) -> Ticket | None:
        """The next batch that is complete, or has waited long enough."""
        with self._lock:
            batch = self._oldest()
            if batch is None or (batch.due > now and not batch.complete):
                return None
            batch.seal()
            batch.taken = True
            return batch.ticket

    def _oldest(self) -> _Batch | None:
        """The oldest batch that waits."""
        batches = self._batches
        if batches[0].taken and len(batches) > 1:
            batches.popleft()
        return None if batches[0].taken else batches[0]

    def end_linger(self) -> None:
        """Let the open batch wait for no more records."""
        with self._lock:
            newest = self._batches[-1]
            if not newest.complete:
                self._wakes_due += 1
                newest.due = 0.0
            due = self._wakes_due
        if self._wakes_made < due:
            self._rouse(due)

    @property
    def tickets(self) -> list[Ticket]:
        """All batches that wait, in order."""
        with self._lock:
            return self._pending()

    def _pending(self) -> list[Ticket]:
        return [batch.ticket for batch in self._batches if not batch.taken]

    def refuse(self, refusal: QuorateError) -> None:
        """Take no more records; those that wait are sent."""
        with self._lock:
            self._refusal = self._refusal or refusal
        # Callers that wait for room learn that waiting has no use.
        self._release(0)

    def end(self, outcome: QuorateError, refusal: QuorateError) -> None:
        """End waiting batches with ``outcome``, and refuse later records with ``refusal``."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._refusal = refusal
            tickets = self._pending()
            for batch in self._batches:
                batch.complete = batch.taken = True
            while len(self._batches) > 1:
                self._batches.popleft()
        for ticket in tickets:
            ticket.resolve(outcome)
        # Callers that wait for room learn that waiting has no use.
        self._release(0)


def _amid_another() -> InvalidArgument:
    """The error of a signal handler or finalizer that adds a record while its thread adds one: it
    would find the batch half changed."""
    return InvalidArgument(
        "a record was sent amid another send of the same producer, by a signal handler or a "
        "finalizer: let it set a flag, and send afterwards"
    )


def _checked_bytes(name: str, data: object) -> bytes:
    """``data``, copied if it could change while it waits."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"{name} is not bytes: {data!r:.100}")


def _check_timestamp(timestamp: object) -> None:
    if not (isinstance(timestamp, int) and -TIME_LIMIT <= timestamp < TIME_LIMIT):
        raise InvalidArgument(f"timestamp is not int64: {timestamp!r}")


def _checked_headers(headers: Sequence[Header]) -> tuple[list[Header], int]:
    """A copy of the headers, and an upper bound of its bytes."""
    size = 0
    pairs = []
    for pair in headers:
        match pair:
            case (str() as name, content):
                content = _checked_bytes(f"header {name}", content)
                size += HEADER_OVERHEAD + len(_utf8(name)) + len(content)
                pairs.append((name, content))
            case _:
                raise InvalidArgument(f"headers are pairs of str and bytes: {pair!r:.100}")
    return pairs, size


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"header {name!a} is not text that has UTF-8") from None
