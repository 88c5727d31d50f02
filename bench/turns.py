"""How long a loop stands still while a log's state is at its limits: ``python -m bench.turns``.

One replica, with real files, of a log that remembers 10,000 producers with 1,024 runs each and
65,536 staged attempts. It is opened, it leads, it takes appends until 20 segments are sealed and as
many checkpoints written, and it is closed. A probe in the same loop measures the gap between two of
its passes: the processor time of the loop's thread, that of the whole process, which holds the
interpreter in other threads as well, and the time that passed. The last is this machine's: other
programs take part of it.

Before that, what single steps cost, in processor time of one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.machine import busy_share
from quorate.cli.serve import SWITCH_INTERVAL_S
from quorate.commands import ChunkLabel, ProducerStamp
from quorate.config import MIB, Config, Storage
from quorate.entry_body import Chunk
from quorate.errors import StageFull
from quorate.membership import Membership
from quorate.replica.engine_io import Stage
from quorate.replica.entry_drafts import draft_room
from quorate.replica.replica import Replica
from quorate.replica.writer import Writer
from quorate.state.attempts import attempt_of
from quorate.state.judge import AppendConditions
from quorate.state.producers import ProducerState
from quorate.state.runs import Run, Runs
from quorate.state.state import Restoring, State
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.directory import LOGS, DataDirectory, log_name
from quorate.types import GroupId, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.types import Position

NODE = NodeId("n1")
LOG = 1
GAP_MAX_MS = 50.0
# The smallest segments that the largest batch allows: they are sealed often.
CONFIG = Config(storage=Storage(segment_bytes=18 * MIB))
BATCH = bytes(32 * 1024)
# Batches that are on their way at once.
AT_ONCE = 16
# Runs must lie within the log.
RECORDS = 4096


class Size(NamedTuple):
    """How full the state is."""

    producers: int
    runs: int
    attempts: int


class Gap(NamedTuple):
    """Milliseconds between two passes of the loop."""

    thread: float
    process: float
    wall: float


def crowd(state: State, size: Size) -> None:
    """Add producers and attempts to a state that has at least RECORDS records."""
    rows = bytes(Runs.of(Run(n + 1, 1, n, Index(n + 1), Term(1)) for n in range(size.runs)).rows)
    for epoch in range(1, size.producers + 1):
        runs, window = Runs.of_rows(rows), max(1, size.runs)
        name, expiry_us = f"producer-{epoch}", 10**15
        state.producers.add(
            ProducerState(
                name, epoch, bytes(16), size.runs, runs, window, expiry_us // 10, state.age
            )
        )
    for number in range(1, size.attempts + 1):
        key = number, 0, number.to_bytes(16, "little")
        chunks = (Chunk(Index(number), 1, 100),)
        state.staging.add(attempt_of("app", key, bytes(16), chunks, state.age))


# -- single steps ----------------------------------------------------------------------------------


def spent_ms(step: Callable[[], object], rounds: int = 3) -> float:
    """Processor time of the quickest round."""
    spent = []
    for _ in range(rounds):
        begun = time.thread_time()
        step()
        spent.append(time.thread_time() - begun)
    return 1000 * min(spent)


def longest_ms(steps: list[Callable[[], object]]) -> tuple[float, float]:
    """Of each step once: the longest, and all together."""
    spent = [spent_ms(step, rounds=1) for step in steps]
    return max(spent), sum(spent)


def drafted(item: Stage, state: State) -> list[object]:
    """What makes room for ``item``, without logging it."""
    return [*draft_room(item, state, 10**12, CONFIG)]


def measure_steps(size: Size) -> dict[str, float]:
    state = State()
    state.end = state.append_time = state.age = 10**12
    crowd(state, size)
    state.digest()
    found = {"collect all garbage": spent_ms(gc.collect), "copy": spent_ms(state.copy)}
    added = Run(size.runs + 1, 1, 10**9, Index(10**6), Term(1))
    for producer in [*state.producers][:256]:
        state.producers.accept(producer.epoch, added, state.age)
    found["digest after 256 producers changed"] = spent_ms(state.digest, rounds=1)
    sections: list[bytes] = []
    made = state.copy().sections()
    begun = longest_ms([lambda: sections.extend([next(made)])] * sum(1 for _ in state.sections()))
    found["encode: longest section"], found["encode: all"] = begun
    restoring = Restoring()
    taken = longest_ms([partial(restoring.take, section) for section in sections])
    found["decode: longest section"], found["decode: all"] = taken
    found["decode: megabytes"] = sum(map(len, sections)) / 1e6
    for name, app in (("another app", "other"), ("a newer run of the app", "app")):
        label = ChunkLabel(app, b"q" * 16, 10**9, 0, b"a" * 16, 0)
        item = Stage(1, label, b"x" * 100, 1)
        found[f"a chunk at the cap, of {name}"] = spent_ms(partial(drafted, item, state))
    return found


# -- the loop --------------------------------------------------------------------------------------


class Probe:
    """Measures every pass of the loop, from its start to :meth:`stop`, and remembers only the
    longest gaps: whatever it kept of each would be more for the garbage collector to look at."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._on = True
        self._longest = Gap(0.0, 0.0, 0.0)
        self._seen = self._now()
        self._loop.call_soon(self._pass)

    @staticmethod
    def _now() -> Gap:
        return Gap(time.thread_time(), time.process_time(), time.perf_counter())

    def _pass(self) -> None:
        now = self._now()
        gap = (1000 * (after - before) for after, before in zip(now, self._seen, strict=True))
        self._longest = Gap(*map(max, self._longest, gap))
        self._seen = now
        if self._on:
            self._loop.call_soon(self._pass)

    def stop(self) -> Gap:
        """The longest gap by each of the three clocks."""
        self._on = False
        return self._longest


