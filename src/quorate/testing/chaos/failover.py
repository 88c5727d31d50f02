"""Command line: ``python -m quorate.testing.chaos.failover [--kills 30] [--writers 1]``.

How long a log is without a leader: each time the leader is killed, from the signal to the first
append that its successor acknowledged. Nodes reach each other directly, as in real life. Prints one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from quorate.errors import QuorateError
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from quorate.client.blocking import Log
    from quorate.testing.processes import Cluster

__all__ = ["main"]

LOG = "failover"
# A kill comes once all replicas are equal and a little later.
REST_S = 0.5
LOOK_S = 0.05
PATIENCE_S = 120.0


class Writers:
    """Threads that append one record after the other, and remember the last acknowledgements."""

    def __init__(self, log: Log, count: int) -> None:
        self._log = log
        self._ended = False
        self._acked = threading.Condition()
        # By term: when its first append was acknowledged, as this process saw it.
        self._first: dict[int, float] = {}
        self._threads = [threading.Thread(target=self._write) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def term(self) -> int:
        with self._acked:
            return max(self._first, default=0)

    def wait_after(self, term: int) -> float:
        """When the first append of a term after ``term`` was acknowledged."""
        with self._acked:
            if not self._acked.wait_for(lambda: max(self._first, default=0) > term, PATIENCE_S):
                raise TimeoutError(f"no append was acknowledged in {PATIENCE_S} s")
            return min(at for later, at in self._first.items() if later > term)

    def close(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        while not self._ended:
            try:
                receipt = self._log.append(b"one more")
            except QuorateError:
                continue
            now = time.monotonic()
            with self._acked:
                if receipt.term not in self._first:
                    self._first[receipt.term] = now
                    self._acked.notify_all()


def measure(kills: int, writers: int) -> list[float]:
    """Seconds without a leader, one number for each kill."""
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(logs=[LOG], cuttable=False))
        working = Writers(nodes.client().log(LOG), writers)
        stack.callback(working.close)
        working.wait_after(0)
        return [_kill_leader(nodes, working) for _ in range(kills)]


def _kill_leader(nodes: Cluster, writers: Writers) -> float:
    leader = _wait_equal(nodes)
    time.sleep(REST_S)
    term = writers.term
    killed = time.monotonic()
    nodes.kill(leader)
    seconds = writers.wait_after(term) - killed
    nodes.begin(leader)
    return seconds


def _wait_equal(nodes: Cluster) -> str:
    """Wait until the successor of whoever leads would have everything; who leads."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        log = nodes.look(LOG)
        if log is not None and log["leader"] is not None:
            states = sorted(replica["state"] for replica in log["replicas"])
            if states == ["append", "append", "self"]:
                return log["leader"]
        time.sleep(LOOK_S)
    raise TimeoutError(f"the replicas did not become equal in {PATIENCE_S} s: {log}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quorate.testing.chaos.failover")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--writers", type=int, default=1, help="threads that append all the while")
    parsed = parser.parse_args(arguments)
    taken = sorted(measure(parsed.kills, parsed.writers))
    found = {
        "kills": len(taken),
        "writers": parsed.writers,
        "p50_s": round(statistics.median(taken), 3),
        "p90_s": round(taken[(len(taken) - 1) * 9 // 10], 3),
        "max_s": round(taken[-1], 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
