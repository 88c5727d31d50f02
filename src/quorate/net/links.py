"""The links to the other nodes: two to each, dialled by this node and redialled until it stops.

Entries go over the bulk link, and so does the question whether they arrived: on a slow line it
must not overtake them, or they are sent again while they are under way. All other messages go over
the control link: a heartbeat never waits behind a megabyte. A message that cannot be sent is
dropped, as a network would: consensus repeats the messages that it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any, Literal, Protocol

from quorate.errors import InvalidArgument, QuorateError, ReplicaHalted
from quorate.net.connection import DEFAULT, Connection, report_halt
from quorate.net.dialling import dial
from quorate.raft.messages import Append, Envelope, keeps_order
from quorate.wire.calls import Call, ResultT, decode_result, encode_call
from quorate.wire.frames import Frame, FrameKind, FrameLimits
from quorate.wire.messages import encode_envelopes
from quorate.wire.requests import decode_failure, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from quorate.config import NetworkLimits
    from quorate.types import NodeId
    from quorate.wire.frames import Buffer
    from quorate.wire.handshake import HandshakeRefusal, Hello, Welcome

__all__ = ["LinkEvents", "PeerLinks"]

log = logging.getLogger(__name__)

# Frame limits for the answers of a peer, which are results of calls.
ANSWERS = FrameLimits(control=1 << 20, bulk=0)
# Maximum of messages in one frame.
MESSAGES_PER_FRAME = 1024
REQUEST_MAX = 0xFFFF_FFFF


class LinkEvents(Protocol):
    """Callbacks by which the links report to their node, and ask it for HELLO and a verdict."""

    def hello(self, purpose: Literal["control", "bulk"], peer: NodeId) -> Hello:
        """The HELLO for ``peer``. Called each time that ``peer`` is dialled."""

    def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
        """Judge the WELCOME of ``peer``. Called for each link before its use. An error closes the
        link; if the error is not retriable, the next try comes much later."""

    def refused_by(self, peer: NodeId, refusal: HandshakeRefusal) -> None:
        """``peer`` answered ``refusal`` instead of WELCOME."""

    def unreachable(self, peer: NodeId) -> None:
        """``peer`` was dialled and gave no answer."""

    def link_opened(self, peer: NodeId) -> None:
        """The control link to ``peer`` is up: messages can be exchanged with ``peer``."""

    def link_closed(self, peer: NodeId) -> None:
        """The control link to ``peer`` was up and ended."""

    def link_refused(self, peer: NodeId) -> None:
        """The control link to ``peer`` ended, and no process listens at its address since: the host
        is up, the process is not."""


class PeerLinks:
    """Every link from this node to its peers."""

    def __init__(
        self,
        peers: Mapping[NodeId, str],
        events: LinkEvents,
        network: NetworkLimits = DEFAULT,
    ) -> None:
        self._control = {
            peer: _Link(peer, "control", address, events, network)
            for peer, address in peers.items()
        }
        self._bulk = {
            peer: _Link(peer, "bulk", address, events, network) for peer, address in peers.items()
        }
        # Dropped messages to nodes that are not peers of this node.
        self._strays = 0

    def start(self) -> None:
        for link in self._all():
            link.start()

    async def close(self) -> None:
        """End every link. No event is reported, since it is this node that stops."""
        await asyncio.gather(*(link.close() for link in self._all()))

    def abort(self) -> None:
        """End every link at once and drop its queued bytes; no link is dialled again."""
        for link in self._all():
            link.abort()

    def redial(self, peer: NodeId) -> None:
        """Dial ``peer`` now if a link to it waits for its next try: ``peer`` was just heard."""
        self._control[peer].retry_now()
        self._bulk[peer].retry_now()

    def drop(self, peer: NodeId) -> None:
        """End both links to ``peer``; they are dialled again, and ``peer`` is judged again."""
        for link in (self._control[peer], self._bulk[peer]):
            if link.connection is not None:
                link.connection.abort()

    def linked(self, peer: NodeId) -> bool:
        """Whether a link to ``peer`` is open, of either purpose."""
        links = (self._control.get(peer), self._bulk.get(peer))
        return any(link is not None and link.connection is not None for link in links)

    def connected(self, peer: NodeId) -> bool:
        """Whether votes and heartbeats can be sent to ``peer``."""
        return self._control[peer].connection is not None

    @property
    def dropped(self) -> int:
        """The number of messages that were not sent: there was no link, or it was down or full."""
        return self._strays + sum(link.dropped for link in self._all())

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send messages: each link gets its own with one write, in order. Never waits."""
        queues: dict[_Link, list[Envelope]] = {}
        for envelope in envelopes:
            links = self._bulk if keeps_order(envelope.message) else self._control
            link = links.get(envelope.target)
            if link is None:
                self._strays += 1
            else:
                queues.setdefault(link, []).append(envelope)
        for link, queue in queues.items():
            link.send(queue)

    async def call(self, peer: NodeId, call: Call[ResultT], timeout: float) -> ResultT:  # noqa: ASYNC109  # as in dial
        """Call ``peer``. Raises the error that ``peer`` answers, TimeoutError if no answer comes in
        time, or ConnectionError if there is no link or it ends.

        After the latter two ``peer`` may or may not have carried out the call.
        """
        return await self._control[peer].call(call, timeout)

    def _all(self) -> list[_Link]:
        return [*self._control.values(), *self._bulk.values()]


