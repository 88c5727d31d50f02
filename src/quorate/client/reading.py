"""Reading a range of a log: the offsets, the pieces as replicas store them, then the records.

Only records are copied: a piece is a view of the frame in which it came, and Arrow takes it as it
is.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.batch import Batch, open_single
from quorate.client.results import Record
from quorate.client.session import FIRST_BYTES, GROWTH
from quorate.errors import Corrupt, InvalidArgument, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quorate.client.requests import Begun
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.entry import EntryView
    from quorate.wire.requests import Extent, Records

    Start = int | Literal["earliest", "latest"]

__all__ = ["Part", "Piece", "Reader", "records_of"]

# The first answer is short, as many reads want a few records only. This is enough for the longest
# answer: in answers a quarter as long, a replica takes twice the time for the same bytes. A larger
# entry comes alone.
FETCH_BYTES = 4 << 20
# An answer within SOON_S may be followed by a longer one, and one that took over LATE_S is followed
# by a shorter one: on a slow line a long answer is given up before it is there.
SOON_S = 0.25
LATE_S = 1.0


class Part(NamedTuple):
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

    def parts(self) -> Iterator[Part]:
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
                yield Part(batch, offset, self.entry.append_time, first, end)
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


def _records_of_part(part: Part) -> Iterator[Record]:
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


class Reader:
    """Reads the records between two offsets of a log. It has only data: it outlives a fork.

    The first answer is the leader's, which knows best where the log ends. Once more is left than
    one answer holds, any replica has it, and every reader takes another one.
    """

    def __init__(
        self,
        route: Route,
        start: Start = 0,
        stop: int | None = None,
        *,
        follow: bool = False,
        linearizable: bool = False,
    ) -> None:
        if not isinstance(start, int) and start not in ("earliest", "latest"):
            raise InvalidArgument(f'start = {start!r} is no offset, "earliest" or "latest"')
        if stop is not None and not _is_offset(stop):
            raise InvalidArgument(f"stop = {stop!r} is no offset")
        self._route = route
        self._start = start
        self._stop = stop
        self._follow = follow
        self._linearizable = linearizable
        # The replica to ask while more is left than one answer holds; None before that.
        self._replica: str | None = None
        # Whether the replica had more than its last answer brought.
        self._more = False
        # Bytes of the next answer.
        self._bytes = FIRST_BYTES

    async def next(
        self,
        session: Session,
        offset: int | None,
        timeout: float,  # noqa: ASYNC109  # kept by the attempts
        begun: Callable[[int], None] | None = None,
    ) -> list[Piece] | None:
        """The pieces from ``offset`` on, or from the start if it is None; None at the end.
        ``timeout`` is for each answer that is waited for.

        If they are long, ``begun`` is called with their end before they are there. It is called
        again if another replica is asked in the end, and may give less.
        """
        if offset is None:
            offset = await self._begin(session)
        while self._stop is None or offset < self._stop:
            began = session.clock()
            told = partial(self._tell, begun) if self._bytes == FETCH_BYTES and begun else None
            records = await self._fetch(session, offset, timeout, told)
            self._adapt(session.clock() - began)
            if records.rows:
                return self._pieces(records, offset)
        return None

    async def _begin(self, session: Session) -> int:
        start = self._start
        if isinstance(start, int) and start >= 0 and not self._linearizable:
            return start
        ends = await session.ends(self._route, barrier=self._linearizable)
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

    async def _fetch(
        self, session: Session, offset: int, left_s: float, begun: Begun | None
    ) -> Records:
        if self._more and len(self._route.nodes) > 1:
            began = session.clock()
            if self._replica is None:
                self._replica = self._route.next_replica()
            records = await session.fetch_from(
                self._replica, self._route, offset, self._bytes, begun=begun, timeout=left_s
            )
            if records is not None:
                return records
            self._replica = self._route.next_replica()
            left_s -= session.clock() - began
        wait_s = session.patience.follow_s if self._follow else 0.0
        records = await session.fetch(
            self._route, offset, self._bytes, wait_s, begun=begun, timeout=left_s
        )
        self._end_at(records.end_offset)
        return records

    def _adapt(self, took_s: float) -> None:
        """Ask for more bytes at once, or for fewer, by how long the last answer took."""
        if took_s < SOON_S:
            self._bytes = min(self._bytes * GROWTH, FETCH_BYTES)
        elif took_s > LATE_S:
            self._bytes = max(self._bytes // GROWTH, FIRST_BYTES)

    def _end_at(self, end: int) -> None:
        """Without ``follow``, read up to the end that was seen first."""
        if not self._follow:
            self._stop = end if self._stop is None else min(end, self._stop)

    def _tell(self, begun: Callable[[int], None], extent: Extent) -> None:
        self._learn(extent)
        begun(self._wanted(extent.end))

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
