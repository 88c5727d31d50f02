"""The schedule of a replica's chores on disk: they are done while there is no flush to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.replica.disk_space import DiskSpace
    from quorate.replica.log_writer import LogWriter
    from quorate.types import Index

__all__ = ["ChoreSchedule"]

# The last flush is proved after this time without a flush.
PROVE_MS = 10
# Interval of the search for chores that follow no flush: a full disk may have room again.
LOOK_MS = 500


class ChoreSchedule:
    """The schedule of chores of one replica. The replica calls it at every tick."""

    __slots__ = ("_disk", "_disk_space", "_idle_ms", "_looked_ms")

    def __init__(self, disk: LogWriter, disk_space: DiskSpace, now_ms: int) -> None:
        self._disk = disk
        self._disk_space = disk_space
        # The time of the last flush, and of the last search for chores.
        self._idle_ms = self._looked_ms = now_ms

    def flushed(self, now_ms: int) -> None:
        """Note the time of a flush."""
        self._idle_ms = now_ms

    def tend(self, settled: Index, now_ms: int) -> None:
        self._disk.tell_findings()
        if self._disk.busy:
            self._idle_ms = now_ms
            return
        prove = now_ms - self._idle_ms >= PROVE_MS and self._disk.wants_proof(settled)
        look = now_ms - self._looked_ms >= LOOK_MS
        if look:
            self._looked_ms = now_ms
        # An entry that found no room may need a larger spare. On a full disk its allocation is
        # tried now and then, else at once.
        missing = self._disk_space.missing
        larger = missing and not self._disk_space.shortage
        wanted = self._disk.wanted
        # A shortage is over once there is room, even if there are no other chores.
        short = missing or self._disk_space.shortage
        if prove or larger or wanted or (look and (short or self._disk.has_chores)):
            self._disk.tend(settled, prove=prove, wanted=missing)
