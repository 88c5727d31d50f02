"""Reading a range of a log: which offsets, in pieces as replicas store them, then as records."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.batch import Batch
from quorate.client.results import Record
from quorate.entry import unpack_batches
from quorate.errors import InvalidArgument, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.entry import Entry
    from quorate.wire.requests import Records

    Start = int | Literal["earliest", "latest"]

__all__ = ["Piece", "Reader"]


class Piece(NamedTuple):
    """A stored entry, and which offsets of it were asked for."""

    entry: Entry
    # Of the entry's first record.
    offset: int
    start: int
    stop: int

    def records(self) -> Iterator[Record]:
        """Decoded as they are taken, in the thread of whoever takes them."""
        offset = self.offset
        for data, count in unpack_batches(self.entry):
            first, last = max(self.start - offset, 0), min(self.stop - offset, count)
            if first < last:
                yield from self._of_batch(Batch.parse(data), offset, first, last)
            offset += count

    def _of_batch(self, batch: Batch, offset: int, first: int, last: int) -> Iterator[Record]:
        append_time = self.entry.append_time
        for place, record in enumerate(islice(batch, first, last), first):
            timestamp, key, value, headers = record
            yield Record(offset + place, timestamp, key, value, list(headers), append_time)


class Reader:
    """Goes through a log from one offset to another. Nothing but data: it outlives a fork."""

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
        if stop is not None and stop < 0:
            raise InvalidArgument(f"stop = {stop!r} is no offset")
        self._route = route
        self._start = start
        self._stop = stop
        self._follow = follow
        self._linearizable = linearizable
        # The next offset; None before the first piece.
        self._offset: int | None = None

    async def next(self, session: Session) -> list[Piece] | None:
        """The next pieces; None at the end."""
        if self._offset is None:
            self._offset = await self._begin(session)
        while self._stop is None or self._offset < self._stop:
            wait_s = session.patience.follow_s if self._follow else 0.0
            records = await session.fetch(self._route, self._offset, wait_s)
            self._end_at(records.end_offset)
            if records.rows:
                return self._pieces(records, self._offset)
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

    def _end_at(self, end: int) -> None:
        """Unless it is followed, a log is read up to the end that was seen first."""
        if not self._follow:
            self._stop = end if self._stop is None else min(end, self._stop)

    def _pieces(self, records: Records, start: int) -> list[Piece]:
        last, count, _ = records.rows[-1]
        end = last + count
        stop = end if self._stop is None else min(end, self._stop)
        self._offset = stop
        return [Piece(entry, offset, start, stop) for offset, _, entry in records.rows]
