"""The limit of what Python can give to Spark and take from it: Arrow that is ready, and no log.

A source hands over record batches that lie in files as Arrow has them in memory, in the very parts
and batches in which our own source reads them. A sink takes what comes and counts it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    WriterCommitMessage,
)

from quorate.spark.source import QuorateDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

__all__ = ["ReadySource", "TakingSink"]

# Workers do not see this folder.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # not ours


class ReadySource(QuorateDataSource):
    """With one more option, ``kept``: the folder of the files, which the first read makes."""

    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._kept = given.pop("kept")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "ready_arrow"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(super().reader(schema), Path(self._kept))


class ReadyReader(DataSourceReader):
    def __init__(self, real: DataSourceReader, kept: Path) -> None:
        self._real = real
        self._kept = kept

    def partitions(self) -> Any:
        return self._real.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        path = self._kept / f"{partition.value.start}.arrow"
        if not path.exists():
            _keep(self._real.read(partition), path)
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _keep(batches: Any, path: Path) -> None:
    first = next(batches)
    with pa.ipc.new_file(str(path), first.schema) as out:
        out.write_batch(first)
        for batch in batches:
            out.write_batch(batch)


class TakingSink(DataSource):
    """Its option ``records`` says how many have to come."""

    @classmethod
    def name(cls) -> str:
        return "take_arrow"

    def writer(self, schema: StructType, overwrite: bool) -> TakingWriter:
        return TakingWriter(int(self.options["records"]))


@dataclass(frozen=True)
class Taken(WriterCommitMessage):
    records: int


class TakingWriter(DataSourceArrowWriter):
    def __init__(self, records: int) -> None:
        self._records = records

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        return Taken(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        taken = sum(message.records for message in messages if isinstance(message, Taken))
        if taken != self._records:
            raise RuntimeError(f"{taken} of {self._records} records were taken")
