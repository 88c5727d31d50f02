"""Orderly stops, and the problem with each stop that was not orderly."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quorate.testing.processes import Cluster

__all__ = ["StopResult", "Stops"]

# Seconds after its start by which a node answers, and can be told to stop.
UP_S = 30.0
LOOK_S = 0.02


class StopResult(NamedTuple):
    """The result of one stop."""

    seconds: float
    # The problem with the stop; empty if there was none.
    problem: str


class Stops:
    """Tells nodes to stop, and requires that each ends by itself, in time and with status 0."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.done = 0
        self.longest_s = 0.0
        self.problems: list[str] = []

    def stop(self, *names: str) -> None:
        """Tell nodes that run to stop, all at once, and wait until they have ended."""
        with ThreadPoolExecutor(len(names)) as together:
            for name, ended in zip(names, together.map(self._end, names), strict=True):
                self.judge(name, ended)

    def judge(self, name: str, ended: StopResult | None) -> None:
        """Record the result of a stop; None if the node had ended by itself before."""
        if ended is None:
            return
        self.done += 1
        self.longest_s = max(self.longest_s, ended.seconds)
        if ended.problem:
            self.problems.append(f"{name} {ended.problem}")

    def _end(self, name: str) -> StopResult | None:
        node = self._cluster.nodes[name]
        began = time.monotonic()
        if not self._answers(name):
            took = time.monotonic() - began
            return (
                StopResult(took, f"runs and did not answer in {UP_S:g} s") if node.running else None
            )
        began = time.monotonic()
        try:
            status, problem = self._cluster.stop(name), ""
        except subprocess.TimeoutExpired as error:
            return StopResult(error.timeout, "was told to stop, did not, and was killed")
        if status != 0:
            problem = f"was told to stop and ended with status {status}: {node.last_words}"
        return StopResult(time.monotonic() - began, problem)

    def _answers(self, name: str) -> bool:
        """Whether a node answers, and so has installed its handler of SIGTERM."""
        node, deadline = self._cluster.nodes[name], time.monotonic() + UP_S
        page = f"http://{self._cluster.http(name)}/metrics"
        while node.running and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(page, timeout=5):
                    return True
            except OSError:
                time.sleep(LOOK_S)
        return False
