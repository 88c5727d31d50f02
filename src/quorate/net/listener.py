"""Lets connections in: who says HELLO in time, is judged well and finds a slot.

Before HELLO nobody is anybody: strangers share a small number of places, and the one that waited
longest makes room for the next. Clients have slots, in all and per IP address. A peer has one link
of each purpose, apart from the clients' slots; a new one replaces the old.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from quorate.errors import Busy, InvalidArgument, QuorateError, Timeout
from quorate.net.connection import DEFAULT, Connection
from quorate.net.dialling import format_address, parse_address
from quorate.net.limits import open_files_max
from quorate.wire.handshake import Hello, Welcome, decode_hello, encode_refusal, encode_welcome

if TYPE_CHECKING:
    from quorate.net.limits import NetworkLimits
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Seen

__all__ = ["Accept", "Listener"]

log = logging.getLogger(__name__)

# Connections that wait in the system until they are accepted.
BACKLOG = 1024
# Connections that are accepted before others get their turn.
ACCEPTS_PER_TURN = 16
# Peers of which it is remembered that their refusal was told.
REFUSED_MAX = 64

_OUT_OF_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Accept(Protocol):
    """Who is let in, and what becomes of them."""

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        """The answer to ``hello``: WELCOME, or why not."""

    def known(self, hello: Hello) -> tuple[Seen | None, bool]:
        """What a peer that is refused is told: what is known of it here, and whether an earlier
        process of it has a link."""

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        """WELCOME is on its way. Sets the connection's handler and limits."""


class Listener:
    """One listening socket and every connection that came through it."""

    def __init__(self, accept: Accept, network: NetworkLimits = DEFAULT) -> None:
        self.accept = accept
        self.network = network
        # Where it listens: with the port that the system chose if the one given was 0.
        self.address = ""
        self._socket: socket.socket | None = None
        # Set while no sockets are left.
        self._retry: asyncio.TimerHandle | None = None
        # Whether that was logged, and nobody was accepted since.
        self._starved = False
        # Sockets that become connections: it takes a few turns of the loop.
        self._opening: set[asyncio.Task[None]] = set()
        # Every guest whose connection has not ended, refused and replaced ones too.
        self._guests: set[_Guest] = set()
        # Those who have not said HELLO, in the order in which they came.
        self._strangers: dict[_Guest, None] = {}
        self.clients = 0
        self._clients_at: Counter[str] = Counter()
        # (node, purpose) -> its link.
        self._peers: dict[tuple[str | None, str], _Guest] = {}
        # Peers that were refused, and why: it was told.
        self._refused: dict[str | None, str] = {}
        # Set by `abort`: a socket that was accepted before becomes no connection any more.
        self._aborted = False
        self._empty = asyncio.Event()

    async def start(self, address: str) -> None:
        """Listen at ``host:port``. Raises OSError that names the address if that cannot be."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._socket = _listen(*found[0])
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from None
        self.address = format_address(*self._socket.getsockname()[:2])
        loop.add_reader(self._socket, self._take_waiting, self._socket)

    def stop_accepting(self) -> None:
        """Take nobody new. Who is in stays."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def close(self) -> None:
        """Take nobody new and close every connection, after what is queued for it."""
        self.stop_accepting()
        if self._opening:
            await asyncio.wait(self._opening)
        if not self._guests:
            return
        for guest in self._guests:
            guest.connection.close()
        hurry = asyncio.get_running_loop().call_later(self.network.close_ms / 1000, self.abort)
        self._empty.clear()  # it was so before, between two guests
        await self._empty.wait()
        hurry.cancel()

    def abort(self) -> None:
        """Accept no connection any more and end all at once, with the bytes queued for them."""
        self._aborted = True
        self.stop_accepting()
        for guest in self._guests:
            guest.connection.abort()

    # -- accepting -----------------------------------------------------------------------------

    def _take_waiting(self, listening: socket.socket) -> None:
        """The system has connections for us."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, source = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_SOCKETS:
                    self._back_off(listening, error)
                    return
                continue  # that one went away again
            accepted.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._let_in(accepted, source))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            # The lowest number that is free is given: a high one means that few are left.
            if self._files_left(accepted.fileno()) < self._spare_files // 2:
                self._back_off(listening, OSError(errno.EMFILE, "the last files are kept"))
                return
            self._starved = False

    @property
    def _spare_files(self) -> int:
        return min(self.network.spare_files, open_files_max() // 4)

    def _files_left(self, descriptor: int) -> int:
        return open_files_max() - 1 - descriptor

    def _back_off(self, listening: socket.socket, error: OSError) -> None:
        """No sockets are left: a stranger gives its own back, and the next try comes later."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._retry = loop.call_later(
            self.network.accept_retry_ms / 1000,
            loop.add_reader, listening, self._take_waiting, listening,
        )  # fmt: skip
        self._evict(Busy("no sockets are left"))
        if not self._starved:
            self._starved = True
            log.warning("accepting nobody for now address=%s: %s", self.address, error)

    async def _let_in(self, accepted: socket.socket, source: tuple[str, int]) -> None:
        if self._aborted:
            accepted.close()
            return
        address = format_address(*source[:2])
        guest = _Guest(self, source[0], address, accepted.fileno())
        self._guests.add(guest)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: guest.connection, accepted)
        except OSError:  # it went away again
            accepted.close()
            self.forget(guest)
            return
        if guest.hello is None and not guest.connection.closed:
            if len(self._strangers) >= self.network.strangers:
                self._evict(Busy(f"{self.network.strangers} others have not said HELLO either"))
            self._strangers[guest] = None
            guest.expect_hello()

    def _evict(self, error: QuorateError) -> None:
        """Refuse the stranger that waited longest."""
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            del self._strangers[oldest]
            oldest.refuse(error)

    # -- slots ---------------------------------------------------------------------------------

    def admit(self, guest: _Guest, hello: Hello) -> Welcome | QuorateError:
        """Judge the guest and give it the slot that its HELLO asks for."""
        self._strangers.pop(guest, None)
        if hello.purpose != "client":
            return self._admit_peer(guest, hello)
        limits, here = self.network, self._clients_at[guest.host]
        if self._files_left(guest.descriptor) < self._spare_files:
            return Busy(f"too many files are open, limit {open_files_max()}")
        if self.clients >= limits.connections:
            return Busy(f"{self.clients} clients are connected, limit {limits.connections}")
        if here >= limits.connections_per_address:
            limit = limits.connections_per_address
            return Busy(f"{here} clients of {guest.host} are connected, limit {limit}")
        verdict = self.accept.judge(hello, guest.connection.address)
        if isinstance(verdict, Welcome):
            self.clients += 1
            self._clients_at[guest.host] += 1
            guest.hello = hello
        return verdict

    def _admit_peer(self, guest: _Guest, hello: Hello) -> Welcome | QuorateError:
        verdict = self.accept.judge(hello, guest.connection.address)
        if isinstance(verdict, Welcome):
            link = hello.node, hello.purpose
            if (older := self._peers.get(link)) is not None:
                # Whoever dials again has given it up, and its end may never have got here.
                older.connection.abort(ConnectionAbortedError("replaced by a newer link"))
            self._peers[link] = guest
            guest.hello = hello
            self._refused.pop(hello.node, None)
        else:
            self._tell_refused(guest, hello, verdict)
        return verdict

    def _tell_refused(self, guest: _Guest, hello: Hello, error: QuorateError) -> None:
        """A peer that is refused dials again and again: each reason is told once."""
        reason = f"{error.code}: {error}"
        if self._refused.get(hello.node) == reason:
            return
        if len(self._refused) >= REFUSED_MAX:  # names that no node has, one after the other
            self._refused.clear()
        self._refused[hello.node] = reason
        log.warning(
            "peer refused peer=%s address=%s error=%s",
            hello.node, guest.connection.address, reason,
        )  # fmt: skip

    def has_peer(self, node: str) -> bool:
        """Whether a link that ``node`` dialled is open."""
        return any(peer == node for peer, _ in self._peers)

    def drop_peer(self, node: str) -> None:
        """End the links that ``node`` dialled: it may dial again, and is judged again."""
        for (peer, _), guest in [*self._peers.items()]:
            if peer == node:
                guest.connection.abort(ConnectionAbortedError("a later start of the peer is known"))

    def forget(self, guest: _Guest) -> None:
        """Its connection ended: whatever it held is free again."""
        self._guests.discard(guest)
        self._strangers.pop(guest, None)
        hello = guest.hello
        if hello is None:
            pass
        elif hello.purpose != "client":
            if self._peers.get(link := (hello.node, hello.purpose)) is guest:
                del self._peers[link]
        else:
            self.clients -= 1
            self._clients_at[guest.host] -= 1
            if not self._clients_at[guest.host]:
                del self._clients_at[guest.host]
        if not self._guests:
            self._empty.set()


