"""The client of the bare pipe: it keeps appends under way and counts what is answered."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from crc32c import crc32c

from bench.limit import HEAD, RUN, Socket
from quorate.batch import encode_batch
from quorate.cli.workloads import Tally
from quorate.testing.processes.ports import HOST

if TYPE_CHECKING:
    from bench.limit import Limit
    from quorate.cli.workloads import Workload

__all__ = ["measure"]


class _Pipelined(Socket):
    """Sends as many as were answered, in one write. Appends of one write share a time."""

    def __init__(self, payload: bytes, records: int, in_flight: int, tally: Tally) -> None:
        super().__init__()
        self._payload = payload
        self._records = records
        self._in_flight = in_flight
        self._tally = tally
        # When appends were sent and how many at once; oldest first.
        self._sent: deque[tuple[float, int]] = deque()
        self._waiting = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send(self._in_flight, perf_counter())

    def _send(self, count: int, now: float) -> None:
        payload, pack, length = self._payload, HEAD.pack, len(self._payload)
        out: list[bytes] = []
        for _ in range(count):
            out += (pack(length, crc32c(payload)), payload)
        self.transport.writelines(out)
        self._sent.append((now, count))
        self._waiting += count

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        end = len(data) - len(data) % RUN.size
        self.rest = data[end:]
        count = sum(run for (run,) in RUN.iter_unpack(data[:end]))
        now = perf_counter()
        self._answered(count, now)
        if now < self._tally.stop:
            self._send(count, now)
        elif not self._waiting:
            self.done.set_result(None)

    def _answered(self, count: int, now: float) -> None:
        self._waiting -= count
        while count:
            began, together = self._sent.popleft()
            if together > count:
                self._sent.appendleft((began, together - count))
                together = count
            count -= together
            self._tally.acked(began, now, self._records, together)


class _Awaited(Socket):
    """A future for each append, as somebody who waits for each by itself needs one."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._out: list[bytes] = []

    def append(self, payload: bytes) -> asyncio.Future[None]:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (HEAD.pack(len(payload), crc32c(payload)), payload)
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        self.transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        end = len(data) - len(data) % RUN.size
        self.rest = data[end:]
        for (count,) in RUN.iter_unpack(data[:end]):
            for _ in range(count):
                self._waiting.popleft().set_result(None)


async def measure(
    pipe: Limit, workload: Workload, seconds: float, warm_up: float, *, awaited: bool = False
) -> Tally:
    """Load the pipe; with ``awaited`` each append has a task that waits for it.

    A batch has the bytes that a client of a log would send for the same records.
    """
    payload = encode_batch(workload.values(), times=0)
    tally = Tally(seconds, warm_up)
    drive = _drive_awaited if awaited else _drive_pipelined
    for transport in await drive(pipe.port, payload, workload, tally):
        transport.close()
    return tally


async def _drive_pipelined(
    port: int, payload: bytes, workload: Workload, tally: Tally
) -> list[asyncio.Transport]:
    loop = asyncio.get_running_loop()
    share = workload.in_flight // workload.connections
    made = [
        await loop.create_connection(
            lambda: _Pipelined(payload, workload.records, share, tally), HOST, port
        )
        for _ in range(workload.connections)
    ]
    await asyncio.gather(*(client.done for _, client in made))
    return [transport for transport, _ in made]


async def _drive_awaited(
    port: int, payload: bytes, workload: Workload, tally: Tally
) -> list[asyncio.Transport]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(_Awaited, HOST, port) for _ in range(workload.connections)]

    async def work(client: _Awaited) -> None:
        while (began := perf_counter()) < tally.stop:
            await client.append(payload)
            tally.acked(began, perf_counter(), workload.records)

    async with asyncio.TaskGroup() as tasks:
        for number in range(workload.in_flight):
            tasks.create_task(work(made[number % workload.connections][1]))
    return [transport for transport, _ in made]
