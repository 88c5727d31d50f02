"""Producers: records are sent one by one, travel in batches, and are in the log once.

Two classes over the same :class:`~quorate.client.produce.sender.Sender`: one for asyncio, and a
blocking one that any thread may use.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from quorate.client.produce.tickets import AsyncDelivery, Delivery
from quorate.client.waiting import check_may_wait
from quorate.errors import InvalidArgument, QuorateError, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from quorate.client.blocking import Client
    from quorate.client.produce.sender import Sender
    from quorate.client.produce.tickets import Ticket
    from quorate.commands import Receipt

    Header = tuple[str, bytes]
    Added = tuple[Ticket, int]

__all__ = ["AsyncProducer", "Producer"]


class AsyncProducer:
    """An open producer of one log. Close it, or use it in an ``async with`` statement::

    async with await log.producer("loader-7") as producer:
        delivery = await producer.send(b"hello")
        receipt = await delivery
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._records = sender.records

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except QuorateError as problem:
            if error is None:
                raise
            _note(error, problem)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that is known to be in the log under this name."""
        return self._sender.window.last_sequence

    async def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] | None = None,
        timestamp: int | None = None,
    ) -> AsyncDelivery:
        """Send one record. Waits only if there is no room; await the delivery for its receipt.

        TIMEOUT if no room was found: the record was not sent.
        """
        added = self._records.add(value, key, headers, timestamp)
        if added is None:
            added = await self._added(partial(self._records.add, value, key, headers, timestamp))
        return await self._delivery(*added)

    async def send_batch(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> AsyncDelivery:
        """Send records together: all of them or none are in the log, at consecutive offsets."""
        add = partial(self._records.add_batch, values, keys, headers, timestamps)
        return await self._delivery(*(add() or await self._added(add)))

    async def send_and_wait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Send one record, at once, and wait for its receipt."""
        delivery = await self.send(value, key=key, headers=headers, timestamp=timestamp)
        self._records.end_linger()
        return await delivery

    async def flush(self) -> None:
        """Wait until all records sent before are in the log. Raises the first delivery error."""
        await self._sender.flush()

    async def close(self) -> None:
        """Flush, and take no more records. Raises the first delivery error."""
        await self._sender.close()

    async def _delivery(self, ticket: Ticket, place: int) -> AsyncDelivery:
        if ticket.data:
            # The batch is full. It leaves while the next batch is gathered.
            await asyncio.sleep(0)
        return AsyncDelivery(ticket, place)

    async def _added(self, add: Callable[[], Added | None]) -> Added:
        timeout = self._sender.timeout
        try:
            async with asyncio.timeout(timeout):
                while True:
                    room = asyncio.Event()
                    self._records.when_room(room.set)
                    await room.wait()
                    if (added := add()) is not None:
                        return added
        except TimeoutError:
            raise _no_room(self._sender, timeout) from None


class Producer:
    """An open producer of one log. Any thread may use it, but no forked process.

    Close it, or use it in a ``with`` statement::

        with log.producer("loader-7") as producer:
            delivery = producer.send(b"hello")
            receipt = delivery.result()
    """

    def __init__(self, client: Client, sender: Sender) -> None:
        self._client = client
        self._sender = sender
        self._records = sender.records
        self._process = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except QuorateError as problem:
            if error is None:
                raise
            _note(error, problem)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that is known to be in the log under this name."""
        return self._sender.window.last_sequence

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send one record. Waits only if there is no room; the delivery has the receipt.

        TIMEOUT if no room was found: the record was not sent.
        """
        if os.getpid() != self._process:
            self._check_process()
        added = self._records.add(value, key, headers, timestamp)
        if added is None:
            added = self._added(partial(self._records.add, value, key, headers, timestamp))
        return Delivery(*added)

    def send_batch(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> Delivery:
        """Send records together: all of them or none are in the log, at consecutive offsets."""
        self._check_process()
        add = partial(self._records.add_batch, values, keys, headers, timestamps)
        return Delivery(*(add() or self._added(add)))

    def send_and_wait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Send one record, at once, and wait for its receipt."""
        delivery = self.send(value, key=key, headers=headers, timestamp=timestamp)
        self._records.end_linger()
        return delivery.result()

    def flush(self) -> None:
        """Wait until all records sent before are in the log. Raises the first delivery error."""
        self._check_process()
        self._client._run(lambda _: self._sender.flush())

    def close(self) -> None:
        """Flush, and take no more records. Raises the first delivery error."""
        self._check_process()
        self._client._run(lambda _: self._sender.close())

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            # Two processes would use the same sequences for different records.
            name = self._sender.window.name
            raise InvalidArgument(f"producer {name} was opened before the fork: open it again")

    def _added(self, add: Callable[[], Added | None]) -> Added:
        check_may_wait()
        timeout = self._sender.timeout
        deadline = time.monotonic() + timeout
        while True:
            # Not an Event, whose lock an interrupted caller could leave taken: the loop needs it.
            room: SimpleQueue[None] = SimpleQueue()
            self._records.when_room(partial(room.put, None))
            left = deadline - time.monotonic()
            if left <= 0:  # other threads took the room again and again
                raise _no_room(self._sender, timeout)
            try:
                room.get(timeout=left)
            except Empty:
                raise _no_room(self._sender, timeout) from None
            if (added := add()) is not None:
                return added


def _no_room(sender: Sender, timeout: float) -> Timeout:
    return Timeout(
        f"producer {sender.window.name}: no room in {timeout:g} s; records sent before take all of "
        f"memory_bytes"
    )


def _note(error: BaseException, problem: QuorateError) -> None:
    """Keep ``problem`` as a note on the error that came first, which the caller gets."""
    error.add_note(f"and the producer was closed with {problem.code}: {problem}")
