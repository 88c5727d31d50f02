"""Loads of appends, and the counts that are taken while one runs.

A load is closed: a fixed number of appends is under way, and each that ends makes place for the
next. The shapes are the same for every system that is measured.
"""

from __future__ import annotations

import os
from array import array
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WARM_UP_S", "WORKLOADS", "Tally", "Workload"]

# Seconds before the measurement: the first answers pay for connections and cold caches.
WARM_UP_S = 0.5


class Workload(NamedTuple):
    """A load of appends of the same shape."""

    name: str
    value_bytes: int
    # Records of one append.
    records: int
    # Appends that are under way, on all connections together.
    in_flight: int
    connections: int = 1

    def values(self) -> list[bytes]:
        """The values of one append, random so that no part of the way can compress them."""
        return [os.urandom(self.value_bytes) for _ in range(self.records)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", 100, 1, 1),
        Workload("W2", 100, 1, 64),
        Workload("W3", 100, 1, 2000, connections=4),
        Workload("W4", 100, 100, 64),
        Workload("W5", 1024, 100, 32),
    )
}


class Tally:
    """Counts of acknowledged records, and the duration of each append, between two moments."""

    def __init__(self, seconds: float, warm_up: float = WARM_UP_S) -> None:
        self.seconds = seconds
        # Appends that end before ``start`` or after ``stop`` are counted as done, and not measured.
        self.start = perf_counter() + warm_up
        self.stop = self.start + seconds
        # Records acknowledged at any time, and between the two moments.
        self.done = 0
        self.records = 0
        # Seconds of each append. An array: a list of millions would be walked by every collection.
        self.latencies = array("d")
        self.errors = 0

    def acked(self, began: float, now: float, records: int, appends: int = 1) -> None:
        """Count ``appends`` of ``records`` each that were sent together and answered together."""
        self.done += records * appends
        if self.start <= now < self.stop:
            self.records += records * appends
            if appends == 1:
                self.latencies.append(now - began)
            else:
                self.latencies.extend([now - began] * appends)

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """The seconds within which each share of the appends was answered; None if none was."""
        taken = sorted(self.latencies)
        if not taken:
            return [None] * len(shares)
        return [taken[min(len(taken) - 1, int(share * len(taken)))] for share in shares]

    def document(self, workload: Workload) -> dict[str, Any]:
        p50, p99 = (
            None if seconds is None else round(1000 * seconds, 3)
            for seconds in self.quantiles((0.5, 0.99))
        )
        return {
            "workload": workload.name,
            "records_per_s": round(self.records_per_s, 1),
            "mb_per_s": round(self.records_per_s * workload.value_bytes / 1e6, 3),
            "p50_ms": p50,
            "p99_ms": p99,
            "errors": self.errors,
        }
