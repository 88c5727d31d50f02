"""The runs of a pipeline: as a stream that goes on where it stood, or over a given range."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from quorate.client.staging import largest_record, last_publication
from quorate.pipeline.decode import SOURCE, SOURCE_COLUMNS
from quorate.pipeline.frames import LETTER, ROW, build, for_log, paired
from quorate.pipeline.parquet import put_rows
from quorate.pipeline.records import TIMES
from quorate.spark.write.task import QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructField

    from quorate.pipeline.definition import Pipeline
    from quorate.pipeline.frames import Built
    from quorate.spark.cluster_address import ClusterAddress
    from quorate.spark.read.planning import Span

__all__ = ["Backfilled", "PipelineRun", "PipelineSample"]

# About the bytes of a micro-batch: a fraction of the bytes that may be staged, and of the memory of
# a small machine.
MICRO_BATCH_BYTES = 128 << 20
# Records that are read for a sample, and rows that are shown.
SAMPLED, SHOWN = 1000, 20


class Backfilled(NamedTuple):
    """The result of a run over a range."""

    # By place: the records or rows of the range there; and whether they were there before.
    written: Mapping[str, int]
    already: bool


class PipelineSample(NamedTuple):
    """The result of a pipeline for a few records, written nowhere."""

    columns_in: str
    columns_out: str
    read: int
    refused: int
    # The reason for the first refusal.
    reason: str | None
    # The rows as text, in JSON.
    rows: list[str]


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline on a session and a cluster."""

    spark: SparkSession
    pipeline: Pipeline
    cluster: ClusterAddress

    def __post_init__(self) -> None:
        # Functions of the pipeline's file travel to workers by value: workers have no such file.
        module = sys.modules.get(getattr(self.pipeline.transform, "__module__", ""))
        if module is not None and module.__name__.startswith("_pipeline_"):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it is

    def _built(self, source: DataFrame) -> Built:
        letters = self.pipeline.dead_letter
        if letters is None:
            return build(self.pipeline, source, 0)
        with self.cluster.client() as client:
            return build(self.pipeline, source, largest_record(client.log(letters.name)))

    # -- a stream ------------------------------------------------------------------------------

    def stream(
        self, checkpoint: str, every_s: float | None = None, records_max: int | None = None
    ) -> StreamingQuery:
        """The query, started. It begins with the first record, or where its checkpoint stands.

        With ``every_s`` it goes on for ever, with a micro-batch every so many seconds; without it,
        it ends where the log ended at the start.
        """
        reader = self.spark.readStream.format("quorate").schema(SOURCE_COLUMNS)
        reader = reader.options(**self.cluster.options).option("log", self.pipeline.source.name)
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("maxBytesPerTrigger", MICRO_BATCH_BYTES)
        # Decoding is most of the work: a micro-batch that one task could read is still divided.
        reader = reader.option("minPartitions", self.spark.sparkContext.defaultParallelism)
        if records_max is not None:
            reader = reader.option("maxOffsetsPerTrigger", records_max)
        built = self._built(reader.load())
        if self.pipeline.sink.kind == "log":
            writer = for_log(self.pipeline, built).writeStream.format("quorate")
            writer = writer.options(**self.cluster.options)
        else:
            writer = paired(built).writeStream.foreachBatch(self._write_micro_batch(built))
        writer = writer.outputMode("append").queryName(self.pipeline.name)
        writer = writer.option("checkpointLocation", checkpoint)
        if every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s} seconds").start()

    def _write_micro_batch(self, built: Built) -> Callable[[DataFrame, int], None]:
        def write(frame: DataFrame, number: int) -> None:
            query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
            stem = f"{self.pipeline.name}-{query.partition('-')[0]}-{number:010d}"
            self._write_pair(frame, built, f"{self.pipeline.name}/{query}", number, stem)

        return write

    def _write_pair(self, frame: DataFrame, built: Built, app: str, version: int, stem: str) -> int:
        """Write the rows to Parquet and the letters to their log, and return the number of rows. A
        repeat changes nothing."""
        frame = frame.persist()
        try:
            if built.letters is not None:
                found = frame.where(F.col(LETTER).isNotNull()).select(f"{LETTER}.*")
                self._save(found, app, version)
            rows = frame.where(F.col(ROW).isNotNull()).select(f"{ROW}.*")
            return put_rows(frame.sparkSession, rows, self.pipeline.sink.name, stem).rows
        finally:
            frame.unpersist()

    def _save(self, frame: DataFrame, app: str, version: int) -> None:
        writer = frame.write.format("quorate").options(**self.cluster.options)
        writer = writer.option("txnAppId", app).option("txnVersion", version)
        writer.mode("append").save()

    # -- a range -------------------------------------------------------------------------------

    def _read(self, start: int, stop: int) -> DataFrame:
        reader = self.spark.read.format("quorate").schema(SOURCE_COLUMNS)
        reader = reader.options(**self.cluster.options).option("log", self.pipeline.source.name)
        return reader.option("startingOffsets", start).option("endingOffsets", stop).load()

    def backfill(self, span: Span) -> Backfilled:
        """Write the result of the range, under a name of its own: a repeat changes nothing."""
        pipeline = self.pipeline
        built = self._built(self._read(span.start, span.stop))
        # The name leaves out the code of the transformation: a user who has changed it, and wants
        # all rows again, has to say so.
        app = f"{pipeline.name}/{span.incarnation}/{span.start}-{span.stop}"
        before = self._published(app)
        if pipeline.sink.kind == "log":
            self._save(for_log(pipeline, built), app, 0)
            return Backfilled(self._published(app), already=bool(before))
        stem = f"{pipeline.name}-backfill-{span.start:020d}-{span.stop - 1:020d}"
        rows = self._write_pair(paired(built), built, app, 0, stem)
        return Backfilled({str(pipeline.sink): rows, **self._published(app)}, already=bool(before))

    def _published(self, app: str) -> dict[str, int]:
        """The number of records that ``app`` has published, by place."""
        found = {}
        with self.cluster.client() as client:
            for one in (self.pipeline.sink, self.pipeline.dead_letter):
                if one is None or one.kind != "log":
                    continue
                last = last_publication(client.log(one.name), app)
                if last is not None:
                    found[str(one)] = last.count
        return found

    def sample(self, span: Span) -> PipelineSample:
        """The result of the pipeline for the last SAMPLED records of the range, written nowhere."""
        built = self._built(self._read(max(span.start, span.stop - SAMPLED), span.stop))
        if self.pipeline.sink.kind == "log":
            # Raises an error for columns that do not fit a log, as a run would.
            for_log(self.pipeline, built)
        bad = [] if built.refused is None else built.refused.select("_refusal.*").collect()
        return PipelineSample(
            _columns(built.given),
            _columns(built.rows.schema),
            min(SAMPLED, span.records),
            len(bad),
            f"{bad[0].code}: {bad[0].message}" if bad else None,
            [row.text for row in _texts(built.rows.limit(SHOWN)).collect()],
        )


def _columns(schema: StructType) -> str:
    return ", ".join(f"{one.name} {_kind(one)}" for one in schema)


def _kind(column: StructField) -> str:
    """The type of a column; of ``_source``, which every pipeline has, only the field names."""
    if column.name == SOURCE and isinstance(column.dataType, StructType):
        return f"({', '.join(column.dataType.fieldNames())})"
    return column.dataType.simpleString()


def _texts(frame: DataFrame) -> DataFrame:
    """The rows as JSON for people to read; bytes are shown as text, which they mostly are."""
    columns = [
        frame[one.name].cast("string").alias(one.name)
        if isinstance(one.dataType, BinaryType)
        else frame[one.name]
        for one in frame.schema
    ]
    return frame.select(F.to_json(F.struct(*columns), TIMES).alias("text"))
