"""Loads on a log, through the ordinary client.

``quorate bench`` runs a load against the cluster of a user; the benchmarks of this project run the
same load beside other systems.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from quorate.cli.workloads import WARM_UP_S, Tally
from quorate.client.asynchronous import AsyncClient
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.cli.workloads import Workload
    from quorate.client.asynchronous import AsyncLog
    from quorate.client.submission import Submission

__all__ = ["load"]


async def load(
    endpoints: str | Sequence[str],
    name: str,
    workload: Workload,
    seconds: float,
    *,
    warm_up: float = WARM_UP_S,
    awaited: bool = False,
    timeout: float = 30.0,  # noqa: ASYNC109  # of each operation, enforced by the client
) -> Tally:
    """Load the log ``name``; with ``awaited`` each append has a task that waits for it.

    A client has one connection to the leader, so there are as many clients as connections.
    """
    clients = [AsyncClient(endpoints, timeout) for _ in range(workload.connections)]
    try:
        logs = [await client.log(name) for client in clients]
        values = workload.values()
        # From its first append each client knows the leader.
        first = [await log.append_batch(values) for log in logs]
        tally = Tally(seconds, warm_up)
        tally.done = sum(receipt.count for receipt in first)
        share = workload.in_flight // workload.connections
        async with asyncio.TaskGroup() as tasks:
            for log in logs:
                if awaited or workload.in_flight == 1:
                    for _ in range(share):
                        tasks.create_task(_await_each(log, values, tally))
                else:
                    tasks.create_task(_keep_in_flight(log, values, share, tally))
    finally:
        for client in clients:
            await client.close()
    return tally


async def _await_each(log: AsyncLog, values: list[bytes], tally: Tally) -> None:
    """Append until the time is up, waiting for each answer.

    At least one append is made: as many as the load asks for are under way also in a short run.
    """
    began = perf_counter()
    while True:
        try:
            receipt = await log.append_batch(values)
        except QuorateError:
            tally.errors += 1
        else:
            tally.acked(began, perf_counter(), receipt.count)
        if (began := perf_counter()) >= tally.stop:
            return


async def _keep_in_flight(log: AsyncLog, values: list[bytes], in_flight: int, tally: Tally) -> None:
    """Keep ``in_flight`` appends under way until the time is up.

    Answers come in the order in which appends were sent, so it waits for the oldest.
    """
    now = perf_counter()
    waiting = deque((log.submit(values), now) for _ in range(in_flight))
    while waiting:
        await _settle(waiting, tally)
        if (now := perf_counter()) < tally.stop:
            waiting.extend((log.submit(values), now) for _ in range(in_flight - len(waiting)))


async def _settle(waiting: deque[tuple[Submission, float]], tally: Tally) -> None:
    """Wait for the answer to the oldest append, and take all answers that came with it."""
    while True:
        submission, began = waiting.popleft()
        try:
            receipt = await submission
        except QuorateError:
            tally.errors += 1
        else:
            tally.acked(began, perf_counter(), receipt.count)
        if not waiting or not waiting[0][0].done():
            return
