"""A node, from its first step to its last: what it opens, in which order, and how it stops.

It halts as a whole if its disk fails or its catalog must not go on: all logs share both. Any other
halt stops one log's replica, see `replicas.py`.
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

# Everything in a client's request that is not a batch: a publish may name 8,192 parts.
CLIENT_CONTROL_BYTES = 4 << 20
# A first start tells for whom it waits: for the first time after so long, then every so often, and
# after the last of these as a warning.
FORMING_TELL_S = 1.0
FORMING_REPEAT_S = 10.0
FORMING_PATIENCE_S = 30.0
# How long a start waits until a majority can be reached.
MEET_S = 1.0
# After a failure of the disk the next start waits; after several in a row, longer each time.
FAILURE_WAIT_S = 1.0
FAILURE_WAIT_S_MAX = 60.0
# The disk of a node that ran for so long works.
SOUND_S = 60.0
# How often a node looks whether its disk has room.
WATCH_S = 1.0


class Node:
    """One process of a cluster."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self.metrics = Metrics()
        self._loop = asyncio.get_running_loop()
        # Done when the node is to stop.
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        # Why it must not go on: the first reason stays.
        self._halted: ReplicaHalted | None = None
        # Peers that were reached since the start, and what tells of another one.
        self._met: set[NodeId] = set()
        self._meeting = asyncio.Event()
        self._refused_frames = RefusedFrames()
        # All logs are open; clients are let in.
        self._opened = False
        # The catalog was seen behind a barrier.
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
        """Come to an end in good order."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def halt(self, halt: ReplicaHalted) -> None:
        """Come to an end at once: :meth:`run` raises ``halt``, and nothing leaves this node any
        more. A log that is being opened may take long, and others vote meanwhile.

        A node that stops already ends its stop first.
        """
        log.critical("node halts kind=%s error=%s", type(halt).__name__, halt)
        # Before anything else: whatever goes wrong with a link, the node ends.
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
            # Nothing was promised yet: it can be started again when there is room.
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
        # It may have come during the stop.
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
        # Not where clients are told to go: that may be another host's.
        address = settings.listen or self._stored.manifest.nodes[settings.node].address
        if not settings.insecure:
            check_loopback("listen", address)
        with _naming("[node] listen"):
            await self._listener.start(address)

    async def _meet_all(self) -> None:
        """A first start needs every node once: see server/roster.py."""
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
        """Who campaigns before anybody can hear it waits for its next turn: so meet first."""
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
        """All local logs are open by now; ready is who has seen the catalog behind a barrier."""
        while not self._ready:
            with suppress(QuorateError):
                await self._keeper.refresh()
                self._ready = True
                log.info("node ready")
                return
            await asyncio.sleep(RETRY_S)

    # -- a disk that fails ---------------------------------------------------------------------

    async def _wait_after_failures(self) -> None:
        """Whoever starts this node again and again does not wear its disk out."""
        failures = self._stored.manifest.failures
        if failures:
            wait_s = min(FAILURE_WAIT_S * 2 ** (failures - 1), FAILURE_WAIT_S_MAX)
            log.warning("the disk failed before: waiting failures=%d seconds=%s", failures, wait_s)
            await asyncio.wait([self._stopping], timeout=wait_s)

    def remember_failure(self) -> None:
        """The disk failed and the process is about to end: the next one will wait."""
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
        """A disk without room does not fail: whoever reads the lines is to know all the same."""
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

    # -- who connects --------------------------------------------------------------------------

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        problem = self._members.judge(hello, self._linked)
        if problem is not None:
            return problem
        if hello.purpose == "client":
            return self._members.welcome() if self._opened else Busy(self._starting())
        self._learnt()
        # It is up: no need to wait for the next try to reach it.
        self._links.redial(NodeId(hello.node or ""))
        return self._members.welcome()

    def known(self, hello: Hello) -> tuple[Seen | None, bool]:
        return self._members.known(hello, self._linked)

    def _linked(self, peer: NodeId) -> bool:
        """Whether a link to a process of ``peer`` is open, whoever dialled it."""
        return self._links.linked(peer) or self._listener.has_peer(peer)

    def _learnt(self) -> None:
        """A peer said something of itself and of others."""
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
            # What is a little too large is refused by name, and the connection lives.
            connection.limits = FrameLimits(CLIENT_CONTROL_BYTES, 2 * batch_bytes)
            self.service.begin(connection)
        else:
            connection.limits = PEER
            # A link whose other end lost its power must end soon: it keeps the next start out.
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

    # -- who watches ---------------------------------------------------------------------------

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
    """Say at which address a node cannot listen, unless the system may allow it later."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise InvalidArgument(f"{key}: {error.strerror}") from None