class Bench:
    def __init__(self, path: Path, size: Size) -> None:
        self.path = path
        self.size = size
        self.place = path / LOGS / log_name(LOG)
        self.directory = DataDirectory.open(path, "bench", NODE)
        self.writer = Writer()
        self.readers = ThreadPoolExecutor(2)

    async def open(self) -> Replica:
        replica = await Replica.open(
            self.directory, GroupId("bench", LOG), Membership((NODE,)), CONFIG, self.writer,
            self.readers, send=lambda _: None, halted=_halted,
        )  # fmt: skip
        while not replica.serves:  # noqa: ASYNC110  # an election takes its time
            await asyncio.sleep(0.005)
        return replica

    async def prepare(self) -> None:
        """A log whose checkpoint holds a state at its limits."""
        replica = await self.open()
        while replica.end_offset < RECORDS:
            await replica.append(BATCH, RECORDS)
        state, position = replica.engine.state.copy(), replica.engine.core.raft.log.last
        await replica.close()
        crowd(state, self.size)
        self._keep(position, state)

    def _keep(self, position: Position, state: State) -> None:
        checkpoint = Checkpoint(position, state.sections())
        with (self.place / CHECKPOINT).open("wb") as file:
            file.writelines(checkpoint.pieces(self.directory.log_id(LOG)))

    async def fill(self, replica: Replica, seals: int) -> None:
        """Append until so many segments were sealed and checkpoints written."""
        loads = [asyncio.ensure_future(self._load(replica, number)) for number in range(AT_ONCE)]
        for _ in range(seals):
            kept = self._kept()
            while self._kept() == kept:  # noqa: ASYNC110  # it is another thread that writes it
                await asyncio.sleep(0.01)
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _kept(self) -> int:
        return (self.place / CHECKPOINT).stat().st_ino

    async def _load(self, replica: Replica, number: int) -> None:
        """Stamped batches of one producer after the other, and now and then a chunk that finds no
        room."""
        sequence = self.size.runs + 1
        while True:
            for epoch in range(1 + number, self.size.producers + 1, AT_ONCE):
                stamp = ProducerStamp(f"producer-{epoch}", epoch, sequence)
                await replica.append(BATCH, 1, AppendConditions(stamp))
                if epoch % 64 == 1 and self.size.attempts:
                    label = ChunkLabel("other", bytes(16), 1, number, b"a" * 16, 0)
                    try:
                        await replica.operate(label, b"x", 1)
                    except StageFull:
                        continue
            sequence += 1

    def close(self) -> None:
        self.writer.close()
        self.readers.shutdown()
        self.directory.close()


def _halted(halt: Exception) -> None:
    raise SystemExit(f"the replica halted: {halt}")


async def measure_gaps(path: Path, size: Size, seals: int) -> dict[str, Gap]:
    bench = Bench(path, size)
    await bench.prepare()
    found: dict[str, Gap] = {}
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    probe = Probe()
    replica = await bench.open()
    found["open and lead"] = probe.stop()
    gc.collect()
    gc.freeze()
    probe = Probe()
    await bench.fill(replica, seals)
    found[f"appends and {seals} checkpoints"] = probe.stop()
    probe = Probe()
    begun = time.perf_counter()
    await replica.close()
    found["close"] = probe.stop()
    print(f"closed after {time.perf_counter() - begun:.2f} s")
    bench.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1024)
    parser.add_argument("--attempts", type=int, default=65_536)
    parser.add_argument("--seals", type=int, default=20)
    parser.add_argument(
        "--directory", type=Path, help="where the log is made; else a temporary one"
    )
    given = parser.parse_args()
    size = Size(given.producers, given.runs, given.attempts)
    print(f"{size}; others had {100 * busy_share():.0f} % of the machine's processors just now")
    steps = measure_steps(size)
    for name, figure in steps.items():
        print(f"{name:44} {figure:9.2f}" + ("" if "megabytes" in name else " ms"))
    with tempfile.TemporaryDirectory(dir=given.directory) as path:
        gaps = asyncio.run(measure_gaps(Path(path), size, given.seals))
    print(f"{'longest gap of the loop, ms':44} {'thread':>9} {'process':>9} {'wall':>9}")
    for name, gap in gaps.items():
        verdict = "" if gap.thread <= GAP_MAX_MS else f"  above {GAP_MAX_MS:.0f}"
        print(f"{name:44} {gap.thread:9.1f} {gap.process:9.1f} {gap.wall:9.1f}{verdict}")


if __name__ == "__main__":
    main()
