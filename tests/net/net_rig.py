"""Both ends of real connections on loopback, and ways to wait for what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from typing import TYPE_CHECKING, Literal

from quorate.config import NetworkLimits
from quorate.net.dialling import dial, parse_address
from quorate.net.links import PeerLinks
from quorate.net.listener import Listener
from quorate.types import NodeId
from quorate.wire.frames import Frame, FrameKind, FrameLimits, Framer, encode_frame
from quorate.wire.handshake import (
    PROTOCOL,
    HandshakeRefusal,
    Hello,
    Introduction,
    Seen,
    Welcome,
    encode_hello,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from quorate.errors import QuorateError
    from quorate.net.connection import Connection

CLIENT = Hello("client")
PEER = NodeId("n2")
ROOM = FrameLimits(1 << 20, 1 << 26)
PATIENT = NetworkLimits()
# Tries again at once, and when the test is long over.
EAGER = NetworkLimits(redial_min_ms=1, redial_max_ms=5, redial_refused_ms=5)
RELUCTANT = NetworkLimits(redial_min_ms=600_000, redial_max_ms=600_000, redial_refused_ms=600_000)
# Who is silent is given up soon, so that a test need not wait.
QUICK = NetworkLimits(keepalive_ms=20, peer_keepalive_ms=20)


def free_address(host: str = "127.0.0.1") -> str:
    """Nobody listens there. Ports from 32768 up are not ours to use."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return f"{host}:{port}"


def introduction() -> Introduction:
    return Introduction(bytes(16), start=1, boot=1, earlier={}, formed=True, known={})


def welcome(node: str = "n1", cluster: str = "c1") -> Welcome:
    return Welcome(
        cluster, node, introduction(), protocol=PROTOCOL, features=1, record_bytes=1,
        batch_bytes=1, nodes={},
    )  # fmt: skip


def numbered(number: int, bulk: bytes = b"") -> list[bytes]:
    return [encode_frame(FrameKind.APPEND, struct.pack("<I", number), len(bulk)), bulk]


def number_of(frame: Frame) -> int:
    return int(struct.unpack_from("<I", frame.control)[0])


