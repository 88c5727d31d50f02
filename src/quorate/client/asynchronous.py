"""The client for programs that run on asyncio."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quorate.batch import encode_batch, encode_record
from quorate.client.administration import (
    cluster_status,
    create_log,
    delete_log,
    find_log,
    list_logs,
    set_log,
    transfer_log,
)
from quorate.client.produce.producer import AsyncProducer
from quorate.client.produce.sender import open_sender
from quorate.client.produce.settings import (
    BATCH_BYTES,
    LINGER_MS,
    MEMORY_BYTES,
    ProducerSettings,
)
from quorate.client.read.prefetch import AsyncItems
from quorate.client.read.reading import Reader, records_of
from quorate.client.retries import Idempotency
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.session import Session
from quorate.commands import SetFence
from quorate.errors import InvalidArgument
from quorate.wire.calls import LogCall, OffsetAt
from quorate.wire.shapes import check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from quorate.client.read.reading import Start
    from quorate.client.results import ClusterStatus, Record
    from quorate.client.routing import Route
    from quorate.client.submission import Submission
    from quorate.commands import Receipt

    Header = tuple[str, bytes]

__all__ = ["AsyncClient", "AsyncLog", "times_of"]


class AsyncClient:
    """A client of one cluster, reached through any of its nodes.

    ``endpoints`` is "host:port,host:port" or a list of such; the other nodes are learnt from them.
    Every operation ends within ``timeout`` seconds. Use it on one event loop, and close it::

        async with AsyncClient("127.0.0.1:7401") as client:
            log = await client.log("orders", create=True)
            receipt = await log.append(b"hello")
    """

    def __init__(self, endpoints: str | Sequence[str], timeout: float = 30.0) -> None:
        self._session = Session(Routing(parse_endpoints(endpoints)), timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Calls under way end at once; an append as OUTCOME_UNKNOWN."""
        await self._session.close()

    async def log(self, name: str, *, create: bool = False) -> AsyncLog:
        """The log of that name, in its present incarnation; ``create`` makes it if missing."""
        return AsyncLog(self._session, await find_log(self._session, name, create=create))

    async def create_log(self, name: str) -> AsyncLog:
        """Make a log. Raises LOG_EXISTS if there is one of that name."""
        return AsyncLog(self._session, await create_log(self._session, name))

    async def delete_log(self, name: str, *, incarnation: str | None = None) -> None:
        """Delete a log with all its records.

        With ``incarnation``, that of a log you hold, only that incarnation: another log of the same
        name, made meanwhile, stays.
        """
        await delete_log(self._session, name, incarnation)

    async def transfer(self, log: str, node: str | None = None) -> str:
        """Give the leadership of ``log`` to ``node``, or to the node that the leader finds fittest.
        Returns the node that leads now. No append fails for it.

        Tries again until the time is over while the node is down or lacks too many entries."""
        return await transfer_log(self._session, log, node)

    async def set_log(self, log: str, *, priorities: Mapping[str, int]) -> None:
        """Set the ``priorities`` of some nodes for ``log``, 0 to 255; those of other nodes stay. A
        node has priority 100 unless another one was set.

        The node with the highest priority leads, once it has kept up for ten seconds and was up for
        a minute. A node of priority 0 leads only while no other node can."""
        await set_log(self._session, log, priorities)

    async def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return [log.name for log in await list_logs(self._session)]

    async def status(self) -> ClusterStatus:
        """Nodes, logs and replicas: the document of ``quorate status --json``, as a dict."""
        return await cluster_status(self._session)


