"""The query that appends the rows of files to a log, each row once.

One streaming query watches the directory of the files. Its checkpoint knows which files were taken,
and the log knows which portions of the query it has: so a portion that is repeated after a crash is
not written again. Rows that make no record are set aside, or end the run; no row is dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from quorate.client.blocking_staging import last_publication
from quorate.errors import DecodeFailed, Duplicate, InvalidArgument, ReplayMismatch
from quorate.pipeline.checkpoints import query_id
from quorate.pipeline.decoding import CORRUPT, OneJson
from quorate.pipeline.failures import plain_errors
from quorate.pipeline.files import Files, literal
from quorate.pipeline.jobs import follow
from quorate.pipeline.parquet import place
from quorate.pipeline.records import TIMES
from quorate.spark.telling import codes_told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from quorate.client.blocking import Log
    from quorate.client.staging import Publication
    from quorate.pipeline.jobs import Ended, Progress, Watch
    from quorate.pipeline.sources import Source
    from quorate.spark.connecting import Cluster

__all__ = ["Columns", "Ingested", "ingest"]

# The characters of a bad row that travel with the error, to find its line, and those that an error
# shows.
ROW_MAX = 500
SHOWN_MAX = 120
# A larger number, with more than 15 digits, was not meant as milliseconds, or as a time.
MILLIS_MAX = 10**15 - 1


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a record is made of; None: the whole row, no key, the time of the write."""

    value: str | None = None
    key: str | None = None
    timestamp: str | None = None


@dataclass(slots=True)
class Ingested:
    """The work of a run so far."""

    read: int = 0
    appended: int = 0
    # Rows that were set aside.
    bad: int = 0