class Watched:
    """Lets a test wait until something that it can see is so."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def change(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Recorder(Watched):
    """A handler that writes down what it is told."""

    def __init__(self, connection: Connection, limits: FrameLimits = ROOM) -> None:
        super().__init__()
        self.connection = connection
        self.frames: list[Frame] = []
        self.writables: list[bool] = []
        # Empty until it is closed.
        self.ends: list[Exception | None] = []
        connection.handler = self
        connection.limits = limits

    def frame_received(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.change()

    def closed(self, error: Exception | None) -> None:
        self.ends.append(error)
        self.change()

    def writable(self, yes: bool) -> None:
        self.writables.append(yes)
        self.change()

    async def received(self, count: int) -> list[Frame]:
        await self.until(lambda: len(self.frames) >= count or self.ends)
        return self.frames

    async def end(self) -> Exception | None:
        await self.until(lambda: self.ends)
        return self.ends[0]


class Door(Watched):
    """Lets in everybody, or nobody."""

    def __init__(self, node: str = "n1", refusal: QuorateError | None = None) -> None:
        super().__init__()
        self.node = node
        self.refusal = refusal
        self.hellos: list[Hello] = []
        self.guests: list[Recorder] = []
        # Those who are in, by what their HELLO says.
        self.inside: dict[str, Recorder] = {}
        # What a peer that is refused is told of itself.
        self.tells: tuple[Seen | None, bool] = None, False

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        self.hellos.append(hello)
        self.change()
        return self.refusal or welcome(self.node)

    def known(self, hello: Hello) -> tuple[Seen | None, bool]:
        return self.tells

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        guest = Recorder(connection)
        self.guests.append(guest)
        self.inside[hello.purpose] = guest
        self.change()

    async def guest(self, number: int = 0) -> Recorder:
        await self.until(lambda: len(self.guests) > number)
        return self.guests[number]


@contextlib.asynccontextmanager
async def listening(door: Door, network: NetworkLimits = PATIENT) -> AsyncIterator[Listener]:
    listener = Listener(door, network)
    await listener.start(free_address())
    try:
        yield listener
    finally:
        await listener.close()


@contextlib.asynccontextmanager
async def pair(
    network: NetworkLimits = PATIENT,
) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """The two ends of one connection: the one that dialled, and the one that was dialled."""
    door = Door()
    async with listening(door, network) as listener:
        near = await enter(listener.address, network)
        yield near, await door.guest()
        near.connection.close()
        await near.end()


@contextlib.asynccontextmanager
async def intruded(network: NetworkLimits = PATIENT) -> AsyncIterator[tuple[Stranger, Recorder]]:
    """A bare socket that was welcomed, and the end that serves it."""
    door = Door()
    async with (
        listening(door, network) as listener,
        await intrude_politely(listener.address) as stranger,
    ):
        yield stranger, await door.guest()


async def enter(address: str, network: NetworkLimits = PATIENT) -> Recorder:
    connection, _ = await dial(address, CLIENT, timeout=20, limits=ROOM, network=network)
    return Recorder(connection)


class Stranger:
    """A bare socket: sends what no release would, and reads when it likes."""

    def __init__(self, source: str = "127.0.0.1") -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.bind((source, 0))
        self._framer = Framer(ROOM)

    async def __aenter__(self) -> Stranger:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def connect(self, address: str) -> None:
        await asyncio.get_running_loop().sock_connect(self.socket, parse_address(address))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def frames(self) -> list[Frame]:
        """The frames of the next bytes that come; none at the end of the stream."""
        found: list[Frame] = []
        while not found:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
            if not data:
                return []
            found = list(self._framer.feed(data))
        return found

    def reset(self) -> None:
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


async def intrude(address: str, source: str = "127.0.0.1") -> Stranger:
    """Connect without a word."""
    stranger = Stranger(source)
    await stranger.connect(address)
    return stranger


async def intrude_politely(address: str, source: str = "127.0.0.1") -> Stranger:
    """Connect, say HELLO and be welcomed."""
    stranger = await intrude(address, source)
    await stranger.send(encode_hello(CLIENT))
    [frame] = await stranger.frames()
    assert frame.kind is FrameKind.WELCOME
    return stranger


class Events(Watched):
    """Writes down what links report."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        # Links that were welcomed, and what this node then said.
        self.welcomes = 0
        self.refusals: list[HandshakeRefusal] = []
        self.verdict: QuorateError | None = None
        # Peers whose control link was opened, each time.
        self.opened: list[NodeId] = []
        # Those that gave no answer, each time.
        self.unreached: list[NodeId] = []

    def hello(self, purpose: Literal["control", "bulk"], peer: NodeId) -> Hello:
        return Hello(purpose, cluster="c1", node="n1", target=peer, introduction=introduction())

    def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
        self.welcomes += 1
        self.change()
        return self.verdict

    def refused_by(self, peer: NodeId, refusal: HandshakeRefusal) -> None:
        self.refusals.append(refusal)

    def unreachable(self, peer: NodeId) -> None:
        self.unreached.append(peer)
        self.change()

    def link_opened(self, peer: NodeId) -> None:
        self.opened.append(peer)
        self.change()

    def link_closed(self, peer: NodeId) -> None:
        self.seen.append(f"closed {peer}")
        self.change()

    def link_refused(self, peer: NodeId) -> None:
        self.seen.append(f"refused {peer}")
        self.change()


@contextlib.asynccontextmanager
async def linked(
    address: str, events: Events, network: NetworkLimits = EAGER
) -> AsyncIterator[PeerLinks]:
    """The links of n1 to n2."""
    links = PeerLinks({PEER: address}, events, network)
    links.start()
    try:
        yield links
    finally:
        await links.close()


async def both_up(door: Door, events: Events) -> tuple[Recorder, Recorder]:
    """Wait for both links; the far ends of the control and the bulk link."""
    await door.until(lambda: len(door.inside) == 2)
    await events.until(lambda: events.welcomes >= 2)
    events.welcomes -= 2
    control, bulk = door.inside["control"], door.inside["bulk"]
    door.inside.clear()
    return control, bulk
