"""The replicas of this node: each log's copy, found by its incarnation.

An error in one log stops only that log's replica on this node: it serves no request, grants no vote
and acknowledges no entry until the node is restarted. Two halts end the node: a failed disk,
because all logs share it; and a halt of the catalog, because all logs depend on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quorate.config import KIB, MIB, Config, Limits
from quorate.errors import Busy, Damaged, DiskFailed, InvariantBroken, ReplicaHalted
from quorate.membership import Membership
from quorate.metrics import LogMetrics
from quorate.net.open_files import open_files_max
from quorate.raft.messages import Append
from quorate.raft.output import Event, EventKind
from quorate.replica.engine_io import Deliver, LinkClosed, LinkRefused
from quorate.replica.replica import Replica
from quorate.replica.writer import Writer
from quorate.server.logs.catalog import catalog_incarnation
from quorate.server.manifest import OBSTRUCTED, check_log, make_log
from quorate.storage.disk_errors import PASSING
from quorate.types import GroupId, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from quorate.metrics import Metrics
    from quorate.raft.messages import Envelope
    from quorate.server.logs.reconciler import Late
    from quorate.server.manifest import ManifestFile
    from quorate.storage.directory import DataDirectory

__all__ = ["CATALOG", "Down", "HostedLog", "Replicas", "catalog_config"]

log = logging.getLogger(__name__)

# The name of the catalog where logs have names. No log of a user can have this name.
CATALOG = "/catalog"
# A record of the catalog is short, and most clusters have few logs: small files suffice.
CATALOG_BATCH_BYTES = 64 * KIB
CATALOG_SEGMENT_BYTES = 1 * MIB
# Maximum messages kept for logs that are not open here yet: enough for the first messages of some
# hundred logs.
EARLY_MAX = 1024
# Open files per log: its directory and its newest segment.
FILES_PER_LOG = 2
OBSTRUCTED_ADVICE = (
    "see that its folder holds only its own files and that this node may read and write them, and "
    "start the node again, or delete the log"
)
# Threads for reads from disk; a disk serves several at once.
READERS = 4

_TOLD = {
    EventKind.LEADS: logging.INFO,
    EventKind.FOLLOWS: logging.INFO,
    EventKind.STEPS_DOWN: logging.WARNING,
    EventKind.SPLIT_LEADERS: logging.ERROR,
    EventKind.TRUNCATES: logging.INFO,
    EventKind.PEER_STALLED: logging.WARNING,
    EventKind.PEER_BLOCKED: logging.WARNING,
    EventKind.SLOW_DISK: logging.WARNING,
    EventKind.DAMAGED: logging.ERROR,
    EventKind.UNSURE: logging.WARNING,
    EventKind.SURE_AGAIN: logging.INFO,
    EventKind.DISK_FULL: logging.WARNING,
    EventKind.LACKS_FILES: logging.WARNING,
    EventKind.TRANSFERRED: logging.INFO,
    EventKind.TRANSFER_FAILED: logging.WARNING,
}


class HostedLog(NamedTuple):
    """A log that has a replica here."""

    name: str
    incarnation: int
    replica: Replica

    def measure(self) -> LogMetrics:
        """The present values of the log's metrics."""
        status = self.replica.status()
        return LogMetrics(
            self.name,
            status.first_offset,
            status.end_offset,
            status.role is Role.LEADER,
            {peer.node: max(0, status.committed - (peer.match or 0)) for peer in status.peers},
            status.staged_bytes,
            status.damaged,
            status.full,
        )


def catalog_config(config: Config) -> Config:
    """The settings of the catalog on a node with ``config``. Its segments are as small as the
    reserve lets them be: a segment has room for two of the largest batches beside it."""
    storage = config.storage
    needed = 2 * (CATALOG_BATCH_BYTES + storage.reserve_bytes)
    return replace(
        config,
        limits=Limits(batch_bytes=CATALOG_BATCH_BYTES),
        storage=replace(storage, segment_bytes=max(CATALOG_SEGMENT_BYTES, needed)),
    )


