"""Reading a range of a log: the offsets, the pieces as replicas store them, then the records.

Only records are copied: a piece is a view of the frame in which it came, and Arrow takes it as it
is.
"""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from quorate.batch import Batch, open_single
from quorate.client.results import Record
from quorate.errors import Corrupt, InvalidArgument, OffsetOutOfRange
from quorate.wire.requests import Fetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.client.node_connection import NodeConnection
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.entry_body import EntryView
    from quorate.wire.requests import Extent, Records

    Start = int | Literal["earliest", "latest"]

__all__ = ["BatchRange", "Piece", "Reader", "ReplicaChoice", "records_of"]

# The first answer is short, as many reads want a few records only; answers grow and shrink by a
# factor.
FIRST_BYTES = 64 << 10
GROWTH = 8
# This is enough for the longest answer: in answers a quarter as long, a replica takes twice the
# time for the same bytes. A larger entry comes alone.
FETCH_BYTES = 4 << 20
# An answer within SOON_S may be followed by a longer one, and one that took over LATE_S is followed
# by a shorter one: on a slow line a long answer is given up before it is there.
SOON_S = 0.25
LATE_S = 1.0


class BatchRange(NamedTuple):
    """A stored batch, and the range of its records asked for."""

    batch: Batch
    # Offset of the batch's first record.
    offset: int
    append_time: int
    # Places in the batch; the end is exclusive.
    first: int
    end: int


class Piece(NamedTuple):
    """A stored entry, and the range of its offsets asked for."""

    entry: EntryView
    # Offset of the entry's first record, and after its last one.
    offset: int
    end: int
    start: int
    stop: int

    def parts(self) -> Iterator[BatchRange]:
        """Parse each batch when it is taken, in the caller's thread."""
        header, offset = self.entry.header, self.offset
        for data, records in self.entry.batches():
            first, end = max(self.start - offset, 0), min(self.stop - offset, records)
            if first < end:
                try:
                    # The entry's checksum was checked when it came.
                    batch = Batch.parse(data, proved=True)
                except InvalidArgument as error:
                    raise Corrupt(f"entry {header.position.index}: {error}") from None
                if batch.count != records:
                    raise Corrupt(
                        f"entry {header.position.index}: a batch of {batch.count} records, "
                        f"listed with {records}"
                    )
                yield BatchRange(batch, offset, self.entry.append_time, first, end)
            offset += records


def records_of(pieces: Iterable[Piece]) -> Iterator[Record]:
    """All records asked for. Those of a larger batch take no Python step each."""
    return chain.from_iterable(map(_records_of_piece, pieces))


def _records_of_piece(piece: Piece) -> Iterable[Record]:
    """The records of one piece. Batches of one record, as of small appends, have a faster way."""
    if piece.end - piece.offset == piece.entry.header.runs:
        records = _single_records(piece)
        if records is not None:
            return records
    return chain.from_iterable(map(_records_of_part, piece.parts()))


def _single_records(piece: Piece) -> list[Record] | None:
    """The records of an entry whose batches have one each; None if one has more than a value."""
    entry, offset = piece.entry, piece.offset
    append_time, make = entry.append_time, tuple.__new__
    records: list[Record] = []
    # An answer may hold entries wholly behind the range asked for.
    first, end = max(piece.start - offset, 0), max(piece.stop - offset, 0)
    for batch, listed in entry.copied()[first:end]:
        single = open_single(batch)
        if single is None or listed != 1:
            return None
        time, value = single
        place = max(offset, piece.start) + len(records)
        # The same as Record(…), at half the cost.
        records.append(make(Record, (place, time, None, value, [], append_time)))
    return records


def _records_of_part(part: BatchRange) -> Iterator[Record]:
    batch, offset, append_time, first, end = part
    times, keys, values, headers = batch.columns(first, end)
    # The caller may change a record's list.
    lists = map(list, headers)
    offsets = range(offset + first, offset + end)
    rows = zip(offsets, times, keys, values, lists, repeat(append_time), strict=False)
    # The same as Record(*row), at half the cost.
    return map(tuple.__new__, repeat(Record), rows)


