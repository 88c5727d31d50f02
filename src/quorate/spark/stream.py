"""The reader of logs as a stream: it plans and reads portion by portion.

Spark keeps the offsets in the checkpoint and repeats a portion after a failure with the ends that
it had. The offsets name the incarnation of each log, so that a repeat never reads another log's
records.

Spark knows the start of a portion from the end of the portion before. For the first portion it asks
again where to begin, also after a restart, when the options, or the time, lead to another offset:
so the end of the first portion includes its start.
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
from quorate.spark.cluster import ClusterLogs
from quorate.spark.columns import arrow_schema
from quorate.spark.options import Moment, parse_read_options
from quorate.spark.planning import (
    Point,
    Span,
    advance,
    begin,
    offsets_of,
    points_of,
    portion_start,
    shares,
    split,
    starting_point,
)
from quorate.spark.reading import read_replicated
from quorate.spark.telling import codes_told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from quorate.spark.options import Places, ReadOptions
    from quorate.spark.planning import Seen

__all__ = ["QuorateStreamReader"]

# Seconds between two looks at logs that do not grow: little beside the time that Spark needs for a
# portion.
IDLE_S = 0.05


class QuorateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream. One copy, in a process on the driver, plans all portions; the copies
    in the workers only read."""

    def __init__(self, given: Mapping[str, str], asked: StructType) -> None:
        # Checked by the first call: Spark hides an error in here behind one of its own.
        self._given = given
        self._asked = asked
        # Opened by the first call that plans; never in a worker.
        self._logs: ClusterLogs | None = None
        # The ends of the logs at which an availableNow query stops; None if the query goes on.
        self._target: dict[str, Seen] | None = None

    @cached_property
    def _options(self) -> ReadOptions:
        return parse_read_options(self._given, streaming=True)

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema(self._asked)

    # -- the ends of portions ------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with codes_told():
            logs, options = self._cluster(), self._options
            starting = "latest" if options.starting is None else options.starting
            _check_past(starting)
            points = {}
            for name, seen in self._ahead().items():
                offset = starting_point(logs.find(name), seen, starting, options, default="latest")
                points[name] = Point(seen.incarnation, offset, offset)
            if isinstance(starting, dict) and not points.keys() >= starting.keys():
                strange = ", ".join(sorted(starting.keys() - points.keys()))
                raise InvalidArgument(f"startingOffsets names {strange}, which is not read")
            return offsets_of(points)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with codes_told():
            began = points_of(start)
            target = self._ahead()
            self._check_kept(began, target)
            end = advance(began, target, self._most(began, target, limit))
        if end == began and self._target is None:
            # Spark asks again at once, and each time the cluster would have to answer.
            time.sleep(IDLE_S)
        return offsets_of(end)

    def getDefaultReadLimit(self) -> ReadLimit:
        with codes_told():
            options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with codes_told():
            self._target = self._look()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the logs, however little a portion may take: progress shows them beside the
        offsets that were reached, and the difference is the lag."""
        with codes_told():
            seen = self._look()
            return offsets_of({log: Point(one.incarnation, one.end) for log, one in seen.items()})

    def _ahead(self) -> dict[str, Seen]:
        """The logs, up to the offsets where the query stops.

        Spark asks for a target before it asks where to begin: records that are appended in between,
        and logs that are made then, lie behind the target.
        """
        return self._look() if self._target is None else self._target

    def _look(self) -> dict[str, Seen]:
        """All logs that belong to the stream now, with their offsets."""
        logs, wanted = self._cluster(), self._options.logs
        found = {}
        for name in logs.names(wanted):
            try:
                found[name] = logs.find(name).look()
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

    def _check_kept(self, began: Mapping[str, Point], target: Mapping[str, Seen]) -> None:
        """Raise an error if a log of the checkpoint is gone, or left out by the option ``log``."""
        for name in began.keys() - target.keys():
            self._cluster().find(name).first_offset(began[name].incarnation)
            raise InvalidArgument(
                f"the checkpoint has {name}, which the option log = {','.join(self._options.logs)} "
                f"leaves out; to read other logs, begin with a new checkpoint"
            )

    def _most(
        self, began: Mapping[str, Point], target: Mapping[str, Seen], limit: ReadLimit
    ) -> dict[str, int] | None:
        """The most records of each log that the next portion may have; None: all records."""
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

    # -- one portion ---------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with codes_told():
            began = points_of(start)
            spans = [
                self._span(name, offset, point)
                for name, point in points_of(end).items()
                if (offset := portion_start(name, began.get(name), point)) is not None
            ]
            return [InputPartition(part) for part in split(spans, self._options)]

    def _span(self, name: str, start: int, end: Point) -> Span:
        log = self._cluster().find(name)
        first = log.first_offset(end.incarnation)
        offset = min(begin(name, start, first, self._options), end.offset)
        size = log.record_bytes(offset, end.offset)
        return Span(name, end.incarnation, offset, end.offset, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with codes_told():
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
