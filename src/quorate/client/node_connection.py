"""A client's connection to one node: its requests under way, and the futures of their answers.

A request is forgotten when its caller waits no more; a later answer to it is ignored.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quorate.client.request_numbers import RequestNumbers
from quorate.client.retries import Lost, Unreachable
from quorate.client.stall import RequestProgress, unacknowledged
from quorate.commands import Receipt
from quorate.errors import Corrupt, InvalidArgument, TooLarge
from quorate.wire.calls import decode_result, encode_call
from quorate.wire.frames import FrameKind
from quorate.wire.plain import PLAIN_BYTES, encode_plain
from quorate.wire.requests import (
    AppendRequest,
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
    from collections.abc import Callable, Sequence

    from quorate.client.submission import Submission
    from quorate.net.connection import Connection
    from quorate.wire.calls import Call
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Welcome
    from quorate.wire.requests import Extent, Records

__all__ = ["NodeConnection"]

# Bytes that are written without waiting for more.
WRITE_BYTES = 32 << 10
# Submissions whose deadlines are no further apart may be sent together.
TOGETHER_S = 0.001
# Seconds at least between two searches for expired submissions.
EXPIRY_LOOK_S = 0.05
Result = TypeVar("Result")


class _Waiting(NamedTuple):
    # Its result is the frame of the answer; for an append the receipt, because RECEIPTS answer
    # several requests.
    future: asyncio.Future[Any]
    # Kind of the frame that answers the request.
    kind: FrameKind
    # Done once the header of a long answer has arrived.
    extent: asyncio.Future[Extent] | None


class NodeConnection:
    """The connection to one node, with the requests under way on it."""

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
        self._failed: Callable[[Submission, NodeConnection, Exception], None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        # The time of ``_expiry``: not every loop's handles know it.
        self._expires_at = 0.0
        self._numbers = RequestNumbers(self._waiting, self._submitted)
        # The next write: frames, and lists of plain submissions, each list to one log and with
        # about one deadline, so that they are numbered and encoded together.
        self._out: list[bytes | list[Submission]] = []
        # The list that takes the next submission: the last of ``_out``, or an empty one.
        self._plain: list[Submission] = []
        self._out_bytes = 0
        # Bytes of all frames written.
        self._sent_bytes = 0
        # Whole frames received, and the bytes received when the last of them was whole.
        self._frames = 0
        self._whole_bytes = connection.received
        # Done when the connection takes more; None while it does.
        self._room: asyncio.Future[None] | None = None
        connection.handler = self
        connection.tell_begun(self._header_arrived)

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

    def progress(self, mark: int | None) -> RequestProgress:
        """The progress of a request that ends at ``mark``: while it rises, a long request or answer
        is on its way. Bytes sent behind ``mark`` are of other requests: the system of a stopped
        node takes them as well."""
        connection = self._connection
        waiting = connection.buffered + unacknowledged(connection.descriptor)
        arrived = self._sent_bytes - waiting
        return RequestProgress(
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

    def append(self, append: AppendRequest) -> asyncio.Future[Receipt]:
        """Send an append, numbered here, before this returns: a caller that sends several looks in
        between whether there is room. Raises TooLarge before any byte is sent. Cancel the future if
        its receipt is not wanted any more."""
        self._check_size(append.batch)
        number = self._next_number()
        control = encode_append(append._replace(request=number))
        future = self._expect(number, FrameKind.RECEIPTS)
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._send(control, append.batch)
        return future

    def _check_size(self, batch: bytes) -> None:
        size, limit = len(batch), self.welcome.batch_bytes
        if size > limit:
            raise TooLarge(f"a batch of {size} bytes; limits.batch_bytes of {self.node} is {limit}")

    async def fetch(self, fetch: Fetch, extent: asyncio.Future[Extent] | None = None) -> Records:
        """Fetch records. ``extent`` is done once the header of a long answer has arrived."""
        number = self._next_number()
        control = encode_fetch(fetch._replace(request=number))
        future = self._expect(number, FrameKind.RECORDS, extent)
        self._send(control)
        frame = await self._answered(number, future)
        try:
            return decode_records(frame)
        except InvalidArgument as error:
            raise Corrupt(self._not_whole(error)) from None

    async def call(self, call: Call[Result], batch: bytes = b"") -> Result:
        """Send a call; ``batch`` is for the one call that has one."""
        self._check_size(batch)
        number = self._next_number()
        control = encode_call(number, call, len(batch))
        future = self._expect(number, FrameKind.RESULT)
        self._send(control, batch)
        frame = await self._answered(number, future)
        try:
            return decode_result(frame, call)
        except InvalidArgument as error:
            raise Lost(self._not_whole(error)) from None

    def _not_whole(self, error: InvalidArgument) -> str:
        """The text of the error. The frame was valid, so the connection still is."""
        return f"{self.node} gave an answer that is not whole: {error}"

    @property
    def clogged(self) -> bool:
        """Whether so many bytes are unsent that more should wait for :meth:`room`."""
        return self._room is not None

    @property
    def direct(self) -> bool:
        """Whether an append can be submitted: it leaves at once."""
        return self._room is None and not self._connection.closed

    def submit(
        self,
        submission: Submission,
        failed: Callable[[Submission, NodeConnection, Exception], None],
    ) -> None:
        """Send an append; ``failed`` is called if it gets no receipt."""
        self._failed = failed
        if not submission.plain:
            self._submit_alone(submission)
            return
        plain = self._plain
        first = plain[0] if plain else None
        if (
            first is None
            or first.route is not submission.route
            or not 0 <= submission.deadline - first.deadline < TOGETHER_S
        ):
            if not self._out:
                self._loop.call_soon(self._flush)
            self._plain = plain = []
            self._out.append(plain)
        plain.append(submission)
        self._out_bytes += PLAIN_BYTES + len(submission.batch)
        if self._out_bytes > WRITE_BYTES:
            self._flush()

    def _submit_alone(self, submission: Submission) -> None:
        """Send an append with conditions, behind the plain ones that were submitted before it."""
        number, deadline = self._numbers.take(), submission.deadline
        control = encode_append(submission.request(number, deadline - self._loop.time()))
        self._expect_receipts((number,), (submission,), deadline)
        self._send(control, submission.batch)

    def _expect_receipts(
        self, numbers: Sequence[int], submissions: Sequence[Submission], deadline: float
    ) -> None:
        self._submitted.update(zip(numbers, submissions, strict=True))
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
        return self._numbers.take()

    def _expect(
        self,
        number: int,
        kind: FrameKind,
        extent: asyncio.Future[Extent] | None = None,
    ) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting[number] = _Waiting(future, kind, extent)
        return future

    def _send(self, *buffers: bytes) -> None:
        """Queue a request. All requests of one pass of the loop leave in one write; of many bytes,
        the first part leaves at once, so that the node works on it meanwhile."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += buffers
        # A plain append that comes now leaves behind this request.
        self._plain = []
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes > WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._out:
            return
        self._sent_bytes += self._out_bytes
        queue, self._out, self._plain, self._out_bytes = self._out, [], [], 0
        frames: list[bytes] = []
        try:
            for queued in queue:
                if isinstance(queued, bytes):
                    frames.append(queued)
                    continue
                numbers, deadline = self._numbers.take_some(len(queued)), queued[0].deadline
                left_ms = max(1, int(1000 * (deadline - self._loop.time())))
                batches = [submission.batch for submission in queued]
                frames.append(encode_plain(numbers, queued[0].route.wire, batches, left_ms))
                self._expect_receipts(numbers, queued, deadline)
            self._connection.send(frames)
        except BaseException as error:
            self._cannot_send(queue, error)
            if not isinstance(error, Exception):
                raise

    def _cannot_send(
        self, queue: Sequence[bytes | Sequence[Submission]], error: BaseException
    ) -> None:
        """End the connection: no request of this write will have an answer. Those that are not
        known to the connection yet are told here; the others when it has ended."""
        self._connection.abort(Lost(f"a request could not be sent: {error!r}"))
        known = set(self._submitted.values())
        for queued in queue:
            for submission in queued if not isinstance(queued, bytes) else ():
                if submission not in known:
                    self._lost(submission, Lost(f"it could not be sent: {error!r}"))
        if isinstance(error, Exception):
            message = f"requests to {self.node} could not be sent"
            self._loop.call_exception_handler({"message": message, "exception": error})

    async def _answered(self, number: int, future: asyncio.Future[Frame]) -> Frame:
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
            number = request_of(frame)
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.kind is not frame.kind:
                raise InvalidArgument(f"{waiting.kind.name} was asked for, {frame.kind.name} came")
            self._answer(number, frame)

    def _header_arrived(self, frame: Frame) -> None:
        """Tell the extent of a long answer. Errors in it are raised once it is whole."""
        if frame.kind is FrameKind.RECORDS:
            with suppress(InvalidArgument):
                waiting = self._waiting.get(request_of(frame))
                extent = None if waiting is None else waiting.extent
                if extent is not None and not extent.done():
                    extent.set_result(extent_of(frame))

    def closed(self, error: Exception | None) -> None:
        # No byte leaves any more: queued submissions are lost with the others.
        self._flush()
        self.ended.set_result(None)
        why = f": {error}" if error is not None and str(error) else ""
        if self._expiry is not None:
            self._expiry.cancel()
        submitted = [*self._submitted.values()]
        self._submitted.clear()
        for submission in submitted:
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
        submission: Submission | None = None
        for number, offset, count in receipts.answers():
            submission = submitted.pop(number, None)
            if submission is not None:
                submission.appended(offset, count, index, term, synced)
                continue
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.kind is FrameKind.RECEIPTS:
                self._answer(number, Receipt(offset, count, index, term, synced))
        # The receipts are for one log. Its leader was forgotten if this node was slow to answer.
        if submission is not None and submission.route.leader is None:
            submission.route.leader = self.node

    def _answer(self, number: int, result: object) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or waiting.future.done():
            return
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result(result)

    async def close(self, timeout_s: float) -> None:
        """Let queued bytes leave, for ``timeout_s`` at most. Open requests are lost."""
        self._connection.close()
        await asyncio.wait([self.ended], timeout=timeout_s)
        self._connection.abort()
        await self.ended
