"""The operations of clients on one log and the answers that they got, with times.

Times are nanoseconds of one monotonic clock, the same for all processes of a host: taken before an
operation is sent and after its answer is received. A history consists of columns of plain numbers,
since it a history may have tens of millions of operations.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AT_END",
    "END_ONLY",
    "LINEARIZABLE",
    "NEVER",
    "AppendColumns",
    "AppendOperation",
    "AppendOutcome",
    "BadHistory",
    "FinalLog",
    "History",
    "ReadColumns",
    "ReadOperation",
]

# The end of an operation without an answer, and the upper bound that a read did not give.
NEVER = (1 << 63) - 1

# The way of a read. AT_END: it stopped because the log ended, not because it had enough.
# END_ONLY: it asked for the end offset and for no records.
LINEARIZABLE, AT_END, END_ONLY = 1, 2, 4


class BadHistory(ValueError):
    """The history cannot be judged: clients that keep the rules do not write down such a
    history."""


class AppendOutcome(IntEnum):
    """The outcome of an append, as the client was told."""

    # No answer, or one of unknown outcome: the append may take effect now, later or never.
    UNKNOWN = 0
    ACKED = 1
    FAILED = 2


class AppendOperation(NamedTuple):
    """One append. Its values have consecutive identities."""

    client: int
    session: int
    start: int
    end: int  # NEVER unless it was acked or failed
    value: int  # the identity of the first value
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    outcome: AppendOutcome
    offset: int  # the offset in the receipt; -1 without one, as for a DUPLICATE
    taken: int  # the number of records in the receipt
    synced: int
    producer: str
    sequence: int  # the sequence of the first value, if there is a producer
    code: str  # the error code of a failed append


class ReadOperation(NamedTuple):
    """One read that was answered. It proves that the log had at least ``low`` and at most ``high``
    records at one moment between ``start`` and ``end``."""

    client: int
    session: int
    start: int
    end: int
    first: int  # the offset that was asked for; for a read of the end only, the end
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    low: int
    high: int  # NEVER if it stopped before the end
    way: int
    replica: str


class AppendColumns:
    """A column per field of :class:`AppendOperation`; texts as numbers of the history's names."""

    def __init__(self) -> None:
        self.client = array("I")
        self.session = array("I")
        self.start = array("q")
        self.end = array("q")
        self.value = array("Q")
        self.count = array("I")
        self.outcome = array("B")
        self.offset = array("q")
        self.taken = array("I")
        self.synced = array("B")
        self.producer = array("I")
        self.sequence = array("q")
        self.code = array("I")

    def __len__(self) -> int:
        return len(self.start)


class ReadColumns:
    """A column per field of :class:`ReadOperation`, and where the values seen stand among all."""

    def __init__(self) -> None:
        self.client = array("I")
        self.session = array("I")
        self.start = array("q")
        self.end = array("q")
        self.first = array("q")
        self.count = array("I")
        self.low = array("q")
        self.high = array("q")
        self.way = array("B")
        self.replica = array("I")
        self.seen = array("Q")

    def __len__(self) -> int:
        return len(self.start)


class History:
    """All operations on one log, by all clients. An operation is named by its row."""

    def __init__(self) -> None:
        self.appends = AppendColumns()
        self.reads = ReadColumns()
        # The identities of the values that the reads saw, one read after the other.
        self.values: array[int] = array("Q")
        # Producers, replicas and codes; number 0 is the empty name.
        self.names = [""]
        self._numbers = {"": 0}

    def begin(
        self,
        client: int,
        start: int,
        value: int,
        count: int = 1,
        *,
        session: int = 0,
        producer: str = "",
        sequence: int = 0,
    ) -> int:
        """Record that an append is about to be sent; its outcome is unknown until another call
        tells it."""
        appends = self.appends
        appends.client.append(client)
        appends.session.append(session)
        appends.start.append(start)
        appends.end.append(NEVER)
        appends.value.append(value)
        appends.count.append(count)
        appends.outcome.append(AppendOutcome.UNKNOWN)
        appends.offset.append(-1)
        appends.taken.append(0)
        appends.synced.append(0)
        appends.producer.append(self._number(producer))
        appends.sequence.append(sequence)
        appends.code.append(0)
        return len(appends) - 1

    def acked(self, row: int, end: int, offset: int, taken: int, synced: int) -> None:
        """Record that the append is in the log: at ``offset``, or at -1 if the answer gives no
        offset."""
        appends = self.appends
        appends.outcome[row] = AppendOutcome.ACKED
        appends.end[row] = end
        appends.offset[row] = offset
        appends.taken[row] = taken
        appends.synced[row] = synced

    def failed(self, row: int, end: int, code: str) -> None:
        """Record that the append is not in the log and never will be."""
        appends = self.appends
        appends.outcome[row] = AppendOutcome.FAILED
        appends.end[row] = end
        appends.code[row] = self._number(code)

    def read(
        self,
        client: int,
        start: int,
        end: int,
        first: int,
        seen: Iterable[int],
        way: int,
        *,
        session: int = 0,
        replica: str = "",
    ) -> int:
        """Record that a read from ``first`` on was answered with these identities."""
        reads = self.reads
        place = len(self.values)
        self.values.extend(seen)
        count = len(self.values) - place
        # Without a record, a read past the end and one at the end look alike.
        exact = count > 0 or way & END_ONLY
        reads.client.append(client)
        reads.session.append(session)
        reads.start.append(start)
        reads.end.append(end)
        reads.first.append(first)
        reads.count.append(count)
        reads.low.append(first + count if exact else 0)
        reads.high.append(first + count if way & AT_END else NEVER)
        reads.way.append(way)
        reads.replica.append(self._number(replica))
        reads.seen.append(place)
        return len(reads) - 1

    def append_row(self, row: int) -> AppendOperation:
        appends = self.appends
        return AppendOperation(
            appends.client[row], appends.session[row], appends.start[row], appends.end[row],
            appends.value[row], appends.count[row], AppendOutcome(appends.outcome[row]),
            appends.offset[row], appends.taken[row], appends.synced[row],
            self.names[appends.producer[row]], appends.sequence[row],
            self.names[appends.code[row]],
        )  # fmt: skip

    def read_row(self, row: int) -> ReadOperation:
        reads = self.reads
        return ReadOperation(
            reads.client[row], reads.session[row], reads.start[row], reads.end[row],
            reads.first[row], reads.count[row], reads.low[row], reads.high[row],
            reads.way[row], self.names[reads.replica[row]],
        )  # fmt: skip

    def seen_by(self, row: int) -> array[int]:
        """The identities of the values that a read saw."""
        place = self.reads.seen[row]
        return self.values[place : place + self.reads.count[row]]

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number


class FinalLog(NamedTuple):
    """The records that one replica holds once the run has settled."""

    replica: str
    first: int  # the offset of the first record that is kept
    values: array[int]  # the identities of the values from there on

    @property
    def end(self) -> int:
        return self.first + len(self.values)
