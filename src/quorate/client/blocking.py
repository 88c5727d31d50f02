"""The blocking client: each call waits for its answer.

The work is done on an event loop in a thread of its own, which the first call starts. Any thread
may call. A forked process has neither the thread nor the right to its parent's connections: its
first call starts a thread of its own, with the parent's routing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

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
from quorate.client.asynchronous import AsyncLog, times_of
from quorate.client.produce.producer import Producer
from quorate.client.produce.sender import open_sender
from quorate.client.produce.settings import (
    BATCH_BYTES,
    LINGER_MS,
    MEMORY_BYTES,
    ProducerSettings,
)
from quorate.client.read.prefetch import Prefetch
from quorate.client.read.reading import Reader, records_of
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.session import Session, checked_timeout
from quorate.client.waiting import check_may_wait
from quorate.client.worker import Worker
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from quorate.client.read.reading import Piece, Start
    from quorate.client.results import ClusterStatus, Record
    from quorate.client.routing import Route
    from quorate.commands import Receipt

    Header = tuple[str, bytes]

__all__ = ["Client", "Log"]

Result = TypeVar("Result")


class Client:
    """A client of one cluster, reached through any of its nodes.

    ``endpoints`` is "host:port,host:port" or a list of such; the other nodes are learnt from them.
    Every call ends within ``timeout`` seconds. Any thread may use it, and so may a process that was
    forked from this one. Close it, or use it in a ``with`` statement::

        with Client("127.0.0.1:7401") as client:
            log = client.log("orders", create=True)
            receipt = log.append(b"hello")
    """

    def __init__(self, endpoints: str | Sequence[str], timeout: float = 30.0) -> None:
        self._routing = Routing(parse_endpoints(endpoints))
        self._timeout = checked_timeout(timeout)
        # Workers by process id. A forked process leaves its parent's worker alone: to close it
        # would disturb the descriptors that both share.
        self._workers: dict[int, Worker] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Calls under way end at once; an append as OUTCOME_UNKNOWN."""
        check_may_wait()
        self._closed = True
        worker = self._workers.get(os.getpid())
        if worker is not None:
            worker.close()
            # Not before: a call that was interrupted can be repeated.
            self._workers.pop(os.getpid(), None)

    def log(self, name: str, *, create: bool = False) -> Log:
        """The log of that name, in its present incarnation; ``create`` makes it if missing."""
        return Log(self, self._run(lambda session: find_log(session, name, create=create)))

    def create_log(self, name: str) -> Log:
        """Make a log. Raises LOG_EXISTS if there is one of that name."""
        return Log(self, self._run(lambda session: create_log(session, name)))

    def delete_log(self, name: str, *, incarnation: str | None = None) -> None:
        """Delete a log with all its records.

        With ``incarnation``, that of a log you hold, only that incarnation: another log of the same
        name, made meanwhile, stays.
        """
        self._run(lambda session: delete_log(session, name, incarnation))

    def transfer(self, log: str, node: str | None = None) -> str:
        """Give the leadership of ``log`` to ``node``, or to the node that the leader finds fittest.
        Returns the node that leads now. No append fails for it.

        Tries again until the time is over while the node is down or lacks too many entries."""
        return self._run(lambda session: transfer_log(session, log, node))

    def set_log(self, log: str, *, priorities: Mapping[str, int]) -> None:
        """Set the ``priorities`` of some nodes for ``log``, 0 to 255; those of other nodes stay. A
        node has priority 100 unless another one was set.

        The node with the highest priority leads, once it has kept up for ten seconds and was up for
        a minute. A node of priority 0 leads only while no other node can."""
        self._run(lambda session: set_log(session, log, priorities))

    def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return [log.name for log in self._run(list_logs)]

    def status(self) -> ClusterStatus:
        """Nodes, logs and replicas: the document of ``quorate status --json``, as a dict."""
        return self._run(cluster_status)

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> Result:
        if self._closed:
            raise InvalidArgument("the client is closed")
        check_may_wait()
        worker = self._workers.get(os.getpid()) or self._begin()
        return worker.run(work)

    def _begin(self) -> Worker:
        made = Worker(Session(self._routing, self._timeout))
        # Started before it can be found: a worker that cannot start is not kept.
        made.start()
        # If two threads make a worker at the same time, one is kept.
        worker = self._workers.setdefault(os.getpid(), made)
        if worker is not made:
            made.close()
        if self._closed:  # by another thread, which may not have found the worker
            self.close()
        return worker

    def _call_soon(self, callback: Callable[[Session], None]) -> None:
        """Call ``callback`` with this process's session, if there is one, without waiting."""
        worker = self._workers.get(os.getpid())
        if worker is not None:
            worker.call_soon(callback)


