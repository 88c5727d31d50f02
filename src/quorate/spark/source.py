"""The format ``quorate``: the data source that Spark creates for each ``load`` and each ``save``.

::

    spark.read.format("quorate").option("endpoints", "127.0.0.1:7401").option(
        "log", "orders"
    ).load()

There is no ``pushFilters``: a DataFrame that is used twice would get the filters of the other use.
To read less, a range is an option, and a narrower schema reads fewer columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from quorate.spark.read.columns import COLUMNS, arrow_schema
    from quorate.spark.read.stream import QuorateStreamReader
    from quorate.spark.write.sink import batch_writer, stream_writer
except ImportError as error:
    raise ImportError(
        "the format quorate needs PySpark 4.2 or newer, and pyarrow; install them with: "
        f"pip install 'quorate[spark]' ({error})"
    ) from error

from quorate.errors import InvalidArgument
from quorate.spark.error_codes import coded_errors
from quorate.spark.read.cluster_logs import ClusterLogs
from quorate.spark.read.offline import read_stored, stored_logs
from quorate.spark.read.options import parse_read_options
from quorate.spark.read.planning import pin, split
from quorate.spark.read.task import read_replicated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from quorate.spark.read.options import ReadOptions
    from quorate.spark.read.planning import PlannedLog, TaskRange
    from quorate.spark.write.sink import QuorateBatchWriter, QuorateStreamWriter

__all__ = ["QuorateBatchReader", "QuorateDataSource"]


class QuorateDataSource(DataSource):
    """The data source ``quorate``.

    Register it with ``spark.dataSource.register`` where Spark does not find it by itself: Spark
    searches installed packages only, not the files that come with ``--py-files``.
    """

    @classmethod
    def name(cls) -> str:
        return "quorate"

    def schema(self) -> StructType:
        with coded_errors():
            parse_read_options(self.options)
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        with coded_errors():
            options = parse_read_options(self.options, streaming=False)
            return QuorateBatchReader(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> QuorateStreamReader:
        return QuorateStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> QuorateBatchWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QuorateStreamWriter:
        return stream_writer(self.options, schema, overwrite=overwrite)


class QuorateBatchReader(DataSourceReader):
    """Reads a range of each log, pinned when the query is planned. A DataFrame keeps its plan."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with coded_errors():
            return [InputPartition(task_range) for task_range in self._plan()]

    def _plan(self) -> list[TaskRange]:
        options = self._options
        if options.path is not None:
            with stored_logs(options.path, options.logs) as stored:
                return _ranges(stored, options)
        assert options.cluster is not None  # for the type checker: the options were checked
        with ClusterLogs(options.cluster) as logs:
            logs.check_node(options.read_from)
            return _ranges(logs.all(options.logs), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. If a plan has no ranges, Spark calls this once, with None."""
        read = read_replicated if self._options.path is None else read_stored
        with coded_errors():
            if partition.value is not None:
                yield from read(partition.value, self._options, self._schema)


def _ranges(logs: Sequence[PlannedLog], options: ReadOptions) -> list[TaskRange]:
    names = {log.name for log in logs}
    for places in (options.starting, options.ending):
        if isinstance(places, dict) and not names >= places.keys():
            strange = ", ".join(sorted(places.keys() - names))
            raise InvalidArgument(f"offsets are given for {strange}, which is not read")
    return split([pin(log, options) for log in logs], options)
