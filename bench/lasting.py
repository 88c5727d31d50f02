"""What only time brings: leaders that are killed, and logs that have grown."""

from __future__ import annotations

import shutil
import time
import urllib.request
from typing import TYPE_CHECKING

from bench.filling import fill
from bench.outcome import outcome_of
from bench.rounds import Turn, in_turn
from bench.systems import Quorate
from quorate.cli.loading import load
from quorate.cli.workloads import WORKLOADS
from quorate.net.loop import run
from quorate.testing.processes import cluster
from verification.chaos import failover

if TYPE_CHECKING:
    from pathlib import Path

    from bench.outcome import Outcome
    from bench.rounds import Row, Runner, Settings
    from quorate.testing.processes import Cluster

__all__ = ["failovers", "growth"]

SHAPE = WORKLOADS["W4"]
GROWN = "bench-grown"
# Copies of the grown log, and room for what the rounds add.
COPIES = 3
SPARE_BYTES = 8 << 30
READY_S = 300.0
LOOK_S = 0.01


def failovers(settings: Settings, report: Runner) -> list[Row]:
    """W8: seconds from the kill of a leader to the first append that its successor answered."""
    report.say(f"W8: killing the leader {settings.kills} times")
    taken = failover.measure(settings.kills, 1)
    milliseconds = sorted(round(1000 * seconds, 1) for seconds in taken)
    row = {"workload": "W8", "system": "quorate", "variant": "", "delay_ms": 0, "rounds": []}
    return [{**row, "failovers_ms": milliseconds}]


def growth(folder: Path, settings: Settings, report: Runner) -> list[Row]:
    """W13: the same load on a new log and on one that has grown, in turn, on the same nodes."""
    needed = COPIES * settings.stored_bytes * 11 // 10 + SPARE_BYTES
    if shutil.disk_usage(folder).free < needed:
        report.skipped["W13"] = f"less than {needed / 1e9:.0f} GB are free"
        return []
    place = folder / "growth"
    place.mkdir()
    try:
        with cluster(directory=place, cuttable=False) as nodes:
            return _grown(nodes, settings, report)
    finally:
        shutil.rmtree(place)


def _grown(nodes: Cluster, settings: Settings, report: Runner) -> list[Row]:
    report.say(f"W13: filling a log with {settings.stored_bytes / 1e9:g} GB")
    run(fill(nodes.endpoints, GROWN, WORKLOADS["W5"], settings.stored_bytes))

    def on_new() -> Outcome:
        return Quorate(nodes.endpoints).measure(SHAPE, settings.seconds, settings.warm_up)

    def on_grown() -> Outcome:
        tally = run(load(nodes.endpoints, GROWN, SHAPE, settings.seconds, warm_up=settings.warm_up))
        return outcome_of(tally, SHAPE)

    turns = [Turn("quorate", "new", on_new), Turn("quorate", "grown", on_grown)]
    rows = in_turn("W13", turns, settings.rounds, report)
    memory = max(node.memory_bytes for node in nodes.nodes.values())
    extra = {
        "stored_bytes": settings.stored_bytes,
        "memory_bytes": memory,
        "open_s": [round(_reopened(nodes, name), 3) for name in nodes.nodes],
    }
    return [rows[0], {**rows[1], **extra}]


def _reopened(nodes: Cluster, name: str) -> float:
    """Seconds from the start of a node that was stopped until it has everything open."""
    nodes.stop(name)
    began = time.monotonic()
    nodes.begin(name)
    while time.monotonic() < began + READY_S:
        try:
            with urllib.request.urlopen(f"http://{nodes.http(name)}/readyz", timeout=READY_S):
                return time.monotonic() - began
        except OSError:
            time.sleep(LOOK_S)
    raise TimeoutError(f"{name} is not ready after {READY_S} s")