class Log:
    """One log of a cluster, in one incarnation: deleted and made again, it is another log."""

    def __init__(self, client: Client, route: Route) -> None:
        self._client = client
        self._route = route

    def __repr__(self) -> str:
        return f"<Log {self.name} {self.incarnation}>"

    @property
    def name(self) -> str:
        return self._route.name

    @property
    def incarnation(self) -> str:
        """The id of this incarnation, as 32 hex digits."""
        return f"{self._route.incarnation:032x}"

    def append(
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
        return self._client._run(
            lambda session: session.submitter.append(self._route, batch, expect_offset, fence)
        )

    def append_batch(
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
        return self._client._run(
            lambda session: session.submitter.append(self._route, batch, expect_offset, fence)
        )

    def read(
        self,
        start: Start = 0,
        stop: int | None = None,
        follow: bool = False,
        *,
        linearizable: bool = False,
    ) -> Iterator[Record]:
        """Read the records from ``start`` to before ``stop``.

        ``start`` is an offset, "earliest", "latest", or -N for the last N records. Without ``stop``
        the read ends at the end that the log had at the beginning; with ``follow`` it waits there
        for more. With ``linearizable`` it sees all records acknowledged before the call.
        """
        reader = Reader(self._route, start, stop, follow=follow, linearizable=linearizable)
        return self._each(reader, records_of)

    def read_arrow(
        self,
        start: Start = 0,
        stop: int | None = None,
        follow: bool = False,
        *,
        linearizable: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the same records as Arrow record batches: one for each stored batch, over the memory
        in which it came. Needs pyarrow: ``pip install 'quorate[arrow]'``."""
        # pyarrow is optional, and slow to import.
        from quorate.client.read.arrow import reader_of, record_batches_of

        reader = Reader(self._route, start, stop, follow=follow, linearizable=linearizable)
        return reader_of(self._each(reader, record_batches_of))

    def _each(
        self, reader: Reader, decode: Callable[[list[Piece]], Iterator[Result]]
    ) -> Iterator[Result]:
        prefetch = Prefetch(reader)
        try:
            while (pieces := self._client._run(prefetch.next)) is not None:
                yield from decode(pieces)
        finally:
            # The garbage collector may run this, in any thread: it must not wait.
            self._client._call_soon(prefetch.stop)

    def first_offset(self) -> int:
        """The first offset that the log keeps."""
        return self._client._run(lambda session: AsyncLog(session, self._route).first_offset())

    def end_offset(self) -> int:
        """The offset of the next record. Linearizable: all acknowledged records are below it."""
        return self._client._run(lambda session: AsyncLog(session, self._route).end_offset())

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset with an append time at or after ``timestamp_us``; the end if none."""
        return self._client._run(
            lambda session: AsyncLog(session, self._route).offset_at(timestamp_us)
        )

    def set_fence(self, fence: str | None, *, expect: str | None = None) -> None:
        """Let only appends with ``fence`` pass; None lets all pass again.

        ``expect`` is the fence that is set now, None if none is; otherwise FENCED.
        """
        self._client._run(
            lambda session: AsyncLog(session, self._route).set_fence(fence, expect=expect)
        )

    def producer(
        self,
        name: str,
        *,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        fence: str | None = None,
    ) -> Producer:
        """Open a producer, whose records are in the log once and in order.

        An earlier instance of it is FENCED. A record waits for up to ``linger_ms`` to share a batch
        of about ``batch_bytes`` with others. Records without an outcome take up to
        ``memory_bytes``; then sending has to wait. The producer's appends show ``fence``.
        """
        settings = ProducerSettings(linger_ms, batch_bytes, memory_bytes)
        sender = self._client._run(
            lambda session: open_sender(session, self._route, name, settings, fence)
        )
        return Producer(self._client, sender)