class AsyncLog:
    """One log of a cluster, in one incarnation: deleted and made again, it is another log."""

    def __init__(self, session: Session, route: Route) -> None:
        self._session = session
        self._route = route

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.incarnation}>"

    @property
    def name(self) -> str:
        return self._route.name

    @property
    def incarnation(self) -> str:
        """The id of this incarnation, as 32 hex digits."""
        return f"{self._route.incarnation:032x}"

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] | None = None,
        timestamp: int | None = None,
        expect_offset: int | None = None,
        fence: str | None = None,
    ) -> Receipt:
        """Append one record; see :meth:`append_batch`."""
        batch = encode_record(value, key, times_of(timestamp), headers)
        return await self._session.submitter.append(self._route, batch, expect_offset, fence)

    async def append_batch(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        timestamps: Sequence[int] | int | None = None,
        expect_offset: int | None = None,
        fence: str | None = None,
    ) -> Receipt:
        """Append records together: all of them or none, at consecutive offsets.

        ``timestamps`` are microseconds, one for each record or one for all; by default the time of
        the call. With ``expect_offset`` the first record gets that offset, or no record is
        appended: OFFSET_MISMATCH. An append whose outcome could not be learnt is OUTCOME_UNKNOWN;
        it is never sent twice.
        """
        batch = encode_batch(values, keys=keys, times=times_of(timestamps), headers=headers)
        return await self._session.submitter.append(self._route, batch, expect_offset, fence)

    def submit(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> Submission:
        """Append like :meth:`append_batch`, without waiting. Await the submission for its receipt.

        Many submissions can be under way at once, each at the cost of a request, without a task.
        Those sent to one leader are appended in the order of the calls; one that has to be retried
        comes later. For a guaranteed order, with each record in the log once, open a producer.
        """
        batch = encode_batch(values, keys=keys, times=times_of(timestamps), headers=headers)
        return self._session.submitter.submit(self._route, batch)

    def read(
        self,
        start: Start = 0,
        stop: int | None = None,
        follow: bool = False,
        *,
        linearizable: bool = False,
    ) -> AsyncIterator[Record]:
        """Read the records from ``start`` to before ``stop``.

        ``start`` is an offset, "earliest", "latest", or -N for the last N records. Without ``stop``
        the read ends at the end that the log had at the beginning; with ``follow`` it waits there
        for more. With ``linearizable`` it sees all records acknowledged before the call.
        """
        reader = Reader(self._route, start, stop, follow=follow, linearizable=linearizable)
        return AsyncItems(self._session, reader, records_of)

    def read_arrow(
        self,
        start: Start = 0,
        stop: int | None = None,
        follow: bool = False,
        *,
        linearizable: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read the same records as Arrow record batches: one for each stored batch, over the memory
        in which it came. Needs pyarrow: ``pip install 'quorate[arrow]'``."""
        # pyarrow is optional, and slow to import.
        from quorate.client.read.arrow import record_batches_of

        reader = Reader(self._route, start, stop, follow=follow, linearizable=linearizable)
        return AsyncItems(self._session, reader, record_batches_of)

    async def first_offset(self) -> int:
        """The first offset that the log keeps."""
        return (await self._session.ends(self._route, barrier=False)).first

    async def end_offset(self) -> int:
        """The offset of the next record. Linearizable: all acknowledged records are below it."""
        return (await self._session.ends(self._route, barrier=True)).end

    async def offset_at(self, timestamp_us: int) -> int:
        """The first offset with an append time at or after ``timestamp_us``; the end if none."""
        call = OffsetAt(self._route.wire, timestamp_us)
        found = await self._session.ask(self._route, f"offset in {self.name}", call)
        return found.offset

    async def set_fence(self, fence: str | None, *, expect: str | None = None) -> None:
        """Let only appends with ``fence`` pass; None lets all pass again.

        ``expect`` is the fence that is set now, None if none is; otherwise FENCED.
        """
        for name in (fence, expect):
            if name is not None:
                check_name("fence", name)
        call = LogCall(self._route.wire, SetFence(fence=fence, expect=expect))
        await self._session.change(self._route, f"fence of {self.name}", call, Idempotency.UNSAFE)

    async def producer(
        self,
        name: str,
        *,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        fence: str | None = None,
    ) -> AsyncProducer:
        """Open a producer, whose records are in the log once and in order.

        An earlier instance of it is FENCED. A record waits for up to ``linger_ms`` to share a batch
        of about ``batch_bytes`` with others. Records without an outcome take up to
        ``memory_bytes``; then sending has to wait. The producer's appends show ``fence``.
        """
        settings = ProducerSettings(linger_ms, batch_bytes, memory_bytes)
        return AsyncProducer(await open_sender(self._session, self._route, name, settings, fence))


def times_of(timestamps: Sequence[int] | int | None) -> Sequence[int] | int:
    """The times that a caller gave to its records; the time of the call if it gave none."""
    if timestamps is None:
        return time.time_ns() // 1000
    if not isinstance(timestamps, int) and not hasattr(timestamps, "__len__"):
        raise InvalidArgument(f"timestamp = {timestamps!r} is not a whole number of microseconds")
    return timestamps
