"""Replicas of one or more logs in one process: real directories, real syncs, a network of calls."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from quorate.config import KIB, Config, Limits, Storage, Timing
from quorate.entry import decode_entry
from quorate.entry_body import unpack_batches
from quorate.membership import Membership
from quorate.replica.engine_io import Deliver
from quorate.replica.replica import Replica
from quorate.replica.writer import Writer
from quorate.storage.directory import LOGS, DataDirectory, log_name
from quorate.storage.vfs import RealFile, RealVfs
from quorate.types import EntryKind, GroupId, NodeId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from quorate.commands import Receipt
    from quorate.errors import ReplicaHalted
    from quorate.raft.messages import Envelope
    from quorate.replica.reader import Fetched
    from quorate.storage.directory import Identity

CLUSTER = "shop"
LOG = 0xC0FFEE
DEADLINE_S = 30
# Small segments have room for no more.
AT_ONCE = 100

# Quick, and yet patient with a machine that is busy with other tests.
CONFIG = Config(
    Timing(tick_ms=5, heartbeat_ms=25, election_ms=300, read_ms=1000),
    Limits(batch_bytes=64 * KIB, entry_bytes=16 * KIB),
    Storage(segment_bytes=512 * KIB),
)
# Segments are soon full, and hardly anything stays in memory.
SMALL = replace(
    CONFIG,
    limits=replace(CONFIG.limits, batch_bytes=8 * KIB, entry_bytes=4 * KIB, log_memory_bytes=0),
    storage=replace(CONFIG.storage, segment_bytes=256 * KIB, reserve_bytes=4 * KIB),
)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine, all of it in one loop and within the deadline."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(*arguments, **named)

        asyncio.run(bounded())

    return run


async def until(condition: Callable[[], object]) -> None:
    """Let others go on until ``condition`` holds; the test's deadline ends it."""
    while not condition():  # noqa: ASYNC110  # what is waited for happens in many places
        await asyncio.sleep(0.002)


# -- disks that fail ---------------------------------------------------------------------------


class Faults:
    """What is wrong with a disk right now, by the name of the call: an error number each."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        # Whether anybody else uses the rest of the file system.
        self.full = False
        # Syncs and reads that were begun, and whether they may end.
        self.syncs = self.reads = 0
        self.may_sync, self.may_read = threading.Event(), threading.Event()
        self.heal()

    def heal(self) -> None:
        self.errors.clear()
        self.full = False
        self.may_sync.set()
        self.may_read.set()

    def meet(self, call: str) -> None:
        if call in self.errors:
            raise OSError(self.errors[call], os.strerror(self.errors[call]))


class FaultyFile(RealFile):
    __slots__ = ("_faults",)

    def __init__(self, file: RealFile, faults: Faults) -> None:
        super().__init__(os.dup(file._fd))  # the other one is closed when it goes
        self._faults = faults

    def read(self, position: int, length: int) -> bytes:
        self._faults.reads += 1
        self._faults.may_read.wait()
        self._faults.meet("read")
        return super().read(position, length)

    def sync(self) -> None:
        self._faults.syncs += 1
        self._faults.may_sync.wait()
        self._faults.meet("sync")
        super().sync()


class FaultyVfs(RealVfs):
    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def create(self, name: str) -> RealFile:
        return FaultyFile(super().create(name), self._faults)

    def open(self, name: str) -> RealFile:
        return FaultyFile(super().open(name), self._faults)

    def rename(self, old: str, new: str) -> None:
        self._faults.meet(f"rename {new.rpartition('.')[2]}")
        super().rename(old, new)

    def space(self) -> tuple[int, int]:
        free, total = super().space()
        return 0 if self._faults.full else free, total


class FaultyDirectory(DataDirectory):
    """A data directory on a disk that can be made to fail."""

    def __init__(self, path: Path, identity: Identity, lock: int) -> None:
        super().__init__(path, identity, lock)
        self.faults = Faults()

    def log_vfs(self, incarnation: int) -> RealVfs:
        super().log_vfs(incarnation).close()
        return FaultyVfs(self.path / LOGS / log_name(incarnation), self.faults)


# -- nodes -------------------------------------------------------------------------------------


async def quiet(replica: Replica) -> None:
    """Wait until nothing is written any more: the next flush is the next append's."""
    disk = replica._disk
    await until(lambda: not (disk.busy or disk.unproven or disk.has_chores))


