"""The query that appends the rows of files to a log, each row once.

One streaming query watches the directory of the files. Its checkpoint knows which files were taken,
and the log knows which micro-batches of the query it has: so a micro-batch that is repeated after a
crash is not written again. Rows that make no record are set aside, or end the run; no row is
dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import Observation
from pyspark.sql import functions as F

from quorate.client.staging import last_publication
from quorate.errors import DecodeFailed, Duplicate, ReplayMismatch
from quorate.pipeline.checkpoints import query_id
from quorate.pipeline.files import Files, literal
from quorate.pipeline.ingest.file_rows import row_records
from quorate.pipeline.job_watch import follow
from quorate.pipeline.parquet import put_rows
from quorate.pipeline.spark_errors import plain_errors
from quorate.spark.error_codes import coded_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quorate.client.blocking import Log
    from quorate.client.staging import LastPublish
    from quorate.pipeline.ingest.file_rows import Columns
    from quorate.pipeline.ingest.sources import Source
    from quorate.pipeline.job_progress import JobProgress
    from quorate.pipeline.job_watch import Ended, Watch
    from quorate.spark.cluster_address import ClusterAddress

__all__ = ["Ingested", "ingest"]

# The characters of a bad row that travel with the error, to find its line, and those that an error
# shows.
ROW_MAX = 500
SHOWN_MAX = 120


@dataclass(slots=True)
class Ingested:
    """The work of a run so far."""

    read: int = 0
    appended: int = 0
    # Rows that were set aside.
    bad: int = 0


def ingest(
    spark: SparkSession,
    cluster: ClusterAddress,
    source: Source,
    log: Log,
    columns: Columns,
    checkpoint: str,
    *,
    bad: str | None,
    every_s: float | None,
    watch: Watch,
) -> tuple[Ingested, Ended]:
    """Append the rows of files that were not taken yet; with ``every_s`` go on, with a look for new
    files every so many seconds."""
    rows = row_records(source.stream(spark), source, columns)
    # The files that are there now were checked when the source was found.
    late = source if every_s is not None else None
    job = _IngestJob(spark, cluster, log, checkpoint, bad, late)
    writer = rows.writeStream.foreachBatch(job.take).option("checkpointLocation", checkpoint)
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    try:
        ended = follow(writer.start, lambda progress: watch(job.told(progress)))
    except DecodeFailed as error:
        raise _located(spark, source, error) from None
    return job.done, ended


class _IngestJob:
    """Appends each micro-batch of the query."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterAddress,
        log: Log,
        checkpoint: str,
        bad: str | None,
        late: Source | None,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._log = log
        self._files = Files(spark, checkpoint)
        self._bad = bad
        # The source, if files may come after the start; None if they are not waited for.
        self._late = late
        self.done = Ingested()

    def told(self, progress: JobProgress) -> JobProgress:
        done = self.done
        counts = {"appended": done.appended} | ({"bad": done.bad} if done.bad else {})
        return progress._replace(read=done.read, counts=counts)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        # Spark passes on only the text of an error that is raised here.
        with coded_errors(), plain_errors():
            self._take(frame, batch_id)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        if self._late is not None:
            self._late.check_late(self._spark)
        query = query_id(self._files)
        app = f"ingest-{query}"
        last = last_publication(self._log, app)
        seen = Observation()
        counts = F.count(F.lit(1)).alias("read"), F.count("error").alias("bad")
        observed = frame.observe(seen, *counts)
        good = (
            observed.where("error is null")
            if self._bad is not None
            else _accepted_or_error(observed)
        )
        if last is not None and last.batch_id >= batch_id:
            # The rows are only counted: the micro-batch was written before the crash.
            good.write.format("noop").mode("overwrite").save()
            self._check_same(batch_id, seen.get["read"] - seen.get["bad"], last)
        else:
            self._append(good, app, batch_id)
            last = last_publication(self._log, app)
            if last is not None and last.batch_id == batch_id:
                self.done.appended += last.count
        if self._bad is not None and seen.get["bad"]:
            rows = frame.where("error is not null").select("file", "row", "error")
            stem = f"{self._log.name}-{query.partition('-')[0]}-{batch_id:010}"
            self.done.bad += put_rows(self._spark, rows, self._bad, stem, kind="json").rows
        self.done.read += seen.get["read"]

    def _check_same(self, batch_id: int, rows: int, last: LastPublish) -> None:
        """Raise an error unless the micro-batch is the last one of the log, with as many rows: a
        crash lets the last micro-batch be repeated, and no other."""
        if last.batch_id > batch_id:
            raise Duplicate(
                f"{self._log.name} has micro-batch {last.batch_id}, and the checkpoint "
                f"{self._files.root} is at {batch_id}: it was set back, and it is not known which "
                f"rows were in the micro-batches between"
            )
        if last.count != rows:
            raise ReplayMismatch(
                f"micro-batch {batch_id} gave {last.count} records and gives {rows} now: files "
                f"of it were changed; what is in {self._log.name} stays as it is"
            )

    def _append(self, rows: DataFrame, app: str, batch_id: int) -> None:
        (
            rows.select("value", "key", "timestamp")
            .write.format("quorate")
            .options(**self._cluster.options)
            .option("log", self._log.name)
            .option("txnAppId", app)
            .option("txnVersion", batch_id)
            .mode("append")
            .save()
        )


def _accepted_or_error(rows: DataFrame) -> DataFrame:
    """The rows, of which the first with a fault raises an error, with the place of the row."""
    found = F.struct("file", F.substring("row", 1, ROW_MAX).alias("row"), "error")
    told = F.concat(F.lit(f"{DecodeFailed.code}: "), F.to_json(found))
    value = F.when(F.col("error").isNull(), F.col("value")).otherwise(
        F.raise_error(told).cast("binary")
    )
    return rows.withColumn("value", value)


def _located(spark: SparkSession, source: Source, error: DecodeFailed) -> DecodeFailed:
    """The error with the line of the row. Spark splits files and knows no lines: so the file is
    read again, and its lines are counted."""
    try:
        found = json.loads(str(error))
        # Spark gives an address, in which some characters are escaped.
        file, row, fault = unquote(found["file"]), found["row"], found["error"]
    except (KeyError, TypeError, ValueError):
        return error
    where = f"/{file.removeprefix('file:').lstrip('/')}" if file.startswith("file:") else file
    if source.format != "parquet":
        lines = spark.read.text(literal(file)).rdd.zipWithIndex()
        start = str(row)
        same = lines.filter(lambda line: line[0].value[:ROW_MAX] == start).take(1)
        where = f"{where} line {same[0][1] + 1}" if same else where
    shown = row if len(row) <= SHOWN_MAX else f"{row[:SHOWN_MAX]}…"
    return DecodeFailed(
        f"{where}: {fault}: {shown}; correct it and run again, or set such rows aside: --bad DIR"
    )
