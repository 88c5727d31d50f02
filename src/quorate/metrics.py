"""The Prometheus metrics of a node: each name stands here and nowhere else.

A metric that changes often is a plain number that its owner adds to; the text is made at each
request for it. The node gives a :class:`Snapshot` of its logs then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    # The values of labels, and the number under them.
    Rows = Iterable[tuple[tuple[str, ...], float]]

__all__ = ["CONTENT_TYPE", "Exposition", "Histogram", "LogMetrics", "Metrics", "Snapshot"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# Bounds of the buckets, in seconds. A flush takes a tenth of a millisecond on a good disk and
# seconds on a sick one.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Histogram:
    """Counts of durations, by buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        # One count for each bound, and one for durations above the last.
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.total += seconds * times

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus wants them: each includes those before it."""
        found, below = [], 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            below += count
            found.append((str(bound) if bound != float("inf") else "+Inf", float(below)))
        return found


@dataclass(slots=True)
class Metrics:
    """The counters and histograms that are updated while the node works."""

    append_duration: Histogram = field(default_factory=Histogram)
    fsync_duration: Histogram = field(default_factory=Histogram)
    # By log.
    appended_records: Counter[str] = field(default_factory=Counter)
    elections: Counter[str] = field(default_factory=Counter)
    # By the code of the error.
    append_errors: Counter[str] = field(default_factory=Counter)
    # Messages from peers for logs that this node does not have.
    stray_messages: int = 0


class LogMetrics(NamedTuple):
    """The state of one log at the time of a request."""

    log: str
    first_offset: int
    end_offset: int
    is_leader: bool
    # Peer -> committed entries that it lacks; only a leader knows.
    lag: dict[str, int]
    staged_bytes: int
    damaged_ranges: int
    full: bool = False


class Snapshot(NamedTuple):
    """The state of the node at the time of a request."""

    logs: list[LogMetrics]
    # None until the node has looked at its disk.
    disk_free_bytes: int | None
    connections: int
    disk_full: bool = False
    # Logs whose replica here halted, and whether their files are damaged.
    halted: tuple[tuple[str, bool], ...] = ()


class Exposition(Collector):
    """Makes the text of ``/metrics``."""

    def __init__(self, version: str, metrics: Metrics, look: Callable[[], Snapshot]) -> None:
        self._version = version
        self._metrics = metrics
        self._look = look
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="quorate", registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """No metric is collected at registration, only at a request."""
        return ()

    def collect(self) -> Iterator[Metric]:
        metrics, snapshot = self._metrics, self._look()
        logs, disk_free_bytes, connections, disk_full, halted = snapshot
        yield _gauge("quorate_build_info", "Always 1.", [((self._version,), 1)], "version")
        if disk_free_bytes is not None:
            free = [((), disk_free_bytes)]
            yield _gauge("quorate_disk_free_bytes", "Free bytes of the disk.", free)
            yield _gauge("quorate_disk_full", "1 if another log finds no room.", [((), disk_full)])
        yield _gauge("quorate_connections", "Clients that are connected.", [((), connections)])
        yield _histogram(
            "quorate_append_duration_seconds", "From arrival to receipt.", metrics.append_duration
        )
        yield _histogram(
            "quorate_fsync_duration_seconds", "One flush of a log.", metrics.fsync_duration
        )
        errors = [((code,), count) for code, count in metrics.append_errors.items()]
        yield _counter("quorate_append_errors_total", "Appends refused.", errors, "code")
        strays = [((), metrics.stray_messages)]
        yield _counter("quorate_stray_messages_total", "Messages for logs not here.", strays)
        yield from self._counted_by_log(logs)
        yield from _seen_by_log(logs)
        yield from _halts_by_log(logs, halted)

    def _counted_by_log(self, logs: list[LogMetrics]) -> Iterator[Metric]:
        """The counters of every log. Each begins at 0, not at its first event."""
        for name, text, counted in (
            (
                "quorate_appended_records_total",
                "Records acknowledged here.",
                self._metrics.appended_records,
            ),
            ("quorate_elections_total", "Elections won here.", self._metrics.elections),
        ):
            yield _counter(name, text, [((one.log,), counted[one.log]) for one in logs], "log")


def _seen_by_log(logs: list[LogMetrics]) -> Iterator[Metric]:
    for name, text, value in (
        ("quorate_log_first_offset", "The first record kept.", attrgetter("first_offset")),
        ("quorate_log_end_offset", "After the last record.", attrgetter("end_offset")),
        ("quorate_replica_is_leader", "1 if it leads.", attrgetter("is_leader")),
        ("quorate_staged_bytes", "Bytes not yet published.", attrgetter("staged_bytes")),
        ("quorate_replica_full", "1 if appends find no room here.", attrgetter("full")),
    ):
        yield _gauge(name, text, [((one.log,), value(one)) for one in logs], "log")
    lags = [((one.log, peer), lag) for one in logs for peer, lag in one.lag.items()]
    text = "Committed entries that a peer lacks."
    yield _gauge("quorate_replica_lag_entries", text, lags, "log", "peer")


def _halts_by_log(logs: list[LogMetrics], halted: tuple[tuple[str, bool], ...]) -> Iterator[Metric]:
    """The halted and damaged replicas. No other metric of a halted replica is known."""
    ranges = [((one.log,), one.damaged_ranges) for one in logs]
    ranges += [((log,), int(damaged)) for log, damaged in halted]
    yield _gauge("quorate_damaged_ranges", "Entries that this disk lost.", ranges, "log")
    stopped = [*(((one.log,), 0) for one in logs), *(((log,), 1) for log, _ in halted)]
    yield _gauge("quorate_replica_halted", "1 if its replica here stopped.", stopped, "log")


def _gauge(name: str, text: str, rows: Rows, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def _counter(name: str, text: str, rows: Rows, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], histogram.buckets(), histogram.total)
    return family
