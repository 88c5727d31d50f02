"""Command line: ``python -m verification.chaos.failover [--kills 30] [--writers 1]``.

Measures how long a log is without a leader: each time the leader is killed, from the signal to the
first append that its successor acknowledged. Nodes reach each other directly, as in production.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from quorate.demo.probe import ProbeWriters
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from quorate.testing.processes import Cluster

__all__ = ["main"]

LOG = "failover"
# The leader is killed this many seconds after all replicas have become equal.
REST_S = 0.5
LOOK_S = 0.05
PATIENCE_S = 120.0


def measure(kills: int, writers: int) -> list[float]:
    """Seconds without a leader, one number for each kill."""
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(logs=[LOG], cuttable=False))
        working = ProbeWriters(nodes.client().log(LOG), writers)
        stack.callback(working.close)
        working.wait_after(0)
        return [_kill_leader(nodes, working) for _ in range(kills)]


def _kill_leader(nodes: Cluster, writers: ProbeWriters) -> float:
    leader = _wait_equal(nodes)
    time.sleep(REST_S)
    term = writers.term
    killed = time.monotonic()
    nodes.kill(leader)
    seconds = writers.wait_after(term) - killed
    nodes.begin(leader)
    return seconds


def _wait_equal(nodes: Cluster) -> str:
    """Wait until the successor of the present leader would have all entries; return the leader."""
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
    parser = argparse.ArgumentParser(prog="python -m verification.chaos.failover")
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
