"""The demo, step by step: real nodes, real Spark, two kills, and a count of all records."""

from __future__ import annotations

import os
import platform
import time
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.demo.events import expected, orders
from quorate.demo.findings import NAIVE, QUORATE, DemoFailed, DemoFindings, Kill
from quorate.demo.probe import ProbeWriters
from quorate.demo.queries import Query, Trap
from quorate.demo.reckoning import archive, compare_replicas, count, sum_up
from quorate.demo.steps import LETTERS, MASTER, NAIVE_LOG, ORDERS, PAID, DemoSteps
from quorate.demo.watching import Watcher, rate
from quorate.errors import SparkFailed
from quorate.testing.processes import Cluster

if TYPE_CHECKING:
    from quorate.client.blocking import Client
    from quorate.client.results import LogSummary
    from quorate.demo.queries import Caught
    from quorate.demo.steps import Teller

__all__ = ["DemoRun"]

# A log beside the others, to measure the failover with.
PROBE = "probe"
PIPELINE = Path(__file__).with_name("paid.py")
# Orders of one append; the number of batches of a query, and the fewest orders in one of them.
APPEND = 2000
BATCHES = 20
BATCH_MIN = 500
# Batches of both queries before the first kill, which both are to feel, unless one runs away: then
# its FAR batches are enough.
WARM = 1
FAR = BATCHES // 2
# Seconds that a dead node stays down after the others have gone on.
DOWN_S = 1.5
# Seconds between two looks for an open batch, which does not stay open for long.
CATCH_S = 0.005
TRIES = 60


