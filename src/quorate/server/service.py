"""The state that all clients of a node share: its logs, its limits, and its work per loop pass.

In each pass of the event loop, clients get a share of the work, and peers the rest. A client whose
frame comes after the share is used up waits for the next pass, and its connection is not read
meanwhile; waiting clients take turns, one frame each.
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

# Maximum work for clients in one pass of the loop: some milliseconds.
PASS_FRAMES = 4096
PASS_BYTES = 4 << 20
# Maximum bytes of appends of one connection that are proposed together.
TOGETHER_BYTES = 256 << 10
# Bytes of answers in memory for clients that do not read. Above the first, reads are BUSY for
# connections that hold more than their share; above the second, the connection that holds most is
# closed.
UNSENT_BYTES_MAX = 256 << 20
UNSENT_BYTES_END = 512 << 20
# Unread bytes of one connection above which its reads wait until the client has read. The limit is
# low enough that even over a slow line no answer takes so long that its client gives up.
UNREAD_BYTES_MAX = 16 << 20
# Calls longer than the first are counted until they have an answer; the second limits their bytes,
# and more is BUSY. One connection gets half of that.
SHORT_CALL_BYTES = 4 << 10
CALL_BYTES_MAX = 64 << 20


class Service:
    """The parts of the node that its client sessions use, and their common limits."""

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
        # The rows of the batches count, too: half of the limit leaves room for those of the
        # smallest.
        self.together_bytes = min(TOGETHER_BYTES, limits.batch_bytes // 2)
        # Appends of all sessions without an answer.
        self.pending_appends = 0
        self.pending_bytes = 0
        # Bytes of the long calls of all sessions without an answer.
        self.call_bytes = 0
        self.sessions: set[Session] = set()
        # Upper bound of the bytes of answers that have not left: the bytes at the last count, and
        # all answers since.
        self.unsent_most = 0
        # Far below the size at which a connection ends because its client does not read, and not
        # below the size at which it is clogged: otherwise a read would wait for a connection that
        # is clear.
        network = settings.network
        unread = min(UNREAD_BYTES_MAX, network.write_buffer_bytes // 2)
        self.unread_bytes = max(unread, network.write_pause_bytes)
        self._loop = asyncio.get_running_loop()
        # The rest of this pass's share, and whether the end of the pass is scheduled.
        self._frames_left = PASS_FRAMES
        self._bytes_left = PASS_BYTES
        self._pass_ends = False
        # Sessions with frames that wait, in the order of their turns.
        self._waiting: dict[Session, None] = {}
        # Sessions with answers to send.
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
        """Take a frame of ``size`` bytes from this pass's share; False if the share is used up."""
        if self.frames_left <= 0:
            return False
        self.spend(1, size)
        return True

    @property
    def frames_left(self) -> int:
        """Number of frames that may still be handled in this pass."""
        return self._frames_left if self._bytes_left > 0 else 0

    def spend(self, frames: int, size: int) -> None:
        """Subtract ``frames`` frames of ``size`` bytes in all from this pass's share."""
        self._frames_left -= frames
        self._bytes_left -= size
        self._end_pass()

    def wait(self, session: Session) -> None:
        """Queue ``session``, which has frames that were not granted, for its turn in the next
        pass."""
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
        """Raises the error that refuses an append of ``size`` bytes before its batch is parsed."""
        if size > self._batch_bytes:
            raise TooLarge(f"batch of {size} bytes, limit {self._batch_bytes} (limits.batch_bytes)")
        if self.pending_appends >= self._appends_max:
            raise Busy(f"{self.pending_appends} appends wait already (limits.pending_appends)")
        if self.pending_bytes + size > self._bytes_max:
            raise Busy(f"{self.pending_bytes} bytes wait already (limits.pending_bytes)")
        # One connection must not use up the limits of all.
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
        """True if these appends are together within each limit: none of them would be refused."""
        return (
            self.pending_appends + appends <= self._appends_max
            and self.pending_bytes + size <= self._bytes_max
            and session.pending_appends + appends <= self._appends_max // 2
            and session.pending_bytes + size <= self._bytes_max // 2
        )

    def count_some(self, batches: Sequence[bytes]) -> list[int]:
        """The record count of each batch, up to the first invalid batch."""
        counts: list[int] = []
        # The error is raised again, and answered, when the batch is handled alone.
        with suppress(QuorateError):
            counts.extend(map(self.count_records, batches))
        return counts

    def count_records(self, data: bytes) -> int:
        """The record count of a batch, which is checked completely. Raises the error in the
        batch."""
        limit = self._record_bytes
        # A record is shorter than its batch, so only a long batch can have a long one.
        if len(data) <= limit:
            return batch_count(data)
        batch = Batch.parse(data)
        if (size := _too_long(batch, limit)) is not None:
            raise TooLarge(f"record of {size} bytes, limit {limit} (limits.record_bytes)")
        return batch.count

    def admit_call(self, session: Session, size: int) -> int:
        """The bytes that a call of ``size`` bytes counts until it has its answer. Raises the error
        that refuses the call before it is decoded."""
        if size <= SHORT_CALL_BYTES:
            return 0
        if self.call_bytes + size > CALL_BYTES_MAX:
            raise Busy(f"{self.call_bytes} bytes of calls wait already, limit {CALL_BYTES_MAX}")
        # One connection must not use up the limit of all.
        if session.call_bytes + size > CALL_BYTES_MAX // 2:
            raise Busy(
                f"{session.call_bytes} bytes of calls of this connection wait already, limit "
                f"{CALL_BYTES_MAX // 2}"
            )
        return size

    def check_fetch(self, session: Session) -> None:
        """Raises the error that refuses a read before it is sent. Closes the slowest readers if too
        much memory is in use."""
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
        # Clients that read their answers must not wait for those that do not.
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
        """Schedule a flush of ``session``: all answers of this pass of the loop leave in one
        write."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(session)

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for session in unsent:
            session.flush()


def _too_long(batch: Batch, limit: int) -> int | None:
    """The size of a record with more than ``limit`` bytes; None if there is no such record.

    The search is a bisection: where all records together are within the limit, no record is above
    it. So a batch of a million small records takes as few steps as one of ten large records.
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
