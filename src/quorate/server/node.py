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

from quorate.errors import Busy, InvalidArgument, QuorateError, ReplicaHalted
from quorate.metrics import CONTENT_TYPE, Exposition, Metrics, Snapshot
from quorate.net.links import PeerLinks
from quorate.net.listener import Listener
from quorate.server.disk_failures import DiskFailures
from quorate.server.http import HttpServer, Page
from quorate.server.identity.meeting import Meeting
from quorate.server.identity.members import Members
from quorate.server.identity.reachability import Reachability
from quorate.server.identity.refusals import Refusals
from quorate.server.logs.catalog_service import CatalogService
from quorate.server.logs.disk import Disk, RoomWatch
from quorate.server.logs.handover import give_up_leaderships
from quorate.server.logs.log_lifecycle import RETRY_S
from quorate.server.logs.placing import Placer
from quorate.server.logs.replicas import Replicas
from quorate.server.manifest import ManifestFile
from quorate.server.sessions.client_session import ClientSession
from quorate.server.sessions.peers import PeerSession, RefusedFrames
from quorate.server.sessions.service import Service
from quorate.server.settings import check_loopback
from quorate.storage.directory import DataDirectory
from quorate.storage.disk_errors import PASSING
from quorate.types import NodeId
from quorate.wire.frames import PEER, FrameLimits
from quorate.wire.handshake import Hello, NodeIdentity, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from quorate.net.connection import Connection
    from quorate.server.settings import Settings
    from quorate.wire.handshake import HandshakeRefusal, Seen

__all__ = ["Node"]

log = logging.getLogger(__name__)

