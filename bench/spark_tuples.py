"""The same source, written with tuples instead of Arrow: what most sources in Python look like."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSourceReader

from quorate.spark.source import QuorateDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

__all__ = ["TupleSource"]

# Workers do not see this folder.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # not ours


class TupleSource(QuorateDataSource):
    @classmethod
    def name(cls) -> str:
        return "quorate_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(super().reader(schema))


class TupleReader(DataSourceReader):
    def __init__(self, real: DataSourceReader) -> None:
        self.real = real

    def partitions(self) -> Any:
        return self.real.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        batches: Iterator[Any] = self.real.read(partition)
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            yield from zip(*columns, strict=True)
