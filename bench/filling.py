"""A log with so much in it, for what is measured on logs that are not empty."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorate.client.asynchronous import AsyncClient

if TYPE_CHECKING:
    from quorate.cli.workloads import Workload
    from quorate.client.submission import Submission

__all__ = ["fill"]


async def fill(endpoints: str, name: str, workload: Workload, value_bytes: int) -> int:
    """Append batches of ``workload`` until there are so many bytes of values; the records."""
    values = workload.values()
    batches = -(-value_bytes // (workload.value_bytes * workload.records))
    async with AsyncClient(endpoints) as client:
        log = await client.log(name, create=True)
        waiting: deque[Submission] = deque()
        for _ in range(batches):
            if len(waiting) == workload.in_flight:
                await waiting.popleft()
            waiting.append(log.submit(values))
        for submission in waiting:
            await submission
        return await log.end_offset()