class _Link:
    """One link: the task that keeps it up, and the handler of its connection."""

    def __init__(
        self,
        peer: NodeId,
        purpose: Literal["control", "bulk"],
        address: str,
        events: LinkEvents,
        network: NetworkLimits,
    ) -> None:
        self._peer = peer
        self._purpose = purpose
        self._address = address
        self._events = events
        self._network = network
        # None while the link is down.
        self.connection: Connection | None = None
        self.dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        # Set to end the wait before the next try.
        self._wake = asyncio.Event()
        # Tries since the link was last up for as long as `redial_max_ms`; the first one after that
        # comes at once.
        self._tries = 1
        # Whether the link was up and ended, and no try since was refused.
        self._lost = False
        # The last logged reason why the link is down: a reason is logged once, not at every try.
        self._reason = ""
        self._request = 0
        self._calls: dict[int, tuple[Call[Any], asyncio.Future[Any]]] = {}

    # -- keeping it up -------------------------------------------------------------------------

    def start(self) -> None:
        name = f"link to {self._peer}: {self._purpose}"
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name=name)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self.connection is not None:
            connection = self.connection
            connection.close()
            timer = asyncio.get_running_loop().call_later(
                self._network.close_ms / 1000, connection.abort
            )
            await self._ended.wait()
            timer.cancel()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.abort()

    def retry_now(self) -> None:
        self._wake.set()

    async def _keep_up(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause_s = await self._try()
            except ReplicaHalted as halt:
                report_halt(halt, f"link to {self._peer}")
                return
            except Exception:
                log.exception("link failed peer=%s purpose=%s", self._peer, self._purpose)
                pause_s = self._network.redial_refused_ms / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _try(self) -> float:
        """Dial, and wait until the link ends. Returns the seconds to wait before the next try."""
        loop = asyncio.get_running_loop()
        try:
            await self._dial()
            began = loop.time()
            await self._ended.wait()
            if loop.time() - began >= self._network.redial_max_ms / 1000:
                self._tries = 0  # the link did not flap
        except QuorateError as error:
            self._explain(logging.WARNING, error)
            if not error.retriable:
                return self._network.redial_refused_ms / 1000
        except OSError as error:
            self._explain(logging.INFO, error)
            self._events.unreachable(self._peer)
            if self._lost and isinstance(error, ConnectionRefusedError):
                self._lost = False
                self._events.link_refused(self._peer)
        return self._back_off()

    async def _dial(self) -> None:
        hello = self._events.hello(self._purpose, self._peer)
        connection, welcome = await dial(
            self._address,
            hello,
            timeout=self._network.dial_ms / 1000,
            limits=ANSWERS,
            network=self._network,
            refused=lambda refusal: self._events.refused_by(self._peer, refusal),
        )
        try:
            error = self._events.welcomed(self._peer, welcome)
            if error is not None:
                raise error
        except BaseException:
            connection.abort()
            raise
        self._ended.clear()
        connection.treat_as_peer()
        self.connection = connection
        connection.handler = self
        self._lost = False
        self._reason = ""
        log.info("link up peer=%s purpose=%s", self._peer, self._purpose)
        if self._purpose == "control":
            self._events.link_opened(self._peer)

    def _back_off(self) -> float:
        """The seconds to wait before the next try. They double with every try, less a random part:
        nodes that lost each other at the same time do not dial each other at the same time."""
        tries, self._tries = self._tries, self._tries + 1
        if tries == 0:
            return 0.0
        limits = self._network
        most = min(limits.redial_max_ms, limits.redial_min_ms << min(tries - 1, 30))
        return most * random.uniform(0.5, 1.0) / 1000

    def _explain(self, level: int, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if reason != self._reason:
            self._reason = reason
            text = "link down peer=%s purpose=%s error=%s"
            log.log(level, text, self._peer, self._purpose, reason)

    # -- using it ------------------------------------------------------------------------------

    def send(self, envelopes: Sequence[Envelope]) -> None:
        connection = self.connection
        if connection is None or connection.buffered > self._network.peer_buffer_bytes:
            self.dropped += len(envelopes)
            return
        buffers: list[Buffer] = []
        for part in _parts(envelopes, self._network.peer_frame_bytes):
            buffers += encode_envelopes(part)
        connection.send(buffers)

    async def call(self, call: Call[ResultT], timeout: float) -> ResultT:  # noqa: ASYNC109  # as in dial
        connection = self.connection
        if connection is None:
            raise ConnectionError(f"no link to {self._peer}")
        self._request = request = (self._request + 1) & REQUEST_MAX
        answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._calls[request] = call, answer
        try:
            connection.send([encode_call(request, call)])
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise TimeoutError(f"{self._peer} did not answer in {timeout:g} s") from None
        finally:
            del self._calls[request]

    # -- the connection's handler --------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        """Take the answer to a call; a peer sends no other frames over this connection."""
        if frame.kind not in (FrameKind.RESULT, FrameKind.FAILURE):
            raise InvalidArgument(f"{self._peer} answered with {frame.kind.name}")
        waiting = self._calls.get(request_of(frame))
        if waiting is None or waiting[1].done():
            return  # the call was given up
        call, answer = waiting
        try:
            if frame.kind is FrameKind.FAILURE:
                raise decode_failure(frame).error
            answer.set_result(decode_result(frame, call))
        except QuorateError as error:
            answer.set_exception(error)

    def closed(self, error: Exception | None) -> None:
        self.connection = None
        self._ended.set()
        for _, answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"the link to {self._peer} ended"))
        if self._task is None:
            return  # this node closed the link
        reason = error or "closed by the peer"
        log.info("link closed peer=%s purpose=%s: %s", self._peer, self._purpose, reason)
        if self._purpose == "control":
            self._lost = True
            self._events.link_closed(self._peer)

    def writable(self, yes: bool) -> None:
        """Does nothing: senders do not wait, and messages that do not fit are dropped."""


def _parts(envelopes: Sequence[Envelope], bytes_max: int) -> Iterator[Sequence[Envelope]]:
    """Divide messages among frames: one frame holds them all, unless they are many or large."""
    start = size = 0
    for position, envelope in enumerate(envelopes):
        message = envelope.message
        more = sum(entry.size for entry in message.entries) if type(message) is Append else 0
        if position > start and (size + more > bytes_max or position - start >= MESSAGES_PER_FRAME):
            yield envelopes[start:position]
            start, size = position, 0
        size += more
    yield envelopes[start:]