class Down(NamedTuple):
    """A log that should run here and does not: its replica halted, or cannot start."""

    name: str
    incarnation: int
    halt: ReplicaHalted | Busy
    # The task that closes the replica's files; None if they were never open.
    closing: asyncio.Task[None] | None

    @property
    def damaged(self) -> bool:
        return isinstance(self.halt, Damaged)

    @property
    def reason(self) -> str:
        return f"{self.halt.code}: {self.halt}"


class Replicas:
    """Opens and closes the replicas, and delivers each message to its replica."""

    def __init__(
        self,
        directory: DataDirectory,
        stored: ManifestFile,
        config: Config,
        metrics: Metrics,
        *,
        send: Callable[[list[Envelope]], None],
        halted: Callable[[ReplicaHalted], None],
    ) -> None:
        self.directory = directory
        self._stored = stored
        self._config = config
        self._metrics = metrics
        self._send = send
        self._halted = halted
        self._writer = Writer(observe=metrics.fsync_duration.observe)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="quorate-reader")
        self._hosted: dict[int, HostedLog] = {}
        # Logs of users that are being opened, or are to be: each takes files.
        self._claimed: set[int] = set()
        # Logs of users whose replica must not go on here. None of them is in ``_hosted``.
        self.halted: dict[int, Down] = {}
        # Logs of users that cannot be made or opened for now; `LogLifecycle` sets it.
        self.late: Mapping[int, Late] = {}
        # Logs that may be read without a barrier.
        self.readable: set[int] = set()
        # Peers may make or open a log before this node does: their first messages are kept for it.
        self._early: deque[Envelope] = deque(maxlen=EARLY_MAX)
        self.catalog_incarnation = catalog_incarnation(directory.identity.cluster)
        # (log, peer) pairs in which the peer reported a disk without space.
        self.roomless_peers: set[tuple[str, NodeId]] = set()

    # -- opening and closing -------------------------------------------------------------------

    def check_files(self) -> None:
        """Raises Busy if one more log would leave too few files for all other uses."""
        if self.logs_left <= 0:
            logs, most = self._logs, open_files_max()
            raise Busy(
                f"{logs} logs are open, as many as a limit of {most} open files allows; raise "
                f"ulimit -n of this node, or delete logs"
            )

    @property
    def logs_left(self) -> int:
        """The number of logs that may be opened besides those that are; 0 or less if none may."""
        # Half of the files, rounded up to whole logs.
        return -(-(open_files_max() // 2) // FILES_PER_LOG) - self._logs

    @property
    def _logs(self) -> int:
        """The number of logs that have files or are to get some."""
        return len(self._hosted) + len(self._claimed)

    def claim(self, incarnation: int) -> None:
        """Count a log that is to be opened: logs are opened side by side, and each takes files.
        Raises Busy, as :meth:`check_files` does. The claim ends with :meth:`open`."""
        if incarnation not in self._claimed:
            self.check_files()
            self._claimed.add(incarnation)

    async def make_directory(self, incarnation: int) -> None:
        """Make the directory of a log; it is durable when this returns. Raises OSError."""
        await self.with_files(make_log, incarnation)

    async def with_files(self, act: Callable[[DataDirectory, int], None], incarnation: int) -> None:
        """Run ``act`` on the files of a log that is not open."""
        await self.in_directory(partial(act, self.directory, incarnation))

    async def in_directory(self, act: Callable[[], None]) -> None:
        """Run ``act``, a slow operation in the data directory, in a thread. The node keeps the
        directory until ``act`` is done, even if the task that waits for it is cancelled."""
        await asyncio.get_running_loop().run_in_executor(self._readers, act)

    async def open_catalog(self, nodes: tuple[NodeId, ...]) -> None:
        """Open the catalog's replica. Raises ReplicaHalted: a node cannot work without the
        catalog."""
        config = catalog_config(self._config)
        await self._open(self.catalog_incarnation, CATALOG, nodes, config)

    async def open(self, incarnation: int, name: str, nodes: tuple[NodeId, ...]) -> None:
        """Open the replica of a user's log. If its files do not allow that, the log is down from
        then on.

        Raises DiskFailed; if its cause is temporary (no space, too many files), the call may be
        repeated. Raises Busy if one more log would leave too few files for all other uses.
        """
        self._check_free(incarnation, name)
        self.claim(incarnation)
        try:
            await self._open(incarnation, name, nodes, self._config)
        except DiskFailed as failed:
            cause = failed.__cause__
            if not isinstance(cause, OSError) or cause.errno not in OBSTRUCTED:
                raise
            halt = Damaged(f"this log cannot be opened: {cause}; {OBSTRUCTED_ADVICE}")
            self._stop_log(Down(name, incarnation, halt, None))
        except ReplicaHalted as halted:
            self._stop_log(Down(name, incarnation, halted, None))
        finally:
            self._claimed.discard(incarnation)

    def _check_free(self, incarnation: int, name: str) -> None:
        """Raises InvariantBroken if the log is open already: two replicas would write to the same
        files."""
        if incarnation in self._hosted:
            raise InvariantBroken(
                f"log {name} has incarnation {incarnation:032x}, with which "
                f"{self._hosted[incarnation].name} is open"
            )

    async def _open(
        self, incarnation: int, name: str, nodes: tuple[NodeId, ...], config: Config
    ) -> None:
        await self.in_directory(partial(check_log, self.directory, incarnation, name))
        replica = await Replica.open(
            self.directory,
            GroupId(self.directory.identity.cluster, incarnation),
            Membership(nodes),
            config,
            self._writer,
            self._readers,
            send=self._send,
            halted=partial(self._on_halt, incarnation),
            report=partial(self._report, name),
            boot=self._stored.manifest.logs[incarnation].boot,
            note_boot=partial(self._note_boot, incarnation),
        )
        self._hosted[incarnation] = HostedLog(name, incarnation, replica)
        early, self._early = self._early, deque(maxlen=EARLY_MAX)
        for envelope in early:
            if envelope.group.incarnation == incarnation:
                replica.give(Deliver(envelope))
            else:
                self._early.append(envelope)

    async def _note_boot(self, incarnation: int, boot: int) -> None:
        try:
            await self._stored.note_boot(incarnation, boot)
        except OSError as error:
            # A lasting error is no cause here: it is not the log's files that hinder the opening.
            node, cause = self.directory.identity.node, error if error.errno in PASSING else None
            raise DiskFailed(f"{node}: the manifest: {error}") from cause

    # -- halts ---------------------------------------------------------------------------------

    def _on_halt(self, incarnation: int, halt: ReplicaHalted) -> None:
        """Handle the halt of a replica, which sends and writes no more."""
        if isinstance(halt, DiskFailed) or incarnation == self.catalog_incarnation:
            self._halted(halt)
            return
        name, _, replica = self._hosted.pop(incarnation)
        closing = asyncio.get_running_loop().create_task(self._give_back(name, replica))
        self._stop_log(Down(name, incarnation, halt, closing))

    async def _give_back(self, name: str, replica: Replica) -> None:
        """Close the files without the mark of a clean stop: they are left as after a kill."""
        try:
            await replica.close(clean=False)
        except Exception as problem:  # noqa: BLE001  # it halted: further errors are only logged
            log.error("a halted replica did not close log=%s error=%s", name, repr(problem))

    def _stop_log(self, down: Down) -> None:
        self.halted[down.incarnation] = down
        self._forget(down.incarnation, down.name)
        log.critical("replica halts log=%s error=%s", down.name, down.reason)

    def _forget(self, incarnation: int, name: str) -> None:
        self.readable.discard(incarnation)
        self._metrics.appended_records.pop(name, None)
        self._metrics.elections.pop(name, None)

    async def close(self, incarnation: int) -> None:
        """Close a log that was deleted: the state of its files does not matter any more."""
        hosted, down = self._hosted.pop(incarnation, None), self.halted.pop(incarnation, None)
        if hosted is not None:
            await hosted.replica.close(clean=False)
            self._forget(incarnation, hosted.name)
        elif down is not None and down.closing is not None:
            await down.closing

    async def close_all(self) -> None:
        """Stop all replicas cleanly. All requests are answered before this returns; a disk failure
        meanwhile is reported like each other halt."""
        closing = [hosted.replica.close() for hosted in self._hosted.values()]
        problems = await asyncio.gather(*closing, return_exceptions=True)
        for problem in problems:
            if problem is not None:
                self._did_not_stop(problem)
        await asyncio.gather(*(down.closing for down in self.halted.values() if down.closing))
        self._writer.close()
        self._readers.shutdown()

    def _did_not_stop(self, problem: BaseException) -> None:
        log.error("a replica did not stop in order error=%s", str(problem))
        if isinstance(problem, OSError) and problem.errno in PASSING:
            return  # no space for the mark of a clean stop: the next start works without it
        if not isinstance(problem, ReplicaHalted):
            node = self.directory.identity.node
            kind = DiskFailed if isinstance(problem, OSError) else InvariantBroken
            halt = kind(f"{node}: a replica did not stop in order: {problem}")
            halt.__cause__ = problem
            problem = halt
        self._halted(problem)

    # -- finding -------------------------------------------------------------------------------

    @property
    def catalog(self) -> Replica:
        return self._hosted[self.catalog_incarnation].replica

    def get(self, incarnation: int) -> HostedLog | None:
        """The replica of a user's log; None for the catalog and for logs that are not open here."""
        return self._hosted.get(incarnation) if incarnation != self.catalog_incarnation else None

    def has(self, incarnation: int) -> bool:
        """True if a log has a replica here, including one that halted."""
        return incarnation in self._hosted or incarnation in self.halted

    @property
    def down(self) -> dict[int, Down]:
        """The logs of users that should run here and do not, each with the reason."""
        late = {one: Down(name, one, Busy(why), None) for one, (name, why) in self.late.items()}
        return late | self.halted

    def __iter__(self) -> Iterator[HostedLog]:
        """Iterate over the open logs of users."""
        return (one for one in self._hosted.values() if one.incarnation != self.catalog_incarnation)

    @property
    def everything(self) -> list[HostedLog]:
        """All open logs, including the catalog."""
        return [*self._hosted.values()]

    # -- messages and events -------------------------------------------------------------------

    def deliver(self, envelopes: Iterable[Envelope]) -> None:
        hosted = self._hosted
        for envelope in envelopes:
            one = hosted.get(envelope.group.incarnation)
            if one is None:
                self._deliver_later(envelope)
            else:
                one.replica.give(Deliver(envelope))

    def _deliver_later(self, envelope: Envelope) -> None:
        """Keep a message for a log that is not made here yet, was deleted, or is down. Entries are
        not kept: they are long, and the leader sends them again."""
        self._metrics.stray_messages += 1
        if type(envelope.message) is not Append and envelope.group.incarnation not in self.halted:
            self._early.append(envelope)

    def link_closed(self, peer: NodeId) -> None:
        for one in self._hosted.values():
            one.replica.give(LinkClosed(peer))

    def link_refused(self, peer: NodeId) -> None:
        for one in self._hosted.values():
            one.replica.give(LinkRefused(peer))

    def _report(self, name: str, events: Sequence[Event]) -> None:
        for kind, term, peer, index, detail in events:
            if kind is EventKind.LEADS:
                self._metrics.elections[name] += 1
            if kind is EventKind.PEER_STALLED and (name, peer) in self.roomless_peers:
                continue  # the reason was logged
            if (level := _TOLD.get(kind)) is not None:
                facts = {"log": name, "term": term, "peer": peer, "index": index, "detail": detail}
                known = {key: value for key, value in facts.items() if value}
                message = f"replica {kind}" + "".join(f" {key}=%s" for key in known)
                log.log(level, message, *known.values())
