"""A log in memory that keeps its promises, and clients that use it at random.

The clients write down a history without a violation: the checker's own tests begin with it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Protocol

from verification.checker.history import AT_END, END_ONLY, LINEARIZABLE, FinalLog, History
from verification.checker.values import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    # A generator that acts for a while: it yields its pauses, in nanoseconds.
    Actor = Iterator[int]
    Clock = Callable[[], int]

__all__ = ["MemoryRecorder", "Model", "Recording"]

REPLICAS = ("n1", "n2", "n3")
READ_MAX = 8
BATCH_MAX = 4
# Out of a hundred appends, so many get no answer or a refusal.
UNKNOWN_PERCENT = 9
FAILED_PERCENT = 4


class Recording(Protocol):
    """The calls of clients; a recorder that writes a file is one implementation."""

    def begin(
        self, log: str, value: int, count: int = 1, *,
        session: int = 0, producer: str = "", sequence: int = 0,
    ) -> int: ...  # fmt: skip

    def acked(self, begun: int, offset: int, count: int, synced: int) -> None: ...

    def failed(self, begun: int, code: str) -> None: ...

    def read(
        self, log: str, start: int, first: int, seen: Iterable[int], way: int, *,
        session: int = 0, replica: str = "",
    ) -> None: ...  # fmt: skip


class MemoryRecorder:
    """Keeps the operations that a client reports in the histories of the logs."""

    def __init__(self, histories: dict[str, History], client: int, clock: Clock) -> None:
        self._histories = histories
        self._client = client
        self._clock = clock
        self._begun: list[tuple[History, int]] = []

    def begin(
        self, log: str, value: int, count: int = 1, *,
        session: int = 0, producer: str = "", sequence: int = 0,
    ) -> int:  # fmt: skip
        history = self._histories.setdefault(log, History())
        row = history.begin(
            self._client, self._clock(), value, count,
            session=session, producer=producer, sequence=sequence,
        )  # fmt: skip
        self._begun.append((history, row))
        return len(self._begun) - 1

    def acked(self, begun: int, offset: int, count: int, synced: int) -> None:
        history, row = self._begun[begun]
        history.acked(row, self._clock(), offset, count, synced)

    def failed(self, begun: int, code: str) -> None:
        history, row = self._begun[begun]
        history.failed(row, self._clock(), code)

    def read(
        self, log: str, start: int, first: int, seen: Iterable[int], way: int, *,
        session: int = 0, replica: str = "",
    ) -> None:  # fmt: skip
        history = self._histories.setdefault(log, History())
        end = self._clock()
        history.read(self._client, start, end, first, seen, way, session=session, replica=replica)


@dataclass(slots=True)
class _Log:
    name: str
    values: array[int] = field(default_factory=lambda: array("Q"))
    # The offsets at which the batches begin and the last one ends.
    edges: list[int] = field(default_factory=lambda: [0])
    # By producer: the next sequence, and the offset of the last batch.
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    # The number of records that each replica has applied.
    replicas: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REPLICAS, 0))

    def take(self, values: range, producer: str = "", sequence: int = 0) -> int:
        """Append the batch, unless the producer's batch is there; return its offset."""
        offset = len(self.values)
        if producer:
            known, last = self.producers.get(producer, (0, 0))
            if sequence < known:
                return last
            self.producers[producer] = (sequence + len(values), offset)
        self.values.extend(values)
        self.edges.append(len(self.values))
        return offset


@dataclass(slots=True)
class _Session:
    """The number of records that the answers to one session's calls have proved to be in the
    log."""

    number: int
    lengths: dict[str, int] = field(default_factory=dict)

    def knows(self, log: _Log, length: int) -> None:
        self.lengths[log.name] = max(length, self.lengths.get(log.name, 0))


class _Client:
    def __init__(self, number: int, recorder: Recording) -> None:
        self.number = number
        self.recorder = recorder
        self.sessions = [_Session(0), _Session(1)]
        self._values = count()

    def new_values(self, count: int) -> range:
        numbers = [next(self._values) for _ in range(count)]
        first = identity_of(self.number, numbers[0])
        return range(first, first + count)


