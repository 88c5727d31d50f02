"""Rows as Parquet files that plain readers can trust: each row is there once.

Spark's own way to that end is a list of valid files, which only Spark reads. Here a file is valid
if it has a name. Rows are written aside first, into a folder that readers pass over because its
name begins with a dot. What an earlier attempt left under the same stem is removed, and then the
files are moved to their names. Whoever writes the same rows again uses the same stem: a crash
anywhere is mended by the repeat.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from quorate.pipeline.files import Files, literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    # JSON is for rows that somebody will look at: one object a line.
    Kind = Literal["parquet", "json"]

__all__ = ["Aside", "Placed", "place", "write_aside"]

# Spark's own choice is older than Parquet's timestamps, and has no zone.
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class Placed(NamedTuple):
    """What became of some rows."""

    files: int
    rows: int
    size: int


class Aside:
    """Rows that are written, and that nobody sees yet."""

    def __init__(self, files: Files, folder: str, kind: Kind, rows: int, depth: int) -> None:
        self._files = files
        self._folder = folder
        self._suffix = f".{kind}"
        self.rows = rows
        # Of the folders that partitions have.
        self._depth = depth

    def into_place(self, stem: str) -> Placed:
        """Name the files ``<stem>-<n>.parquet``, in place of all that were called so."""
        called_so = re.compile(rf"{re.escape(stem)}-[0-9]+{re.escape(self._suffix)}")
        for name in self._files.matching("*/" * self._depth + f"{literal(stem)}-*{self._suffix}"):
            if called_so.fullmatch(name.rpartition("/")[2]):
                self._files.remove(name)
        written = [
            one for one in self._files.below(self._folder) if one.name.endswith(self._suffix)
        ]
        placed = written if self.rows else []
        for number, one in enumerate(placed):
            partition = one.name[len(self._folder) + 1 :].rpartition("/")[0]
            name = f"{stem}-{number}{self._suffix}"
            self._files.move(one.name, f"{partition}/{name}" if partition else name)
        self.remove()
        return Placed(len(placed), self.rows, sum(one.size for one in placed))

    def remove(self) -> None:
        self._files.remove(self._folder)


def write_aside(
    spark: SparkSession,
    frame: DataFrame,
    dest: str,
    name: str,
    partition_by: Sequence[str] = (),
    *,
    kind: Kind = "parquet",
    file_rows_max: int | None = None,
) -> Aside:
    """Write ``frame`` below ``dest``, in place of what an attempt of the same ``name`` left.

    ``partition_by`` are columns that become folders; ``file_rows_max`` rows are the most of a file.
    """
    files = Files(spark, dest)
    folder = f".quorate-{name}"
    files.remove(folder)
    at = f"{files.root.rstrip('/')}/{folder}"
    writer = frame.write.format(kind).mode("overwrite").partitionBy(*partition_by)
    if file_rows_max is not None:
        writer = writer.option("maxRecordsPerFile", file_rows_max)
    with _timestamps_for_all(frame.sparkSession):
        writer.save(at)
    # Out of what was written; of Parquet that is a look at the ends of the files.
    rows = spark.read.format(kind).schema(frame.schema).load(literal(at)).count()
    return Aside(files, folder, kind, rows, len(partition_by))


def place(
    spark: SparkSession,
    frame: DataFrame,
    dest: str,
    stem: str,
    partition_by: Sequence[str] = (),
    *,
    kind: Kind = "parquet",
) -> Placed:
    """Have the rows of ``frame`` below ``dest``, once, however often this is repeated.

    ``stem`` names them: the same rows have the same stem, other rows another one. It is part of
    file names. Readers may see some of the rows while they are put there, and never one twice.
    """
    return write_aside(spark, frame, dest, stem, partition_by, kind=kind).into_place(stem)


@contextmanager
def _timestamps_for_all(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(TIMESTAMPS)
    spark.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(TIMESTAMPS, before)