def ingest(
    spark: SparkSession,
    cluster: Cluster,
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
    rows = rows_of(source.stream(spark), source, columns)
    # The files that are there now were checked when the source was found.
    late = source if every_s is not None else None
    job = _Job(spark, cluster, log, checkpoint, bad, late)
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


class _Job:
    """Appends each portion of the query."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
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

    def told(self, progress: Progress) -> Progress:
        done = self.done
        counts = {"appended": done.appended} | ({"bad": done.bad} if done.bad else {})
        return progress._replace(read=done.read, counts=counts)

    def take(self, frame: DataFrame, portion: int) -> None:
        # Spark passes on only the text of an error that is raised here.
        with codes_told(), plain_errors():
            self._take(frame, portion)

    def _take(self, frame: DataFrame, portion: int) -> None:
        if self._late is not None:
            self._late.check_late(self._spark)
        query = query_id(self._files)
        app = f"ingest-{query}"
        last = last_publication(self._log, app)
        seen = Observation()
        counts = F.count(F.lit(1)).alias("read"), F.count("error").alias("bad")
        observed = frame.observe(seen, *counts)
        good = observed.where("error is null") if self._bad is not None else _insisted(observed)
        if last is not None and last.batch_id >= portion:
            # The rows are only counted: the portion was written before the crash.
            good.write.format("noop").mode("overwrite").save()
            self._check_same(portion, seen.get["read"] - seen.get["bad"], last)
        else:
            self._append(good, app, portion)
            last = last_publication(self._log, app)
            if last is not None and last.batch_id == portion:
                self.done.appended += last.count
        if self._bad is not None and seen.get["bad"]:
            rows = frame.where("error is not null").select("file", "row", "error")
            stem = f"{self._log.name}-{query.partition('-')[0]}-{portion:010}"
            self.done.bad += place(self._spark, rows, self._bad, stem, kind="json").rows
        self.done.read += seen.get["read"]

    def _check_same(self, portion: int, rows: int, last: Publication) -> None:
        """Raise an error unless the portion is the last one of the log, with as many rows: a crash
        lets the last portion be repeated, and no other."""
        if last.batch_id > portion:
            raise Duplicate(
                f"{self._log.name} has portion {last.batch_id}, and the checkpoint "
                f"{self._files.root} is at {portion}: it was set back, and it is not known which "
                f"rows were in the portions between"
            )
        if last.count != rows:
            raise ReplayMismatch(
                f"portion {portion} gave {last.count} records and gives {rows} now: files of it "
                f"were changed; what is in {self._log.name} stays as it is"
            )

    def _append(self, rows: DataFrame, app: str, portion: int) -> None:
        (
            rows.select("value", "key", "timestamp")
            .write.format("quorate")
            .options(**self._cluster.options)
            .option("log", self._log.name)
            .option("txnAppId", app)
            .option("txnVersion", portion)
            .mode("append")
            .save()
        )


# -- the record of a row -----------------------------------------------------------------------


def rows_of(frame: DataFrame, source: Source, columns: Columns) -> DataFrame:
    """The frame of records: value, key, timestamp; error, for a row that makes no record; file and
    row, to find it."""
    for option in ("value", "key", "timestamp"):
        _check_column(source, option, getattr(columns, option))
    file = F.col("_metadata.file_path").alias("file")
    if source.format == "parquet":
        whole = _whole(map(_column, source.columns))
        rows = frame.select(file, whole.alias("row"), *map(_column, source.columns))
        cells = {name: (_column(name), frame.schema[name].dataType) for name in source.columns}
        return _made(rows, cells, F.col("row"), columns, F.lit(None).cast("string"))
    lines = frame.select(file, _column(frame.columns[0]).alias("row"))
    if source.format == "json":
        return _of_json(lines, columns)
    if source.format == "csv":
        return _of_csv(lines, source, columns)
    none = F.lit(None)
    return lines.select(
        F.col("row").cast("binary").alias("value"),
        none.cast("binary").alias("key"),
        none.cast("timestamp").alias("timestamp"),
        none.cast("string").alias("error"),
        "file",
        "row",
    )


def _of_json(lines: DataFrame, columns: Columns) -> DataFrame:
    """The records of JSON lines: a line is one value, and an object if columns are asked for."""
    lines = lines.where(F.trim("row") != "")
    anything = OneJson(StringType())
    no_json = F.when(~anything.proved(F.col("_any")), F.lit("not JSON"))
    if columns == Columns():
        rows = lines.select("file", "row", anything.parse(F.col("row")).alias("_any"))
        return _made(rows, {}, F.col("row"), columns, no_json)
    names = {name for name in (columns.value, columns.key, columns.timestamp) if name is not None}
    # Variants keep all digits of a number.
    one = OneJson(StructType([StructField(name, VariantType()) for name in sorted(names)]))
    parsed = F.col("_one")
    good = one.proved(parsed) & one.value(parsed).isNotNull()
    rows = lines.select("file", "row", one.parse(F.col("row")).alias("_one"))
    # Another parse, of the other lines only: they may be JSON all the same.
    rows = rows.select("*", F.when(~good, anything.parse(F.col("row"))).alias("_any"))
    no_object = F.when(~F.col("row").rlike(r"^\s*\{"), F.lit("no object, so it has no columns"))
    twice = F.lit("an object in a column has a name twice")
    fault = F.when(~good, F.coalesce(no_json, no_object, twice))
    cells: dict[str, tuple[Column, DataType]] = {
        name: (F.try_variant_get(one.value(parsed)[name], "$", "string"), StringType())
        for name in names
    }
    return _made(rows, cells, F.col("row"), columns, fault)


def _of_csv(lines: DataFrame, source: Source, columns: Columns) -> DataFrame:
    """The records of CSV lines: a line is a row. A row that ends within quotes goes on in the next
    line: then neither of the two lines makes a record."""
    schema = source.schema or StructType()
    whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    rows = lines.select("*", F.from_csv("row", whole.toDDL(), options).alias("_parsed"))
    # A backslash escapes the quote behind it.
    plain = F.regexp_replace("row", r"\\.", "")
    quotes = F.length(plain) - F.length(F.replace(plain, F.lit('"')))
    fault = F.when(
        quotes % 2 == 1, F.lit("a quote is not closed in its line, and a row is one line")
    ).when(F.col("_parsed")[CORRUPT].isNotNull(), F.lit("does not fit the columns"))
    cells: dict[str, tuple[Column, DataType]] = {
        one.name: (F.col("_parsed")[one.name], one.dataType) for one in schema
    }
    value = _whole(cell.alias(name) for name, (cell, _) in cells.items())
    return _made(rows, cells, value, columns, fault)


def _whole(cells: Iterable[Column]) -> Column:
    return F.to_json(F.struct(*cells), {"ignoreNullFields": "false", **TIMES})


def _made(
    rows: DataFrame,
    cells: dict[str, tuple[Column, DataType]],
    whole: Column,
    columns: Columns,
    fault: Column,
) -> DataFrame:
    """The frame of records, from the parsed rows. ``fault`` says why a row makes no record; a value
    or a time that is missing, or no time, is a fault, too."""
    value, key = whole, F.lit(None)
    time: Column = F.lit(None).cast("timestamp")
    faults = [fault]
    if columns.value is not None:
        value = _plain(*cells[columns.value])
        faults.append(F.when(value.isNull(), F.lit(f"no {columns.value}, which is the value")))
    if columns.key is not None:
        key = _plain(*cells[columns.key])
    if columns.timestamp is not None:
        given, kind = cells[columns.timestamp]
        time = _time(columns.timestamp, given, kind)
        wrong = F.lit(f"{columns.timestamp} is no time: ISO 8601, or milliseconds since 1970")
        faults.append(F.when(given.isNull(), F.lit(f"no {columns.timestamp}, which is the time")))
        faults.append(F.when(time.isNull(), wrong))
    return rows.select(
        value.cast("binary").alias("value"),
        key.cast("binary").alias("key"),
        time.alias("timestamp"),
        F.coalesce(*faults).alias("error"),
        "file",
        "row",
    )


def _check_column(source: Source, option: str, column: str | None) -> None:
    if column is None:
        return
    if source.format == "text":
        raise InvalidArgument(f"--{option} {column}: text has lines, no columns; see --format")
    if column not in source.columns and (source.columns or source.format != "json"):
        there = ", ".join(source.columns) or "none"
        raise InvalidArgument(
            f"--{option} {column}: {source.address} has no such column; there are {there}"
        )


def _column(name: str) -> Column:
    """The column of exactly that name: a dot in it is no field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def _plain(column: Column, kind: DataType) -> Column:
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, ArrayType | MapType | StructType):
        return F.to_json(column, TIMES)
    return column.cast("string")


def _time(name: str, column: Column, kind: DataType) -> Column:
    """The time in ``column``; null if it is no time. A time without a zone is UTC."""
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return column.cast("timestamp")
    if isinstance(kind, IntegralType):
        count = column.cast("bigint")
        return F.when(count.between(-MILLIS_MAX, MILLIS_MAX), F.timestamp_millis(count))
    if isinstance(kind, StringType):
        counted = F.timestamp_millis(column.try_cast("bigint"))
        return F.when(column.rlike("^[0-9]{1,15}$"), counted).otherwise(
            column.try_cast("timestamp")
        )
    raise InvalidArgument(f"--timestamp {name}: {kind.simpleString()} is no time")


# -- rows that make no record ------------------------------------------------------------------


def _insisted(rows: DataFrame) -> DataFrame:
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
        f"{where}: {fault}: {shown}; mend it and run again, or set such rows aside with --bad DIR"
    )
