"""The limits on requests of clients that wait for an answer: appends, and long calls.

Each limit is checked in one place, for the node and for the connection: one connection must not use
up the limit of all, so it gets half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Busy, QuorateError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.config import Server

__all__ = ["ClientLimits", "Pending"]


class Pending:
    """The requests without an answer, of one connection or of all together."""

    __slots__ = ("append_bytes", "appends", "call_bytes")

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        # Bytes of long calls.
        self.call_bytes = 0


class ClientLimits:
    """Counts the requests of all clients that have no answer, and refuses more at the limits."""

    def __init__(self, limits: Server, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._appends_max = limits.client_appends
        self._append_bytes_max = limits.client_append_bytes
        self._short_call_bytes = limits.short_call_bytes
        self._call_bytes_max = limits.call_bytes
        # Maximum bytes of appends that are proposed together. The rows of the batches count, too:
        # half of the limit on a batch leaves room for those of the smallest.
        self.together_bytes = min(limits.together_bytes, batch_bytes // 2)
        # Requests of all connections.
        self.total = Pending()

    # -- appends -------------------------------------------------------------------------------

    def append_refusal(self, own: Pending, sizes: Sequence[int]) -> QuorateError | None:
        """The error that refuses the last of appends of ``sizes`` bytes, or None: then none of
        those before it would be refused.

        They arrived together over the connection whose pending requests are ``own``, and are not
        counted yet.
        """
        size, total = sizes[-1], self.total
        # Those before the last.
        appends, append_bytes = len(sizes) - 1, sum(sizes) - size
        if size > self._batch_bytes:
            limit = self._batch_bytes
            return TooLarge(f"batch of {size} bytes, limit {limit} (limits.batch_bytes)")
        if total.appends + appends >= self._appends_max:
            return Busy(f"{total.appends} appends wait already (limits.pending_appends)")
        if total.append_bytes + append_bytes + size > self._append_bytes_max:
            return Busy(f"{total.append_bytes} bytes wait already (limits.pending_bytes)")
        if own.appends + appends > self._appends_max // 2:
            return Busy(
                f"{own.appends} appends of this connection wait already (half of "
                f"limits.pending_appends)"
            )
        # Without the append itself: a batch may be larger than half of the limit.
        if own.append_bytes + append_bytes > self._append_bytes_max // 2:
            return Busy(
                f"{own.append_bytes} bytes of this connection wait already (half of "
                f"limits.pending_bytes)"
            )
        return None

    def add_appends(self, own: Pending, appends: int, size: int) -> None:
        """Count ``appends`` appends of ``size`` bytes in all until they have their answers."""
        own.appends += appends
        own.append_bytes += size
        self.total.appends += appends
        self.total.append_bytes += size

    def remove_appends(self, own: Pending, appends: int, size: int) -> None:
        """Count appends no more: they have their answers, or need none."""
        own.appends -= appends
        own.append_bytes -= size
        self.total.appends -= appends
        self.total.append_bytes -= size

    # -- calls ---------------------------------------------------------------------------------

    def is_long(self, size: int) -> bool:
        """True if a call of ``size`` bytes counts until it has its answer."""
        return size > self._short_call_bytes

    def call_refusal(self, own: Pending, size: int) -> QuorateError | None:
        """The error that refuses a long call of ``size`` bytes of the connection that has ``own``
        requests pending, or None."""
        total, limit = self.total, self._call_bytes_max
        if total.call_bytes + size > limit:
            return Busy(f"{total.call_bytes} bytes of calls wait already, limit {limit}")
        if own.call_bytes + size > limit // 2:
            return Busy(
                f"{own.call_bytes} bytes of calls of this connection wait already, limit "
                f"{limit // 2}"
            )
        return None

    def add_call(self, own: Pending, size: int) -> None:
        """Count a long call of ``size`` bytes until it has its answer."""
        own.call_bytes += size
        self.total.call_bytes += size

    def remove_call(self, own: Pending, size: int) -> None:
        own.call_bytes -= size
        self.total.call_bytes -= size
