"""Whole nodes in one process, over real directories and sockets; a client that speaks frames."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.batch import encode_batch
from quorate.config import KIB, Config, Limits, NetworkLimits, Server, Storage, Timing
from quorate.errors import NoQuorum, NotLeader, QuorateError
from quorate.net.dialling import dial
from quorate.replica.opening import plan_opening
from quorate.server.identity.roster import Roster
from quorate.server.node import Node
from quorate.server.sessions.client_session import ClientSession
from quorate.server.settings import Settings
from quorate.storage.disk_errors import WAIT_FOR_FILES
from quorate.storage.manifest import MANIFEST, Manifest
from quorate.types import NodeId
from quorate.wire.calls import CreateLog, FindLog, decode_result, encode_call
from quorate.wire.frames import Frame, FrameKind, FrameLimits
from quorate.wire.handshake import Hello, Introduction, NodeIdentity
from quorate.wire.requests import (
    AppendRequest,
    Fetch,
    Receipts,
    Records,
    decode_failure,
    decode_receipts,
    decode_records,
    encode_append,
    encode_fetch,
    request_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
    from pathlib import Path

    import pytest

    from quorate.net.connection import Connection
    from quorate.server.sessions.answers import AnswerBuffer
    from quorate.storage.directory import DataDirectory
    from quorate.wire.calls import Call, LogFound

ResultT = TypeVar("ResultT")

DEADLINE_S = 40
CLUSTER = "shop"
ROOM = FrameLimits(1 << 20, 1 << 26)
# Quick, and yet patient with a machine that is busy with other tests.
CONFIG = Config(
    Timing(heartbeat_ms=50, election_ms=500),
    Limits(batch_bytes=64 * KIB, entry_bytes=16 * KIB),
    Storage(segment_bytes=512 * KIB),
)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine, all of it in one loop and within the deadline."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(*arguments, **named)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


async def outcomes(futures: Sequence[Awaitable[object]]) -> list[str]:
    """What each request came to."""
    return [error_code(one) for one in await asyncio.gather(*futures, return_exceptions=True)]


async def until(condition: Callable[[], object]) -> None:
    """Let others go on until ``condition`` holds; the test's deadline ends it."""
    while not condition():  # noqa: ASYNC110  # what is waited for happens in many places
        await asyncio.sleep(0.005)


def free_address() -> str:
    """Nobody listens there. Ports from 32768 up are not ours to use."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"


class Cluster:
    """Nodes by name. Each lives in a directory of ``path``."""

    def __init__(self, path: Path, nodes: int = 3, **changes: Any) -> None:
        addresses = {NodeId(f"n{number}"): free_address() for number in range(1, nodes + 1)}
        self.settings = {
            node: Settings(
                node, path / node, CLUSTER, addresses, {}, addresses[node], None, None, False,
                CONFIG.limits.batch_bytes, CONFIG, NetworkLimits(), Server(),
            )
            for node in addresses
        }  # fmt: skip
        self.settings = {
            node: replace(settings, **changes) for node, settings in self.settings.items()
        }
        self.nodes: dict[str, Node] = {}
        self.running: dict[str, asyncio.Task[None]] = {}

    @classmethod
    @asynccontextmanager
    async def started(cls, path: Path, nodes: int = 3, **changes: Any) -> AsyncIterator[Cluster]:
        cluster = cls(path, nodes, **changes)
        try:
            await asyncio.gather(*map(cluster.start, cluster.settings))
            yield cluster
        finally:
            await asyncio.gather(*map(cluster.stop, list(cluster.running)))

    def begin(self, node: str) -> asyncio.Event:
        """Start it; what is returned is set when it serves."""
        self.nodes[node] = Node(self.settings[NodeId(node)], "1.2.3")
        opened = asyncio.Event()
        self.running[node] = asyncio.create_task(self.nodes[node].run(opened.set))
        return opened

    async def start(self, node: str) -> None:
        """Returns when it serves. Raises why it does not."""
        opened = self.begin(node)
        running = self.running.pop(node)
        wait = asyncio.create_task(opened.wait())
        await asyncio.wait([running, wait], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            opened.set()
            await wait
            running.result()
        self.running[node] = running

    async def stop(self, node: str) -> None:
        self.nodes[node].stop()
        await self.running.pop(node)

    async def give_back(self, node: str) -> None:
        """Close what a process that halted leaves to the system."""
        await self.nodes[node]._close()
        self.nodes[node]._leave_directory()

    def address(self, node: str) -> str:
        return self.settings[NodeId(node)].nodes[NodeId(node)]


def next_start(path: Path, node: str) -> Introduction:
    """What a node that is down now would say of itself at its next start."""
    manifest = Manifest.decode((path / node / MANIFEST).read_bytes())
    storage = (path / node / "identity").read_text().split("storage ")[1][:32]
    assert manifest is not None
    own = NodeIdentity(CLUSTER, node, bytes.fromhex(storage), boot=1)
    return Roster(own, manifest, lambda: None).introduce()


class SlowOpening:
    """Holds the opening of one log up, before any of its files is touched, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: int, node: str | None = None) -> None:
        self.began = False
        self._release = threading.Event()

        def slow(directory: DataDirectory, group: Any, *rest: Any) -> Generator[str, None, Any]:
            if group.incarnation == log and node in (None, directory.identity.node):
                self.began = True
                while not self._release.is_set():
                    yield WAIT_FOR_FILES
            return (yield from plan_opening(directory, group, *rest))

        # In the place of the plan that opens a log.
        self.plan = slow
        monkeypatch.setattr("quorate.replica.opening.plan_opening", slow)

    def let_go(self) -> None:
        self._release.set()


