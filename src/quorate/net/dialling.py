"""Addresses of nodes, and connections to them: dial, say HELLO, wait for WELCOME."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, QuorateError, ReplicaHalted
from quorate.net.connection import DEFAULT, Connection
from quorate.wire.frames import FrameKind, FrameLimits
from quorate.wire.handshake import (
    HandshakeRefusal,
    Hello,
    Welcome,
    decode_refusal,
    encode_hello,
    judge_welcome,
    open_welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.config import NetworkLimits
    from quorate.wire.frames import Frame

__all__ = ["dial", "format_address", "parse_address"]

PORT_MAX = 65_535
# Frame limits before WELCOME: it names all nodes with their addresses, so it may be longer than a
# HELLO, and it comes from a node that this side chose to dial.
GREETING = FrameLimits(control=16 << 10, bulk=0)


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port; an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"address {address!r}: an IPv6 address stands in brackets")
    digits = port.isascii() and port.isdigit() and len(port) <= len(str(PORT_MAX))
    if not (colon and host and digits and int(port) <= PORT_MAX):
        raise InvalidArgument(f"address {address!r} is not HOST:PORT with a port up to {PORT_MAX}")
    try:
        host.encode("idna")  # as the resolver will do
    except UnicodeError:
        raise InvalidArgument(
            f"address {address!r}: {host!a} is not the name of a host: parts of 1 to 63 characters "
            f"between dots"
        ) from None
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Join host and port to ``host:port``: the inverse of :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def dial(
    address: str,
    hello: Hello,
    *,
    timeout: float,  # noqa: ASYNC109  # callers have deadlines; asyncio.timeout keeps this one
    limits: FrameLimits,
    network: NetworkLimits = DEFAULT,
    refused: Callable[[HandshakeRefusal], None] = lambda _: None,
) -> tuple[Connection, Welcome]:
    """Connect, say HELLO and wait for WELCOME. The caller sets the handler before it sends.
    ``refused`` is called with a REFUSAL that the other side answered instead.

    Raises the error of the REFUSAL, or the reason why the other side is not the node that was
    meant. Raises OSError if the address cannot be reached: ConnectionRefusedError if no process
    listens there, TimeoutError if no WELCOME came in time.
    """
    host, port = parse_address(address)
    greeting = _Greeting(address, network, refused)
    try:
        async with asyncio.timeout(timeout):
            await _connect(greeting.connection, host, port)
            welcome = await greeting.say(hello)
    except TimeoutError:
        raise TimeoutError(f"{address} did not say WELCOME in {timeout:g} s") from None
    greeting.connection.limits = limits
    return greeting.connection, welcome


class _Greeting:
    """The handler until WELCOME: waits for the first frame of the node that was dialled."""

    def __init__(
        self, address: str, network: NetworkLimits, refused: Callable[[HandshakeRefusal], None]
    ) -> None:
        self._refused = refused
        self.connection = Connection(address, self, network)
        self.connection.limits = GREETING
        self._answer: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    async def say(self, hello: Hello) -> Welcome:
        try:
            self.connection.send([encode_hello(hello)])
            welcome = await self._answer
            error = judge_welcome(welcome, hello)
            if error is not None:
                raise error
        except BaseException:
            self.connection.abort()
            raise
        return welcome

    def frame_received(self, frame: Frame) -> None:
        if self._answer.done():
            raise InvalidArgument(f"{frame.kind.name} came before anything was asked")
        try:
            if frame.kind is FrameKind.REFUSAL:
                self._refused(decode_refusal(frame))
            self._answer.set_result(open_welcome(frame))
        except (QuorateError, ReplicaHalted) as error:
            self._answer.set_exception(error)

    def closed(self, error: Exception | None) -> None:
        if not self._answer.done():
            ended = f"{self.connection.address} closed before it said WELCOME"
            self._answer.set_exception(error or ConnectionResetError(ended))
            # Marks the exception as retrieved: a caller that gave up dialling does not await it.
            self._answer.exception()

    def writable(self, yes: bool) -> None:
        """Does nothing: a HELLO is too short to fill the write buffer."""


async def _connect(connection: Connection, host: str, port: int) -> None:
    """Try every address of ``host``. Raises ConnectionRefusedError only if all of them refuse."""
    loop = asyncio.get_running_loop()
    failed: OSError = ConnectionRefusedError(f"{host} has no address")
    for numeric in await _resolve(host, port):
        try:
            await loop.create_connection(lambda: connection, numeric, port)
        except OSError as error:
            if isinstance(failed, ConnectionRefusedError):
                failed = error
        else:
            return
    raise failed


async def _resolve(host: str, port: int) -> list[str]:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]
    return [host]
