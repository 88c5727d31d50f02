"""What all clients of a node share: its logs, its limits, and its time.

In one pass of the event loop clients get a share of work, peers have what is left of it. Whoever
comes after it is used up waits for the next pass, and is not read from meanwhile; those who wait
take turns, one frame each.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.batch import Batch, batch_count
from quorate.errors import Busy, QuorateError, TooLarge
from quorate.server.calls import Calls
from quorate.server.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.metrics import Metrics
    from quorate.net.connection import Connection
    from quorate.server.keeper import Keeper
    from quorate.server.members import Members
    from quorate.server.presence import Presence
    from quorate.server.replicas import Replicas
    from quorate.server.settings import Settings

__all__ = ["Service"]

log = logging.getLogger(__name__)

# What clients may have done in one pass of the loop: some milliseconds' work.
PASS_FRAMES = 4096
PASS_BYTES = 4 << 20
# Appends of one connection that are proposed together.
TOGETHER_BYTES = 256 << 10
# Answers that wait in memory for clients that do not read. Above the first, reads are BUSY for
# whoever has more than his share of it; above the second, whoever has most is let go.
UNSENT_BYTES_MAX = 256 << 20
UNSENT_BYTES_END = 512 << 20
# Of one connection: reads beyond that wait until it was read. Little enough that even over a slow
# line nobody waits for an answer until it is given up.
UNREAD_BYTES_MAX = 16 << 20
# Calls without an answer that are longer than the first, in bytes; more is BUSY. One connection
# gets half of them.
SHORT_CALL_BYTES = 4 << 10
CALL_BYTES_MAX = 64 << 20


class Service:
    """Everything that a session needs of its node."""

    def __init__(
        self,
        settings: Settings,
        members: Members,
        replicas: Replicas,
        keeper: Keeper,
        presence: Presence,
        metrics: Metrics,
    ) -> None:
        self.replicas = replicas
        self.keeper = keeper
        self.presence = presence
        self.metrics = metrics
        self.calls = Calls(members, replicas, keeper)
        limits = settings.config.limits
        self._record_bytes = settings.record_bytes
        self._batch_bytes = limits.batch_bytes
        self._appends_max = limits.pending_appends
        self._bytes_max = limits.pending_bytes
        # Their rows count, too: half of a limit leaves room for those of the smallest batches.
        self.together_bytes = min(TOGETHER_BYTES, limits.batch_bytes // 2)
        # Appends of all sessions without an answer.
        self.pending_appends = 0
        self.pending_bytes = 0
        # Bytes of their long calls without an answer.
        self.call_bytes = 0
        self.sessions: set[Session] = set()
        # At most so many bytes of answers have not left: what had not when it was last counted, and
        # all that was answered since.
        self.unsent_most = 0
        # Far below where a connection ends because the other side does not read, and not below
        # where it is clogged: who waits for it to be clear again would wait for nothing.
        network = settings.network
        unread = min(UNREAD_BYTES_MAX, network.write_buffer_bytes // 2)
        self.unread_bytes = max(unread, network.write_pause_bytes)
        self._loop = asyncio.get_running_loop()
        # What is left of this pass, and whether the end of it was asked for.
        self._frames_left = PASS_FRAMES
        self._bytes_left = PASS_BYTES
        self._pass_ends = False
        # Sessions with frames that wait, in the order of their turns.
        self._waiting: dict[Session, None] = {}
        # Sessions with something to send.
        self._unsent: list[Session] = []

    def begin(self, connection: Connection) -> None:
        session = Session(self, connection)
        self.sessions.add(session)
        connection.handler = session

    def ended(self, session: Session) -> None:
        self.sessions.discard(session)
        self.wait_no_more(session)

    # -- fairness ------------------------------------------------------------------------------

    def grants(self, size: int) -> bool:
        """Whether a frame of ``size`` bytes may be worked on now."""
        if self.frames_left <= 0:
            return False
        self.spend(1, size)
        return True

    @property
    def frames_left(self) -> int:
        """How many may be worked on in this pass."""
        return self._frames_left if self._bytes_left > 0 else 0

    def spend(self, frames: int, size: int) -> None:
        """So much of this pass is used."""
        self._frames_left -= frames
        self._bytes_left -= size
        self._end_pass()

    def wait(self, session: Session) -> None:
        """``session`` has frames that were not granted: it has its turn in the next pass."""
        self._waiting[session] = None
        self._end_pass()

    def wait_no_more(self, session: Session) -> None:
        self._waiting.pop(session, None)

    def _end_pass(self) -> None:
        if not self._pass_ends:
            self._pass_ends = True
            self._loop.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._pass_ends = False
        self._frames_left, self._bytes_left = PASS_FRAMES, PASS_BYTES
        waiting = self._waiting
        while waiting:
            session = next(iter(waiting))
            if not self.grants(session.next_size()):
                return
            del waiting[session]
            session.serve_one()

    # -- checks --------------------------------------------------------------------------------

    def check_append(self, session: Session, size: int) -> None:
        """Raises what an append of ``size`` bytes is refused with before it is looked at."""
        if size > self._batch_bytes:
            raise TooLarge(f"batch of {size} bytes, limit {self._batch_bytes} (limits.batch_bytes)")
        if self.pending_appends >= self._appends_max:
            raise Busy(f"{self.pending_appends} appends wait already (limits.pending_appends)")
        if self.pending_bytes + size > self._bytes_max:
            raise Busy(f"{self.pending_bytes} bytes wait already (limits.pending_bytes)")
        # Nobody may keep all others out.
        if session.pending_appends > self._appends_max // 2:
            raise Busy(
                f"{session.pending_appends} appends of this connection wait already (half of "
                f"limits.pending_appends)"
            )
        if session.pending_bytes > self._bytes_max // 2:
            raise Busy(
                f"{session.pending_bytes} bytes of this connection wait already (half of "
                f"limits.pending_bytes)"
            )

    def takes(self, session: Session, appends: int, size: int) -> bool:
        """Whether all of these are within every limit: none of them would be refused."""
        return (
            self.pending_appends + appends <= self._appends_max
            and self.pending_bytes + size <= self._bytes_max
            and session.pending_appends + appends <= self._appends_max // 2
            and session.pending_bytes + size <= self._bytes_max // 2
        )

    def count_some(self, batches: Sequence[bytes]) -> list[int]:
        """The records of each batch, up to the first with which something is wrong."""
        counts: list[int] = []
        # What is wrong finds out whoever takes it by itself.
        with suppress(QuorateError):
            counts.extend(map(self.count_records, batches))
        return counts

    def count_records(self, data: bytes) -> int:
        """The records of a batch, all of which is checked. Raises what is wrong with it."""
        limit = self._record_bytes
        # A record is shorter than its batch, so only a long batch can have a long one.
        if len(data) <= limit:
            return batch_count(data)
        batch = Batch.parse(data)
        if (size := _too_long(batch, limit)) is not None:
            raise TooLarge(f"record of {size} bytes, limit {limit} (limits.record_bytes)")
        return batch.count

    def admit_call(self, session: Session, size: int) -> int:
        """What a call of ``size`` bytes counts until it has its answer. Raises what it is refused
        with before it is looked at."""
        if size <= SHORT_CALL_BYTES:
            return 0
        if self.call_bytes + size > CALL_BYTES_MAX:
            raise Busy(f"{self.call_bytes} bytes of calls wait already, limit {CALL_BYTES_MAX}")
        # Nobody may keep all others out.
        if session.call_bytes + size > CALL_BYTES_MAX // 2:
            raise Busy(
                f"{session.call_bytes} bytes of calls of this connection wait already, limit "
                f"{CALL_BYTES_MAX // 2}"
            )
        return size

    def check_fetch(self, session: Session) -> None:
        """Raises what a read is refused with before it is done."""
        if self.unsent_most <= UNSENT_BYTES_MAX:
            return
        self.unsent_most = sum(one.unsent for one in self.sessions)
        if self.unsent_most <= UNSENT_BYTES_MAX:
            return
        if session.unsent * len(self.sessions) > UNSENT_BYTES_MAX:
            raise Busy(
                f"{self.unsent_most} bytes wait for clients that read slowly, {session.unsent} of "
                f"them for this one"
            )
        # Who reads what he asked for does not wait for those who do not.
        while self.unsent_most > UNSENT_BYTES_END:
            self._let_go(max(self.sessions, key=lambda one: one.unsent))

    def _let_go(self, session: Session) -> None:
        connection, unsent = session.connection, session.unsent
        log.warning("client reads too slowly address=%s bytes=%d", connection.address, unsent)
        self.unsent_most -= unsent
        self.ended(session)
        connection.abort(Busy(f"{connection.address} reads too slowly: {unsent} bytes wait for it"))

    # -- answers -------------------------------------------------------------------------------

    def flush_soon(self, session: Session) -> None:
        """Everything that is answered until the loop comes round leaves in one write."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(session)

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for session in unsent:
            session.flush()


def _too_long(batch: Batch, limit: int) -> int | None:
    """Bytes of a record with more than ``limit`` of them; None if there is none.

    By bisection: where all records together are within the limit, none is above it. So a batch of
    a million small records takes as few steps as one of ten large ones.
    """
    values, keys, headers = batch.values.offsets, batch.keys, batch.headers

    def end(place: int) -> int:
        """Bytes of key, value and headers of all records before the one at ``place``."""
        size = _offset(values, place)
        if keys is not None:
            size += _offset(keys.column.offsets, place)
        if headers is not None:
            row = _offset(headers.offsets, place)
            size += _offset(headers.names.offsets, row) + _offset(headers.contents.offsets, row)
        return size

    ranges = [(0, batch.count)]
    while ranges:
        start, stop = ranges.pop()
        size = end(stop) - end(start)
        if size > limit:
            if stop - start == 1:
                return size
            middle = (start + stop) // 2
            ranges += ((start, middle), (middle, stop))
    return None


def _offset(offsets: memoryview, place: int) -> int:
    return int.from_bytes(offsets[4 * place : 4 * place + 4], "little")
