"""Records that wait to be sent: they become batches by size and by time, within a limit of memory.

Sans-IO: the clock is given. Any thread may add records; one takes batches. A record costs its
caller a few list appends; all else, and waking the taker, is done once per batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorate.batch import encode_batch
from quorate.client.tickets import WHOLE, Ticket, anew
from quorate.errors import InvalidArgument, QuorateError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Header = tuple[str, bytes]

__all__ = [
    "BATCH_BYTES",
    "HEADER_OVERHEAD",
    "LINGER_MS",
    "MEMORY_BYTES",
    "RECORD_OVERHEAD",
    "Accumulator",
    "BatchLimits",
    "Settings",
]

# The default settings of a producer.
LINGER_MS = 5.0
BATCH_BYTES = 256 << 10
MEMORY_BYTES = 32 << 20

# Maximum bytes of a batch beside its columns, and of a record or header beside its content.
BATCH_OVERHEAD = 256
RECORD_OVERHEAD = 24
HEADER_OVERHEAD = 8

MEMORY_MAX = 1 << 40
LINGER_MS_MAX = 60_000
TIME_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Settings:
    """A producer's settings, as its caller gave them."""

    # A record waits this long for others to share its batch.
    linger_ms: float
    # A batch of this size takes no more records.
    batch_bytes: int
    # Bytes of all records without an outcome; more have to wait.
    memory_bytes: int

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, object, int, int], ...] = (
            ("linger_ms", self.linger_ms, 0, LINGER_MS_MAX),
            ("batch_bytes", self.batch_bytes, 1, MEMORY_MAX),
            ("memory_bytes", self.memory_bytes, 1, MEMORY_MAX),
        )
        for name, value, low, high in ranges:
            if not (isinstance(value, int | float) and low <= value <= high):
                raise InvalidArgument(f"{name} = {value!r} is not between {low} and {high}")


class BatchLimits(NamedTuple):
    """The limits of one node."""

    node: str
    record_bytes: int
    batch_bytes: int


class _Columns:
    """The open batch, which takes records."""

    __slots__ = ("due", "headers", "keys", "size", "ticket", "times", "values")

    def __init__(self, due: float) -> None:
        self.ticket = Ticket()
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Sequence[Header]] = []
        self.times: list[int] = []
        # An upper bound of the encoded bytes.
        self.size = BATCH_OVERHEAD
        # The batch waits until this time.
        self.due = due

    def encode(self) -> Ticket:
        count = len(self.values)
        self.ticket.data = encode_batch(
            self.values,
            keys=self.keys if self.keys.count(None) < count else None,
            times=self.times if count > 1 else self.times[0],
            headers=self.headers if any(self.headers) else None,
        )
        self.ticket.count = count
        return self.ticket


class Accumulator:
    """The records of one producer before their batches are numbered."""

    def __init__(
        self,
        settings: Settings,
        limits: BatchLimits,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._batch_bytes = settings.batch_bytes
        self._memory_bytes = settings.memory_bytes
        self._linger = settings.linger_ms / 1000
        self._clock = clock
        # Called, without the lock, when there is a batch to take or to wait for.
        self._wake = wake
        # Guards all fields below.
        self._lock = threading.Lock()
        self._open: _Columns | None = None
        # Complete batches, in order.
        self._sealed: deque[Ticket] = deque()
        # Bytes of all records without an outcome.
        self._held = 0
        # Callbacks of those that wait for room; each is called once.
        self._waiting: list[Callable[[], None]] = []
        # The error that refuses records after the end.
        self._ended: QuorateError | None = None

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
        with self._lock:
            # First of all: a caller told to wait for room is called back at once after the end.
            self._check_ended()
            if self._held + size > self._memory_bytes and self._held:
                return None
            columns = self._open
            stirs = False
            if columns is None or columns.size + size > self._limits.batch_bytes:
                columns = self._begin(size)
                stirs = True
            place = len(columns.values)
            columns.values.append(value)
            columns.keys.append(key)
            columns.headers.append(headers or ())
            columns.times.append(timestamp)
            columns.size += size
            self._held += size
            if columns.size >= self._batch_bytes:
                self._seal()
                stirs = True
        if stirs:
            self._wake()
        return columns.ticket, place

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
        ticket = Ticket()
        ticket.data, ticket.count = data, len(values)
        with self._lock:
            self._check_ended()
            if self._held and self._held + size > self._memory_bytes:
                return None
            self._seal()
            self._held += size
            ticket.when_known(lambda: self._release(size))
            self._sealed.append(ticket)
        self._wake()
        return ticket, WHOLE

    def _begin(self, size: int) -> _Columns:
        """Begin the batch for a record of ``size`` bytes: the open one has no room for it."""
        if BATCH_OVERHEAD + size > self._limits.batch_bytes:
            raise TooLarge(
                f"a record of up to {size} bytes in its batch; limits.batch_bytes of "
                f"{self._limits.node} is {self._limits.batch_bytes}"
            )
        self._seal()
        columns = self._open = _Columns(self._clock() + self._linger)
        columns.ticket.when_known(lambda: self._release(columns.size - BATCH_OVERHEAD))
        return columns

    def _seal(self) -> None:
        columns, self._open = self._open, None
        if columns is not None:
            self._sealed.append(columns.encode())

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
        if self._ended is not None:
            raise anew(self._ended)

    # -- room ----------------------------------------------------------------------------------

    def when_room(self, call: Callable[[], None]) -> None:
        """Call ``call`` once there is more room, or no reason to wait.

        Records that could join the open batch have to wait themselves, so lingering gains nothing.
        """
        with self._lock:
            waits = self._held > 0 and self._ended is None
            if waits:
                self._waiting.append(call)
        if waits:
            self.hurry()
        else:
            call()

    def _release(self, size: int) -> None:
        with self._lock:
            self._held -= size
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    # -- taking --------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """When there is a batch to take; None if no record waits."""
        with self._lock:
            if self._sealed:
                return 0.0
            return self._open.due if self._open is not None else None

    def take(self, now: float) -> Ticket | None:
        """The next batch that is complete, or has waited long enough."""
        with self._lock:
            if not self._sealed and self._open is not None and self._open.due <= now:
                self._seal()
            return self._sealed.popleft() if self._sealed else None

    def hurry(self) -> None:
        """Let the open batch wait for no more records."""
        with self._lock:
            stirs = self._open is not None
            if self._open is not None:
                self._open.due = 0.0
        if stirs:
            self._wake()

    @property
    def tickets(self) -> list[Ticket]:
        """All batches that wait, in order."""
        with self._lock:
            return self._pending()

    def _pending(self) -> list[Ticket]:
        return [*self._sealed, self._open.ticket] if self._open is not None else [*self._sealed]

    def end(self, outcome: QuorateError, refusal: QuorateError) -> None:
        """End waiting batches with ``outcome``, and refuse later records with ``refusal``."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = refusal
            tickets = self._pending()
            self._sealed.clear()
            self._open = None
        for ticket in tickets:
            ticket.resolve(outcome)
        # Callers that wait for room learn that waiting has no use.
        self._release(0)


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
