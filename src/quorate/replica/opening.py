"""The opening of a replica: its log from a data directory, and the engine made from that log."""

from __future__ import annotations

import secrets
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.output import Happening
from quorate.replica.engine import Engine
from quorate.storage.recovered import Recovered
from quorate.storage.recovery import check_boot, open_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from quorate.config import Config
    from quorate.storage.directory import DataDirectory
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import RealVfs
    from quorate.types import GroupId, NodeId

__all__ = ["OpenedReplica", "plan_opening"]


class OpenedReplica(NamedTuple):
    """A replica that may send messages, and the files that are closed after its end."""

    engine: Engine
    flusher: Flusher
    log: SegmentLog
    vfs: RealVfs

    async def note_boot(self, note: Callable[[int], Awaitable[None]]) -> None:
        """Have ``note`` record the boot of this opening. If that fails the files are closed."""
        try:
            await note(self.log.record.boot)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files. No thread reads or writes the log any more."""
        self.log.close()
        self.vfs.close()


def plan_opening(
    directory: DataDirectory,
    group: GroupId,
    voters: tuple[NodeId, ...],
    config: Config,
    now_ms: int,
    boot: int = 0,
) -> Generator[str, None, OpenedReplica]:
    """The plan that opens a replica. It runs in a thread: reading and replaying the log is slow.

    Raises Damaged if the files are older than that ``boot`` of the log.
    """
    vfs = directory.log_vfs(group.incarnation)
    try:
        check_boot(vfs, boot)
        log, flusher = yield from open_log(
            vfs,
            directory.log_id(group.incarnation),
            config.storage.segment_bytes,
            partial(secrets.randbits, 64),
            config.storage.disk_usage_max,
            config.least_segment_bytes,
            config.storage.reserve_bytes,
        )
        node = directory.identity.node
        engine = Engine(group, node, voters, config, Recovered.of(log), Random(), now_ms)
        for damage in log.damage:
            engine.core.standing.report(Happening.DAMAGED, detail=str(damage))
        return OpenedReplica(engine, flusher, log, vfs)
    except BaseException:
        vfs.close()
        raise
