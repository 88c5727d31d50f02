"""Command line: ``python -m verification.chaos.handover [--transfers 200] [--restarts 20]``.

Measures the gaps that callers see when leaderships are given away: first by ``log transfer``, then
by SIGTERM to all nodes of the cluster, one after the other. Each caller appends one record at a
time, and its gap is the time between two receipts. Prints one line of JSON; fails if a call failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from quorate.errors import QuorateError
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from quorate.client.blocking import Log
    from quorate.testing.processes import Cluster

__all__ = ["main"]

LOG = "handover"
CALLERS = 4
RECORD = bytes(1024)
# Between two hand-overs, so that each has gaps of its own.
REST_S = 0.4
# A node that was started again is ready in this time.
READY_S = 60.0


class Callers:
    """Threads that append one record at a time, and the longest gap since the last look."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ended = Event()
        self.appended = 0
        # The calls that failed.
        self.errors: list[str] = []
        # Seconds between two receipts of a caller, in the order of their ends.
        self._gaps: list[float] = []
        self._threads = [Thread(target=self._append) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _append(self) -> None:
        last = time.perf_counter()
        while not self._ended.is_set():
            try:
                self._log.append(RECORD)
            except QuorateError as error:
                self.errors.append(f"{error.code}: {error}")
            now = time.perf_counter()
            self._gaps.append(now - last)
            last = now

    def longest_gap(self) -> float:
        """The longest gap that ended since the last call."""
        count = len(self._gaps)
        gaps = self._gaps[:count]
        del self._gaps[:count]
        self.appended += count
        return max(gaps, default=0.0)

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def measure(transfers: int, restarts: int) -> dict[str, object]:
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(logs=[LOG], cuttable=False))
        callers = Callers(nodes.client().log(LOG))
        stack.callback(callers.close)
        time.sleep(1.0)
        by_transfer = [_transfer(nodes, callers) for _ in range(transfers)]
        by_restart = [
            _restart(nodes, callers, name) for _ in range(restarts) for name in nodes.nodes
        ]
        return {
            "transfers": transfers,
            **_summary("transfer", by_transfer),
            "restarts": restarts,
            **_summary("restart", by_restart),
            "appends": callers.appended,
            "errors": len(callers.errors),
            "first_errors": callers.errors[:3],
            "load": round(os.getloadavg()[0], 1),
        }


def _transfer(nodes: Cluster, callers: Callers) -> float:
    """Give the leadership to the next node. Returns the longest gap of a caller."""
    names = list(nodes.nodes)
    target = names[(names.index(nodes.wait_leader(LOG)) + 1) % len(names)]
    callers.longest_gap()
    nodes.transfer(LOG, target)
    time.sleep(REST_S)
    return callers.longest_gap()


def _restart(nodes: Cluster, callers: Callers, name: str) -> float:
    """Stop a node by SIGTERM and start it again. Returns the longest gap of a caller."""
    callers.longest_gap()
    nodes.stop(name)
    nodes.begin(name)
    _wait_ready(nodes.http(name))
    time.sleep(REST_S)
    return callers.longest_gap()


def _wait_ready(address: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5):
            return
        time.sleep(0.05)
    raise TimeoutError(f"the node at {address} was not ready in {READY_S} s")


def _summary(name: str, gaps: list[float]) -> dict[str, float]:
    if not gaps:
        return {}
    ranked = sorted(gaps)
    return {
        f"{name}_p50_ms": round(1000 * ranked[(len(ranked) - 1) // 2], 1),
        f"{name}_p99_ms": round(1000 * ranked[(len(ranked) - 1) * 99 // 100], 1),
        f"{name}_max_ms": round(1000 * ranked[-1], 1),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.chaos.handover")
    parser.add_argument("--transfers", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=20, help="of each node")
    parsed = parser.parse_args(arguments)
    found = measure(parsed.transfers, parsed.restarts)
    print(json.dumps(found), flush=True)
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
