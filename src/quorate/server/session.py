"""A client's connection: requests arrive in frames, answers leave in as few writes as possible.

An append never waits here: it is checked and proposed when its frame arrives, and its receipt is
sent with all others of the same turn. Reads and rare calls are tasks of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from quorate.entry import pack_runs
from quorate.errors import Busy, InvalidArgument, QuorateError
from quorate.replica.exchange import Receipt
from quorate.server.appends import Appends
from quorate.state.judge import PLAIN, AppendTerms, ProducerStamp, check_terms
from quorate.wire.calls import StageChunk, decode_call, encode_result
from quorate.wire.frames import FrameKind
from quorate.wire.plain import PLAIN_BYTES, split_plain
from quorate.wire.requests import (
    Append,
    Fetch,
    decode_append,
    decode_fetch,
    encode_failure,
    encode_records,
    request_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.replica.exchange import Result
    from quorate.replica.reader import Fetched
    from quorate.server.replicas import Hosted
    from quorate.server.service import Service
    from quorate.wire.calls import Call
    from quorate.wire.frames import Frame

    Buffer = bytes | bytearray | memoryview

__all__ = ["Session"]

log = logging.getLogger(__name__)

# Maximum reads and calls of one connection without an answer; more is BUSY.
TASKS_MAX = 256
# Maximum bytes of one read, and the maximum time that it waits for records.
FETCH_BYTES_MAX = 4 << 20
FETCH_WAIT_MS_MAX = 60_000
# The maximum time that a read waits until earlier answers have left; then it is BUSY. A client
# waits a little longer for an answer of a node.
ROOM_WAIT_S = 3.0


class Session:
    """The handler of one client's connection."""

    __slots__ = (
        "_handlers", "_moved", "_one_by_one", "_out", "_out_bytes", "_queue", "_receipts",
        "_service", "_tasks", "_turn", "call_bytes", "clogged", "connection", "pending_appends",
        "pending_bytes",
    )  # fmt: skip

    def __init__(self, service: Service, connection: Connection) -> None:
        self.connection = connection
        # Appends that are proposed and have no answer.
        self.pending_appends = 0
        self.pending_bytes = 0
        # Bytes of long calls that have no answer.
        self.call_bytes = 0
        # True while so many bytes are unsent that no more frames are handled.
        self.clogged = False
        self._service = service
        # Frames that arrived when the share of work was used up. While there are such frames, the
        # connection is not read.
        self._queue: deque[Frame] = deque()
        # Answers for the next write.
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._receipts: list[tuple[Appends, Receipt]] = []
        # The lock is held by the one read that waits until earlier answers have left; the future is
        # done when some have.
        self._turn = asyncio.Lock()
        self._moved: asyncio.Future[None] | None = None
        # A chunk that was read, and the position up to which its frames are answered one by one:
        # the chunk is not split again for each of them.
        self._one_by_one: tuple[bytes, int] = (b"", 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[FrameKind, Callable[[Frame], None]] = {
            FrameKind.APPEND: self._on_append,
            FrameKind.FETCH: self._on_fetch,
            FrameKind.CALL: self._on_call,
        }
        connection.take_short(self._take_crowd)

    # -- events of the connection --------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        if self._queue or self.clogged or not self._service.grants(frame.size):
            self._queue.append(frame)
            self._adjust()
        else:
            self._take(frame)

    def next_size(self) -> int:
        """Bytes of the oldest frame that waits."""
        return self._queue[0].size

    def serve_one(self) -> None:
        """Handle the oldest frame that waits."""
        try:
            self._take(self._queue.popleft())
        except QuorateError as error:
            self.connection.abort(error)
        except Exception as error:
            log.exception("request failed address=%s", self.connection.address)
            self.connection.abort(error)
        self._adjust()

    def writable(self, yes: bool) -> None:
        self.clogged = not yes
        if yes:
            self._move()
        self._adjust()

    def _adjust(self) -> None:
        """Wait for a turn if frames are queued; read from the connection if none are."""
        if self.clogged:
            self.connection.pause_reading()
            self._service.wait_no_more(self)
        elif self._queue:
            self.connection.pause_reading()
            self._service.wait(self)
        else:
            self.connection.resume_reading()

    def closed(self, error: Exception | None) -> None:
        self._queue.clear()
        for task in self._tasks:
            task.cancel()
        self._service.ended(self)
        if error is not None:
            log.debug("client gone address=%s error=%s", self.connection.address, str(error))

    # -- requests ------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        handler = self._handlers.get(frame.kind)
        if handler is None:
            raise InvalidArgument(f"a client does not send {frame.kind.name}")
        try:
            handler(frame)
        except QuorateError as error:
            # The frame was complete, so the connection can go on.
            self._fail(request_of(frame), error)

    def _on_append(self, frame: Frame) -> None:
        append = decode_append(frame)
        count = self._count(append.batch)
        hosted = self._service.replicas.get(append.log)
        if hosted is not None:
            self._propose(append, hosted, count)
        else:
            work = self._append_later(append, count)
            self._begin(append.request, work, len(append.batch))

    def _take_crowd(self, chunk: bytes, start: int) -> int:
        """Propose plain appends that arrived together as one, from ``start`` of a chunk on. Returns
        the start of the first frame that is left for `frame_received`, where it gets its own
        answer."""
        service = self._service
        left, end = self._one_by_one
        if chunk is left and start < end:
            return start
        self._one_by_one = (b"", 0)
        while not self._queue and not self.clogged:
            crowd = split_plain(chunk, start, service.frames_left, service.together_bytes)
            if crowd is None:
                break
            hosted = service.replicas.get(int.from_bytes(crowd.log, "little"))
            counts = service.count_some(crowd.batches)
            batches = crowd.batches[: len(counts)]
            size = sum(map(len, batches))
            if hosted is None or not batches or not service.takes(self, len(batches), size):
                self._one_by_one = chunk, crowd.end
                break
            service.spend(len(batches), size)
            start += size + len(batches) * PLAIN_BYTES
            rows = pack_runs(zip(map(len, batches), counts, strict=True))
            requests = crowd.requests[: len(batches)]
            self._hand_in(hosted, requests, counts, b"".join(batches), PLAIN, rows)
        return start

    def _hand_in(
        self,
        hosted: Hosted,
        requests: list[int],
        counts: list[int],
        batch: bytes,
        terms: AppendTerms,
        rows: bytes = b"",
    ) -> None:
        appends = Appends(hosted, requests, counts, len(batch), perf_counter())
        self._expect(len(requests), len(batch))
        callback = partial(self._appended, appends)
        hosted.replica.propose(batch, sum(counts), terms, callback, rows)

    def _count(self, batch: bytes) -> int:
        """The record count of a batch that may be proposed. Raises the error if it may not."""
        service = self._service
        try:
            service.check_append(self, len(batch))
            return service.count_records(batch)
        except QuorateError as error:
            service.metrics.append_errors[error.code] += 1
            raise

    def _expect(self, appends: int, size: int) -> None:
        """Add to the appends and bytes without an answer."""
        self.pending_appends += appends
        self.pending_bytes += size
        self._service.pending_appends += appends
        self._service.pending_bytes += size

    async def _append_later(self, append: Append, count: int) -> None:
        """Propose an append to a log without a replica here, once the log is found. An unknown log
        is refused only behind a barrier."""
        self._propose(append, await self._service.keeper.hosted(append.log), count)

    def _propose(self, append: Append, hosted: Hosted, count: int) -> None:
        request, _, batch, expect_offset, fence, producer, _ = append
        stamp = ProducerStamp(*producer) if producer is not None else None
        terms = AppendTerms(stamp, fence, expect_offset)
        try:
            check_terms(terms)
        except QuorateError as error:
            self._service.metrics.append_errors[error.code] += 1
            raise
        self._hand_in(hosted, [request], [count], batch, terms)

    def _appended(self, appends: Appends, result: Result) -> None:
        service = self._service
        self._settle(appends)
        if type(result) is Receipt:
            took = perf_counter() - appends.started
            service.metrics.append_duration.observe(took, len(appends.requests))
            service.metrics.appended_records[appends.hosted.name] += result.count
            if not self._out and not self._receipts:
                service.flush_soon(self)
            self._receipts.append((appends, result))
        elif isinstance(result, QuorateError):
            service.metrics.append_errors[result.code] += len(appends.requests)
            for request in appends.requests:
                self._fail(request, result)

    def _settle(self, appends: Appends) -> None:
        """Subtract appends that have an answer, or need none any more."""
        self._expect(-len(appends.requests), -appends.size)

    def _on_fetch(self, frame: Frame) -> None:
        fetch = decode_fetch(frame)
        self._begin(fetch.request, self._fetch(fetch))

    async def _fetch(self, fetch: Fetch) -> None:
        request, incarnation, offset, bytes_max, wait_ms, session_end = fetch
        replica = await self._service.keeper.readable(incarnation)
        self._service.check_fetch(self)
        bytes_max = min(bytes_max, FETCH_BYTES_MAX)
        wait_s = min(wait_ms, FETCH_WAIT_MS_MAX) / 1000
        fetched = await replica.fetch(offset, bytes_max, wait_s, session_end)
        if not self._fits(fetched):
            # The answer could not leave soon: read it again later rather than keep it in memory.
            del fetched
            again = partial(replica.fetch, offset, bytes_max, 0.0, session_end)
            fetched = await self._in_turn(again)
        # Disk reads are slow: other clients may have got many bytes meanwhile.
        self._service.check_fetch(self)
        first, end, rows, buffers = fetched
        self._send(encode_records(request, first, end, rows), *buffers)

    def _fits(self, fetched: Fetched) -> bool:
        """True if the records fit into the unread bytes of this connection, or no other answer is
        unsent. A read must not overtake those that wait for their turn."""
        unsent, size = self.unsent, sum(map(len, fetched.buffers))
        fits = not unsent or unsent + size <= self._service.unread_bytes
        return fits and not self._turn.locked()

    async def _in_turn(self, read: Callable[[], Awaitable[Fetched]]) -> Fetched:
        """Read once almost all earlier answers have left; such reads go one after the other."""
        try:
            async with asyncio.timeout(ROOM_WAIT_S), self._turn:
                while self._out or self.clogged:
                    self._moved = asyncio.get_running_loop().create_future()
                    await self._moved
                return await read()
        except TimeoutError:
            raise Busy(
                f"a read waited {ROOM_WAIT_S:g} s for those before it on its connection, of which "
                f"{self.unsent} bytes have not left: repeat it, or read over more connections"
            ) from None

    @property
    def unsent(self) -> int:
        """Bytes of answers that have not left."""
        return self._out_bytes + self.connection.buffered

    def _move(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    def _on_call(self, frame: Frame) -> None:
        size = self._service.admit_call(self, len(frame.control))
        request, call = decode_call(frame)
        if isinstance(call, StageChunk):
            count = self._count(frame.bulk)
            work = self._stage(request, call, frame.bulk, count)
            task = self._begin(request, work, len(frame.bulk))
        else:
            task = self._begin(request, self._call(request, call))
        if size:
            self._hold(size)
            task.add_done_callback(lambda _: self._hold(-size))

    def _hold(self, size: int) -> None:
        """Add to the bytes of long calls without an answer."""
        self.call_bytes += size
        self._service.call_bytes += size

    async def _stage(self, request: int, call: StageChunk, batch: bytes, count: int) -> None:
        staged = await self._service.calls.stage(call, batch, count)
        self._send(encode_result(request, staged))

    async def _call(self, request: int, call: Call[Any]) -> None:
        self._send(encode_result(request, await self._service.calls.answer(call)))

    def _begin(
        self, request: int, work: Coroutine[Any, Any, None], batch_bytes: int | None = None
    ) -> asyncio.Task[None]:
        """Run a request as a task. A request with a batch counts as an append until the task
        ends."""
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            raise Busy(f"{TASKS_MAX} requests of this connection wait already")
        task = asyncio.get_running_loop().create_task(self._finish(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if batch_bytes is not None:
            # Not in the task: a task that is cancelled before its first step would not subtract it.
            self._expect(1, batch_bytes)
            task.add_done_callback(lambda _: self._expect(-1, -batch_bytes))
        return task

    async def _finish(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except QuorateError as error:
            self._fail(request, error)
        except Exception as error:
            # A bug ends this connection only.
            log.exception("request failed address=%s", self.connection.address)
            self.connection.abort(error)

    # -- answers -------------------------------------------------------------------------------

    def _fail(self, request: int, error: QuorateError) -> None:
        self._send(encode_failure(request, self._service.presence.explain(error)))

    def _send(self, *buffers: Buffer) -> None:
        if not self._out and not self._receipts:
            self._service.flush_soon(self)
        size = sum(map(len, buffers))
        self._out += buffers
        self._out_bytes += size
        self._service.unsent_most += size

    def flush(self) -> None:
        """Write all answers since the last flush."""
        buffers, self._out, self._out_bytes = self._out, [], 0
        if self._receipts:
            receipts, self._receipts = self._receipts, []
            answers = [appends.answered(receipt) for appends, receipt in receipts]
            self._service.unsent_most += sum(map(len, answers))
            buffers += answers
        self.connection.send(buffers)
        self._move()
