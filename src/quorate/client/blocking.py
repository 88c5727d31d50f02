"""The blocking client: each call waits for its answer.

The work is done on an event loop in a thread of its own, which the first call starts. Any thread
may call. A forked process has neither the thread nor the right to its parent's connections: its
first call starts a thread of its own, with the parent's routing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.client.accumulator import BATCH_BYTES, LINGER_MS, MEMORY_BYTES, Settings
from quorate.client.administration import (
    cluster_status,
    create_log,
    delete_log,
    find_log,
    list_logs,
)
from quorate.client.asynchronous import AsyncLog, encode_records
from quorate.client.prefetch import Prefetch
from quorate.client.producer import Producer
from quorate.client.reading import Reader, records_of
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.sender import open_sender
from quorate.client.session import Session, checked_timeout
from quorate.errors import Busy, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from quorate.client.reading import Piece, Start
    from quorate.client.results import ClusterStatus, Receipt, Record
    from quorate.client.routing import Route

    Header = tuple[str, bytes]

__all__ = ["Client", "Log"]

# Seconds between two checks, during a call, that the worker's thread is alive.
LOOK_S = 1.0

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
        self._workers: dict[int, _Worker] = {}
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
        self._closed = True
        worker = self._workers.pop(os.getpid(), None)
        if worker is not None:
            worker.close()

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

    def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return [log.name for log in self._run(list_logs)]

    def status(self) -> ClusterStatus:
        """Nodes, logs and replicas: the document of ``quorate status --json``, as a dict."""
        return self._run(cluster_status)

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> Result:
        if self._closed:
            raise InvalidArgument("the client is closed")
        worker = self._workers.get(os.getpid()) or self._begin()
        return worker.run(work)

    def _begin(self) -> _Worker:
        made = _Worker(Session(self._routing, self._timeout))
        # Started before it can be found: a worker that cannot start is not kept.
        made.start()
        # If two threads make a worker at the same time, one is kept.
        worker = self._workers.setdefault(os.getpid(), made)
        if worker is not made:
            made.close()
        if self._closed:  # by another thread, which may not have found the worker
            self.close()
        return worker

    def _tell(self, word: Callable[[Session], None]) -> None:
        """Call ``word`` with this process's session, if there is one."""
        worker = self._workers.get(os.getpid())
        if worker is not None:
            worker.tell(word)


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
        return self.append_batch(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=timestamp,
            expect_offset=expect_offset,
            fence=fence,
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
        batch = encode_records(values, keys, headers, timestamps)
        return self._client._run(
            lambda session: session.append(self._route, batch, expect_offset, fence)
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
        from quorate.client.arrow_reading import reader_of, record_batches_of

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
            self._client._tell(prefetch.stop)

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
        settings = Settings(linger_ms, batch_bytes, memory_bytes)
        sender = self._client._run(
            lambda session: open_sender(session, self._route, name, settings, fence)
        )
        return Producer(self._client, sender)


class _Worker:
    """An event loop in a thread, and the session that runs on it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="quorate-client", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise Busy(f"the client has no thread: {error}") from None

    def _work(self) -> None:
        # A Runner is not used: it would wait for name servers that do not answer.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_end_tasks())
        finally:
            self._loop.close()

    def run(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> Result:
        """Run ``work`` on the loop, and wait for its result. It keeps its own deadline."""
        coroutine = work(self._session)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise InvalidArgument("the client is closed") from None
        try:
            while True:
                try:
                    return future.result(LOOK_S)
                except TimeoutError:
                    if future.done():  # done just now, or the work itself raised it
                        return future.result()
                    if not self._thread.is_alive():
                        raise InvalidArgument("the client is closed") from None
        except CancelledError:
            raise InvalidArgument("the client is closed") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def tell(self, word: Callable[[Session], None]) -> None:
        """Call ``word`` on the loop, without waiting."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(word, self._session)

    def close(self) -> None:
        self.run(_wind_up)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _wind_up(session: Session) -> None:
    """Close the session, and let the calls that wait for an answer end."""
    await session.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=session.patience.close_s)


async def _end_tasks() -> None:
    """Cancel the tasks that are left."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
