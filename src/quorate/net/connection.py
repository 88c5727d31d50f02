"""A connection: one socket that carries whole frames.

A connection does not know the meaning of its frames: it passes them to its handler. It answers PING
by itself, and it ends when the other side is silent, never completes a frame or does not read.
While many bytes arrive it sends PONG unasked: the PING of the other side may wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakKeyDictionary

from quorate.errors import Busy, InvalidArgument, QuorateError, ReplicaHalted, Timeout
from quorate.net.limits import NetworkLimits
from quorate.wire.frames import STRANGER, Frame, FrameKind, FrameLimits, Framer, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.wire.frames import Buffer

__all__ = ["DEFAULT", "Connection", "Handler", "report_halt"]

log = logging.getLogger(__name__)

DEFAULT = NetworkLimits()
# Size of the read buffer of an event loop.
READ_BYTES = 256 << 10
# Consecutive keepalive periods without a sign of life after which the other side counts as dead.
SILENCE_MAX = 3
# A side that sent this many bytes in one keepalive period may have more bytes under way. The number
# is far above the size of PINGs and PONGs, so that two idle sides do not answer each other's PONGs
# for ever.
MUCH_BYTES = 4096
# Maximum of PINGs and PONGs in one read: a keepalive needs no more.
SIGNS_MAX = 64

_PING, _PONG = FrameKind.PING, FrameKind.PONG
_PING_FRAME = [encode_frame(_PING, b"")]
_PONG_FRAME = [encode_frame(_PONG, b"")]
# The read buffer of each event loop, shared by all its connections: the bytes are copied out before
# the loop reads again. Each loop has its own, because two loops may read at the same time.
_BUFFERS: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


class Handler(Protocol):
    """Receives the frames of a connection, and its end.

    A QuorateError that a handler raises says why the frame is invalid: the connection ends with it.
    Any other exception is a bug: it is logged, and ends this connection and no other.
    """

    def frame_received(self, frame: Frame) -> None: ...

    def closed(self, error: Exception | None) -> None:
        """The connection ended. Called once, after all other calls. ``error`` is None if either
        side closed the connection between two frames."""

    def writable(self, yes: bool) -> None:
        """Flow control. False: so many bytes are unsent that the sender should pause. True: the
        sender may go on."""


class Connection(asyncio.BufferedProtocol):
    """One socket with whole frames. Made by a dialler or by a listener."""

    __slots__ = (
        "_begun", "_closing", "_ended", "_error", "_framer", "_handler", "_heard", "_late", "_loop",
        "_lost", "_made", "_network", "_peer", "_read", "_silence", "_stranger", "_timer", "_told",
        "_transport", "_unsent", "_whole", "address", "received",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        handler: Handler,
        network: NetworkLimits,
        ended: Callable[[], None] | None = None,
        *,
        stranger: bool = False,
    ) -> None:
        # Address of the other side.
        self.address = address
        # Bytes received since the connection was made.
        self.received = 0
        self._handler = handler
        self._network = network
        # Called after the handler's `closed`: a listener counts its connections with it.
        self._ended = ended
        # Whether the other side is not identified yet: until the handler is replaced. It gets no
        # PING and no PONG, and the handler receives every frame, PINGs included.
        self._stranger = stranger
        self._framer = Framer(STRANGER)
        self._begun: Callable[[Frame], None] | None = None
        # The frame that `_begun` was last called with.
        self._told: Frame | None = None
        self._loop: asyncio.AbstractEventLoop
        self._read: memoryview
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle
        # Whether the loop has set the transport: an accepted socket gets it some turns later.
        self._made = False
        self._closing = False
        self._lost = False
        # Why the connection ended, if it did not end in good order. The first reason stays.
        self._error: Exception | None = None
        # Whether the other side is a node.
        self._peer = False
        # Bytes received when the timer last fired, and whether a frame was completed since.
        self._heard = 0
        self._whole = False
        # How many times in a row the timer fired without a sign of life, and without a completed
        # frame while one was incomplete.
        self._silence = 0
        self._late = 0
        # Unsent bytes when the timer last fired.
        self._unsent = 0

    # -- for its users -------------------------------------------------------------------------

    @property
    def handler(self) -> Handler:
        return self._handler

    @handler.setter
    def handler(self, handler: Handler) -> None:
        self._handler = handler
        self._stranger = False
        if self._lost:  # the handler before was told of the end, this one was not
            self._loop.call_soon(self._guard, handler.closed, self._error)

    @property
    def limits(self) -> FrameLimits:
        """Maximum sizes of the parts of a received frame. Those of a stranger are small."""
        return self._framer.limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._framer.limits = limits

    def take_short(self, shortcut: Callable[[bytes, int], int]) -> None:
        """Pass frames that lie whole in a read to ``shortcut``; see :class:`Framer`."""
        self._framer.shortcut = partial(self._guarded, shortcut)

    def tell_begun(self, begun: Callable[[Frame], None]) -> None:
        """Call ``begun`` with a frame whose bulk part is still arriving: there the bulk part is
        empty. A frame that arrived in one piece causes no call."""
        self._begun = begun

    @property
    def buffered(self) -> int:
        """Unsent bytes: queued here because the system did not take them yet."""
        return self._transport.get_write_buffer_size()

    def treat_as_peer(self) -> None:
        """Apply the rules for nodes from now on: a shorter keepalive period, and no time limit for
        a frame while its bytes keep arriving. A node that was cut off would only send it again."""
        self._peer = True
        self._network = replace(self._network, keepalive_ms=self._network.peer_keepalive_ms)
        self._timer.cancel()
        if not self._lost:
            self._arm()

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor, for queries to the system; -1 once the socket is closed."""
        return int(self._transport.get_extra_info("socket").fileno())

    @property
    def closed(self) -> bool:
        """Whether sending has no effect any more."""
        return self._closing or self._transport.is_closing()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue whole frames. Never waits; does nothing once closed.

        The buffers belong to the connection from now on. A single answer may be larger than the
        limit on unsent bytes, so only the bytes that were queued before count.
        """
        if self._closing:
            return
        transport = self._transport
        unsent = transport.get_write_buffer_size()
        if unsent > self._network.write_buffer_bytes:
            limit = self._network.write_buffer_bytes
            self.abort(Busy(f"{self.address} does not read: {unsent} bytes wait, limit {limit}"))
        elif not transport.is_closing():
            # No empty buffers: the loop of Python 3.12 and later would try to send them for ever.
            transport.writelines([buffer for buffer in buffers if len(buffer)])

    def close(self) -> None:
        """Send the queued bytes, then close. No more bytes are received."""
        if not self._closing:
            self._closing = True
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; the queued bytes are lost. The handler's `closed` gets ``error``."""
        self._closing = True
        if self._error is None:
            self._error = error
        # A transport that is still to come is aborted by `connection_made`; a lost one cannot be
        # aborted again.
        if self._made and not self._lost:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Receive no more bytes for now. Frames of the bytes received already are still delivered.

        The other side's PINGs are not answered meanwhile: it gives up if the pause is long.
        """
        if not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.closed:
            self._transport.resume_reading()

    # -- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        buffer = _BUFFERS.get(self._loop)
        if buffer is None:
            buffer = _BUFFERS[self._loop] = memoryview(bytearray(READ_BYTES))
        self._read = buffer
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._network.write_pause_bytes)
        self._arm()
        self._made = True
        if self._closing:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes. A long bulk part is received into its final place."""
        gap = self._framer.gap
        return self._read if gap is None else gap

    def buffer_updated(self, size: int) -> None:
        self.received += size
        if self._framer.gap is None:
            self._guard(self._deliver, self._read[:size].tobytes())
        else:
            self._guard(self._fill, size)

    def eof_received(self) -> None:
        if self._framer.waiting:
            self._error = ConnectionResetError(f"{self.address} closed in the middle of a frame")

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._lost = True
        self._timer.cancel()
        if self._error is None:
            self._error = error
        self._guard(self._handler.closed, self._error)
        if self._ended is not None:
            self._ended()

    def pause_writing(self) -> None:
        self._guard(self._handler.writable, False)

    def resume_writing(self) -> None:
        self._guard(self._handler.writable, True)

    # -- inside --------------------------------------------------------------------------------

    def _deliver(self, data: bytes) -> None:
        signs = 0
        asked = False
        for frame in self._framer.feed(data):
            self._whole = True
            kind = frame.kind
            if self._stranger or (kind is not _PING and kind is not _PONG):
                self._handler.frame_received(frame)
            elif signs < SIGNS_MAX:
                signs += 1
                asked = asked or kind is _PING
            else:
                # No handler counts PINGs and PONGs, so they need a limit here.
                raise InvalidArgument(f"{self.address}: over {SIGNS_MAX} PINGs and PONGs at once")
            if self._closing:
                break
        if asked:
            self.send(_PONG_FRAME)
        begun = self._framer.begun
        if begun is not None and begun is not self._told and self._begun is not None:
            self._told = begun
            self._begun(begun)

    def _fill(self, size: int) -> None:
        frame = self._framer.filled(size)
        if frame is not None:
            self._whole = True
            self._handler.frame_received(frame)

    def _guarded(self, shortcut: Callable[[bytes, int], int], chunk: bytes, start: int) -> int:
        self._whole = True
        return len(chunk) if self._closing else shortcut(chunk, start)

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """Run code of the handler: an exception of it ends this connection only."""
        try:
            act(*arguments)
        except QuorateError as error:
            self.abort(error)
        except ReplicaHalted as halt:
            self.abort(halt)
            report_halt(halt, f"connection to {self.address}")
        except Exception as error:
            log.exception("connection closed: its handler failed address=%s", self.address)
            self.abort(error)

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._network.keepalive_ms / 1000, self._look)

    def _look(self) -> None:
        """Check once per keepalive period whether the other side is alive. Firings of the timer are
        counted, not seconds: a loop that was blocked has not read the bytes that arrived then."""
        self._arm()
        unsent, paused = self.buffered, not self._transport.is_reading()
        heard, begun = self.received - self._heard, bool(self._framer.waiting)
        alive = heard or unsent < self._unsent or (paused and not unsent)
        stuck = begun and not self._whole and not paused and not self._peer
        self._silence = 0 if alive else self._silence + 1
        self._late = self._late + 1 if stuck else 0
        self._heard = self.received
        self._whole = False
        self._unsent = unsent
        period = self._network.keepalive_ms
        if self._silence >= SILENCE_MAX:
            self.abort(Timeout(f"{self.address}: no sign of life for {SILENCE_MAX * period} ms"))
        elif self._late * period > self._network.frame_ms + period:
            limit = self._network.frame_ms
            self.abort(Timeout(f"{self.address}: a frame was not complete after {limit} ms"))
        elif self._stranger:
            pass  # a stranger gets no PING and no PONG
        elif self._silence == 1:
            self.send(_PING_FRAME)
        elif heard >= MUCH_BYTES or (heard and begun):
            # Bytes that its system took are still under way, and its PING comes after them: it
            # cannot tell a slow line from a dead one by itself.
            self.send(_PONG_FRAME)


def report_halt(halt: ReplicaHalted, where: str) -> None:
    """Pass a halt to the exception handler of the event loop: no connection may conceal a halt."""
    context = {"message": f"a replica halted in the {where}", "exception": halt}
    asyncio.get_running_loop().call_exception_handler(context)
