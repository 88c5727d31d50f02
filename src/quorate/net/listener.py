"""The listener: admits connections that say HELLO in time, pass the node's check and find a slot.

Connections that have not said HELLO are unidentified. They share a small number of slots, and the
one that waited longest makes room for the next. Clients have slots, in all and per IP address. A
peer has one link of each purpose, apart from the clients' slots; a new link replaces the old one.
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
from quorate.net.open_files import open_files_max
from quorate.wire.handshake import Hello, Welcome, decode_hello, encode_refusal, encode_welcome

if TYPE_CHECKING:
    from quorate.config import NetworkLimits
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Seen

__all__ = ["Accept", "Listener"]

log = logging.getLogger(__name__)

# Maximum of connections that wait in the system until they are accepted.
BACKLOG = 1024
# Maximum of connections accepted in one turn of the event loop.
ACCEPTS_PER_TURN = 16
# Maximum of peers whose last logged refusal is remembered.
REFUSED_MAX = 64

_OUT_OF_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Accept(Protocol):
    """Callbacks of a listener to its node: they judge each HELLO and serve admitted connections."""

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        """Judge ``hello``. Returns WELCOME, or the error to refuse with."""

    def known(self, hello: Hello) -> tuple[Seen | None, bool]:
        """The facts for the REFUSAL to a peer: the disk and the starts of the peer that this node
        knows, and whether an earlier process of the peer has a link."""

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        """Serve an admitted connection: set its handler and limits. WELCOME is sent already."""


class Listener:
    """One listening socket and every connection that was accepted from it."""

    def __init__(self, accept: Accept, network: NetworkLimits = DEFAULT) -> None:
        self.accept = accept
        self.network = network
        # The address of the listening socket, with the port that the system chose if port 0 was
        # given.
        self.address = ""
        self._socket: socket.socket | None = None
        # The timer of the next try to accept, made when no sockets are left.
        self._retry: asyncio.TimerHandle | None = None
        # Whether the lack of sockets was logged, and no connection left files to spare since.
        self._starved = False
        # Tasks that turn accepted sockets into connections: each takes a few turns of the loop.
        self._opening: set[asyncio.Task[None]] = set()
        # Every one whose connection has not ended, refused and replaced ones included.
        self._incoming: set[_Incoming] = set()
        # Incoming connections that have not said HELLO, in the order of their arrival.
        self._unidentified: dict[_Incoming, None] = {}
        self.clients = 0
        self._clients_at: Counter[str] = Counter()
        # (node, purpose) -> the link of that node.
        self._peers: dict[tuple[str | None, str], _Incoming] = {}
        # Peers that were refused, and the reason that was logged.
        self._refused: dict[str | None, str] = {}
        # Set by `abort`: a socket that was accepted before does not become a connection any more.
        self._aborted = False
        self._empty = asyncio.Event()

    async def start(self, address: str) -> None:
        """Listen at ``host:port``. Raises an OSError that names the address on failure."""
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
        """Accept no more connections. The accepted ones stay."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def close(self) -> None:
        """Accept no more connections, send the queued bytes of each, and close them all."""
        self.stop_accepting()
        if self._opening:
            await asyncio.wait(self._opening)
        if not self._incoming:
            return
        for incoming in self._incoming:
            incoming.connection.close()
        timer = asyncio.get_running_loop().call_later(self.network.close_ms / 1000, self.abort)
        self._empty.clear()  # it was set whenever the last connection of that time had left
        await self._empty.wait()
        timer.cancel()

    def abort(self) -> None:
        """Accept no more connections, and end all at once; their queued bytes are lost."""
        self._aborted = True
        self.stop_accepting()
        for incoming in self._incoming:
            incoming.connection.abort()

    # -- accepting -----------------------------------------------------------------------------

    def _take_waiting(self, listening: socket.socket) -> None:
        """Accept connections that wait in the system, up to the number for one turn."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, source = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_SOCKETS:
                    self._back_off(listening, error)
                    return
                continue  # the other side closed that connection already
            accepted.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._let_in(accepted, source))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            # The system gives the lowest free descriptor: a high one means that few are left.
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
        """Pause accepting, since no sockets are left, and refuse an unidentified connection to free
        its socket."""
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
        incoming = _Incoming(self, source[0], address, accepted.fileno())
        self._incoming.add(incoming)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: incoming.connection, accepted)
        except OSError:  # the other side closed it already
            accepted.close()
            self.forget(incoming)
            return
        if incoming.hello is None and not incoming.connection.closed:
            if len(self._unidentified) >= self.network.unidentified:
                self._evict(Busy(f"{self.network.unidentified} others have not said HELLO either"))
            self._unidentified[incoming] = None
            incoming.expect_hello()

    def _evict(self, error: QuorateError) -> None:
        """Refuse the unidentified connection that waited longest."""
        oldest = next(iter(self._unidentified), None)
        if oldest is not None:
            del self._unidentified[oldest]
            oldest.refuse(error)

    # -- slots ---------------------------------------------------------------------------------

    def admit(self, incoming: _Incoming, hello: Hello) -> Welcome | QuorateError:
        """Judge an incoming connection and give it the slot that its HELLO asks for."""
        self._unidentified.pop(incoming, None)
        if hello.purpose != "client":
            return self._admit_peer(incoming, hello)
        limits, here = self.network, self._clients_at[incoming.host]
        if self._files_left(incoming.descriptor) < self._spare_files:
            return Busy(f"too many files are open, limit {open_files_max()}")
        if self.clients >= limits.connections:
            return Busy(f"{self.clients} clients are connected, limit {limits.connections}")
        if here >= limits.connections_per_address:
            limit = limits.connections_per_address
            return Busy(f"{here} clients of {incoming.host} are connected, limit {limit}")
        verdict = self.accept.judge(hello, incoming.connection.address)
        if isinstance(verdict, Welcome):
            self.clients += 1
            self._clients_at[incoming.host] += 1
            incoming.hello = hello
        return verdict

    def _admit_peer(self, incoming: _Incoming, hello: Hello) -> Welcome | QuorateError:
        verdict = self.accept.judge(hello, incoming.connection.address)
        if isinstance(verdict, Welcome):
            link = hello.node, hello.purpose
            if (older := self._peers.get(link)) is not None:
                # A peer that dials again has given up its older link, whose end may never have
                # arrived here.
                older.connection.abort(ConnectionAbortedError("replaced by a newer link"))
            self._peers[link] = incoming
            incoming.hello = hello
            self._refused.pop(hello.node, None)
        else:
            self._tell_refused(incoming, hello, verdict)
        return verdict

    def _tell_refused(self, incoming: _Incoming, hello: Hello, error: QuorateError) -> None:
        """Log the refusal of a peer. It dials again and again, so a reason is logged once."""
        reason = f"{error.code}: {error}"
        if self._refused.get(hello.node) == reason:
            return
        if len(self._refused) >= REFUSED_MAX:  # made-up names, one after the other
            self._refused.clear()
        self._refused[hello.node] = reason
        log.warning(
            "peer refused peer=%s address=%s error=%s",
            hello.node, incoming.connection.address, reason,
        )  # fmt: skip

    def has_peer(self, node: str) -> bool:
        """Whether a link that ``node`` dialled is open."""
        return any(peer == node for peer, _ in self._peers)

    def drop_peer(self, node: str) -> None:
        """End the links that ``node`` dialled: ``node`` may dial again, and is judged again."""
        for (peer, _), incoming in [*self._peers.items()]:
            if peer == node:
                incoming.connection.abort(
                    ConnectionAbortedError("a later start of the peer is known")
                )

    def forget(self, incoming: _Incoming) -> None:
        """Free the slot of a connection that ended."""
        self._incoming.discard(incoming)
        self._unidentified.pop(incoming, None)
        hello = incoming.hello
        if hello is None:
            pass
        elif hello.purpose != "client":
            if self._peers.get(link := (hello.node, hello.purpose)) is incoming:
                del self._peers[link]
        else:
            self.clients -= 1
            self._clients_at[incoming.host] -= 1
            if not self._clients_at[incoming.host]:
                del self._clients_at[incoming.host]
        if not self._incoming:
            self._empty.set()


class _Incoming:
    """An accepted connection: its handler until it is served, and the record of its slot."""

    def __init__(self, listener: Listener, host: str, address: str, descriptor: int) -> None:
        self.host = host
        # File descriptor of the socket.
        self.descriptor = descriptor
        self.connection = Connection(address, self, listener.network, self._ended, identified=False)
        # The HELLO that was admitted; None until then.
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
        """Does nothing: WELCOME and REFUSAL are too short to fill the write buffer."""

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
        # A node that restarts must not wait for sockets of its last run in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
