"""A node that answers as a test tells it, over real sockets.

What a real node does only now and then, such as losing a connection right after an append came, it
does whenever it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.batch import encode_batch
from quorate.commands import Receipt
from quorate.entry import Entry, make_entry
from quorate.entry_body import pack_batches
from quorate.errors import QuorateError
from quorate.types import ORIGIN, EntryKind, Index, Term
from quorate.wire.calls import LogCall, LogFound, decode_call, encode_result
from quorate.wire.frames import FrameKind, FrameLimits, Framer
from quorate.wire.handshake import (
    PROTOCOL,
    Introduction,
    Welcome,
    decode_hello,
    encode_refusal,
    encode_welcome,
)
from quorate.wire.requests import (
    Receipts,
    decode_append,
    decode_fetch,
    encode_failure,
    encode_receipts,
    encode_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.wire.frames import Frame

__all__ = ["DROP", "LOG", "SILENCE", "Found", "ScriptedNode", "entries", "found", "in_a_thread"]

LOG = 0xC0FFEE
# Close the connection instead of answering; say nothing at all.
DROP, SILENCE = "drop", "silence"

Request = Any
Answer = Any


class Found(msgspec.Struct):
    """The answer to a fetch."""

    first: int
    end: int
    entries: Sequence[Entry]
    # Half of its bytes come at once; the rest when this is done, or if that fails never.
    rest: asyncio.Future[None] | None = None


class ScriptedNode:
    """Answers each kind of request with what stands next in its script; the last stays."""

    def __init__(self, name: str = "n1", cluster: str = "test") -> None:
        self.name = name
        self.cluster = cluster
        self.address = ""
        # As it tells them to clients; filled in by the test.
        self.nodes: dict[str, str] = {}
        self.batch_bytes = 1 << 20
        # Instead of WELCOME; or nothing at all.
        self.refusal: QuorateError | None = None
        self.greets = True
        # Everything that was asked, in order.
        self.asked: list[Request] = []
        self._script: dict[type, deque[Answer]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        # What the other half of the last answer waits for.
        self._rest: asyncio.Future[None] | None = None
        self._came = asyncio.Event()
        self._server: asyncio.Server

    def will(self, request: type, *answers: Answer) -> None:
        """An answer may be an error, a result, DROP, SILENCE, or a function of the request."""
        self._script[request] = deque(answers)

    def count(self, request: type) -> int:
        return sum(isinstance(one, request) for one in self.asked)

    async def until(self, request: type, times: int = 1) -> None:
        """Wait until so many such requests came."""
        while self.count(request) < times:
            self._came.clear()
            await self._came.wait()

    async def start(self) -> None:
        """Somewhere that nobody listens yet; the second time, where it was."""
        while not self.address:
            # Ports from 32768 up are not ours to use.
            port = random.randrange(20_000, 32_768)
            with contextlib.suppress(OSError):
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
                self.address = f"127.0.0.1:{port}"
                self.nodes = {self.name: self.address}
                return
        port = int(self.address.partition(":")[2])
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        framer = Framer(FrameLimits(1 << 20, 1 << 24))
        try:
            while data := await reader.read(1 << 16):
                for frame in framer.feed(data):
                    self._take(frame, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    def _take(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        if frame.kind is FrameKind.HELLO:
            self.asked.append(decode_hello(frame))
            self._came.set()
            if self.greets:
                writer.write(self._greeting())
            return
        number, request = self._request(frame)
        self.asked.append(request)
        self._came.set()
        script = self._script[type(request)]
        answer = script.popleft() if len(script) > 1 else script[0]
        if isinstance(answer, Callable):  # type: ignore[arg-type]  # Any may be one
            answer = answer(request)
        if answer is DROP:
            writer.transport.abort()
        elif answer is not SILENCE:
            data = _encode(number, answer)
            if isinstance(answer, Found) and answer.rest is not None:
                self._write(writer, data[: len(data) // 2])
                self._rest, data = answer.rest, data[len(data) // 2 :]
            self._write(writer, data)

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Not before the rest of what is half written."""
        if self._rest is None or self._rest.done():
            writer.write(data)
            return

        def go_on(rest: asyncio.Future[None]) -> None:
            if rest.exception() is None:
                writer.write(data)
            else:
                writer.transport.abort()

        self._rest.add_done_callback(go_on)

    def _greeting(self) -> bytes:
        if self.refusal is not None:
            return encode_refusal(self.refusal)
        return encode_welcome(
            Welcome(
                cluster=self.cluster, node=self.name,
                introduction=Introduction(b"s" * 16, 1, 1, {}, True, {}), protocol=PROTOCOL,
                features=1, record_bytes=1 << 20, batch_bytes=self.batch_bytes, nodes=self.nodes,
            )
        )  # fmt: skip

    def _request(self, frame: Frame) -> tuple[int, Request]:
        if frame.kind is FrameKind.APPEND:
            append = decode_append(frame)
            return append.request, append
        if frame.kind is FrameKind.FETCH:
            fetch = decode_fetch(frame)
            return fetch.request, fetch
        number, call = decode_call(frame)
        return number, call.command if isinstance(call, LogCall) else call


def _encode(number: int, answer: Answer) -> bytes:
    if isinstance(answer, QuorateError):
        return encode_failure(number, answer)
    if isinstance(answer, Receipt):
        offset, count, index, term, synced = answer
        answered = [(number, 1, 0, count)]
        return encode_receipts(Receipts(Index(index), Term(term), offset, synced, answered))
    if isinstance(answer, Found):
        rows = [(one.base_offset, one.count, one.size, one.append_time) for one in answer.entries]
        frames = b"".join(one.header + one.body for one in answer.entries)
        return encode_records(number, answer.first, answer.end, rows) + frames
    return encode_result(number, answer)


@contextlib.contextmanager
def in_a_thread(node: ScriptedNode) -> Iterator[ScriptedNode]:
    """Let ``node`` run beside a test that waits for its client."""
    started, stop = threading.Event(), asyncio.Event()

    async def live() -> None:
        await node.start()
        started.set()
        await stop.wait()
        await node.stop()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    started.wait()
    try:
        yield node
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def found(node: ScriptedNode, leader: str | None = None, incarnation: int = LOG) -> LogFound:
    """The answer to FindLog, from what ``node`` tells clients."""
    return LogFound("orders", incarnation.to_bytes(16, "little"), leader, node.nodes)


def entries(*batches: Sequence[bytes], offset: int = 0) -> list[Entry]:
    """One entry for each batch of values."""
    made: list[Entry] = []
    position = ORIGIN
    for number, values in enumerate(batches):
        body = pack_batches([(encode_batch(values, times=1000 + number), len(values))])
        entry = make_entry(
            position, Term(1), EntryKind.DATA, body,
            base_offset=offset, count=len(values), append_time=2000 + number, runs=1,
        )  # fmt: skip
        made.append(entry)
        position = entry.position
        offset += len(values)
    return made
