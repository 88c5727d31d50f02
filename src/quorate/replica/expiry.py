"""The expiry of producers, staged chunks and apps that were idle for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.raft.core import Core
    from quorate.replica.disk_space import DiskSpace
    from quorate.replica.proposals import Proposals

__all__ = ["Expiry"]

# Interval at which a leader looks for expired producers, staged chunks and apps; and the interval
# after a look that found some: one look forgets a bounded number.
LOOK_MS = 10_000
AGAIN_MS = 250
# Maximum entries that this may log: a noop, and one each for producers, staged chunks and apps.
ENTRIES_MAX = 4


class Expiry:
    """Decides when the leader looks for what has expired."""

    __slots__ = ("_core", "_disk_space", "_due_at", "_proposals")

    def __init__(self, core: Core, proposals: Proposals, disk_space: DiskSpace) -> None:
        self._core = core
        self._proposals = proposals
        self._disk_space = disk_space
        self._due_at = 0

    def look(self) -> None:
        """Log the expiry of idle items if a look is due and the disks have room for it.

        On a full disk expiry can wait; a state that stopped at a lost entry is too old; and during
        a transfer of the leadership nothing is logged.
        """
        core, raft = self._core, self._core.raft
        if raft.clock < self._due_at or core.transfers.holds:
            return
        self._due_at = raft.clock + raft.ticks(LOOK_MS)
        leader = core.leader if raft.lost is None else None
        size = self._proposals.expiry_room
        entries = self._proposals.arrived[0] + ENTRIES_MAX
        needs = self._disk_space.needs(size, entries)
        if leader is None or not self._disk_space.takes(size, entries):
            return
        if leader.has_room_now(needs) and self._proposals.expire():
            self._due_at = raft.clock + raft.ticks(AGAIN_MS)
