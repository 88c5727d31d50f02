"""A client's connection: requests arrive in frames, answers leave in as few writes as possible.

An append never waits here: it is checked and proposed when its frame arrives, and its receipt is
sent with all others of the same turn. Reads and rare calls are tasks of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import accumulate, repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

from quorate.commands import ChunkLabel, Receipt
from quorate.entry_body import pack_runs
from quorate.errors import Busy, InvalidArgument, QuorateError
from quorate.replica.engine_io import ClientOperation
from quorate.server.sessions.answers import AnswerBuffer
from quorate.server.sessions.arrivals import Arrivals
from quorate.server.sessions.client_limits import Pending
from quorate.state.judge import UNCONDITIONAL, AppendConditions, check_conditions
from quorate.wire.calls import LogCall, Logs, NodeStatus, decode_call, encode_result
from quorate.wire.frames import FrameKind
from quorate.wire.plain import PLAIN_BYTES, split_plain
from quorate.wire.requests import (
    AppendRequest,
    Fetch,
    Receipts,
    decode_append,
    decode_fetch,
    encode_failure,
    encode_receipts,
    encode_records,
    request_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.replica.engine_io import Result
    from quorate.server.logs.replicas import HostedLog
    from quorate.server.sessions.service import Service
    from quorate.wire.calls import Call
    from quorate.wire.frames import Frame

__all__ = ["ClientSession"]

log = logging.getLogger(__name__)


class Appends:
    """Appends of one connection to one log that are proposed together, so that a turn with a
    thousand appends costs as much as a turn with one."""

    __slots__ = ("counts", "hosted", "requests", "size", "started")

    def __init__(
        self, hosted: HostedLog, requests: list[int], counts: list[int], size: int, started: float
    ) -> None:
        self.hosted = hosted
        self.requests = requests
        # Number of records in each append.
        self.counts = counts
        # Bytes of all appends together.
        self.size = size
        self.started = started

    def receipts(self, receipt: Receipt) -> Receipts:
        """The answer to these appends: ``receipt`` is the one of all together."""
        requests, counts = self.requests, self.counts
        first, each, many = requests[0], counts[0], len(requests)
        if counts.count(each) == many and requests == list(range(first, first + many)):
            rows = [(first, many, 0, each)]
        else:
            starts = accumulate(counts, initial=0)
            rows = list(zip(requests, repeat(1), starts, counts, strict=False))
        return Receipts(receipt.index, receipt.term, receipt.offset, receipt.synced, rows)


class ClientSession:
    """The handler of one client's connection: decodes requests, dispatches them, answers them. It
    is a `FrameQueue` for the share of work."""

    __slots__ = (
        "_answers", "_arrivals", "_connection", "_handlers", "_limits", "_one_by_one", "_pending",
        "_queue", "_service", "_share", "_tasks",
    )  # fmt: skip

    def __init__(self, service: Service, connection: Connection) -> None:
        self._connection = connection
        self._service = service
        self._share = service.share
        self._limits = service.limits
        # Requests of this connection without an answer.
        self._pending = Pending()
        self._answers = AnswerBuffer(service.answers, connection)
        # Frames that arrived when the share of work was used up. While there are such frames, the
        # connection is not read. Each with the time of its arrival.
        self._queue: deque[tuple[Frame, int]] = deque()
        self._arrivals = Arrivals(service.watch)
        # A chunk that was read, and the position up to which its frames are answered one by one:
        # the chunk is not split again for each of them.
        self._one_by_one: tuple[bytes, int] = (b"", 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[FrameKind, Callable[[Frame, int], None]] = {
            FrameKind.APPEND: self._on_append,
            FrameKind.FETCH: self._on_fetch,
            FrameKind.CALL: self._on_call,
        }
        connection.take_short(self._take_plain_appends)

    # -- events of the connection --------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        if self._queue or self._answers.clogged or not self._share.grants(frame.size):
            self._queue.append((frame, self._arrivals.newest()))
            self._adjust()
        else:
            self._take(frame, self._arrivals.newest())

    def next_size(self) -> int:
        """Bytes of the oldest frame that waits."""
        return self._queue[0][0].size

    def serve_one(self) -> None:
        """Handle the oldest frame that waits. No frame of a connection that ends is handled."""
        if self._connection.closed:
            self._queue.clear()
            return
        try:
            self._take(*self._queue.popleft())
        except QuorateError as error:
            self._connection.abort(error)
        except Exception as error:
            log.exception("request failed address=%s", self._connection.address)
            self._connection.abort(error)
        self._adjust()

    def writable(self, yes: bool) -> None:
        self._answers.writable(yes)
        self._adjust()

    def _adjust(self) -> None:
        """Wait for a turn if frames are queued; read from the connection if none are."""
        self._arrivals.pause(paused=self._answers.clogged or bool(self._queue))
        if self._answers.clogged:
            self._connection.pause_reading()
            self._share.wait_no_more(self)
        elif self._queue:
            self._connection.pause_reading()
            self._share.wait(self)
        else:
            self._connection.resume_reading()

    def closed(self, error: Exception | None) -> None:
        self._queue.clear()
        for task in self._tasks:
            task.cancel()
        self._share.wait_no_more(self)
        self._answers.close()
        if error is not None:
            log.debug("client gone address=%s error=%s", self._connection.address, str(error))

    # -- requests ------------------------------------------------------------------------------

    def _take(self, frame: Frame, arrived_ms: int) -> None:
        handler = self._handlers.get(frame.kind)
        if handler is None:
            raise InvalidArgument(f"a client does not send {frame.kind.name}")
        try:
            handler(frame, arrived_ms)
        except QuorateError as error:
            # The frame was complete, so the connection can go on.
            self._fail(request_of(frame), error)

    def _on_append(self, frame: Frame, arrived_ms: int) -> None:
        append = decode_append(frame)
        count = self._count(append.batch)
        hosted = self._service.replicas.get(append.log)
        if hosted is not None:
            self._propose(append, hosted, count, arrived_ms)
        else:
            work = self._append_later(append, count, arrived_ms)
            self._begin(append.request, work, len(append.batch))

    def _take_plain_appends(self, chunk: bytes, start: int) -> int:
        """Propose plain appends to a log, the usual request, from ``start`` of a chunk on: those
        that arrived together are one proposal. Returns the start of the first frame that is left
        for `frame_received`, where it gets its own answer."""
        service, share = self._service, self._share
        limits, pending = self._limits, self._pending
        left, end = self._one_by_one
        if chunk is left and start < end:
            return start
        self._one_by_one = (b"", 0)
        arrived_ms = self._arrivals.newest()
        while not self._queue and not self._answers.clogged:
            plain = split_plain(chunk, start, share.frames_left, limits.together_bytes)
            if plain is None:
                break
            hosted = service.replicas.get(int.from_bytes(plain.log, "little"))
            counts = service.batches.count_some(plain.batches)
            batches = plain.batches[: len(counts)]
            sizes = list(map(len, batches))
            if hosted is None or not sizes or limits.append_refusal(pending, sizes) is not None:
                self._one_by_one = chunk, plain.end
                break
            size = sum(sizes)
            share.spend(len(sizes), size)
            start += size + len(sizes) * PLAIN_BYTES
            rows = pack_runs(zip(sizes, counts, strict=True))
            requests = plain.requests[: len(batches)]
            deadline_ms = arrived_ms + plain.deadline_ms
            batch = b"".join(batches)
            self._hand_in(hosted, requests, counts, batch, UNCONDITIONAL, deadline_ms, rows)
        return start

    def _hand_in(
        self,
        hosted: HostedLog,
        requests: list[int],
        counts: list[int],
        batch: bytes,
        conditions: AppendConditions,
        deadline_ms: int,
        rows: bytes = b"",
    ) -> None:
        appends = Appends(hosted, requests, counts, len(batch), perf_counter())
        self._limits.add_appends(self._pending, len(requests), len(batch))
        callback = partial(self._appended, appends)
        hosted.replica.propose(batch, sum(counts), conditions, callback, rows, deadline_ms)

    def _count(self, batch: bytes) -> int:
        """The record count of a batch that may be proposed. Raises the error if it may not."""
        try:
            refusal = self._limits.append_refusal(self._pending, [len(batch)])
            if refusal is not None:
                raise refusal
            return self._service.batches.count_records(batch)
        except QuorateError as error:
            self._service.metrics.append_errors[error.code] += 1
            raise

    async def _append_later(self, append: AppendRequest, count: int, arrived_ms: int) -> None:
        """Propose an append to a log without a replica here, once the log is found. An unknown log
        is refused only behind a barrier."""
        hosted = await self._service.catalog_service.hosted(append.log)
        self._propose(append, hosted, count, arrived_ms)

    def _propose(
        self, append: AppendRequest, hosted: HostedLog, count: int, arrived_ms: int
    ) -> None:
        request, _, batch, expect_offset, fence, producer, left_ms = append
        conditions = AppendConditions(producer, fence, expect_offset)
        try:
            check_conditions(conditions)
        except QuorateError as error:
            self._service.metrics.append_errors[error.code] += 1
            raise
        self._hand_in(hosted, [request], [count], batch, conditions, arrived_ms + left_ms)

    def _appended(self, appends: Appends, result: Result) -> None:
        service = self._service
        self._limits.remove_appends(self._pending, len(appends.requests), appends.size)
        if type(result) is Receipt:
            took = perf_counter() - appends.started
            service.metrics.append_duration.observe(took, len(appends.requests))
            service.metrics.appended_records[appends.hosted.name] += result.count
            self._answers.add(encode_receipts(appends.receipts(result)))
        elif isinstance(result, QuorateError):
            service.metrics.append_errors[result.code] += len(appends.requests)
            for request in appends.requests:
                self._fail(request, result)

    def _on_fetch(self, frame: Frame, _: int) -> None:
        fetch = decode_fetch(frame)
        self._begin(fetch.request, self._fetch(fetch))

    async def _fetch(self, fetch: Fetch) -> None:
        request, incarnation, offset, bytes_max, wait_ms, session_end = fetch
        config = self._service.config
        replica = await self._service.catalog_service.readable(incarnation)
        self._answers.check()
        bytes_max = min(bytes_max, config.fetch_bytes)
        wait_s = min(wait_ms, config.fetch_wait_ms) / 1000
        fetched = await replica.fetch(offset, bytes_max, wait_s, session_end)
        if not self._answers.fits(sum(map(len, fetched.buffers))):
            # The answer could not leave soon: read it again later rather than keep it in memory.
            del fetched
            again = partial(replica.fetch, offset, bytes_max, 0.0, session_end)
            fetched = await self._answers.read_in_turn(again)
        # Disk reads are slow: other clients may have got many bytes meanwhile.
        self._answers.check()
        first, end, rows, buffers = fetched
        self._answers.add(encode_records(request, first, end, rows), *buffers)

    def _on_call(self, frame: Frame, _: int) -> None:
        size, limits, pending = len(frame.control), self._limits, self._pending
        long = limits.is_long(size)
        refusal = limits.call_refusal(pending, size) if long else None
        if refusal is not None:
            raise refusal
        request, call = decode_call(frame)
        if not isinstance(call, LogCall):
            task = self._begin(request, self._call(request, call))
        elif isinstance(call.command, ChunkLabel):
            work = self._operate(request, call, frame.bulk, self._count(frame.bulk))
            task = self._begin(request, work, len(frame.bulk))
        else:
            task = self._begin(request, self._operate(request, call))
        if long:
            limits.add_call(pending, size)
            task.add_done_callback(lambda _: limits.remove_call(pending, size))

    async def _operate(
        self, request: int, call: LogCall[Any], batch: bytes = b"", count: int = 0
    ) -> None:
        """Have a command logged, with its checked ``batch`` of ``count`` records if it has one."""
        command = call.command
        assert isinstance(command, ClientOperation | ChunkLabel)  # for the type checker
        hosted = await self._service.catalog_service.hosted(int.from_bytes(call.log, "little"))
        result = await hosted.replica.operate(command, batch, count)
        self._answers.add(encode_result(request, result))

    async def _call(self, request: int, call: Call[Any]) -> None:
        found = await self._service.calls.answer(call)
        if isinstance(found, Logs | NodeStatus):
            # The answer is as long as there are logs, and its request has a few bytes. A refusal
            # here is true, because nothing was changed.
            self._answers.check()
        self._answers.add(encode_result(request, found))

    def _begin(
        self, request: int, work: Coroutine[Any, Any, None], batch_bytes: int | None = None
    ) -> asyncio.Task[None]:
        """Run a request as a task. A request with a batch counts as an append until the task
        ends."""
        limit = self._service.config.waiting_requests
        if len(self._tasks) >= limit:
            work.close()
            raise Busy(f"{limit} requests of this connection wait already")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, request))
        if batch_bytes is not None:
            # Not in the task: a task that is cancelled before its first step would not subtract it.
            limits, pending = self._limits, self._pending
            limits.add_appends(pending, 1, batch_bytes)
            task.add_done_callback(lambda _: limits.remove_appends(pending, 1, batch_bytes))
        return task

    def _ended(self, request: int, task: asyncio.Task[None]) -> None:
        """Answer a request whose task raised an error; the others have their answers."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, QuorateError):
            self._fail(request, error)
        elif isinstance(error, Exception):
            # A bug ends this connection only.
            log.error("request failed address=%s", self._connection.address, exc_info=error)
            self._connection.abort(error)

    def _fail(self, request: int, error: QuorateError) -> None:
        self._answers.add(encode_failure(request, self._service.reachability.explain(error)))
