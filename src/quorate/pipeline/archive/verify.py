"""The comparison of an archive with its log: each record must be there, once, and as it was.

Both sides are read as a whole and reduced to a few numbers, all inside Spark. Only if these differ,
the two sides are joined to say where. Records that were set aside are compared in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from quorate.pipeline.archive.note import CHECKPOINT, bad_prefix, is_hidden
from quorate.pipeline.archive.rows import READ_COLUMNS, Layout, decoded_once, quoted, row_hash
from quorate.pipeline.checkpoints import STARTED, query_id
from quorate.pipeline.files import Files, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from quorate.pipeline.archive.note import ArchiveNote
    from quorate.spark.cluster_address import ClusterAddress

__all__ = ["Compared", "Side", "compare"]


class Side(NamedTuple):
    """The numbers that one side, the archive or the log, is reduced to."""

    records: int
    # The number of different offsets, the first and the last; these are None without records.
    distinct: int
    first: int | None
    last: int | None
    # The sum of the hashes of whole rows, so that neither order nor files matter.
    digest: str
    # Records that do not decode, and their digest: for the log, those that it has; for the archive,
    # those that are set aside.
    bad: int = 0
    bad_digest: str | None = None


class Compared(NamedTuple):
    archive: Side
    log: Side
    # The differences in words; empty if there are none.
    differences: list[str]


def compare(
    spark: SparkSession, cluster: ClusterAddress, archive: ArchiveNote, root: str
) -> Compared:
    """Compare the archive in ``root`` with the log, over all offsets of the archive's note."""
    layout = Layout(archive)
    records = (
        spark.read.format("quorate")
        .options(**cluster.options)
        .option("log", archive.log)
        .option("startingOffsets", archive.start)
        .option("endingOffsets", archive.stop)
        .schema(READ_COLUMNS)
        .load()
    )
    parsed = decoded_once(layout.parsed(records))
    expected = layout.accepted(parsed)
    found, strays = _archived(spark, root, layout, expected.schema)
    there, in_log, differences = _compared(found, expected, layout.offset, "in the archive")
    differences += strays
    if archive.bad is None or archive.schema is None:
        return Compared(there, in_log, differences)
    # The words of a refusal are not compared: another version may have others.
    refused = layout.refused(parsed).drop("error")
    aside = _set_aside(spark, archive, root, refused.schema)
    kept, bad, more = _compared(aside, refused, "offset", f"among the bad ones in {archive.bad}")
    return Compared(
        there._replace(bad=kept.records, bad_digest=kept.digest),
        in_log._replace(bad=bad.records, bad_digest=bad.digest),
        differences + more,
    )


def _archived(
    spark: SparkSession, root: str, layout: Layout, columns: StructType
) -> tuple[DataFrame, list[str]]:
    """The rows of the files that lie where the archive has files; and the other files, in words.
    Spark would pass over those, or fail."""
    files = Files(spark, root)
    seen = [one.name for one in files.below() if not is_hidden(one.name)]
    placed = [name for name in seen if layout.is_place_of(name)]
    elsewhere = (name for name in seen if not layout.is_place_of(name))
    strays = [name for name in elsewhere if name.lower().endswith(".parquet")]
    reader, names = spark.read.schema(columns), [quoted(name) for name in columns.names]
    if not strays:
        return reader.parquet(literal(root)).select(*names), []
    lie = f" and {len(strays) - 1} more lie" if strays[1:] else " lies"
    told = [f"{strays[0]}{lie} where the archive has no files, and other readers read that, too"]
    if not placed:
        return spark.createDataFrame([], columns), told
    at = files.root.rstrip("/")
    found = reader.option("basePath", at).parquet(*(literal(f"{at}/{name}") for name in placed))
    return found.select(*names), told


def _set_aside(
    spark: SparkSession, archive: ArchiveNote, root: str, columns: StructType
) -> DataFrame:
    """The bad records that this archive, and no other one, has set aside."""
    files = Files(spark, str(archive.bad))
    checkpoint = Files(spark, f"{root}/{CHECKPOINT}")
    # There is no checkpoint before the first micro-batch.
    prefix = bad_prefix(archive.log, query_id(checkpoint)) if checkpoint.exists(STARTED) else ""
    names = files.matching(f"{literal(prefix)}*.parquet") if prefix else []
    if not names:
        return spark.createDataFrame([], columns)
    at = files.root.rstrip("/")
    return spark.read.schema(columns).parquet(*(literal(f"{at}/{name}") for name in names))


def _compared(
    found: DataFrame, expected: DataFrame, offset: str, where: str
) -> tuple[Side, Side, list[str]]:
    """The two sides, the rows that were found and those of the log, and their differences."""
    there, in_log = _side(found, offset), _side(expected, offset)
    if there == in_log and there.records == there.distinct:
        return there, in_log, []
    return there, in_log, _differences(found, expected, offset, where)


def _side(rows: DataFrame, offset: str) -> Side:
    """The numbers of one side.

    Neighbours in the log come together first, as bits of one word: so no table of all offsets is
    needed to count different offsets, and long sums of hashes are added only once for a word.
    """
    # In a step before the sums: Spark compiles no step that hashes lists.
    rows = rows.select(F.col(offset).alias("at"), row_hash(rows).alias("hashed"))
    at, hashed = F.col("at"), F.col("hashed")
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.pmod(at, F.lit(64)).cast("int"))
    words = rows.groupBy(F.shiftright(at, 6)).agg(
        F.count(at).alias("records"),
        F.bit_count(F.bit_or(bit)).alias("distinct"),
        F.min(at).alias("first"),
        F.max(at).alias("last"),
        F.sum(hashed.bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
        F.sum(F.shiftright(hashed, 32)).alias("high"),
    )
    halves = (F.sum(F.col(half).cast("decimal(20,0)")) for half in ("low", "high"))
    [row] = words.agg(
        F.sum("records"), F.sum("distinct"), F.min("first"), F.max("last"), *halves
    ).collect()
    records, distinct, first, last, low, high = row
    digest = (int(high or 0) << 32) + int(low or 0)
    return Side(records or 0, distinct or 0, first, last, f"{digest % (1 << 64):016x}")


def _differences(found: DataFrame, expected: DataFrame, offset: str, where: str) -> list[str]:
    """The differences in words: of each kind the number of offsets, and the first."""
    mine = found.select(F.col(offset).alias("at"), row_hash(found).alias("found"))
    mine = mine.groupBy("at").agg(F.min("found").alias("found"), F.count("found").alias("times"))
    its = expected.select(F.col(offset).alias("at"), row_hash(expected).alias("expected"))
    both = mine.join(its, "at", "full_outer")
    kinds = {
        f"missing {where}": F.col("found").isNull(),
        f"{where} and not in the log": F.col("expected").isNull(),
        f"{where} more than once": F.col("times") > 1,
        f"different {where}": F.col("found") != F.col("expected"),
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
