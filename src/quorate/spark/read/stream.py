"""The reader of logs as a stream: it plans and reads micro-batch by micro-batch.

Spark keeps the offsets in the checkpoint and repeats a micro-batch after a failure with the ends
that it had. The offsets name the incarnation of each log, so that a repeat never reads another
log's records.

Spark knows the start of a micro-batch from the end of the micro-batch before. For the first
micro-batch it asks again where to begin, also after a restart, when the options, or the time, lead
to another offset: so the end of the first micro-batch includes its start.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from quorate.errors import InvalidArgument, LogNotFound
from quorate.spark.error_codes import coded_errors
from quorate.spark.read.cluster_logs import ClusterLogs
from quorate.spark.read.columns import arrow_schema
from quorate.spark.read.options import Moment, parse_read_options
from quorate.spark.read.planning import (
    Point,
    advance,
    micro_batch,
    offsets_of,
    points_of,
    shares,
    split,
    starting_point,
)
from quorate.spark.read.task import read_replicated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from quorate.spark.read.options import Places, ReadOptions
    from quorate.spark.read.planning import LogExtent

__all__ = ["QuorateStreamReader"]

# Seconds between two looks at logs that do not grow: little beside the time that Spark needs for a
# micro-batch.
IDLE_S = 0.05


class QuorateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream. One copy, in a process on the driver, plans all micro-batches; the
    copies in the workers only read."""

    def __init__(self, given: Mapping[str, str], asked: StructType) -> None:
        # Checked by the first call: Spark hides an error in here behind one of its own.
        self._given = given
        self._asked = asked
        # Opened by the first call that plans; never in a worker.
        self._logs: ClusterLogs | None = None
        # The ends of the logs at which an availableNow query stops; None if the query goes on.
        self._target: dict[str, LogExtent] | None = None

    @cached_property
    def _options(self) -> ReadOptions:
        return parse_read_options(self._given, streaming=True)

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema(self._asked)

    # -- the ends of micro-batches ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with coded_errors():
            logs, options = self._cluster(), self._options
            starting = "latest" if options.starting is None else options.starting
            _check_past(starting)
            points = {}
            for name, seen in self._targets().items():
                offset = starting_point(logs.find(name), seen, starting, options, default="latest")
                points[name] = Point(seen.incarnation, offset, offset)
            if isinstance(starting, dict) and not points.keys() >= starting.keys():
                strange = ", ".join(sorted(starting.keys() - points.keys()))
                raise InvalidArgument(f"startingOffsets names {strange}, which is not read")
            return offsets_of(points)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with coded_errors():
            began = points_of(start)
            target = self._targets()
            self._check_kept(began, target)
            end = advance(began, target, self._most(began, target, limit))
        if end == began and self._target is None:
            # Spark asks again at once, and each time the cluster would have to answer.
            time.sleep(IDLE_S)
        return offsets_of(end)

    def getDefaultReadLimit(self) -> ReadLimit:
        with coded_errors():
            options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with coded_errors():
            self._target = self._extents()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the logs, however little a micro-batch may take: progress shows them beside
        the offsets that were reached, and the difference is the lag."""
        with coded_errors():
            seen = self._extents()
            return offsets_of({log: Point(one.incarnation, one.end) for log, one in seen.items()})

    def _targets(self) -> dict[str, LogExtent]:
        """The logs, up to the offsets where the query stops.

        Spark asks for a target before it asks where to begin: records that are appended in between,
        and logs that are made then, lie behind the target.
        """
        return self._extents() if self._target is None else self._target

    def _extents(self) -> dict[str, LogExtent]:
        """All logs that belong to the stream now, with their offsets."""
        logs, wanted = self._cluster(), self._options.logs
        found = {}
        for name in logs.names(wanted):
            try:
                found[name] = logs.find(name).extent()
            except LogNotFound:
                # A pattern may fit a log that is just being deleted: no harm if it was never read.
                if name in wanted:
                    raise
                logs.forget(name)
        return found

    def _cluster(self) -> ClusterLogs:
        if self._logs is None:
            options, _ = self._options, self._schema
            assert options.cluster is not None  # for the type checker: the options were checked
            self._logs = ClusterLogs(options.cluster)
            self._logs.check_node(options.read_from)
        return self._logs

    def _check_kept(self, began: Mapping[str, Point], target: Mapping[str, LogExtent]) -> None:
        """Raise an error if a log of the checkpoint is gone, or left out by the option ``log``."""
        for name in began.keys() - target.keys():
            self._cluster().find(name).first_offset(began[name].incarnation)
            raise InvalidArgument(
                f"the checkpoint has {name}, which the option log = {','.join(self._options.logs)} "
                f"leaves out; to read other logs, begin with a new checkpoint"
            )

    def _most(
        self, began: Mapping[str, Point], target: Mapping[str, LogExtent], limit: ReadLimit
    ) -> dict[str, int] | None:
        """The most records of each log that the next micro-batch may have; None: all records."""
        backlog = {
            name: seen.end - began[name].offset
            for name, seen in target.items()
            if name in began and seen.end > began[name].offset
        }
        if isinstance(limit, ReadAllAvailable) or not backlog:
            return None
        most = backlog
        if isinstance(limit, ReadMaxRows):
            turn = sum(point.offset for point in began.values())
            most = shares(backlog, limit.max_rows, turn)
        # Spark passes on only one limit, and the options may set both.
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_max
        return most if bytes_max is None else self._fitting(began, most, bytes_max)

    def _fitting(
        self, began: Mapping[str, Point], most: Mapping[str, int], bytes_max: int
    ) -> dict[str, int]:
        """The part of ``most`` that has about ``bytes_max`` bytes; at least one record of each log,
        or the stream would never end."""
        fitting = {}
        left, waiting = bytes_max, sum(most.values())
        # Logs with few records come first: the bytes that they leave are for the others.
        for name, records in sorted(most.items(), key=lambda item: item[1]):
            if records:
                start, share = began[name].offset, left * records // waiting
                log = self._cluster().find(name)
                fitting[name], size = log.measure(start, start + records, share)
                left, waiting = max(0, left - size), waiting - records
        return fitting

    # -- one micro-batch ---------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with coded_errors():
            # A micro-batch without records needs no connection.
            spans = micro_batch(start, end, lambda name: self._cluster().find(name), self._options)
            return [InputPartition(task_range) for task_range in split(spans, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with coded_errors():
            if partition.value is not None:
                yield from read_replicated(partition.value, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: records stay in the log after they were read."""

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None


def _check_past(starting: Places) -> None:
    """Raise InvalidArgument if a stream is to begin at a time that is yet to come.

    A stream begins at an offset, and a time to come has none: all records that are appended until
    then would be read as well.
    """
    now = datetime.now(UTC)
    if isinstance(starting, Moment) and starting.us > now.timestamp() * 1_000_000:
        raise InvalidArgument(
            f"startingTimestamp = {starting.us // 1000} is later than now, which is "
            f"{now.isoformat(timespec='seconds')}; to begin with what comes next, leave it out"
        )
