"""The query that archives a log into Parquet files.

It is one streaming query. Each micro-batch becomes files that are named by the offsets it covers,
so a micro-batch that is repeated after a crash takes its own place again. Then the archive's note
says how far the archive goes. Files of micro-batches that are noted are in place, and no run
removes them: a micro-batch that the query repeats although it is noted is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from quorate.errors import Corrupt, InvalidArgument
from quorate.pipeline.archive.note import CHECKPOINT, bad_prefix, load, save, stem_of
from quorate.pipeline.archive.rows import READ_COLUMNS, Layout, decoded_once, quoted
from quorate.pipeline.checkpoints import query_id
from quorate.pipeline.decode import REFUSAL, VALUE
from quorate.pipeline.files import Files
from quorate.pipeline.job_watch import follow
from quorate.pipeline.parquet import write_aside
from quorate.pipeline.spark_errors import plain_errors
from quorate.spark.error_codes import coded_errors
from quorate.spark.read.cluster_logs import ClusterLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quorate.client.blocking import Log
    from quorate.pipeline.archive.note import ArchiveNote
    from quorate.pipeline.job_progress import JobProgress
    from quorate.pipeline.job_watch import Ended, Watch
    from quorate.pipeline.parquet import Aside, Placed
    from quorate.spark.cluster_address import ClusterAddress

__all__ = ["Archived", "Pace", "extend"]

# The bytes of records that are read for a micro-batch: a crash repeats less than this.
MICRO_BATCH_BYTES = 1 << 30
# About the bytes that a task reads, unless the micro-batch is large: then its ranges are large,
# too, and are cut into files by their rows.
TASK_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class Pace:
    """The size of files and micro-batches, and the interval between micro-batches."""

    # About the bytes of a file, if a micro-batch has as many.
    file_bytes: int
    # The most records of a micro-batch; None: MICRO_BATCH_BYTES decides.
    records_max: int | None = None
    # The seconds between two micro-batches of a run without an end; None: the run ends where the
    # log ends now.
    every_s: float | None = None


@dataclass(slots=True)
class Archived:
    """The work of a run so far."""

    files: int = 0
    rows: int = 0
    size: int = 0
    # Records that were set aside.
    bad: int = 0


def extend(
    spark: SparkSession,
    cluster: ClusterAddress,
    source: Log,
    archive: ArchiveNote,
    dest: str,
    pace: Pace,
    watch: Watch,
) -> tuple[ArchiveNote, Archived, Ended | None]:
    """Archive the records of the log that lie beyond the archive.

    Returns the note as it is then, the work that was done, and how the query ended, or None for
    that if there were no such records.
    """
    files = Files(spark, dest)
    # Folders of dead runs. Where the lock keeps no run out, a run may be alive, and then fails.
    for left in files.matching(".quorate-*"):
        files.remove(left)
    job = _ArchiveJob(spark, files, source, archive, pace)
    if archive.complete or (pace.every_s is None and archive.stop >= source.end_offset()):
        return archive, job.done, None
    reader = (
        spark.readStream.format("quorate")
        .options(**cluster.options)
        .option("log", archive.log)
        .option("startingOffsets", archive.start)
        .schema(READ_COLUMNS)
    )
    if pace.records_max is not None:
        reader = reader.option("maxOffsetsPerTrigger", pace.records_max)
    else:
        reader = reader.option("maxBytesPerTrigger", max(MICRO_BATCH_BYTES, 4 * pace.file_bytes))
    writer = reader.load().writeStream.foreachBatch(job.take)
    writer = writer.option("checkpointLocation", f"{files.root}/{CHECKPOINT}")
    if pace.every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{pace.every_s} seconds")
    ended = follow(writer.start, lambda progress: watch(job.told(progress)))
    return job.archive, job.done, ended


class _ArchiveJob:
    """Archives each micro-batch of the query."""

    def __init__(
        self, spark: SparkSession, files: Files, source: Log, archive: ArchiveNote, pace: Pace
    ) -> None:
        self._spark = spark
        self._files = files
        self._source = source
        self.archive = archive
        self._layout = Layout(archive)
        self._pace = pace
        self.done = Archived()

    def told(self, progress: JobProgress) -> JobProgress:
        done = self.done
        # A micro-batch that is read a second time, for its bad records, is counted once.
        read = done.rows + done.bad
        rate = progress.rate * read / max(1, progress.read)
        counts = {"archived": done.rows, "files": done.files}
        counts |= {"bad": done.bad} if done.bad else {}
        return progress._replace(read=read, rate=rate, counts=counts)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        # Spark passes on only the text of an error that is raised here.
        with coded_errors(), plain_errors():
            self._take(frame, batch_id)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        archive, layout = self.archive, self._layout
        if archive.complete:
            # The log goes on, and its further records are not wanted.
            return
        if archive.to is not None:
            frame = frame.where(F.col("offset") < archive.to)
        parsed = layout.parsed(frame)
        aside, seen = self._write_aside(parsed, batch_id)
        first, last, bad = (seen[name] for name in ("first", "last", "bad"))
        if first is None:
            aside.remove()
            return
        self._check_whole(first, last, aside.rows + bad)
        self._check_alone()
        stem = f"{stem_of(archive.log)}-{first:020}-{last:020}"
        if not self._is_noted(first, last):
            self._set_aside(layout.refused(decoded_once(parsed)), f"{first:020}-{last:020}", bad)
        elif aside.in_place_already(stem) is not None:
            # A run was killed between the note and the end of the micro-batch for Spark.
            aside.remove()
            return
        else:
            # Files of the micro-batch were removed. As long as they are not back it is not noted:
            # else a run that dies now would be the last one to know of the loss.
            self._save(replace(archive, stop=first))
        placed = aside.into_place_once(stem)
        self._note(first, last, placed)
        self.done.files += placed.files
        self.done.rows += placed.rows
        self.done.size += placed.size
        self.done.bad += bad

    def _write_aside(self, parsed: DataFrame, batch_id: int) -> tuple[Aside, dict[str, Any]]:
        """Write the rows of a micro-batch aside; returns them, and the observed ends and bad
        records of the whole micro-batch."""
        archive, layout = self.archive, self._layout
        seen = Observation()
        # The observation is behind the shuffle: if no row passes a shuffle, Spark leaves out the
        # steps before it. And it is before the refused records go, since no filter passes an
        # observation: so it sees all records.
        rows = self._divided(parsed.drop(VALUE)).observe(
            seen,
            F.min(layout.offset).alias("first"),
            F.max(layout.offset).alias("last"),
            F.count(REFUSAL).alias("bad"),
        )
        insists = archive.bad is None
        rows = layout.accepted_or_error(rows, archive.log) if insists else layout.accepted(rows)
        aside = write_aside(
            self._spark,
            layout.in_order(rows),
            self._files.root,
            f"micro-batch-{batch_id}",
            [] if layout.folder is None else [layout.folder],
            file_rows_max=self._file_rows(),
        )
        return aside, seen.get

    def _set_aside(self, refused: DataFrame, offsets: str, bad: int) -> None:
        archive = self.archive
        if archive.bad is None or not bad:
            return
        query = query_id(Files(self._spark, f"{self._files.root}/{CHECKPOINT}"))
        stem = bad_prefix(archive.log, query) + offsets
        aside = write_aside(self._spark, refused, archive.bad, stem)
        if aside.rows != bad:
            raise aside.disturbed()
        aside.into_place_once(stem)

    def _is_noted(self, first: int, last: int) -> bool:
        return (first, last + 1) == (self.archive.repeated_from, self.archive.stop)

    def _check_whole(self, first: int, last: int, rows: int) -> None:
        """Raise an error unless the micro-batch is without a gap, and follows the archive without
        one: offsets have no gaps."""
        archive = self.archive
        if rows != last - first + 1:
            raise Corrupt(f"{archive.log}: {rows} records came from {first} to {last}")
        if first != archive.stop and not self._is_noted(first, last):
            raise InvalidArgument(
                f"{self._files.root} goes up to {archive.stop}, and its checkpoint, which was "
                f"removed or set back, goes on at {first}: archive into another directory"
            )

    def _check_alone(self) -> None:
        """Raise InvalidArgument if another run has changed the note: not every file system has
        locks."""
        if load(self._files) != self.archive:
            raise InvalidArgument(
                f"another run has archived into {self._files.root} since this one began, which "
                f"left it as it is: let one run at a time write there"
            )

    def _note(self, first: int, last: int, placed: Placed) -> None:
        archive = self.archive
        record_bytes = placed.size / placed.rows if placed.rows else archive.record_bytes
        self._save(replace(archive, stop=last + 1, repeated_from=first, record_bytes=record_bytes))

    def _save(self, archive: ArchiveNote) -> None:
        self.archive = archive
        save(self._files, archive)

    def _file_rows(self) -> int | None:
        """The most rows of a file, by the mean bytes of a record in the files so far; for the first
        micro-batch, by the mean bytes in the log. None if neither is known."""
        archive = self.archive
        size = archive.record_bytes
        if not size:
            size = ClusterLog(self._source).record_bytes(archive.stop, self._source.end_offset())
        return max(1, int(self._pace.file_bytes / size)) if size else None

    def _divided(self, rows: DataFrame) -> DataFrame:
        """The rows, divided into as many tasks as there are to be files."""
        layout = self._layout
        partitions = rows.rdd.getNumPartitions()
        whole = max(1, self._pace.file_bytes // TASK_BYTES)
        # Fewer tasks than cores would leave some of them idle.
        tasks = max(
            -(-partitions // whole), min(partitions, self._spark.sparkContext.defaultParallelism)
        )
        if layout.folder is None or layout.folder_is_rising:
            return rows.coalesce(tasks)
        # Each folder gets one file from a micro-batch, not one from every task.
        return rows.repartition(tasks, quoted(layout.folder))