class Cluster:
    """Some nodes. Their threads are shared, as those of the logs of one node are."""

    def __init__(
        self,
        path: Path,
        size: int = 3,
        config: Config = CONFIG,
    ) -> None:
        self.names = tuple(NodeId(f"n{number}") for number in range(1, size + 1))
        self.config = config
        self.writer = Writer()
        self.readers = ThreadPoolExecutor(2, thread_name_prefix="quorate-reader")
        self._path = path
        self.directories: dict[NodeId, FaultyDirectory] = {}
        self.replicas: dict[tuple[NodeId, int], Replica] = {}
        self.halts: list[tuple[NodeId, ReplicaHalted]] = []
        # (from, to): messages that do not arrive.
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.sent: list[Envelope] = []

    async def __aenter__(self) -> Cluster:
        for name in self.names:
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in self.directories:
            self.faults(name).heal()
        for name, log in list(self.replicas):
            await self.kill(name, log)
        self.writer.close()
        self.readers.shutdown()

    async def start(self, name: NodeId, log: int = LOG) -> Replica:
        if name not in self.directories:
            self.directories[name] = _open_directory(self._path / name, name)
        replica = await Replica.open(
            self.directories[name],
            GroupId(CLUSTER, log),
            Membership(self.names),
            self.config,
            self.writer,
            self.readers,
            send=self._send,
            halted=lambda halt: self.halts.append((name, halt)),
        )
        self.replicas[name, log] = replica
        return replica

    async def stop(self, name: NodeId, log: int = LOG) -> None:
        await self._close(name, log, clean=True)

    async def kill(self, name: NodeId, log: int = LOG) -> None:
        """Abandon what is under way, between two steps of a plan or after the last."""
        await self._close(name, log, clean=False)

    async def _close(self, name: NodeId, log: int, *, clean: bool) -> None:
        await self.replicas.pop((name, log)).close(clean=clean)
        if not any(node == name for node, _ in self.replicas):
            self.directories.pop(name).close()

    def _send(self, envelopes: list[Envelope]) -> None:
        self.sent += envelopes
        loop = asyncio.get_running_loop()
        for envelope in envelopes:
            if (envelope.source, envelope.target) not in self.cut:
                loop.call_soon(self._deliver, envelope)

    def _deliver(self, envelope: Envelope) -> None:
        replica = self.replicas.get((envelope.target, envelope.group.incarnation))
        if replica is not None:
            replica.give(Deliver(envelope))

    def faults(self, name: NodeId) -> Faults:
        return self.directories[name].faults

    def isolate(self, name: NodeId) -> None:
        others = [other for other in self.names if other != name]
        self.cut |= {(name, other) for other in others} | {(other, name) for other in others}

    def of(self, log: int = LOG) -> dict[NodeId, Replica]:
        return {name: replica for (name, number), replica in self.replicas.items() if number == log}

    async def leader(self, log: int = LOG) -> Replica:
        """The replica that leads in the newest term and takes appends."""

        def found() -> Replica | None:
            leaders = [one for one in self.of(log).values() if one.serves]
            return max(leaders, key=lambda one: one.status().term, default=None)

        await until(found)
        leader = found()
        assert leader is not None
        return leader

    async def follower(self, log: int = LOG) -> Replica:
        leader = await self.leader(log)
        return next(one for one in self.of(log).values() if one is not leader)

    async def reached(self, end: int, log: int = LOG) -> None:
        """Wait until every replica that is up has applied everything below ``end``."""
        await until(lambda: all(one.end_offset >= end for one in self.of(log).values()))


def _open_directory(path: Path, name: NodeId) -> FaultyDirectory:
    directory = FaultyDirectory.open(path, CLUSTER, name)
    assert isinstance(directory, FaultyDirectory)
    return directory


async def append_all(replica: Replica, batches: list[bytes]) -> list[Receipt]:
    """All of them, one record each, many at once."""
    receipts: list[Receipt] = []
    for start in range(0, len(batches), AT_ONCE):
        some = batches[start : start + AT_ONCE]
        receipts += await asyncio.gather(*(replica.append(batch, 1) for batch in some))
    return receipts


def values(fetched: Fetched) -> list[bytes]:
    """The batches in what was fetched. Raises InvalidArgument if a byte is not as it was made."""
    data = memoryview(b"".join(fetched.buffers))
    found, position = [], 0
    for offset, count, size, time in fetched.rows:
        entry = decode_entry(bytes(data[position : position + size]))
        if entry.kind is EntryKind.DATA:
            assert (entry.base_offset, entry.count, entry.append_time) == (offset, count, time)
        found += [batch for batch, _ in unpack_batches(entry)]
        position += size
    assert position == len(data)
    return found


async def read_all(replica: Replica, start: int = 0, bytes_max: int = 64 * KIB) -> list[bytes]:
    """Every batch of one record from ``start`` to the end."""
    found: list[bytes] = []
    while start < replica.end_offset:
        fetched = await replica.fetch(start, bytes_max)
        base = fetched.rows[0][0]
        found += values(fetched)[start - base :]
        start = fetched.rows[-1][0] + fetched.rows[-1][1]
    return found
