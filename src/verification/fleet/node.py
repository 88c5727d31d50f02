"""A simulated node: its data directory, and the process that runs on it if one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verification.fleet.disk import Directory, Trouble
from verification.fleet.process import Process

if TYPE_CHECKING:
    from quorate.types import NodeId
    from verification.fleet.world import FleetWorld

__all__ = ["FleetNode"]


class FleetNode:
    """A simulated node. Its process comes and goes; its directory stays until it is wiped or rolled
    back."""

    def __init__(self, world: FleetWorld, name: NodeId) -> None:
        self.world = world
        self.name = name
        self.trouble = Trouble()
        self.directory = Directory(self.trouble)
        self.process: Process | None = None
        # The factor by which it takes longer than usual to make, replace or remove a file.
        self.slowness = 1
        # Whether there was room for the next manifest when this one was written.
        self.allocated_ahead = False
        # The nodes of the cluster, as the settings of this one name them.
        self.listed: tuple[NodeId, ...] = ()
        # The node was started once: before that there is no process to kill.
        self.began = False
        # The directory is an older copy, made in that start. The node must never be let in again.
        self.rolled_back = False
        self.copied_at = 0
        # Nodes that may let the older copy in as long as all that they know agrees with it.
        self.unsuspected_by: set[NodeId] = set()
        # The directory was marked as an older copy: no start on it takes part.
        self.marked = False
        # The directory was replaced by an empty one after a peer had written down its disk.
        self.wiped = False
        # Copies of the directory, each with the number of the start in which it was made.
        self.copies: list[tuple[int, Directory]] = []

    @property
    def good(self) -> bool:
        """Whether the cluster may count on it."""
        return not self.rolled_back and not self.wiped

    @property
    def lost_logs(self) -> set[int]:
        """Logs whose folder was removed, or replaced by an older copy."""
        return self.directory.lost_logs

    @property
    def starts(self) -> int:
        """The newest start that its manifest counts."""
        manifest = self.directory.durable_manifest
        return max(manifest.starts, default=0) if manifest is not None else 0

    @property
    def leads_catalog(self) -> bool:
        process = self.process
        replica = process.replicas.get(self.world.catalog) if process is not None else None
        return replica is not None and replica.leads

    def disk_us(self) -> int:
        """The time that the next step takes which makes, replaces or removes a file."""
        return self.world.disk_us() * self.slowness

    def start(self) -> None:
        if self.process is None:
            self.began = True
            if self.directory.storage is None:
                self.directory.storage = self.world.random.randbytes(16)
            process = self.process = Process(self)
            process.run(process.start)

    def kill(self) -> None:
        """End the process; its writes stay readable, durable or not."""
        process, self.process = self.process, None
        self.trouble.calls_left = None
        if process is not None:
            process.end()

    def cut_power(self) -> None:
        """End the process and cut the power: each change that was not synced is kept, lost or
        torn."""
        self.kill()
        self.directory.power_cut(self.world.draw_fate)
        self.allocated_ahead = False
        self.world.history.check_manifest(self)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.kill()
        self.directory = Directory(self.trouble)
        self.allocated_ahead = False
        self.copies.clear()

    def start_copy(self) -> FleetNode:
        """Start a copy of the directory as it is now, elsewhere, under the same name."""
        copy = FleetNode(self.world, self.name)
        copy.listed = self.listed
        copy.directory = self.directory.copy(copy.trouble)
        copy.rolled_back = True
        self.world.copies.append(copy)
        copy.start()
        return copy

    def roll_back(self, copy: Directory) -> None:
        """Replace the directory by ``copy``."""
        self.kill()
        self.directory = copy.copy()
        self.allocated_ahead = False
        self.rolled_back = True
        self.copied_at = self.starts
