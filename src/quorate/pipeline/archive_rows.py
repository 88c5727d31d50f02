"""How a record becomes a row of an archive, and where that row lies.

The same expressions make the rows that are written and, for a comparison, the rows that the log
would give again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from quorate.errors import InvalidArgument
from quorate.pipeline.archive import APPEND_DATE, NO_FOLDERS
from quorate.pipeline.decoding import (
    REFUSAL,
    SOURCE,
    SOURCE_COLUMNS,
    VALUE,
    decoded,
    parse_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from quorate.pipeline.archive import Archive

__all__ = ["READ_COLUMNS", "Layout", "row_hash"]

# What is read of the log.
READ_COLUMNS = f"{SOURCE_COLUMNS}, appendTime timestamp"

# The columns of a record, and what they are called in an archive. A column of the schema that is
# called the same goes before, and the record's gets the prefix.
_OF_RECORD = {
    "offset": "offset",
    "key": "key",
    "headers": "headers",
    "timestamp": "timestamp",
    "appendTime": "append_time",
}
PREFIX = "record_"

# Types whose values are no names for folders, and those of which the day is.
NO_NAMES = (ArrayType, BinaryType, MapType, StructType)
TIMES = (TimestampType, TimestampNTZType)
_DAY_US = 86_400_000_000


class Layout:
    """The columns of an archive, and its folders."""

    def __init__(self, archive: Archive) -> None:
        self._schema = None if archive.schema is None else parse_schema(archive.schema)
        # What a value is decoded to.
        self._decoded = ["value"] if self._schema is None else self._schema.fieldNames()
        taken = {name.lower() for name in self._decoded}
        # The record's own, as the archive calls them.
        self._own = {
            of_record: PREFIX + name if name in taken else name
            for of_record, name in _OF_RECORD.items()
        }
        # The column whose values are folders, and the one it is made of; None if there are none.
        self.folder: str | None = None
        self._folder_of = ""
        if archive.partition_by != NO_FOLDERS:
            self._divide(archive.partition_by)

    @property
    def offset(self) -> str:
        return self._own["offset"]

    @property
    def folder_is_rising(self) -> bool:
        """Whether neighbours in the log are neighbours in the folders."""
        return self._folder_of == self._own["appendTime"]

    def _divide(self, by: str) -> None:
        """A day is the folder of a time; any other value is its own."""
        kinds = dict(self._kinds())
        if by == APPEND_DATE and by not in kinds:
            self.folder, self._folder_of = by, self._own["appendTime"]
        elif by not in kinds:
            raise InvalidArgument(
                f"--partition-by {by}: there is no such column; there are {APPEND_DATE}, "
                f"{', '.join(kinds)}"
            )
        elif isinstance(kinds[by], NO_NAMES) or by == self.offset:
            raise InvalidArgument(
                f"--partition-by {by}: a value of it ({kinds[by].simpleString()}) is no folder"
            )
        else:
            self.folder, self._folder_of = by, by
            if isinstance(kinds[by], TIMES):
                self.folder = f"{by}_date"
                if self.folder in kinds:
                    raise InvalidArgument(
                        f"--partition-by {by}: its folder would be {self.folder}, which is a column"
                    )

    def _kinds(self) -> list[tuple[str, DataType]]:
        of_record = parse_schema(READ_COLUMNS)
        decoded_as = of_record if self._schema is None else self._schema
        return [
            *((name, decoded_as[name].dataType) for name in self._decoded),
            *((name, of_record[field].dataType) for field, name in self._own.items()),
        ]

    def parsed(self, records: DataFrame) -> DataFrame:
        """The rows of ``records``, which has READ_COLUMNS, with those that are refused."""
        frame = decoded(records, "raw" if self._schema is None else "json", self._schema)
        own = [F.col(SOURCE)[field].alias(name) for field, name in self._own.items()]
        # The key before the value, as everywhere.
        rows = frame.select(*own[:2], *self._decoded, *own[2:], VALUE, REFUSAL)
        return rows if self.folder is None else rows.withColumn(self.folder, self._foldered(rows))

    def _foldered(self, rows: DataFrame) -> Column:
        column = F.col(self._folder_of)
        kind = rows.schema[self._folder_of].dataType
        if isinstance(kind, TIMES):
            # By UTC: the day must not depend on where it runs.
            micros = F.unix_micros(column.cast("timestamp"))
            days = (micros - F.pmod(micros, F.lit(_DAY_US))) / _DAY_US
            return F.date_from_unix_date(days.cast("int"))
        # A folder cannot be called nothing: Spark makes null of it.
        return F.nullif(column, F.lit("")) if isinstance(kind, StringType) else column

    def accepted(self, parsed: DataFrame) -> DataFrame:
        """What is archived."""
        return parsed.where(F.col(REFUSAL).isNull()).drop(VALUE, REFUSAL)

    def insisted(self, parsed: DataFrame, log: str) -> DataFrame:
        """The same, if there is nothing to refuse: the first such record raises."""
        told = F.concat(
            F.col(REFUSAL)["code"],
            F.lit(f": {log} offset "),
            F.col(self.offset).cast("string"),
            F.lit(": "),
            F.col(REFUSAL)["message"],
            F.lit("; to set such records aside and go on, give --bad DIR"),
        )
        offset = F.when(F.col(REFUSAL).isNull(), F.col(self.offset)).otherwise(
            F.raise_error(told).cast("bigint")
        )
        return parsed.withColumn(self.offset, offset).drop(VALUE, REFUSAL)

    def refused(self, parsed: DataFrame) -> DataFrame:
        """What is set aside: the records as they were, and why."""
        return parsed.where(F.col(REFUSAL).isNotNull()).select(
            *(F.col(name).alias(_OF_RECORD[field]) for field, name in self._own.items()),
            F.col(VALUE).alias("value"),
            F.col(REFUSAL)["message"].alias("error"),
        )


def row_hash(rows: DataFrame) -> Column:
    """Of all that is in a row. A hash passes over null, so it is told where there is one; and it
    cannot take a map."""
    cells: list[Column] = []
    for field in rows.schema:
        column = F.col(f"`{field.name}`")
        mapped = "map<" in field.dataType.simpleString()
        cells += [column.isNull(), F.to_json(column) if mapped else column]
    return F.xxhash64(*cells)