class DemoRun:
    """One run of the demo, in a directory that is its own."""

    def __init__(self, place: Path, count: int, teller: Teller) -> None:
        self._expected = expected(count)
        self._findings = DemoFindings(orders=count, versions=_versions())
        self._steps = DemoSteps(place, self._findings, teller)
        # The steps set these fields when they start the parts.
        self._cluster: Cluster
        self._client: Client
        self._queries: dict[str, Query]
        self._watcher: Watcher

    def carry_out(self) -> DemoFindings:
        """Run all steps and return the findings. Even after an error no process is left running."""
        began = time.monotonic()
        with self._steps.stack:
            self._start_nodes()
            self._append_orders()
            self._start_queries()
            self._kill_leader()
            self._kill_drivers()
            self._finish_queries()
            count(self._steps, self._cluster, self._expected)
            sum_up(self._steps, self._cluster, self._expected)
            archive(self._steps, self._cluster, self._expected)
            compare_replicas(self._steps, self._cluster)
        self._findings.seconds = time.monotonic() - began
        return self._findings

    # -- the beginning -------------------------------------------------------------------------

    def _start_nodes(self) -> None:
        with self._steps.step("three nodes ready") as detail:
            self._cluster = Cluster(self._steps.place, cuttable=False)
            self._steps.stack.callback(self._cluster.close)
            self._cluster.start([ORDERS, PAID, LETTERS])
            self._client = self._cluster.client()
            leader = self._cluster.wait_leader(PAID)
            # Both sinks and the probe are to feel the same kill.
            for name in (NAIVE_LOG, PROBE):
                self._make_log(name, leader)
            detail.text = f"{self._cluster.endpoints}; {leader} leads {PAID}"

    def _make_log(self, name: str, leader: str) -> None:
        """Make a log that ``leader`` leads. Chance picks the leader, so repeat until it fits."""
        for _ in range(TRIES):
            self._client.create_log(name)
            if self._cluster.wait_leader(name) == leader:
                return
            self._client.delete_log(name)
        raise DemoFailed(f"{leader} never came to lead {name}")

    def _append_orders(self) -> None:
        count = self._expected.orders
        began = time.monotonic()
        with self._steps.step(f"{count:,} orders appended") as detail:
            with self._client.log(ORDERS).producer("shop") as producer:
                for first in range(0, count, APPEND):
                    end = min(first + APPEND, count)
                    producer.send_batch(orders(first, end))
                    self._steps.live(f"appending orders: {end:,} of {count:,}")
            speed = count / (time.monotonic() - began)
            detail.text = f"{speed:,.0f}/s, each on two disks before it is acknowledged"

    def _start_queries(self) -> None:
        size = max(self._expected.orders // BATCHES, BATCH_MIN)
        self._queries = {QUORATE: self._pipeline(size), NAIVE: self._naive(size)}
        with self._steps.step("a Spark pipeline to paid, and a naive sink beside it") as detail:
            for query in self._queries.values():
                self._steps.stack.callback(query.close)
                query.start()
            self._watcher = Watcher(self._client, list(self._queries.values()))
            self._steps.stack.callback(self._watcher.close)
            self._findings.samples = self._watcher.samples
            self._steps.until(self._under_way, "both queries are under way", told=self._pace)
            detail.text = f"{size:,} orders in a batch; both are under way"

    def _pipeline(self, size: int) -> Query:
        checkpoint = self._steps.place / "checkpoint-quorate"
        command = (
            "quorate", "pipeline", "run", str(PIPELINE), "--endpoints", self._cluster.endpoints,
            "--checkpoint", str(checkpoint), "--max-records-per-batch", str(size),
            "--master", MASTER, "--json",
        )  # fmt: skip
        return Query(QUORATE, command, checkpoint, self._steps.place, ORDERS)

    def _naive(self, size: int) -> Query:
        checkpoint = self._steps.place / "checkpoint-naive"
        command = (
            "quorate.demo.naive", self._cluster.endpoints, ORDERS, NAIVE_LOG, str(checkpoint),
            str(size),
        )  # fmt: skip
        return Query(NAIVE, command, checkpoint, self._steps.place, ORDERS)

    def _under_way(self) -> bool:
        self._all_ended()
        batches = [query.committed for query in self._queries.values()]
        return min(batches) >= WARM or max(batches) >= FAR

    def _all_ended(self) -> bool:
        # Every query is asked: one that failed is started again.
        ended = [query.ended() for query in self._queries.values()]
        return all(ended)

    def _pace(self) -> str:
        """The rate and the lag of both queries."""
        parts = []
        for name, query in self._queries.items():
            lag = self._expected.orders - query.read
            parts.append(f"{name} {rate(self._watcher.samples, name):,.0f}/s, lag {lag:,}")
        return "   ".join(parts)

    # -- two kills -----------------------------------------------------------------------------

    def _kill_leader(self) -> None:
        with self._steps.step("kill -9 of the leader") as detail, ExitStack() as probing:
            probe = ProbeWriters(self._client.log(PROBE), 1)
            probing.callback(probe.close)
            probe.wait_after(0)
            victim = self._cluster.wait_leader(PAID)
            term = probe.term
            self._killed(f"leader {victim}")
            killed = time.monotonic()
            self._cluster.kill(victim)
            seconds = probe.wait_after(term) - killed
            self._findings.failover_ms = round(1000 * seconds)
            successor = self._cluster.wait_leader(PAID)
            detail.text = (
                f"{victim} is dead; the next append was acknowledged after "
                f"{self._findings.failover_ms} ms, and {successor} leads {PAID}"
            )
        back = time.monotonic() + DOWN_S
        self._steps.until(
            lambda: time.monotonic() >= back, f"{victim} is started again", told=self._pace
        )
        self._cluster.begin(victim)

    def _kill_drivers(self) -> None:
        traps = {
            QUORATE: Trap(self._queries[QUORATE], lambda: self._look(PAID)["staged_bytes"]),
            NAIVE: Trap(self._queries[NAIVE], lambda: self._look(NAIVE_LOG)["end_offset"]),
        }
        caught: dict[str, Caught] = {}

        def look() -> bool:
            for name, trap in traps.items():
                if name not in caught and (found := trap.look()) is not None:
                    caught[name] = found
                    self._killed(f"{name} driver")
                    self._queries[name].start()
            return len(caught) == len(traps)

        with self._steps.step("kill -9 of both Spark drivers inside a batch") as detail:
            what = "both drivers are caught inside a batch"
            self._steps.until(look, what, told=self._pace, look_s=CATCH_S)
            detail.text = (
                f"{caught[QUORATE].grown:,} bytes were staged, which no reader sees; the naive "
                f"sink had appended {caught[NAIVE].grown:,} rows already"
            )

    def _killed(self, what: str) -> None:
        self._findings.kills.append(Kill(round(self._watcher.now, 2), what))

    def _look(self, name: str) -> LogSummary:
        found = self._cluster.look(name)
        if found is None:
            raise DemoFailed(f"no node knows of {name}")
        return found

    def _finish_queries(self) -> None:
        with self._steps.step("both restarted, and run to their end") as detail:
            self._steps.until(self._all_ended, "both queries are at their end", told=self._pace)
            told = [
                f"{name} {query.committed + 1} batches" for name, query in self._queries.items()
            ]
            failures = [text for query in self._queries.values() for text in query.failures]
            told += [f"started again, because {failure}" for failure in failures]
            detail.text = ", ".join(told)
        self._watcher.close()


def _versions() -> dict[str, str]:
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        raise SparkFailed(
            "the demo needs PySpark; install it with: pip install 'quorate[spark]'"
        ) from None
    return {
        "quorate": version("quorate"),
        "Spark": spark,
        "Python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