def _is_offset(given: object) -> bool:
    return isinstance(given, int) and given >= 0


class ReplicaChoice(Protocol):
    """The replica that gives each answer of one reader. It has only data: it outlives a fork."""

    def replica(self, *, more: bool) -> str | None:
        """The replica to ask, which may lag. None is the leader, or another node in its place.

        ``more`` means that the log has more records than the last answer brought.
        """

    async def failed(self, session: Session, offset: int, deadline: float) -> bool:
        """Learn that the replica did not give the record at ``offset``. Returns whether to choose
        again; otherwise the leader is asked. ``deadline`` is a time by the clock of the loop."""


class _LeaderFirst:
    """The first answer is the leader's, which knows best where the log ends. Once more is left than
    one answer holds, any replica has it, and every reader takes another one."""

    def __init__(self, route: Route) -> None:
        self._route = route
        # The replica to ask while more is left than one answer holds; None before that.
        self._replica: str | None = None

    def replica(self, *, more: bool) -> str | None:
        if not more or len(self._route.nodes) == 1:
            return None
        if self._replica is None:
            self._replica = self._route.next_replica()
        return self._replica

    async def failed(self, session: Session, offset: int, deadline: float) -> bool:
        self._replica = self._route.next_replica()
        return False


class _FetchRequest:
    """One request of a reader, sent to one node after the other until one has answered it.

    ``extent`` is for a reader that looks ahead. It is done once the header of a long answer has
    arrived, while the records are still on their way. Only the first answer counts: a node that is
    asked later may give less.
    """

    __slots__ = ("_extent", "_fetch", "_route")

    def __init__(self, route: Route, fetch: Fetch, extent: asyncio.Future[Extent] | None) -> None:
        self._route = route
        self._fetch = fetch
        self._extent = extent

    async def ask(self, at: NodeConnection) -> Records:
        """Make one attempt."""
        fetch = self._fetch
        # If there is a retry, the answer may have been too long for its time.
        self._fetch = fetch._replace(bytes_max=max(fetch.bytes_max // GROWTH, FIRST_BYTES))
        records = await at.fetch(fetch, self._extent)
        if not _dense(records, fetch.offset):
            raise Corrupt(f"{at.node}: its records from offset {fetch.offset} on have a gap")
        self._route.saw(records.end_offset)
        return records


def _dense(records: Records, offset: int) -> bool:
    """Whether the record at ``offset`` and all behind it are there, or ``offset`` is the end."""
    if not records.rows:
        return offset >= records.end_offset
    first, count, _ = records.rows[0]
    ends = [start + count for start, count, _ in records.rows]
    starts = [start for start, _, _ in records.rows]
    return first <= offset < first + count and ends[:-1] == starts[1:]


class Reader:
    """Reads the records between two offsets of a log. It has only data: it outlives a fork.

    ``replicas`` is given for a range that is known to be committed: no answer shortens it.
    """

    def __init__(
        self,
        route: Route,
        start: Start = 0,
        stop: int | None = None,
        *,
        follow: bool = False,
        linearizable: bool = False,
        replicas: ReplicaChoice | None = None,
    ) -> None:
        if not isinstance(start, int) and start not in ("earliest", "latest"):
            raise InvalidArgument(f'start = {start!r} is no offset, "earliest" or "latest"')
        if stop is not None and not _is_offset(stop):
            raise InvalidArgument(f"stop = {stop!r} is no offset")
        self._route = route
        self._start = start
        self._stop = stop
        self._follow = follow
        # Whether the read ends at the end of the log that is seen first.
        self._ends = not follow and replicas is None
        self._linearizable = linearizable
        self._replicas = replicas or _LeaderFirst(route)
        # Whether the log had more than the last answer brought.
        self._more = False
        # Bytes of the next answer.
        self._bytes = FIRST_BYTES

    async def next(
        self,
        session: Session,
        offset: int | None,
        timeout: float,  # noqa: ASYNC109  # kept by the attempts
        extent: asyncio.Future[Extent] | None = None,
    ) -> list[Piece] | None:
        """The pieces from ``offset`` on, or from the start if it is None; None at the end.
        ``timeout`` is for each answer that is waited for, with the search for the start.

        ``extent`` is done once the header of a long answer has arrived, see :meth:`expect`.
        """
        left_s = timeout
        if offset is None:
            deadline = session.clock() + timeout
            offset = await self._begin(session, deadline)
            left_s = deadline - session.clock()
        while self._stop is None or offset < self._stop:
            began = session.clock()
            records = await self._fetch(session, offset, left_s, extent)
            left_s = timeout
            self._adapt(session.clock() - began)
            if records.rows:
                return self._pieces(records, offset)
        return None

    async def _begin(self, session: Session, deadline: float) -> int:
        start = self._start
        if isinstance(start, int) and start >= 0 and not self._linearizable:
            return start
        ends = await session.ends(self._route, barrier=self._linearizable, deadline=deadline)
        self._end_at(ends.end)
        if start == "earliest":
            return ends.first
        if start == "latest":
            return ends.end
        if start < 0:
            return max(ends.first, ends.end + start)
        if start > ends.end:
            raise OffsetOutOfRange(f"offset {start}; {self._route.name} ends at {ends.end}")
        return start

    @property
    def long(self) -> bool:
        """Whether the next answer may be a long one."""
        return self._bytes == FETCH_BYTES

    async def _fetch(
        self,
        session: Session,
        offset: int,
        timeout: float,  # noqa: ASYNC109  # kept by the attempts
        extent: asyncio.Future[Extent] | None,
    ) -> Records:
        route, replicas = self._route, self._replicas
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while (replica := replicas.replica(more=self._more)) is not None:
            # Its end need not be the newest, but behind the offset.
            fetch = Fetch(0, route.incarnation, offset, self._bytes, session_end=offset + 1)
            ask = _FetchRequest(route, fetch, extent).ask
            retries = session.reading(route, deadline - clock())
            answer = await session.ask_node(retries, route, replica, ask)
            if answer is not None:
                return answer
            if not await replicas.failed(session, offset, deadline):
                break
        wait_s = session.retry_limits.follow_s if self._follow else 0.0
        wait_ms = int(1000 * wait_s)
        fetch = Fetch(0, route.incarnation, offset, self._bytes, wait_ms, route.session_end)
        ask = _FetchRequest(route, fetch, extent).ask
        retries = session.reading(route, deadline - clock(), wait_s)
        records = await session.carry_out(retries, route, ask)
        self._end_at(records.end_offset)
        return records

    def _adapt(self, took_s: float) -> None:
        """Ask for more bytes at once, or for fewer, by how long the last answer took."""
        if took_s < SOON_S:
            self._bytes = min(self._bytes * GROWTH, FETCH_BYTES)
        elif took_s > LATE_S:
            self._bytes = max(self._bytes // GROWTH, FIRST_BYTES)

    def _end_at(self, end: int) -> None:
        """Read up to the end that was seen first."""
        if self._ends:
            self._stop = end if self._stop is None else min(end, self._stop)

    def expect(self, extent: Extent) -> int:
        """Learn from the header of an answer. Returns the offset behind its records."""
        self._learn(extent)
        return self._wanted(extent.end)

    def _wanted(self, end: int) -> int:
        return end if self._stop is None else min(end, self._stop)

    def _learn(self, extent: Extent) -> None:
        """Learn whether more follows ``extent``, and how many bytes to ask for."""
        self._more = extent.end < extent.end_offset
        if self._stop is not None:
            # An estimate by the records before: those behind the stop are not wanted.
            left = (self._stop - extent.end) * extent.size // (extent.end - extent.offset)
            self._bytes = min(self._bytes, max(left, FIRST_BYTES))

    def _pieces(self, records: Records, start: int) -> list[Piece]:
        extent = records.extent
        self._learn(extent)
        stop = self._wanted(extent.end)
        return [
            Piece(entry, offset, offset + count, start, stop)
            for offset, count, entry in records.rows
        ]
