"""Unary gRPC calls over one HTTP/2 connection, as many in flight as one likes.

Only what a load needs: every request has the same headers, of the answer it matters only whether a
message came. So no header is ever decoded, and no library stands between the load and the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Calls", "field"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME = Struct(">HBBBI")  # length in three bytes, type, flags, stream
_FRAME_BYTES = _FRAME.size
_NUMBER = Struct(">I")
_SETTING = Struct(">HI")

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4

FRAME_BYTES_MAX = 1 << 14
WINDOW_BYTES = 65_535
# What the server may send before it is told that there is room again.
RECEIVE_BYTES = 1 << 30


def field(number: int, value: bytes) -> bytes:
    """A protobuf field that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def _headers(authority: str, path: str) -> bytes:
    """HPACK without a table: nothing that one request says depends on another."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + text(path),
            b"\x01" + text(authority),
            b"\x0f\x10" + text("application/grpc"),  # content-type
            b"\x00" + text("te") + text("trailers"),
        )
    )


class _Call:
    __slots__ = ("answered", "future", "rest", "stream", "window")

    def __init__(self, stream: int, rest: bytes, window: int, future: asyncio.Future[bool]) -> None:
        self.stream = stream
        # Of the request: what is not sent yet.
        self.rest = rest
        # Bytes that the server still takes of it.
        self.window = window
        self.future = future
        self.answered = False


class Calls(asyncio.Protocol):
    """One connection, for calls of one method."""

    def __init__(self, authority: str, path: str) -> None:
        self._block = _headers(authority, path)
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _Call] = {}
        self._stream = 1
        self._rest = b""
        # Frames of the next write.
        self._out: list[bytes] = []
        # Requests with bytes left to send, oldest first.
        self._sending: deque[_Call] = deque()
        self._window = WINDOW_BYTES
        self._window_of_call = WINDOW_BYTES
        self._received = 0

    def call(self, message: bytes) -> asyncio.Future[bool]:
        """Done when the call is over: whether it was answered with a message."""
        stream, self._stream = self._stream, self._stream + 2
        body = b"\x00" + _NUMBER.pack(len(message)) + message
        call = _Call(stream, body, self._window_of_call, self._loop.create_future())
        self._calls[stream] = call
        self._write(_frame(HEADERS, END_HEADERS, stream, self._block))
        self._sending.append(call)
        self._send_bodies()
        return call.future

    def close(self) -> None:
        self._transport.close()

    # -- sending -------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        """Whatever is asked until the loop comes round leaves in one write."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._transport.write(b"".join(out))

    def _send_bodies(self) -> None:
        """As far as the windows let it; a request that is stuck holds up no other."""
        stuck: list[_Call] = []
        while self._sending and self._window > 0:
            call = self._sending[0]
            size = min(len(call.rest), FRAME_BYTES_MAX, self._window, call.window)
            if size <= 0:
                stuck.append(self._sending.popleft())
                continue
            part, call.rest = call.rest[:size], call.rest[size:]
            self._window -= size
            call.window -= size
            self._write(_frame(DATA, 0 if call.rest else END_STREAM, call.stream, part))
            if not call.rest:
                self._sending.popleft()
        self._sending.extendleft(reversed(stuck))

    # -- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        settings = _SETTING.pack(INITIAL_WINDOW_SIZE, RECEIVE_BYTES)
        self._transport.write(
            _PREFACE + _frame(SETTINGS, 0, 0, settings) + self._room_for(RECEIVE_BYTES)
        )

    def connection_lost(self, error: Exception | None) -> None:
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_result(False)

    def data_received(self, data: bytes) -> None:
        for kind, flags, stream, payload in self._frames(self._rest + data):
            if kind in (DATA, HEADERS):
                self._answer(kind, flags, stream, payload)
            elif kind == WINDOW_UPDATE:
                self._widen(stream, _NUMBER.unpack(payload)[0])
            elif kind == SETTINGS and not flags & ACK:
                self._settle(payload)
            elif kind == PING and not flags & ACK:
                self._write(_frame(PING, ACK, 0, payload))
            elif kind == RST_STREAM and stream in self._calls:
                self._end(self._calls[stream])
            elif kind == GOAWAY:
                self._transport.abort()
        self._send_bodies()

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        position, size = 0, len(data)
        while size - position >= _FRAME_BYTES:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, position)
            start = position + _FRAME_BYTES
            end = start + (high << 8 | low)
            if end > size:
                break
            yield kind, flags, stream, data[start:end]
            position = end
        self._rest = data[position:]

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        call = self._calls.get(stream)
        if kind == DATA:
            self._received += len(payload)
            if self._received > RECEIVE_BYTES // 2:
                self._write(self._room_for(self._received))
                self._received = 0
        if call is not None:
            call.answered |= kind == DATA
            if flags & END_STREAM:
                self._end(call)

    def _end(self, call: _Call) -> None:
        """A call that failed is answered by headers alone."""
        del self._calls[call.stream]
        if not call.future.done():
            call.future.set_result(call.answered)

    def _room_for(self, size: int) -> bytes:
        return _frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(size))

    def _widen(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window += size
        elif stream in self._calls:
            self._calls[stream].window += size

    def _settle(self, payload: bytes) -> None:
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self._window_of_call
                self._window_of_call = value
        self._write(_frame(SETTINGS, ACK, 0, b""))
