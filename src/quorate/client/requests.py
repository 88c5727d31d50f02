"""The requests under way on one connection: their numbers, and the futures of their answers.

A request is forgotten when its caller waits no more; a later answer to it is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quorate.client.results import Receipt
from quorate.client.retries import Lost, Unreachable
from quorate.client.silence import Moved, unacknowledged
from quorate.errors import Corrupt, InvalidArgument, TooLarge
from quorate.wire.calls import decode_result, encode_call
from quorate.wire.frames import FrameKind
from quorate.wire.plain import PLAIN_BYTES, encode_plain
from quorate.wire.requests import (
    Append,
    Extent,
    Fetch,
    decode_failure,
    decode_receipts,
    decode_records,
    encode_append,
    encode_fetch,
    extent_of,
    request_of,
)

if TYPE_CHECKING:
    from quorate.client.submission import Submission
    from quorate.net.connection import Connection
    from quorate.wire.calls import Call
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Welcome
    from quorate.wire.requests import Records

__all__ = ["Begun", "Requests"]

NUMBERS = 1 << 32
# Bytes that are written without waiting for more.
WRITE_BYTES = 32 << 10
# Submissions whose deadlines are no further apart may be sent together.
TOGETHER_S = 0.001
# Seconds at least between two searches for expired submissions.
EXPIRY_LOOK_S = 0.05
Result = TypeVar("Result")
_Decode = Callable[["Frame"], Any]
# Called with the extent of a long answer when it begins to come.
Begun = Callable[[Extent], None]


class _Waiting(NamedTuple):
    future: asyncio.Future[Any]
    # Kind of the frame that answers the request; RECEIPTS and FAILURE are decoded elsewhere.
    kind: FrameKind
    decode: _Decode
    begun: Begun | None


def _nothing(_: Frame) -> None:
    """The decoder of appends, never called: RECEIPTS answer several requests, each with its row."""


class Requests:
    """The requests to one node, on one connection."""

    def __init__(self, connection: Connection, welcome: Welcome) -> None:
        self.welcome = welcome
        self._loop = asyncio.get_running_loop()
        # Done once the connection has ended.
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._connection = connection
        self._waiting: dict[int, _Waiting] = {}
        # Submissions on their way, the oldest first, and the callback for one that was refused or
        # lost: it may have to be sent to another node.
        self._submitted: dict[int, Submission] = {}
        self._failed: Callable[[Submission, Requests, Exception], None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        # The time of ``_expiry``: not every loop's handles know it.
        self._expires_at = 0.0
        self._number = 0
        # Frames of the next write, and behind them the submissions that go with it: all of one log
        # and with about one deadline, so that they are numbered and encoded together.
        self._out: list[bytes] = []
        self._crowd: list[Submission] = []
        self._out_bytes = 0
        # Bytes of all frames written.
        self._sent_bytes = 0
        # Whole frames received, and the bytes received when the last of them was whole.
        self._frames = 0
        self._whole_bytes = connection.received
        # Done when the connection takes more; None while it does.
        self._room: asyncio.Future[None] | None = None
        connection.handler = self
        connection.tell_begun(self._frame_begun)

    @property
    def node(self) -> str:
        return self.welcome.node

    @property
    def address(self) -> str:
        """The address dialled."""
        return self._connection.address

    @property
    def open(self) -> bool:
        return not self._connection.closed

    @property
    def received(self) -> int:
        """Bytes received: while the number stays the same, the node answers no request."""
        return self._connection.received

    @property
    def queued(self) -> int:
        """Bytes of all requests so far: these have arrived once so many bytes have."""
        return self._sent_bytes + self._out_bytes

    def moved(self, mark: int | None) -> Moved:
        """The progress of a request that ends at ``mark``: while it rises, a long request or answer
        is on its way. Bytes sent behind ``mark`` are of other requests: the system of a stopped
        node takes them as well."""
        connection = self._connection
        waiting = connection.buffered + unacknowledged(connection.descriptor)
        arrived = self._sent_bytes - waiting
        return Moved(
            arrived if mark is None else min(arrived, mark),
            self._frames,
            connection.received - self._whole_bytes,
        )

    @property
    def oldest_submitted(self) -> Submission | None:
        """The submission that has waited longest for its answer."""
        return next(iter(self._submitted.values()), None)

    async def room(self) -> None:
        """Wait until the bytes sent before have left: the queue stays bounded."""
        while self._room is not None:
            await asyncio.shield(self._room)

    # -- asking --------------------------------------------------------------------------------

    # A request is encoded before its answer is expected: one that cannot be encoded leaves no
    # future.

    async def append(self, append: Append) -> Receipt:
        """Send an append, numbered here. Raises TooLarge before any byte is sent."""
        return await self.begin_append(append)

    def begin_append(self, append: Append) -> asyncio.Future[Receipt]:
        """Send an append before this returns: a caller that sends several looks in between whether
        there is room. Cancel the future if its receipt is not wanted any more."""
        self._check_size(append.batch)
        number = self._next_number()
        control = encode_append(append._replace(request=number))
        future = self._expect(number, FrameKind.RECEIPTS, _nothing)
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._send(control, append.batch)
        return future

    def _check_size(self, batch: bytes) -> None:
        size, limit = len(batch), self.welcome.batch_bytes
        if size > limit:
            raise TooLarge(f"a batch of {size} bytes; limits.batch_bytes of {self.node} is {limit}")

    async def fetch(self, fetch: Fetch, begun: Begun | None = None) -> Records:
        """Fetch records. ``begun`` may be called with their extent before they are here."""
        number = self._next_number()
        control = encode_fetch(fetch._replace(request=number))
        future = self._expect(number, FrameKind.RECORDS, decode_records, begun)
        self._send(control)
        records: Records = await self._answered(number, future)
        return records

    async def call(self, call: Call[Result], batch: bytes = b"") -> Result:
        """Send a call; ``batch`` is for the one call that has one."""
        self._check_size(batch)
        number = self._next_number()
        control = encode_call(number, call, len(batch))
        future = self._expect(number, FrameKind.RESULT, lambda frame: decode_result(frame, call))
        self._send(control, batch)
        result: Result = await self._answered(number, future)
        return result

    @property
    def clogged(self) -> bool:
        """Whether so many bytes are unsent that more should wait for :meth:`room`."""
        return self._room is not None

    @property
    def direct(self) -> bool:
        """Whether an append can be submitted: it leaves at once."""
        return self._room is None and not self._connection.closed

    def submit(
        self, submission: Submission, failed: Callable[[Submission, Requests, Exception], None]
    ) -> None:
        """Send a plain append; ``failed`` is called if it gets no receipt."""
        crowd = self._crowd
        if crowd:
            first = crowd[0]
            later = submission.deadline - first.deadline
            if not 0 <= later < TOGETHER_S or first.route is not submission.route:
                self._encode_crowd()
        elif not self._out:
            self._loop.call_soon(self._flush)
        self._crowd.append(submission)
        self._failed = failed
        self._out_bytes += PLAIN_BYTES + len(submission.batch)
        if self._out_bytes > WRITE_BYTES:
            self._flush()

    def _encode_crowd(self) -> None:
        crowd, self._crowd = self._crowd, []
        numbers = self._free_numbers(len(crowd))
        log, deadline = crowd[0].route.wire, crowd[0].deadline
        deadline_ms = max(1, int(1000 * (deadline - self._loop.time())))
        self._out.append(encode_plain(numbers, log, [one.batch for one in crowd], deadline_ms))
        self._submitted.update(zip(numbers, crowd, strict=True))
        if self._expiry is None or deadline < self._expires_at:
            self._look_at(deadline)

    def _look_at(self, when: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry, self._expires_at = self._loop.call_at(when, self._expire), when

    def _expire(self) -> None:
        """Give up submissions past their deadline."""
        now = self._loop.time()
        self._expiry = None
        late = [one for one in self._submitted.items() if one[1].deadline <= now]
        for number, submission in late:
            del self._submitted[number]
            self._lost(submission, Lost("no answer came in time"))
        if self._submitted:
            # One search for many: they expire one by one.
            first = min(submission.deadline for submission in self._submitted.values())
            self._look_at(max(first, now + EXPIRY_LOOK_S))

    def _lost(self, submission: Submission, error: Exception) -> None:
        assert self._failed is not None  # for the type checker: set by ``submit``
        self._failed(submission, self, error)

    def _next_number(self) -> int:
        if not self.open:
            raise Unreachable(f"the connection to {self.node} has ended")
        return self._free_number()

    def _free_numbers(self, count: int) -> Sequence[int]:
        numbers = range(self._number, self._number + count)
        taken = self._waiting, self._submitted
        if numbers.stop <= NUMBERS and all(one.keys().isdisjoint(numbers) for one in taken):
            self._number = numbers.stop % NUMBERS
            return numbers
        return [self._free_number() for _ in range(count)]

    def _free_number(self) -> int:
        """A number that no open request has."""
        number = self._number
        while number in self._waiting or number in self._submitted:
            number = (number + 1) % NUMBERS
        self._number = (number + 1) % NUMBERS
        return number

    def _expect(
        self, number: int, kind: FrameKind, decode: _Decode, begun: Begun | None = None
    ) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting[number] = _Waiting(future, kind, decode, begun)
        return future

    def _send(self, *buffers: bytes) -> None:
        """Queue a request. All requests of one pass of the loop leave in one write; of many bytes,
        the first part leaves at once, so that the node works on it meanwhile."""
        if self._crowd:
            self._encode_crowd()
        elif not self._out:
            self._loop.call_soon(self._flush)
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes > WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._crowd:
            self._encode_crowd()
        if self._out:
            self._sent_bytes += self._out_bytes
            out, self._out, self._out_bytes = self._out, [], 0
            self._connection.send(out)

    async def _answered(self, number: int, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    # -- the connection's handler --------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        self._frames += 1
        self._whole_bytes = self._connection.received
        if frame.kind is FrameKind.RECEIPTS:
            self._receipts(frame)
        elif frame.kind is FrameKind.FAILURE:
            failure = decode_failure(frame)
            submission = self._submitted.pop(failure.request, None)
            if submission is not None:
                self._lost(submission, failure.error)
            else:
                self._answer(failure.request, failure.error)
        else:
            self._result(frame)

    def _frame_begun(self, frame: Frame) -> None:
        """Tell the extent of a long answer. Errors in it are raised once it is whole."""
        if frame.kind is FrameKind.RECORDS:
            with suppress(InvalidArgument):
                waiting = self._waiting.get(request_of(frame))
                if waiting is not None and waiting.begun is not None:
                    waiting.begun(extent_of(frame))

    def closed(self, error: Exception | None) -> None:
        # No byte leaves any more: queued submissions are lost with the others.
        self._flush()
        self.ended.set_result(None)
        why = f": {error}" if error is not None and str(error) else ""
        if self._expiry is not None:
            self._expiry.cancel()
        submitted, self._submitted = self._submitted, {}
        for submission in submitted.values():
            self._lost(submission, Lost(f"the connection to {self.node} ended{why}"))
        for number in list(self._waiting):
            self._answer(number, Lost(f"the connection to {self.node} ended{why}"))
        self.writable(True)

    def writable(self, yes: bool) -> None:
        if not yes and self._room is None:
            self._room = self._loop.create_future()
        elif yes and self._room is not None:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    def _receipts(self, frame: Frame) -> None:
        receipts = decode_receipts(frame)
        index, term, _, synced, _ = receipts
        submitted = self._submitted
        for number, offset, count in receipts.answers():
            submission = submitted.pop(number, None)
            if submission is not None:
                submission.appended(offset, count, index, term, synced)
                continue
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.kind is FrameKind.RECEIPTS:
                self._answer(number, Receipt(offset, count, index, term, synced))

    def _result(self, frame: Frame) -> None:
        number = request_of(frame)
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if waiting.kind is not frame.kind:
            raise InvalidArgument(f"{waiting.kind.name} was asked for, {frame.kind.name} came")
        try:
            self._answer(number, waiting.decode(frame))
        except InvalidArgument as error:
            # The frame was valid, so the connection still is.
            problem = f"{self.node} gave an answer that is not whole: {error}"
            damaged = waiting.kind is FrameKind.RECORDS
            self._answer(number, Corrupt(problem) if damaged else Lost(problem))

    def _answer(self, number: int, result: object) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or waiting.future.done():
            return
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result(result)

    async def close(self, patience_s: float) -> None:
        """Let queued bytes leave, for ``patience_s`` at most. Open requests are lost."""
        self._connection.close()
        await asyncio.wait([self.ended], timeout=patience_s)
        self._connection.abort()
        await self.ended