class WireClient:
    """One connection of a client: requests by number, answers as they come."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.handler = self
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        # Of each RECEIPTS frame: how many answers it carried.
        self.receipt_rows: list[int] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, address: str) -> AsyncIterator[WireClient]:
        connection, _ = await dial(address, Hello("client"), timeout=5, limits=ROOM)
        client = cls(connection)
        try:
            yield client
        finally:
            connection.close()
            await client.ended

    def frame_received(self, frame: Frame) -> None:
        if frame.kind is FrameKind.RECEIPTS:
            receipts = decode_receipts(frame)
            answers = list(receipts.answers())
            self.receipt_rows.append(len(answers))
            for request, offset, count in answers:
                row = (request, 1, offset - receipts.base_offset, count)
                self._waiting.pop(request).set_result(receipts._replace(rows=[row]))
        elif frame.kind is FrameKind.FAILURE:
            request, error = decode_failure(frame)
            self._waiting.pop(request).set_exception(error)
        else:
            self._waiting.pop(request_of(frame)).set_result(frame)

    def closed(self, error: Exception | None) -> None:
        self.ended.set_result(error)
        for future in self._waiting.values():
            future.cancel()

    def writable(self, yes: bool) -> None:
        """Tests send little."""

    def expect(self) -> tuple[int, asyncio.Future[Any]]:
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        return self._number, future

    def begin_append(
        self, log: int, values: list[bytes], **conditions: Any
    ) -> asyncio.Future[Receipts]:
        return self.begin_batch(log, encode_batch(values), **conditions)

    def begin_batch(self, log: int, batch: bytes, **conditions: Any) -> asyncio.Future[Receipts]:
        number, future = self.expect()
        self.connection.send(
            [encode_append(AppendRequest(number, log, batch, **conditions)), batch]
        )
        return future

    async def append(self, log: int, *values: bytes, **conditions: Any) -> int:
        """The offset of the first record."""
        receipts = await self.begin_append(log, list(values), **conditions)
        return receipts.base_offset + receipts.rows[0][2]

    async def fetch(self, log: int, offset: int, bytes_max: int = 1 << 20, **rest: int) -> Records:
        number, future = self.expect()
        self.connection.send([encode_fetch(Fetch(number, log, offset, bytes_max, **rest))])
        return decode_records(await future)

    async def call(self, call: Call[ResultT]) -> ResultT:
        number, future = self.expect()
        self.connection.send([encode_call(number, call)])
        return decode_result(await future, call)


def tasks_of(buffer: AnswerBuffer) -> set[asyncio.Task[None]]:
    """The requests of a connection that a node still works on."""
    session = buffer.connection.handler
    assert isinstance(session, ClientSession)
    return session._tasks


def new_log() -> bytes:
    return secrets.token_bytes(16)


def number(incarnation: bytes) -> int:
    return int.from_bytes(incarnation, "little")


async def on_any(cluster: Cluster, ask: Callable[[WireClient], Awaitable[ResultT]]) -> ResultT:
    """The first answer that is not "ask another" of any node that runs."""
    while True:
        for node in list(cluster.running):
            async with WireClient.to(cluster.address(node)) as client:
                try:
                    return await ask(client)
                except (NotLeader, NoQuorum):
                    pass
        await asyncio.sleep(0.01)


async def create(cluster: Cluster, name: str) -> int:
    """Make a log, wherever the catalog is led."""
    call = CreateLog(name, new_log(), 10_000)
    return number((await on_any(cluster, lambda client: client.call(call))).incarnation)


async def find(cluster: Cluster, name: str) -> LogFound:
    """A log with its leader, as some node knows it."""
    while True:
        found = await on_any(cluster, lambda client: client.call(FindLog(name)))
        if found.leader in cluster.running:
            return found
        await asyncio.sleep(0.01)


@asynccontextmanager
async def leader_of(cluster: Cluster, name: str) -> AsyncIterator[WireClient]:
    """A connection to whoever leads the log."""
    found = await find(cluster, name)
    assert found.leader is not None
    async with WireClient.to(cluster.address(found.leader)) as client:
        yield client


def error_code(outcome: object) -> str:
    """What a request came to: the code of its error, or "OK"."""
    return outcome.code if isinstance(outcome, QuorateError) else "OK"