# Maximum number of logs that /readyz names.
NAMES_MAX = 10


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
        self._refused_frames = RefusedFrames()
        # True when the catalog is open and clients are let in. Logs may still be opened then.
        self._admits = False
        # True when all logs are open and the catalog was read behind a barrier.
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
        self.disk_failures: DiskFailures
        self._members: Members
        self._meeting: Meeting
        self._links: PeerLinks
        self._replicas: Replicas
        self._reachability: Reachability
        self._refusals: Refusals
        self._disk: Disk
        self._catalog_service: CatalogService
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
        self.disk_failures = DiskFailures(settings.node, self._stored)
        identity = self._directory.identity
        own = NodeIdentity(identity.cluster, identity.node, identity.storage, secrets.randbits(63))
        self._members = Members(own, settings, self._stored)
        self._meeting = Meeting(self._members)
        self._links = PeerLinks(self._members.peers, self, settings.network)
        self._replicas = Replicas(
            self._directory, self._stored, settings.config, self.metrics,
            send=self._links.send, halted=self.halt,
        )  # fmt: skip
        self._reachability = Reachability(self._members.peers)
        self._refusals = Refusals(self._members, settings.network)
        self._disk = Disk(settings.data_dir, settings.config)
        self._catalog_service = CatalogService(
            settings.node, self._replicas, self._stored, self._links, self._disk
        )
        self.service = Service(
            settings,
            self._members,
            self._replicas,
            self._catalog_service,
            self._reachability,
            self.metrics,
        )
        self._listener = Listener(self, settings.network)
        await self._listen_http()
        await self.disk_failures.wait(self._stopping)
        await self._listen()
        self._links.start()

    async def _start(self, opened: Callable[[], None]) -> None:
        await self._meeting.meet_all()
        await self._meeting.meet_majority()
        lifecycle = self._catalog_service.lifecycle
        await lifecycle.open_catalog(self._members.ids)
        # The replica of each log takes part as soon as it is open, and may lead: clients must not
        # wait for the slowest log.
        self._admits = True
        log.info("node serves address=%s", self._listener.address)
        for work in (
            self._catalog_service.follow(), lifecycle.run(),
            self._become_ready(), self.disk_failures.forget(),
            RoomWatch(self._disk, self._replicas).run(), self.service.watch.run(),
            self._placer().run(),
        ):  # fmt: skip
            self._begin(work)
        await lifecycle.logs_opened.wait()
        opened()

    def _placer(self) -> Placer:
        settle_s = self._settings.config.timing.settle_ms / 1000
        catalog = self._catalog_service.catalog
        return Placer(self._replicas, catalog, self._reachability.up_s, settle_s)

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
        """Become ready once all local logs are open and the catalog was read behind a barrier."""
        await self._catalog_service.lifecycle.logs_opened.wait()
        while not self._ready:
            with suppress(QuorateError):
                await self._catalog_service.refresh()
                self._ready = True
                log.info("node ready")
                return
            await asyncio.sleep(RETRY_S)

    # -- stopping ------------------------------------------------------------------------------

    async def _close(self) -> None:
        self._listener.stop_accepting()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        handover_ms = self._settings.config.timing.handover_ms
        await give_up_leaderships(self._replicas, handover_ms / 1000)
        await self._replicas.close_all()
        self.service.answers.flush()
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
            return self._members.welcome() if self._admits else Busy(self._starting())
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
        self._meeting.learnt()
        for peer in self._members.roster.take_outdated():
            log.warning("links end: a start of the peer is known that is not its own peer=%s", peer)
            self._listener.drop_peer(peer)
            self._links.drop(peer)

    def _starting(self) -> str:
        roster = self._members.roster
        refusal = roster.refusal or self._refusals.text
        if refusal:
            return refusal
        if roster.missing:
            names = ", ".join(roster.missing)
            return f"{self._settings.node} waits for its first start: it needs {names} once"
        opening = self._catalog_service.lifecycle.opening
        if opening:
            return f"{self._settings.node} opens its logs: {_listed(opening)} not open yet"
        return "the node is starting"

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        if hello.purpose == "client":
            batch_bytes = self._settings.config.limits.batch_bytes
            # A batch that is a little too large gets TOO_LARGE, and the connection goes on.
            control_bytes = self._settings.server.control_bytes
            connection.limits = FrameLimits(control_bytes, 2 * batch_bytes)
            connection.handler = ClientSession(self.service, connection)
        else:
            connection.limits = PEER
            # A link whose other end lost power must end soon: until then it blocks that node's next
            # start.
            connection.treat_as_peer()
            peer, own = NodeId(hello.node or ""), self._members.own
            connection.handler = PeerSession(
                peer, own, connection, self._replicas, self._catalog_service, self._refused_frames,
                calls_max=self._settings.server.peer_calls,
            )  # fmt: skip

    def hello(self, purpose: Literal["control", "bulk"], peer: NodeId) -> Hello:
        return self._members.hello(purpose, peer)

    def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
        problem = self._members.judge_welcome(peer, welcome, self._linked)
        if problem is None:
            self._refusals.let_in(peer)
            self._learnt()
        return problem

    def refused_by(self, peer: NodeId, refusal: HandshakeRefusal) -> None:
        self._members.roster.hear_refusal(peer, refusal.known)
        if not self._links.connected(peer):
            self._refusals.take(peer, refusal)

    def unreachable(self, peer: NodeId) -> None:
        self._refusals.forget(peer)

    def link_opened(self, peer: NodeId) -> None:
        self._meeting.reached(peer)
        self._reachability.reached(peer)

    def link_closed(self, peer: NodeId) -> None:
        self._reachability.lost(peer)
        self._replicas.link_closed(peer)

    def link_refused(self, peer: NodeId) -> None:
        self._replicas.link_refused(peer)

    # -- monitoring ----------------------------------------------------------------------------

    def _readyz(self) -> Page:
        if self._stopping.done():
            why = "stopping"
        elif self._ready and not self._refusals.by_majority:
            return Page(200, "".join(["ready\n", *self._not_open()]).encode())
        else:
            why = self._starting()
        return Page(503, f"{why}\n".encode())

    def _not_open(self) -> Iterator[str]:
        """A line for each reason why logs that should run here do not."""
        names: dict[str, list[str]] = {}
        for down in self._replicas.down.values():
            names.setdefault(down.reason, []).append(down.name)
        for reason, logs in names.items():
            yield f"not open: {_listed(logs)}: {reason}\n"

    def _snapshot(self) -> Snapshot:
        if not self._admits:
            return Snapshot([], None, 0)
        use = self._disk.look()
        return Snapshot(
            [hosted.measure() for hosted in self._replicas],
            use.free_bytes,
            len(self.service.answers.buffers),
            use.full,
            tuple((down.name, down.damaged) for down in self._replicas.halted.values()),
        )


def _listed(names: list[str]) -> str:
    """The first of ``names``, and the number of the others."""
    first, more = ", ".join(names[:NAMES_MAX]), len(names) - NAMES_MAX
    return f"{first} and {more} more" if more > 0 else first


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Name the address at which a node cannot listen, unless the failure is temporary."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise InvalidArgument(f"{key}: {error.strerror}") from None
