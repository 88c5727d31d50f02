"""The same records through producers, which gather them into batches before they are sent.

It is no answer to "one request is one record", and nothing is compared with it: it shows what
somebody gets who asks for throughput and not for a request each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

from quorate.cli.workloads import Tally
from quorate.client.asynchronous import AsyncClient

if TYPE_CHECKING:
    from quorate.cli.workloads import Workload
    from quorate.client.produce.producer import AsyncProducer
    from quorate.client.produce.tickets import AsyncDelivery

__all__ = ["load_gathered"]

LINGER_MS = 1.0


async def load_gathered(
    endpoints: str, name: str, workload: Workload, seconds: float, warm_up: float
) -> Tally:
    """A producer for each connection. Every record is a send, and has a receipt of its own."""
    async with AsyncExitStack() as stack:
        producers = []
        for number in range(workload.connections):
            client = await stack.enter_async_context(AsyncClient(endpoints))
            log = await client.log(name)
            opened = await log.producer(f"bench-{number}", linger_ms=LINGER_MS)
            producers.append(await stack.enter_async_context(opened))
        tally = Tally(seconds, warm_up)
        [value] = workload.values()
        share = workload.in_flight // workload.connections
        async with asyncio.TaskGroup() as tasks:
            for producer in producers:
                tasks.create_task(_keep_in_flight(producer, value, share, tally))
    return tally


async def _keep_in_flight(
    producer: AsyncProducer, value: bytes, in_flight: int, tally: Tally
) -> None:
    """Each at least once, also where the time is short."""
    now = perf_counter()
    sent = [(await producer.send(value), now) for _ in range(in_flight)]
    waiting: deque[tuple[AsyncDelivery, float]] = deque(sent)
    while waiting:
        await waiting[0][0]
        now = perf_counter()
        while waiting and waiting[0][0].done():
            _, began = waiting.popleft()
            tally.acked(began, now, 1)
        if now < tally.stop:
            for _ in range(in_flight - len(waiting)):
                waiting.append((await producer.send(value), now))
