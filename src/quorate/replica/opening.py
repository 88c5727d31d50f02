"""The opening of a replica: its log from a data directory, and the engine made from that log."""

from __future__ import annotations

import secrets
from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import Busy, DiskFailed
from quorate.raft.output import EventKind
from quorate.replica.engine import Engine
from quorate.storage.recovery.open import open_log
from quorate.storage.recovery.result import Recovered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from quorate.config import Config
    from quorate.membership import Membership
    from quorate.replica.writer import Writer
    from quorate.storage.directory import DataDirectory
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import RealVfs
    from quorate.types import GroupId

    # Records the boot of an opening.
    NoteBoot = Callable[[int], Awaitable[None]]

__all__ = ["OpenedReplica", "open_replica", "plan_opening"]


class OpenedReplica(NamedTuple):
    """A replica that may send messages, and the files that are closed after its end."""

    engine: Engine
    flusher: Flusher
    log: SegmentLog
    vfs: RealVfs

    async def note_boot(self, note: NoteBoot) -> None:
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


async def open_replica(
    directory: DataDirectory,
    group: GroupId,
    membership: Membership,
    config: Config,
    writer: Writer,
    now_ms: int,
    boot: int,
    note_boot: NoteBoot | None,
) -> OpenedReplica:
    """Open the log in ``directory``, or make it, and note the boot of this opening.

    Raises ReplicaHalted if the replica cannot start.
    """
    try:
        opened = await writer.carry_out(
            plan_opening(directory, group, membership, config, now_ms, boot)
        )
        if note_boot is not None:
            await opened.note_boot(note_boot)
    except (OSError, Busy) as error:
        node, number = directory.identity.node, group.incarnation
        # The error of the system: callers that wait for room or files look at the cause.
        cause = error.__cause__ if isinstance(error, Busy) else error
        raise DiskFailed(f"{node} cannot open log {number:032x}: {error}") from cause
    return opened


def plan_opening(
    directory: DataDirectory,
    group: GroupId,
    membership: Membership,
    config: Config,
    now_ms: int,
    boot: int = 0,
) -> Generator[str, None, OpenedReplica]:
    """The plan that opens a replica. It runs in a thread: reading and replaying the log is slow.

    Raises Damaged if the files are older than that ``boot`` of the log.
    """
    vfs = directory.log_vfs(group.incarnation)
    try:
        log, flusher = yield from open_log(
            vfs,
            directory.log_id(group.incarnation),
            config.storage.segment_bytes,
            partial(secrets.randbits, 64),
            config.storage.disk_usage_max,
            config.least_segment_bytes,
            config.storage.reserve_bytes,
            boot,
        )
        node = directory.identity.node
        engine = Engine(group, node, membership, config, Recovered.of(log), Random(), now_ms)
        flusher.note_memberships(engine.core.raft.memberships.indexes)
        for damage in log.damage:
            engine.core.raft.report(EventKind.DAMAGED, detail=str(damage))
        # The replay noted its damage in both; other findings are reported by the first tick.
        log.findings = deque(one for one in log.findings if one.damage not in log.damage)
        return OpenedReplica(engine, flusher, log, vfs)
    except BaseException:
        vfs.close()
        raise
