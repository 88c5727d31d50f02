"""One client process of a chaos run: many tasks that append and read, and a history of all their
calls.

Every value is unique and names its sender. If the outcome of a call is unknown, it stays open in
the history: the checker allows both outcomes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from quorate.client.asynchronous import AsyncClient
from quorate.config import KIB
from quorate.errors import Duplicate, OutcomeUnknown, QuorateError
from quorate.net.loop import run
from verification.chaos.churn import Churn
from verification.checker import (
    AT_END,
    END_ONLY,
    LINEARIZABLE,
    Recorder,
    identity,
    identity_of,
    value_of,
)

if TYPE_CHECKING:
    from quorate.client.asynchronous import AsyncLog
    from quorate.client.produce.producer import AsyncProducer
    from quorate.commands import Receipt

__all__ = ["main"]

# An operation that takes longer is given up: its outcome is unknown then.
TIMEOUT_S = 5.0
VALUE_BYTES = 32
# The share of batches that are large: some nodes refuse them from clients, and have to take them
# from peers.
LARGE = 0.004
LARGE_BYTES = (20 * KIB, 300 * KIB)
READ_RECORDS_MAX = 20
# Pause of a task after a failure, in seconds.
PAUSE_S = 0.02
# Out of ten tasks: how many append plainly, append as a producer, and read.
PLAIN, PRODUCING, READING = 5, 2, 3


class Load:
    """All tasks of one process. They share a client, so they are one session."""

    def __init__(self, recorder: Recorder, client: AsyncClient, random: Random) -> None:
        self._recorder = recorder
        self._client = client
        self._random = random
        self.operations = 0

    async def work(self, names: list[str], tasks: int, until: float) -> None:
        """Run the tasks until the time is over; the operations under way then are finished."""
        logs = [await self._find(name) for name in names]
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                log = logs[number % len(logs)]
                kind = number // len(logs) % (PLAIN + PRODUCING + READING)
                if kind < PLAIN:
                    group.create_task(self._append(log, until))
                elif kind < PLAIN + PRODUCING:
                    group.create_task(
                        self._produce(log, f"{self._recorder.client}-{number}", until)
                    )
                else:
                    group.create_task(self._read(log, until))

    async def _find(self, name: str) -> AsyncLog:
        """Return the log once it is found: the faults may have begun already."""
        while True:
            with suppress(QuorateError):
                return await self._client.log(name)
            await asyncio.sleep(PAUSE_S)

    # -- appending -----------------------------------------------------------------------------

    def _values(self, count: int) -> tuple[int, list[bytes]]:
        recorder = self._recorder
        first = recorder.numbers(count)
        client, size = recorder.client, VALUE_BYTES
        if self._random.random() < LARGE:
            size = self._random.randrange(*LARGE_BYTES)
        values = [value_of(client, first + number, size) for number in range(count)]
        return identity_of(client, first), values

    async def _append(self, log: AsyncLog, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            value, values = self._values(self._random.choice((1, 1, 1, 4)))
            begun = self._recorder.begin(log.name, value, len(values))
            self.operations += 1
            try:
                self._acked(begun, await log.append_batch(values))
            except OutcomeUnknown:
                continue
            except QuorateError as error:
                self._recorder.failed(begun, error.code)
                await asyncio.sleep(PAUSE_S)

    def _acked(self, begun: int, receipt: Receipt) -> None:
        self._recorder.acked(begun, receipt.offset, receipt.count, receipt.synced)

    async def _produce(self, log: AsyncLog, name: str, until: float) -> None:
        """Append as a producer, which opens again when the outcome of a batch is unknown."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            with suppress(QuorateError):
                await self._produce_until_unknown(log, name, until)
            await asyncio.sleep(PAUSE_S)

    async def _produce_until_unknown(self, log: AsyncLog, name: str, until: float) -> None:
        loop = asyncio.get_running_loop()
        producer: AsyncProducer = await log.producer(name)
        while loop.time() < until:
            value, values = self._values(self._random.choice((1, 3)))
            sequence = producer.last_sequence + 1
            begun = self._recorder.begin(
                log.name, value, len(values), producer=name, sequence=sequence
            )
            self.operations += 1
            try:
                self._acked(begun, await (await producer.send_batch(values)))
            except Duplicate:
                self._recorder.acked(begun, -1, len(values), 0)
            except OutcomeUnknown:
                raise
            except QuorateError as error:
                self._recorder.failed(begun, error.code)
                raise

    # -- reading -------------------------------------------------------------------------------

    async def _read(self, log: AsyncLog, until: float) -> None:
        loop = asyncio.get_running_loop()
        end = 0
        while loop.time() < until:
            self.operations += 1
            try:
                if self._random.random() < 0.5:
                    end = await self._read_end(log)
                else:
                    await self._read_records(log, max(0, end - self._random.randrange(100)))
            except QuorateError:
                await asyncio.sleep(PAUSE_S)

    async def _read_end(self, log: AsyncLog) -> int:
        started = self._recorder.clock()
        end = await log.end_offset()
        way = LINEARIZABLE | AT_END | END_ONLY
        self._recorder.read(log.name, started, end, (), way)
        return end

    async def _read_records(self, log: AsyncLog, first: int) -> None:
        linearizable = self._random.random() < 0.3
        started = self._recorder.clock()
        stop = first + READ_RECORDS_MAX
        seen = [
            identity(record.value)
            async for record in log.read(first, stop, linearizable=linearizable)
        ]
        way = LINEARIZABLE * linearizable | AT_END * (len(seen) < READ_RECORDS_MAX)
        self._recorder.read(log.name, started, first, seen, way)


async def _work(parsed: argparse.Namespace) -> int:
    random = Random(f"{parsed.seed}/{parsed.client}")
    path = parsed.folder / f"{parsed.client}.history"
    with Recorder(path, parsed.client) as recorder:
        async with AsyncClient(parsed.endpoints, timeout=TIMEOUT_S) as client:
            load, churn = Load(recorder, client, random), Churn(client, random, parsed.client)
            until = asyncio.get_running_loop().time() + parsed.seconds
            async with asyncio.TaskGroup() as both:
                both.create_task(load.work(parsed.logs.split(","), parsed.tasks, until))
                both.create_task(churn.work(until))
            churn.save(parsed.folder)
    return load.operations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.chaos.load")
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--client", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args(arguments)
    print(f"operations={run(_work(parsed))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
