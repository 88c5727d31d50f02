"""An archive beside its log: is each record there, once, and as it was?

Both sides are read as a whole and come down to a few numbers, all inside Spark. Only if these
differ, the two are joined to say where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from quorate.pipeline.archive_rows import READ_COLUMNS, Layout, row_hash
from quorate.pipeline.decoding import REFUSAL
from quorate.pipeline.files import literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from quorate.pipeline.archive import Archive

__all__ = ["Compared", "Side", "compare"]


class Side(NamedTuple):
    """What one side has."""

    records: int
    # Different offsets among them, and their ends; None if there are none.
    distinct: int
    first: int | None
    last: int | None
    # Of all that is in the rows: the sum of their hashes, so that neither order nor files matter.
    digest: str
    # Records that do not decode; an archive has none.
    bad: int = 0


class Compared(NamedTuple):
    archive: Side
    log: Side
    # What is wrong, in words; empty if nothing is.
    differences: list[str]


def compare(spark: SparkSession, endpoints: str, archive: Archive, root: str) -> Compared:
    """All that the archive in ``root`` says it has, with what the log has there."""
    layout = Layout(archive)
    records = (
        spark.read.format("quorate")
        .option("endpoints", endpoints)
        .option("log", archive.log)
        .option("startingOffsets", archive.start)
        .option("endingOffsets", archive.stop)
        .schema(READ_COLUMNS)
        .load()
    )
    parsed = layout.parsed(records)
    expected = layout.accepted(parsed)
    found = spark.read.schema(expected.schema).parquet(literal(root)).select(*expected.columns)
    there = _side(found, found, F.lit(True), layout.offset)
    in_log = _side(parsed, expected, F.col(REFUSAL).isNull(), layout.offset)
    if there == in_log._replace(bad=0) and there.records == there.distinct:
        return Compared(there, in_log, [])
    return Compared(there, in_log, _differences(found, expected, layout.offset))


def _side(frame: DataFrame, rows: DataFrame, is_row: Column, offset: str) -> Side:
    """Of ``frame``, by one pass; ``rows`` has the columns that count, and where it has a row."""
    at = F.when(is_row, F.col(offset))
    hashed = F.when(is_row, row_hash(rows)).cast("decimal(20,0)")
    [row] = frame.agg(
        F.count(at), F.count_distinct(at), F.min(at), F.max(at), F.sum(hashed), F.count_if(~is_row)
    ).collect()
    records, distinct, first, last, digest, bad = row
    return Side(records, distinct, first, last, f"{int(digest or 0) % (1 << 64):016x}", bad)


def _differences(found: DataFrame, expected: DataFrame, offset: str) -> list[str]:
    """Which offsets, and how many."""
    mine = found.select(F.col(offset).alias("at"), row_hash(found).alias("found"))
    mine = mine.groupBy("at").agg(F.min("found").alias("found"), F.count("found").alias("times"))
    its = expected.select(F.col(offset).alias("at"), row_hash(expected).alias("expected"))
    both = mine.join(its, "at", "full_outer")
    kinds = {
        "missing in the archive": F.col("found").isNull(),
        "not in the log": F.col("expected").isNull(),
        "there more than once": F.col("times") > 1,
        "different": F.col("found") != F.col("expected"),
    }
    columns = []
    for fits in kinds.values():
        columns += [F.count_if(fits), F.min(F.when(fits, F.col("at")))]
    [row] = both.agg(*columns).collect()
    told = []
    for number, kind in enumerate(kinds):
        records, first = row[2 * number], row[2 * number + 1]
        if records:
            told.append(f"{records} {kind}, the first at offset {first}")
    return told
