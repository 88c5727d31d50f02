"""A node from start to stop: the parts that it opens, their order, and the shutdown.

The node halts as a whole if its disk fails or its catalog must not go on: all logs share both. Each
other halt stops the replica of one log, see `replicas.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from quorate.errors import Busy, DiskFailed, InvalidArgument, QuorateError, ReplicaHalted
from quorate.metrics import CONTENT_TYPE, Exposition, Metrics, Snapshot
from quorate.net.links import PeerLinks
from quorate.net.listener import Listener
from quorate.server.carrier import RETRY_S
from quorate.server.disk import Disk, RoomWatch
from quorate.server.http import HttpServer, Page
from quorate.server.keeper import Keeper
from quorate.server.manifest import ManifestFile
from quorate.server.members import Members
from quorate.server.peers import PeerSession, RefusedFrames
from quorate.server.presence import Presence
from quorate.server.refusals import Refusals
from quorate.server.replicas import Replicas
from quorate.server.service import Service
from quorate.server.settings import check_loopback
from quorate.storage.directory import DataDirectory
from quorate.storage.steps import PASSING
from quorate.types import NodeId
from quorate.wire.frames import PEER, FrameLimits
from quorate.wire.handshake import Hello, Identity, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from quorate.net.connection import Connection
    from quorate.server.settings import Settings
    from quorate.wire.handshake import Refusal, Seen

__all__ = ["Node"]

log = logging.getLogger(__name__)

# Maximum bytes of a client's request beside its batch: a publish may name 8,192 parts.
CLIENT_CONTROL_BYTES = 4 << 20
# A first start logs the nodes that it waits for: first after the first of these times, then at
# intervals of the second, and after the third as a warning.
FORMING_TELL_S = 1.0
FORMING_REPEAT_S = 10.0
FORMING_PATIENCE_S = 30.0
# How long a start waits for links to a majority.
MEET_S = 1.0
# After a disk failure the next start waits; after several in a row, longer each time.
FAILURE_WAIT_S = 1.0
FAILURE_WAIT_S_MAX = 60.0
# A node that ran for this time has a working disk.
SOUND_S = 60.0
# Interval of the checks whether the disk has space.
WATCH_S = 1.0


class Node:
    """One node process of a cluster."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self.metrics = Metrics()
        self._loop = asyncio.get_running_loop()
        # Done when the node is to stop.
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        # The first error because of which the node must not go on.
        self._halted: ReplicaHalted | None = None
        # Peers that were reached since the start, and the event of reaching another one.
        self._met: set[NodeId] = set()
        self._meeting = asyncio.Event()
        self._refused_frames = RefusedFrames()
        # True when all logs are open and clients are let in.
        self._opened = False
        # True when the catalog was read behind a barrier.
        self._ready = False
        self._tasks: list[asyncio.Task[None]] = []
        exposition = Exposition(version, self.metrics, self._snapshot)
        self._http = HttpServer(
            {
                "/livez": lambda: Page(200, b"alive\n"),
                "/readyz": self._readyz,
                "/metrics": lambda: Page(200, exposition.text(), CONTENT_TYPE),
            }
        )
        # Set by `_open`, in this order.
        self._directory: DataDirectory
        self._stored: ManifestFile
        self._members: Members
        self._links: PeerLinks
        self._replicas: Replicas
        self._presence: Presence
        self._refusals: Refusals
        self._disk: Disk
        self._keeper: Keeper
        self.service: Service
        self._listener: Listener

    def stop(self) -> None:
        """Make :meth:`run` shut the node down cleanly."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def halt(self, halt: ReplicaHalted) -> None:
        """Stop at once: :meth:`run` raises ``halt``, and this node sends no more messages. The
        links end here, because a log that is being opened may take long, and replicas of other logs
        would vote meanwhile.

        A node that is stopping already completes its stop first.
        """
        log.critical("node halts kind=%s error=%s", type(halt).__name__, halt)
        # First of all: the node ends even if an error occurs while its links are closed.
        self._halted = self._halted or halt
        self.stop()
        self._links.abort()
        self._listener.abort()

    async def run(self, opened: Callable[[], None] = lambda: None) -> None:
        """Serve until :meth:`stop`; ``opened`` is called when all logs are open.

        Raises ReplicaHalted if the node must not go on: then the data directory stays locked, and
        the process ends.
        """
        try:
            await self._open()
        except OSError as error:
            if error.errno not in PASSING:
                raise
            # The node has promised nothing yet: it can be started again when there is space.
            raise Busy(
                f"{self._settings.node} cannot start: {error.strerror}; see that its disk has room "
                f"and that it may open more files (ulimit -n), and start it again"
            ) from error
        self._begin(self._start(opened))
        try:
            await self._stopping
        finally:
            for task in self._tasks:
                task.cancel()
        if self._halted is None:
            log.info("node stops")
            await self._close()
        # The halt may have come during the stop.
        if self._halted is not None:
            raise self._halted
        self._leave_directory()

    # -- starting ------------------------------------------------------------------------------

    async def _open(self) -> None:
        settings = self._settings
        self._directory = DataDirectory.open(settings.data_dir, settings.cluster, settings.node)
        self._stored = ManifestFile(self._directory)
        self._stored.open(settings.nodes)
        identity = self._directory.identity
        own = Identity(identity.cluster, identity.node, identity.storage, secrets.randbits(63))
        self._members = Members(own, settings, self._stored)
        self._links = PeerLinks(self._members.peers, self, settings.network)
        self._replicas = Replicas(
            self._directory, self._stored, settings.config, self.metrics,
            send=self._links.send, halted=self.halt,
        )  # fmt: skip
        self._presence = Presence(self._members.peers)
        self._refusals = Refusals(self._members, settings.network)
        self._disk = Disk(settings.data_dir, settings.config)
        self._keeper = Keeper(settings.node, self._replicas, self._stored, self._links, self._disk)
        self.service = Service(
            settings, self._members, self._replicas, self._keeper, self._presence, self.metrics
        )
        self._listener = Listener(self, settings.network)
        await self._listen_http()
        await self._wait_after_failures()
        await self._listen()
        self._links.start()

    async def _start(self, opened: Callable[[], None]) -> None:
        await self._meet_all()
        await self._take_part()
        self._opened = True
        opened()
        log.info("node serves address=%s", self._listener.address)

    async def _take_part(self) -> None:
        await self._meet_majority()
        await self._open_logs()
        for work in (
            self._keeper.follow(), self._keeper.carrier.run(),
            self._become_ready(), self._become_sound(), self._watch_room(),
        ):  # fmt: skip
            self._begin(work)

    async def _listen_http(self) -> None:
        address = self._settings.http
        if address is not None:
            with _naming(f"[node] http = {address}"):
                await self._http.start(address)

    async def _listen(self) -> None:
        settings = self._settings
        # Not the address that clients are told: that may belong to another host.
        address = settings.listen or self._stored.manifest.nodes[settings.node].address
        if not settings.insecure:
            check_loopback("listen", address)
        with _naming("[node] listen"):
            await self._listener.start(address)

    async def _meet_all(self) -> None:
        """Wait until a first start has met each node once: see server/roster.py."""
        began = self._loop.time()
        told_at = began + FORMING_TELL_S
        while missing := self._members.roster.missing:
            now = self._loop.time()
            if now >= told_at:
                told_at = now + FORMING_REPEAT_S
                level = logging.WARNING if now - began >= FORMING_PATIENCE_S else logging.INFO
                log.log(
                    level, "the first start waits: it needs every node once nodes=%s seconds=%d",
                    ",".join(missing), now - began,
                )  # fmt: skip
            self._meeting.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(told_at - now):
                    await self._meeting.wait()

    async def _meet_majority(self) -> None:
        """Wait a moment for links to a majority: a node that campaigns without them has to wait for
        its next election timeout."""
        majority = len(self._members.ids) // 2 + 1
        with suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                while 1 + len(self._met) < majority:
                    self._meeting.clear()
                    await self._meeting.wait()

    async def _open_logs(self) -> None:
        await self._keeper.carrier.open_catalog(self._members.ids)
        await self._keeper.carrier.open_logs()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = task.exception() if not task.cancelled() else None
        if isinstance(error, ReplicaHalted):
            self.halt(error)
        elif error is not None:
            halt = ReplicaHalted(f"{self._settings.node}: {error!r}")
            halt.__cause__ = error
            self.halt(halt)

    async def _become_ready(self) -> None:
        """Become ready once the catalog was read behind a barrier; all local logs are open by
        now."""
        while not self._ready:
            with suppress(QuorateError):
                await self._keeper.refresh()
                self._ready = True
                log.info("node ready")
                return
            await asyncio.sleep(RETRY_S)

    # -- disk failures -------------------------------------------------------------------------

    async def _wait_after_failures(self) -> None:
        """Wait after disk failures, so that repeated restarts do not wear the disk out."""
        failures = self._stored.manifest.failures
        if failures:
            wait_s = min(FAILURE_WAIT_S * 2 ** (failures - 1), FAILURE_WAIT_S_MAX)
            log.warning("the disk failed before: waiting failures=%d seconds=%s", failures, wait_s)
            await asyncio.wait([self._stopping], timeout=wait_s)

    def remember_failure(self) -> None:
        """Count a disk failure before the process ends, so that the next start waits."""
        self._stored.manifest.failures += 1
        with suppress(OSError):  # it is the disk that failed
            self._stored.save_now()

    async def _become_sound(self) -> None:
        await asyncio.sleep(SOUND_S)
        if self._stored.manifest.failures:
            self._stored.manifest.failures = 0
            try:
                await self._stored.save()
            except OSError as error:  # without room the next change of the manifest writes it
                if error.errno not in PASSING:
                    node = self._settings.node
                    raise DiskFailed(f"{node}: the manifest: {error}") from error

    async def _watch_room(self) -> None:
        """Log when the disk has no space: that is no failure, and operators must know it all the
        same."""
        watch = RoomWatch(self._disk, self._replicas)
        while True:
            watch.look()
            await asyncio.sleep(WATCH_S)

    # -- stopping ------------------------------------------------------------------------------

    async def _close(self) -> None:
        self._listener.stop_accepting()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._replicas.close_all()
        self.service.flush()
        await self._listener.close()
        await self._links.close()
        await self._http.close()

    def _leave_directory(self) -> None:
        self._stored.close()
        self._directory.close()

    # -- connections ---------------------------------------------------------------------------

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        problem = self._members.judge(hello, self._linked)
        if problem is not None:
            return problem
        if hello.purpose == "client":
            return self._members.welcome() if self._opened else Busy(self._starting())
        self._learnt()
        # The peer is up: dial it now instead of at the next attempt.
        self._links.redial(NodeId(hello.node or ""))
        return self._members.welcome()

    def known(self, hello: Hello) -> tuple[Seen | None, bool]:
        return self._members.known(hello, self._linked)

    def _linked(self, peer: NodeId) -> bool:
        """True if a link to a process of ``peer`` is open, whether this node or the peer dialled
        it."""
        return self._links.linked(peer) or self._listener.has_peer(peer)

    def _learnt(self) -> None:
        """Act on a peer's introduction, which may tell of other nodes too."""
        self._meeting.set()
        for peer in self._members.roster.take_outdated():
            log.warning("links end: a start of the peer is known that is not its own peer=%s", peer)
            self._listener.drop_peer(peer)
            self._links.drop(peer)

    def _starting(self) -> str:
        roster = self._members.roster
        refusal = roster.refusal or self._refusals.text
        if refusal:
            return refusal
        if not roster.missing:
            return "the node is starting"
        names = ", ".join(roster.missing)
        return f"{self._settings.node} waits for its first start: it needs {names} once"

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        if hello.purpose == "client":
            batch_bytes = self._settings.config.limits.batch_bytes
            # A batch that is a little too large gets TOO_LARGE, and the connection goes on.
            connection.limits = FrameLimits(CLIENT_CONTROL_BYTES, 2 * batch_bytes)
            self.service.begin(connection)
        else:
            connection.limits = PEER
            # A link whose other end lost power must end soon: until then it blocks that node's next
            # start.
            connection.treat_as_peer()
            peer, own = NodeId(hello.node or ""), self._members.own
            connection.handler = PeerSession(
                peer, own, connection, self._replicas, self._keeper, self._refused_frames
            )

    def hello(self, purpose: Literal["control", "bulk"], peer: NodeId) -> Hello:
        return self._members.hello(purpose, peer)

    def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
        problem = self._members.judge_welcome(peer, welcome, self._linked)
        if problem is None:
            self._refusals.let_in(peer)
            self._learnt()
        return problem

    def refused_by(self, peer: NodeId, refusal: Refusal) -> None:
        self._members.roster.hear_refusal(peer, refusal.known)
        if not self._links.connected(peer):
            self._refusals.take(peer, refusal)

    def unreachable(self, peer: NodeId) -> None:
        self._refusals.forget(peer)

    def link_opened(self, peer: NodeId) -> None:
        self._met.add(peer)
        self._meeting.set()
        self._presence.reached(peer)

    def link_closed(self, peer: NodeId) -> None:
        self._presence.lost(peer)
        self._replicas.link_closed(peer)

    def link_refused(self, peer: NodeId) -> None:
        self._replicas.link_refused(peer)

    # -- monitoring ----------------------------------------------------------------------------

    def _readyz(self) -> Page:
        if self._stopping.done():
            why = "stopping"
        elif self._ready and not self._refusals.by_majority:
            return Page(200, b"ready\n")
        else:
            why = self._starting()
        return Page(503, f"{why}\n".encode())

    def _snapshot(self) -> Snapshot:
        if not self._ready:
            return Snapshot([], None, 0)
        use = self._disk.look()
        return Snapshot(
            [hosted.measure() for hosted in self._replicas],
            use.free_bytes,
            len(self.service.sessions),
            use.full,
            tuple((down.name, down.damaged) for down in self._replicas.down.values()),
        )


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Name the address at which a node cannot listen, unless the failure is temporary."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise InvalidArgument(f"{key}: {error.strerror}") from None
