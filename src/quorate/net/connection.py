"""A connection: one socket that carries whole frames.

A connection does not know the meaning of its frames: it passes them to its handler. It answers PING
by itself, and it ends when the other side is silent, never completes a frame or does not read.
While many bytes arrive it sends PONG unasked: the PING of the other side may wait behind them.

Many short frames may lie in one read. A pass of the event loop handles a bounded number of them,
and few once the handler has paused; meanwhile other connections and timers get their turn.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakKeyDictionary

from quorate.config import NetworkLimits
from quorate.errors import Busy, InvalidArgument, QuorateError, ReplicaHalted, Timeout
from quorate.wire.frames import UNIDENTIFIED, Frame, FrameKind, FrameLimits, Framer, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
# Frames of one read that one pass of the event loop handles, and how many of them after the handler
# has paused. The others wait for the next pass, or until the handler goes on.
FRAMES_MAX = 1024
FRAMES_MAX_PAUSED = 16
# Maximum of PINGs and PONGs among these frames: a keepalive needs no more.
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
        "_begun_bytes", "_closing", "_ended", "_error", "_framer", "_goes_on", "_handler", "_heard",
        "_identified", "_late", "_left", "_loop", "_lost", "_made", "_network", "_on_begun",
        "_paused", "_peer", "_read", "_rest", "_silence", "_timer", "_told", "_transport",
        "_unsent", "address", "received",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        handler: Handler,
        network: NetworkLimits,
        ended: Callable[[], None] | None = None,
        *,
        identified: bool = True,
    ) -> None:
        # Address of the other side.
        self.address = address
        # Bytes received since the connection was made.
        self.received = 0
        self._handler = handler
        self._network = network
        # Called after the handler's `closed`: a listener counts its connections with it.
        self._ended = ended
        # Whether the other side has said HELLO; until then the handler is not replaced, the other
        # side gets no PING and no PONG, and the handler receives every frame, PINGs included.
        self._identified = identified
        self._framer = Framer(UNIDENTIFIED)
        self._on_begun: Callable[[Frame], None] | None = None
        # The frame that `_on_begun` was last called with.
        self._told: Frame | None = None
        # Frames that this pass may still handle.
        self._left = FRAMES_MAX
        # The frames of a read that were put off, and whether the handler has paused. While either
        # is so, no more bytes are received.
        self._rest: Iterator[Frame] | None = None
        self._paused = False
        # The loop was asked to call `_go_on`, and has not yet.
        self._goes_on = False
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
        # Bytes received when the timer last fired, and those of them that waited for the rest of
        # their frame.
        self._heard = 0
        self._begun_bytes = 0
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
        self._identified = True
        if self._lost:  # the handler before was told of the end, this one was not
            self._loop.call_soon(self._guard, handler.closed, self._error)

    @property
    def limits(self) -> FrameLimits:
        """Maximum sizes of the parts of a received frame. They are small before HELLO."""
        return self._framer.limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._framer.limits = limits

    def take_short(self, shortcut: Callable[[bytes, int], int]) -> None:
        """Pass frames that lie whole in a read to ``shortcut``; see :class:`Framer`."""
        self._framer.shortcut = shortcut

    def tell_begun(self, begun: Callable[[Frame], None]) -> None:
        """Call ``begun`` with a frame whose bulk part is still arriving: there the bulk part is
        empty. A frame that arrived in one piece causes no call."""
        self._on_begun = begun

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
        """Receive no more bytes for now. A few frames of the bytes received already are still
        delivered.

        The other side's PINGs are not answered meanwhile: it gives up if the pause is long.
        """
        self._paused = True
        if self._left > FRAMES_MAX_PAUSED:
            self._left = FRAMES_MAX_PAUSED
        if not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._rest is not None:
            self._ask_to_go_on()
        self._receive()

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
        try:
            if self._framer.gap is None:
                self._deliver(self._framer.feed(self._read[:size].tobytes()))
            else:
                self._fill(size)
        except Exception as error:  # noqa: BLE001  # as in `_guard`, without its cost for each read
            self._failed(error)

    def eof_received(self) -> None:
        if self._framer.waiting:
            self._error = ConnectionResetError(f"{self.address} closed in the middle of a frame")

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._lost = True
        self._rest = None
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

    def _deliver(self, frames: Iterator[Frame]) -> None:
        signs = 0
        asked = False
        self._left = FRAMES_MAX
        for frame in frames:
            kind = frame.kind
            if not self._identified or (kind is not _PING and kind is not _PONG):
                self._handler.frame_received(frame)
            elif signs < SIGNS_MAX:
                signs += 1
                asked = asked or kind is _PING
            else:
                # No handler counts PINGs and PONGs, so they need a limit here.
                raise InvalidArgument(f"{self.address}: over {SIGNS_MAX} PINGs and PONGs at once")
            self._left -= 1
            if self._closing:
                break
            if self._left <= 0:
                self._put_off(frames)
                break
        if asked:
            self.send(_PONG_FRAME)
        begun = self._framer.begun
        if begun is not None and begun is not self._told and self._on_begun is not None:
            self._told = begun
            self._on_begun(begun)

    def _put_off(self, rest: Iterator[Frame]) -> None:
        """Handle ``rest`` in the next pass, or once the handler goes on."""
        self._rest = rest
        self._transport.pause_reading()
        if not self._paused:
            self._ask_to_go_on()

    def _ask_to_go_on(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        rest = self._rest
        if rest is None or self._paused or self._closing:
            return
        self._rest = None
        self._guard(self._deliver, rest)
        self._receive()

    def _receive(self) -> None:
        """Receive bytes again, unless there is a reason not to."""
        if self._rest is None and not self._paused and not self.closed:
            self._transport.resume_reading()

    def _fill(self, size: int) -> None:
        frame = self._framer.filled(size)
        if frame is not None:
            self._handler.frame_received(frame)

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """Run code of the handler: an exception of it ends this connection only."""
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001  # it is logged, or told to the handler
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.abort(error)
        if isinstance(error, ReplicaHalted):
            report_halt(error, f"connection to {self.address}")
        elif not isinstance(error, QuorateError):
            log.error(
                "connection closed: its handler failed address=%s", self.address, exc_info=error
            )

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._network.keepalive_ms / 1000, self._look)

    def _look(self) -> None:
        """Check once per keepalive period whether the other side is alive. Firings of the timer are
        counted, not seconds: a loop that was blocked has not read the bytes that arrived then."""
        self._arm()
        unsent, paused = self.buffered, not self._transport.is_reading()
        heard, begun = self.received - self._heard, self._framer.waiting
        # Without a frame that was completed, all bytes that came are waiting.
        whole = begun < self._begun_bytes + heard
        alive = heard or unsent < self._unsent or (paused and not unsent)
        stuck = begun and not whole and not paused and not self._peer
        self._silence = 0 if alive else self._silence + 1
        self._late = self._late + 1 if stuck else 0
        self._heard = self.received
        self._begun_bytes = begun
        self._unsent = unsent
        period = self._network.keepalive_ms
        if self._silence >= SILENCE_MAX:
            self.abort(Timeout(f"{self.address}: no sign of life for {SILENCE_MAX * period} ms"))
        elif self._late * period > self._network.frame_ms + period:
            limit = self._network.frame_ms
            self.abort(Timeout(f"{self.address}: a frame was not complete after {limit} ms"))
        elif not self._identified:
            pass  # it gets no PING and no PONG
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