class Model:
    """A run of so many operations by so many clients, in virtual time.

    Every client has three threads: two share a session, one belongs to a producer.
    """

    def __init__(
        self,
        seed: int | str,
        operations: int,
        recorder: Callable[[int, Clock], Recording],
        clients: int = 3,
        logs: tuple[str, ...] = ("orders",),
    ) -> None:
        self.now = 0
        self._random = Random(seed)
        self._left = operations
        self._logs = [_Log(name) for name in logs]
        self._turns: list[tuple[int, int, Actor]] = []
        self._ties = count()
        for number in range(clients):
            client = _Client(number, recorder(number, lambda: self.now))
            for session in (*client.sessions, client.sessions[0]):
                self._enter(self._use(client, session))
            self._enter(self._produce(client, f"producer-{number}"))

    def run(self) -> None:
        while self._turns:
            self.now, _, actor = heappop(self._turns)
            self._enter(actor)

    def finals(self, trimmed: int = 0) -> dict[str, list[FinalLog]]:
        """The dumps of the replicas, without the batches below the last edge at or before
        ``trimmed``."""
        finals = {}
        for log in self._logs:
            first = max(edge for edge in log.edges if edge <= trimmed)
            finals[log.name] = [FinalLog(name, first, log.values[first:]) for name in REPLICAS]
        return finals

    # -- threads -------------------------------------------------------------------------------

    def _enter(self, actor: Actor) -> None:
        wait = next(actor, None)
        if wait is not None:
            heappush(self._turns, (self.now + wait, next(self._ties), actor))

    def _wait(self) -> int:
        return 1 + int(self._random.random() * 1_000_000)

    def _use(self, client: _Client, session: _Session) -> Actor:
        random = self._random
        while self._left > 0:
            self._left -= 1
            yield self._wait()
            log = random.choice(self._logs)
            match random.randrange(6):
                case 0 | 1 | 2:
                    values = client.new_values(random.choice((1, 1, BATCH_MAX)))
                    yield from self._append(client, session, log, values)
                case 3:
                    yield from self._ask_end(client, session, log)
                case 4:
                    yield from self._read(client, session, log)
                case _:
                    yield from self._read_replica(client, session, log)

    def _produce(self, client: _Client, producer: str) -> Actor:
        """Append one batch after the other; send each again until it is acknowledged."""
        random = self._random
        log = random.choice(self._logs)
        session = client.sessions[1]
        sequence = 0
        while self._left > 0:
            values = client.new_values(random.randint(1, BATCH_MAX))
            done = False
            while not done:
                self._left -= 1
                yield self._wait()
                done = yield from self._append(client, session, log, values, producer, sequence)
            sequence += len(values)

    # -- operations ----------------------------------------------------------------------------

    def _append(
        self, client: _Client, session: _Session, log: _Log, values: range,
        producer: str = "", sequence: int = 0,
    ) -> Generator[int, None, bool]:  # fmt: skip
        """Append once; return whether the append was acknowledged."""
        recorder, fate = client.recorder, self._random.randrange(100)
        begun = recorder.begin(
            log.name, values[0], len(values),
            session=session.number, producer=producer, sequence=sequence,
        )  # fmt: skip
        yield self._wait()
        if fate < FAILED_PERCENT:
            recorder.failed(begun, "BUSY")
            return False
        if fate < FAILED_PERCENT + UNKNOWN_PERCENT:
            if fate % 3:  # the batch arrives, perhaps long after the client has given up
                self._enter(self._arrive(log, values, producer, sequence))
            yield self._wait()
            return False
        known = log.producers.get(producer, (0, 0))[0] > sequence
        offset = log.take(values, producer, sequence)
        yield self._wait()
        told = -1 if known and fate % 2 else offset
        recorder.acked(begun, told, len(values), 2 + fate % 2)
        session.knows(log, offset + len(values))
        return True

    def _arrive(self, log: _Log, values: range, producer: str, sequence: int) -> Actor:
        yield self._wait() * self._random.choice((1, 10))
        log.take(values, producer, sequence)

    def _ask_end(self, client: _Client, session: _Session, log: _Log) -> Actor:
        start = self.now
        yield self._wait()
        end = len(log.values)
        yield self._wait()
        way = LINEARIZABLE | AT_END | END_ONLY
        client.recorder.read(log.name, start, end, (), way, session=session.number)
        session.knows(log, end)

    def _read(self, client: _Client, session: _Session, log: _Log) -> Actor:
        start = self.now
        yield self._wait()
        yield from self._show(client, session, log, start, len(log.values), LINEARIZABLE)

    def _read_replica(self, client: _Client, session: _Session, log: _Log) -> Actor:
        """Read the records that a replica has applied, once it has all that the session knows
        of."""
        start, known = self.now, session.lengths.get(log.name, 0)
        replica = self._random.choice(REPLICAS)
        yield self._wait()
        reached = self._random.choice(log.edges[-10:])
        needed = log.edges[bisect_left(log.edges, known)]
        length = log.replicas[replica] = max(log.replicas[replica], reached, needed)
        yield from self._show(client, session, log, start, length, 0, replica)

    def _show(
        self, client: _Client, session: _Session, log: _Log, start: int, length: int,
        way: int, replica: str = "",
    ) -> Actor:  # fmt: skip
        first = max(0, length + self._random.randint(-READ_MAX, 1))
        stop = min(length, first + self._random.randint(1, READ_MAX))
        seen = log.values[first:stop]
        if first + len(seen) >= length:
            way |= AT_END
        yield self._wait()
        number = session.number
        client.recorder.read(log.name, start, first, seen, way, session=number, replica=replica)
        if seen:
            session.knows(log, stop)
