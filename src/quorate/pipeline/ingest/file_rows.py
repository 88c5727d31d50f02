"""The records that the rows of files make: their value, key and time, or the fault of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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

from quorate.errors import InvalidArgument
from quorate.pipeline.decode import CORRUPT, OneJson
from quorate.pipeline.records import TIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from quorate.pipeline.ingest.sources import Source

__all__ = ["Columns", "row_records"]

# A larger number, with more than 15 digits, was not meant as milliseconds, or as a time.
MILLIS_MAX = 10**15 - 1


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a record is made of; None: the whole row, no key, the time of the write."""

    value: str | None = None
    key: str | None = None
    timestamp: str | None = None


def row_records(frame: DataFrame, source: Source, columns: Columns) -> DataFrame:
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
        wrong = F.lit(f"{columns.timestamp} is not a time: ISO 8601, or milliseconds since 1970")
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
    raise InvalidArgument(f"--timestamp {name}: {kind.simpleString()} is not a time")
