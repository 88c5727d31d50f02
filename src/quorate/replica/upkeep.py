"""When a replica's disk is tended: what nobody waits for, once there is nothing else to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.replica.allowance import Allowance
    from quorate.replica.writer import LogWriter
    from quorate.types import Index

__all__ = ["Upkeep"]

# After so long without a flush the last one is proved.
PROVE_MS = 10
# How often chores are looked for that no flush is followed by: a full disk may have room again.
LOOK_MS = 500


class Upkeep:
    """Asked at every tick."""

    __slots__ = ("_allowance", "_disk", "_idle_ms", "_looked_ms")

    def __init__(self, disk: LogWriter, allowance: Allowance, now_ms: int) -> None:
        self._disk = disk
        self._allowance = allowance
        # Since when nothing is flushed, and when chores were last looked for.
        self._idle_ms = self._looked_ms = now_ms

    def flushed(self, now_ms: int) -> None:
        """There is something to flush."""
        self._idle_ms = now_ms

    def tend(self, settled: Index, now_ms: int) -> None:
        if self._disk.busy:
            self._idle_ms = now_ms
            return
        prove = now_ms - self._idle_ms >= PROVE_MS and self._disk.wants_proof(settled)
        look = now_ms - self._looked_ms >= LOOK_MS
        if look:
            self._looked_ms = now_ms
        # An entry that found no room may need a larger spare. On a full disk that is tried now and
        # then, else at once.
        missing = self._allowance.missing
        larger = missing and not self._allowance.shortage
        wanted = self._disk.wanted
        if prove or larger or wanted or (look and (missing or self._disk.has_chores)):
            self._disk.tend(settled, prove=prove, wanted=missing)
