"""The progress of a Spark job: of a stream its micro-batches, of a batch its tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TASKS", "TASKS_DONE", "JobProgress", "ProgressSum", "task_progress"]

# The names of the counts of a batch's tasks in a progress.
TASKS, TASKS_DONE = "tasks", "tasks done"


class JobProgress(NamedTuple):
    """The progress of a job."""

    # The micro-batches of a stream, since it was started; a batch has one.
    micro_batches: int = 0
    # Records that were taken, in all, and per second in the last micro-batch.
    read: int = 0
    rate: float = 0.0
    # The sums of the observations of the query: the fields of every `observe`, by their names. A
    # name that begins with an underscore is not counted.
    counts: Mapping[str, int] = {}
    # The offset after the last record that was taken, by log.
    reached: Mapping[str, int] = {}
    # Records that the logs had beyond that; None if the source is no log.
    lag: int | None = None


def task_progress(spark: SparkSession) -> JobProgress:
    """The tasks of the stages that run, and those of them that are done."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    counts = {
        TASKS_DONE: sum(stage.numCompletedTasks for stage in stages if stage is not None),
        TASKS: sum(stage.numTasks for stage in stages if stage is not None),
    }
    return JobProgress(counts=counts)


class ProgressSum:
    """Sums up the reports of a query about its micro-batches."""

    def __init__(self) -> None:
        self.progress = JobProgress()
        # The last report that is counted, by micro-batch and time: a query at rest repeats its
        # micro-batch.
        self._seen: tuple[int, str] = (-1, "")

    def add(self, query: StreamingQuery) -> bool:
        """Count the new reports of ``query``; True if there were any."""
        last = query.lastProgress
        if last is None or _mark(last) == self._seen:
            return False
        for report in query.recentProgress:
            if _mark(report) > self._seen:
                self._seen = _mark(report)
                self._count(report)
        return True

    def _count(self, report: StreamingQueryProgress) -> None:
        before = self.progress
        found = {
            name: number
            for row in report.observedMetrics.values()
            for name, number in row.asDict().items()
            if isinstance(number, int) and not name.startswith("_")
        }
        # Spark counts a source twice that is used twice in a query.
        read = found.get("read", report.numInputRows or 0)
        counts = dict(before.counts)
        for name, number in found.items():
            counts[name] = counts.get(name, 0) + number
        reached, lag = _reached_and_lag(report.sources)
        self.progress = JobProgress(
            before.micro_batches + ("addBatch" in report.durationMs),
            before.read + read,
            1000 * read / max(1, report.batchDuration),
            counts,
            reached or before.reached,
            before.lag if lag is None else lag,
        )


def _mark(report: StreamingQueryProgress) -> tuple[int, str]:
    return report.batchId, report.timestamp


def _reached_and_lag(sources: list[SourceProgress]) -> tuple[dict[str, int], int | None]:
    """The offsets that a query has reached in its logs, and the number of records beyond them."""
    reached: dict[str, int] = {}
    ahead: dict[str, int] = {}
    for source in sources:
        reached |= _offsets(source.endOffset)
        ahead |= _offsets(source.latestOffset)
    if not reached or not ahead:
        return reached, None
    return reached, sum(max(0, ahead[log] - at) for log, at in reached.items() if log in ahead)


def _offsets(text: str | None) -> dict[str, int]:
    """The offset of each log in ``text``; none for a source that is not of this package."""
    try:
        found = json.loads(text or "null")
        return {log: int(point["offset"]) for log, point in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