class _Guest:
    """One connection: its handler until it is served, and what it holds until it ends."""

    def __init__(self, listener: Listener, host: str, address: str, descriptor: int) -> None:
        self.host = host
        # The number of its socket.
        self.descriptor = descriptor
        self.connection = Connection(address, self, listener.network, self._ended, stranger=True)
        # What it was admitted with.
        self.hello: Hello | None = None
        self._listener = listener
        self._deadline: asyncio.TimerHandle | None = None

    def expect_hello(self) -> None:
        limit = self._listener.network.handshake_ms
        error = Timeout(f"no HELLO came in {limit} ms")
        self._deadline = asyncio.get_running_loop().call_later(limit / 1000, self.refuse, error)

    def refuse(self, error: QuorateError) -> None:
        self._refuse_with(encode_refusal(error))

    def _refuse_with(self, refusal: bytes) -> None:
        self._calm()
        self.connection.send([refusal])
        self.connection.close()

    def frame_received(self, frame: Frame) -> None:
        if self.hello is not None:
            raise InvalidArgument(f"{frame.kind.name} came before anybody was there to serve it")
        self._calm()
        try:
            hello = decode_hello(frame)
        except QuorateError as error:
            self.refuse(error)
            return
        verdict = self._listener.admit(self, hello)
        if isinstance(verdict, Welcome):
            self.connection.send([encode_welcome(verdict)])
            self._listener.accept.serve(hello, verdict, self.connection)
        elif hello.purpose == "client":
            self.refuse(verdict)
        else:
            known, linked = self._listener.accept.known(hello)
            self._refuse_with(encode_refusal(verdict, known, linked=linked))

    def closed(self, error: Exception | None) -> None:
        self._calm()

    def writable(self, yes: bool) -> None:
        """What is said to a stranger is too short to fill anything."""

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _ended(self) -> None:
        self._listener.forget(self)


def _listen(
    family: int, kind: int, protocol: int, _: str, address: tuple[Any, ...]
) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        # A node that restarts must not wait for what its last run left behind in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
