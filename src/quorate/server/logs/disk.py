"""The disk usage of this node: reported on request, and logged when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import DiskFull
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quorate.config import Config
    from quorate.server.logs.replicas import Replicas

__all__ = ["Disk", "DiskUse", "RoomWatch", "no_room_for_log"]

log = logging.getLogger(__name__)

# Interval at which the watch looks.
WATCH_S = 1.0


class DiskUse(NamedTuple):
    """The usage of a disk at one moment."""

    # Percent of the disk in use, and the percentage above which no space is allocated.
    used: int
    used_max: int
    free_bytes: int
    # True if the disk has no space for a log that is made now.
    full: bool

    def __str__(self) -> str:
        return f"{self.used} % of the disk are in use, storage.disk_usage_max = {self.used_max}"


class Disk:
    """The disk that holds the data directory."""

    def __init__(self, path: Path, config: Config) -> None:
        self._path = path
        self._used_max = config.storage.disk_usage_max
        # Bytes that a new log allocates at once.
        self._log_bytes = 2 * config.least_segment_bytes

    def look(self) -> DiskUse:
        stat = os.statvfs(self._path)
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        used = total - free
        full = (used + self._log_bytes) * 100 > total * self._used_max
        return DiskUse(used * 100 // max(1, total), self._used_max, free, full)


def no_room_for_log(places: Iterable[tuple[str, str]]) -> DiskFull:
    """The error that refuses a new log: it names each node without space, and its disk usage."""
    named = ", ".join(f"{node} ({use})" for node, use in places)
    return DiskFull(
        f"no room for another log on {named}; free some space there, or raise "
        f"storage.disk_usage_max"
    )


class RoomWatch:
    """Logs which replicas and peers have no space on their disk, and when they have space again: a
    lack of space is no failure, and operators must know it all the same.

    A replica is reported if it had no space at two looks in a row, because a log may have no space
    for a moment between two segments.
    """

    def __init__(self, disk: Disk, replicas: Replicas) -> None:
        self._disk = disk
        self._replicas = replicas
        self._disk_full = False
        # (log, peer) without space at the last look; the peer is None for the replica here.
        self._seen: set[tuple[str, NodeId | None]] = set()
        # The pairs of these that were logged.
        self._told: set[tuple[str, NodeId | None]] = set()

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(WATCH_S)

    def look(self) -> None:
        use = self._disk.look()
        if use.full != self._disk_full:
            self._disk_full = use.full
            if use.full:
                log.warning("disk without room used=%d used_max=%d", use.used, use.used_max)
            else:
                log.info("disk has room again used=%d used_max=%d", use.used, use.used_max)
        now = set(self._roomless())
        lasting = now & self._seen
        for name, peer in sorted(lasting - self._told, key=str):
            if peer is None:
                log.warning("replica without room log=%s", name)
            else:
                log.warning("peer without room log=%s peer=%s", name, peer)
        for name, peer in sorted(self._told - now, key=str):
            if peer is None:
                log.info("replica has room again log=%s", name)
            else:
                log.info("peer has room again log=%s peer=%s", name, peer)
        self._seen, self._told = now, (self._told & now) | lasting
        self._replicas.roomless_peers = {(name, peer) for name, peer in now if peer is not None}

    def _roomless(self) -> Iterable[tuple[str, NodeId | None]]:
        for hosted in self._replicas.everything:
            status = hosted.replica.status()
            if status.full:
                yield hosted.name, None
            for peer in status.peers:
                if peer.full:
                    yield hosted.name, NodeId(peer.node)
