"""PySyncObj: three processes, journal on. It never syncs, so its promise is weaker than ours.

It has no client that is not a member, so the load runs inside of the leader's process and no
request crosses a socket before it is logged: that favours it. The tick is driven by hand, without
the pause of its own thread. Batches it has none, and commands of more than 64 KiB break its
followers. ``python -m bench.peers.pysyncobj`` is one of the processes.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.outcome import outcome_of
from quorate.cli.workloads import WORKLOADS, Tally
from quorate.testing.processes.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.outcome import Outcome
    from quorate.cli.workloads import Workload

__all__ = ["NOTE", "PySyncObj", "pysyncobj"]

ROOT = Path(__file__).resolve().parent.parent.parent
NOTE = (
    "three processes, journal on, never fsyncs; load inside of the leader, ticked by hand; "
    "one in flight: appendEntriesUseBatch off; else on, appendEntriesPeriod 2 ms; no compaction; "
    "under this load it reports by itself that it truncates entries that were applied"
)
READY_S = 30.0
LOOK_S = 0.1
TICK_S = 0.05
# How long it gathers before it sends. Shorter ones cost more messages, longer ones more waiting.
GATHER_S = 0.002
# Its own default.
HEARTBEAT_S = 0.1


# -- one process ---------------------------------------------------------------------------------


def serve(port: int, others: list[int], journal: Path) -> None:
    import pysyncobj

    # At this pace it sends entries again that were taken, warns of each, and reports errors: it
    # truncates what was applied. NOTE says so; a line for each would hide all others.
    logging.disable(logging.ERROR)
    conf = pysyncobj.SyncObjConf(
        autoTick=False,
        # Made without batching, so that it can be switched while it runs; not the other way round.
        appendEntriesUseBatch=False,
        journalFile=str(journal),
        connectionRetryTime=0.2,
        logCompactionMinEntries=1 << 60,
        logCompactionMinTime=1 << 30,
    )

    class Records(pysyncobj.SyncObj):  # type: ignore[misc]  # it comes without types
        def __init__(self) -> None:
            super().__init__(f"{HOST}:{port}", [f"{HOST}:{other}" for other in others], conf)
            self.count = 0

        @pysyncobj.replicated  # type: ignore[untyped-decorator]  # it comes without types
        def append(self, values: list[bytes]) -> None:
            self.count += len(values)

    records = Records()
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        records.doTick(TICK_S)
        if orders.empty():
            continue
        order = orders.get()
        if not order:
            return
        answer: Any = records._isLeader() and records.isReady()
        if order != "lead?\n":
            answer = _load(records, conf, **json.loads(order))
        print(json.dumps(answer), flush=True)


def _listen(orders: SimpleQueue[str]) -> None:
    """An empty line is the end: whoever gave the orders is gone."""
    while line := sys.stdin.readline():
        orders.put(line)
    orders.put("")


def _load(records: Any, conf: Any, workload: str, seconds: float, warm_up: float) -> Outcome:
    shape = WORKLOADS[workload]
    conf.appendEntriesUseBatch = shape.in_flight > 1
    conf.appendEntriesPeriod = GATHER_S if shape.in_flight > 1 else HEARTBEAT_S
    values = shape.values()
    tally = Tally(seconds, warm_up)
    waiting = 0

    def send() -> None:
        records.append(values, callback=partial(answered, perf_counter()))

    def answered(began: float, _: object, failed: int) -> None:
        nonlocal waiting
        now = perf_counter()
        if failed:
            tally.errors += 1
        else:
            tally.acked(began, now, shape.records)
        if now < tally.stop:
            send()
        else:
            waiting -= 1

    for _ in range(shape.in_flight):
        waiting += 1
        send()
    while waiting:
        records.doTick(conf.appendEntriesPeriod / 2)
    # While others are measured it is to be quiet.
    conf.appendEntriesPeriod = HEARTBEAT_S
    return outcome_of(tally, shape)


# -- all of them ---------------------------------------------------------------------------------


class PySyncObj:
    """Three running processes."""

    name = "pysyncobj"

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def measure(self, workload: Workload, seconds: float, warm_up: float) -> Outcome:
        order = {"workload": workload.name, "seconds": seconds, "warm_up": warm_up}
        outcome: Outcome = _ask(self._leader(), json.dumps(order))
        return outcome

    def _leader(self) -> subprocess.Popen[str]:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for process in self._processes:
                if _ask(process, "lead?"):
                    return process
            time.sleep(LOOK_S)
        raise TimeoutError(f"nobody leads after {READY_S} s")


def _ask(process: subprocess.Popen[str], order: str) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{order}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@contextmanager
def pysyncobj(folder: Path) -> Iterator[PySyncObj]:
    """Runs for as long as it is needed. ImportError if it is not installed."""
    import pysyncobj as _  # noqa: F401  # to say so before anything is started

    with ExitStack() as stack:
        reserved = Ports()
        stack.callback(reserved.close)
        ports = reserved.take(3)
        processes = []
        for port in ports:
            command = [
                sys.executable,
                "-m",
                "bench.peers.pysyncobj",
                str(folder / f"{port}.journal"),
            ]
            command += [str(port), *(str(other) for other in ports if other != port)]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield PySyncObj(processes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.pysyncobj")
    parser.add_argument("journal", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("others", type=int, nargs="+")
    parsed = parser.parse_args()
    serve(parsed.port, parsed.others, parsed.journal)


if __name__ == "__main__":
    main()
