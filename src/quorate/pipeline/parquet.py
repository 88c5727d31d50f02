"""Rows as Parquet files that plain readers can trust: each row is there once.

Spark's own way to that end is a list of valid files, which only Spark reads. Here every visible
file is valid. Rows are written aside first, into a folder that readers pass over because its name
begins with a dot. When all rows are seen to be there, the files that an earlier attempt left under
the same stem are removed, and then the new files are moved to their names. A repeat of the same
rows uses the same stem: so the repeat mends a crash at any point.
"""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files, literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from quorate.pipeline.files import Found

    # JSON is for rows that users will look at: one object a line.
    Kind = Literal["parquet", "json"]

__all__ = ["Aside", "Placed", "put_rows", "write_aside"]

# The setting for the type of times. Spark's own choice is older than Parquet's timestamps, and has
# no zone.
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
# The random bytes in the name of an attempt's folder, which no other attempt uses.
ATTEMPT_BYTES = 4


class Placed(NamedTuple):
    """The number of files that rows were placed in, of the rows, and of the bytes."""

    files: int
    rows: int
    size: int


class Aside:
    """Rows that are written, in files that no reader sees yet."""

    def __init__(
        self, frame: DataFrame, files: Files, folder: str, kind: Kind, partition_by: Sequence[str]
    ) -> None:
        self._spark = frame.sparkSession
        self._schema = frame.schema
        self._files = files
        self._folder = folder
        self._kind = kind
        self._suffix = f".{kind}"
        # The levels of folders that partitions have.
        self._depth = len(partition_by)
        # Listed before the rows are counted: a file that goes missing from now on is noticed.
        self._written = self._listed()
        # Counted in the files that were written; for Parquet only the ends of the files are read.
        self.rows = self._count([folder])

    def into_place(self, stem: str) -> Placed:
        """Name the files ``<stem>-<n>.parquet``, in place of all earlier files of these names.

        Raises InvalidArgument, and changes no file, if the files are not as they were written.
        """
        if self._listed() != self._written:
            raise self.disturbed()
        for name in self._called(stem):
            self._files.remove(name)
        placed = self._written if self.rows else []
        for number, one in enumerate(placed):
            partition = one.name[len(self._folder) + 1 :].rpartition("/")[0]
            name = f"{stem}-{number}{self._suffix}"
            self._files.move(one.name, f"{partition}/{name}" if partition else name)
        self.remove()
        return Placed(len(placed), self.rows, sum(one.size for one in placed))

    def in_place_already(self, stem: str) -> Placed | None:
        """The files in place with this stem, if they have as many rows; None if they have not.

        The same number means the same rows only for a stem whose rows never change.
        """
        names = self._called(stem)
        # A file that a dying machine left half written counts as one without rows.
        if self.rows != (self._count(names, ignoreCorruptFiles="true") if names else 0):
            return None
        return Placed(len(names), self.rows, sum(map(self._files.size, names)))

    def into_place_once(self, stem: str) -> Placed:
        """Name the files, as above, for rows that never change: if all rows are in place, the files
        there stay."""
        there = self.in_place_already(stem)
        if there is None:
            return self.into_place(stem)
        self.remove()
        return there

    def remove(self) -> None:
        self._files.remove(self._folder)

    def disturbed(self) -> InvalidArgument:
        """The error to raise if the files are not as they were written."""
        return InvalidArgument(
            f"{self._files.root}/{self._folder} was changed or removed by another process, so the "
            f"files in place were left as they are: let one run at a time write there"
        )

    def _listed(self) -> list[Found]:
        return [one for one in self._files.below(self._folder) if one.name.endswith(self._suffix)]

    def _called(self, stem: str) -> list[str]:
        """The files in place that have the stem, in all folders of partitions."""
        called_so = re.compile(rf"{re.escape(stem)}-[0-9]+{re.escape(self._suffix)}")
        found = self._files.matching("*/" * self._depth + f"{literal(stem)}-*{self._suffix}")
        return [name for name in found if called_so.fullmatch(name.rpartition("/")[2])]

    def _count(self, names: Sequence[str], **options: str) -> int:
        root = self._files.root.rstrip("/")
        paths = [literal(f"{root}/{name}") for name in names]
        reader = self._spark.read.format(self._kind).schema(self._schema)
        return reader.options(**options).load(paths).count()


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
    """Write ``frame`` below ``dest``, in place of files that an attempt of the same ``name`` left.

    ``partition_by`` are columns that become folders; a file has at most ``file_rows_max`` rows.
    """
    files = Files(spark, dest)
    # Each attempt has its own folder: a live attempt must not find another's files among its own.
    of_attempts = re.compile(rf"\.quorate-{re.escape(name)}-[0-9a-f]{{{2 * ATTEMPT_BYTES}}}")
    for left in files.matching(f".quorate-{literal(name)}-*"):
        if of_attempts.fullmatch(left):
            files.remove(left)
    folder = f".quorate-{name}-{secrets.token_hex(ATTEMPT_BYTES)}"
    at = f"{files.root.rstrip('/')}/{folder}"
    writer = frame.write.format(kind).mode("overwrite").partitionBy(*partition_by)
    if file_rows_max is not None:
        writer = writer.option("maxRecordsPerFile", file_rows_max)
    with _timestamps_for_all(frame.sparkSession):
        writer.save(at)
    return Aside(frame, files, folder, kind, partition_by)


def put_rows(
    spark: SparkSession,
    frame: DataFrame,
    dest: str,
    stem: str,
    partition_by: Sequence[str] = (),
    *,
    kind: Kind = "parquet",
) -> Placed:
    """Place the rows of ``frame`` below ``dest``, once, however often this is repeated.

    ``stem`` names the rows: the same rows have the same stem, other rows another one. It is part of
    file names. Readers may see some of the rows while they are placed, and never a row twice.
    """
    seen = Observation()
    observed = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
    aside = write_aside(spark, observed, dest, stem, partition_by, kind=kind)
    if aside.rows != seen.get["rows"]:
        raise aside.disturbed()
    return aside.into_place(stem)


@contextmanager
def _timestamps_for_all(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(TIMESTAMPS)
    spark.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(TIMESTAMPS, before)
