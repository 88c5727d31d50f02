"""The rows of an archive: their columns, made from those of records, and their folders.

The same expressions make the rows that are written and, for a comparison, the rows that the log
would give again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from quorate.errors import InvalidArgument
from quorate.pipeline.archive.note import APPEND_DATE, HIDDEN, NO_FOLDERS
from quorate.pipeline.decode import (
    REFUSAL,
    SOURCE,
    SOURCE_COLUMNS,
    VALUE,
    decoded,
    parse_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from quorate.pipeline.archive.note import ArchiveNote

__all__ = ["READ_COLUMNS", "Layout", "decoded_once", "quoted", "row_hash"]

# The columns that are read from the log.
READ_COLUMNS = f"{SOURCE_COLUMNS}, appendTime timestamp"

# The columns of a record, and their names in an archive. If a column of the schema has the same
# name, it keeps the name, and the record's column gets the prefix.
_OF_RECORD = {
    "offset": "offset",
    "key": "key",
    "headers": "headers",
    "timestamp": "timestamp",
    "appendTime": "append_time",
}
PREFIX = "record_"

# Types whose values cannot name a folder, and types whose day names it.
NO_NAMES = (ArrayType, BinaryType, MapType, StructType)
TIMES = (TimestampType, TimestampNTZType)
_DAY_US = 86_400_000_000
# Texts that cannot name a folder: readers take the second one for null.
_NO_FOLDER = ("", "__HIVE_DEFAULT_PARTITION__")


class Layout:
    """The columns of an archive, and its folders."""

    def __init__(self, archive: ArchiveNote) -> None:
        self._schema = None if archive.schema is None else parse_schema(archive.schema)
        if self._schema is not None:
            _check_comparable(self._schema)
        # The columns that a value is decoded to.
        self._decoded = ["value"] if self._schema is None else self._schema.fieldNames()
        # The names of the record's own columns in the archive. Spark does not tell a from A.
        taken = {name.lower(): name for name in self._decoded}
        self._own = {
            of_record: PREFIX + name if name in taken else name
            for of_record, name in _OF_RECORD.items()
        }
        for name in self._own.values():
            if name in taken:
                raise InvalidArgument(
                    f"--schema: beside a column {name.removeprefix(PREFIX)} that of the record "
                    f"gets the name {name}, which column {taken[name]} has: rename one of the two"
                )
        # The column whose values are folders, or None, and the column that it is made of.
        self.folder: str | None = None
        self._folder_of = ""
        if archive.partition_by != NO_FOLDERS:
            self._divide(archive.partition_by)

    @property
    def offset(self) -> str:
        return self._own["offset"]

    @property
    def folder_is_rising(self) -> bool:
        """True if neighbours in the log are neighbours in the folders."""
        return self._folder_of == self._own["appendTime"]

    def is_place_of(self, name: str) -> bool:
        """True if ``name``, a path from the directory on, is a place of files of the archive."""
        *folders, _ = name.split("/")
        if self.folder is None:
            return not folders
        # Spark escapes some characters of a folder's name, as in a URL.
        return [unquote(one.rpartition("=")[0]) for one in folders] == [self.folder]

    def _divide(self, by: str) -> None:
        """Choose the folders for ``--partition-by``: the folder of a time is its day, that of any
        other value is the value itself."""
        kinds = dict(self._kinds())
        names = {name.lower(): name for name in kinds}
        column = names.get(by.lower())
        if column is None and by.lower() == APPEND_DATE:
            self.folder, self._folder_of = APPEND_DATE, self._own["appendTime"]
            return
        if column is None:
            raise InvalidArgument(
                f"--partition-by {by}: there is no such column; there are {APPEND_DATE}, "
                f"{', '.join(kinds)}"
            )
        if isinstance(kinds[column], NO_NAMES) or column == self.offset:
            raise InvalidArgument(
                f"--partition-by {column}: no folder can be named after a value of type "
                f"{kinds[column].simpleString()}"
            )
        folder = f"{column}_date" if isinstance(kinds[column], TIMES) else column
        if folder != column and folder.lower() in names:
            raise InvalidArgument(
                f"--partition-by {column}: its folders would be called {folder}, as a column is"
            )
        if folder.startswith(HIDDEN):
            raise InvalidArgument(
                f"--partition-by {column}: readers ignore folders whose names begin so; choose "
                f"another column"
            )
        self.folder, self._folder_of = folder, column

    def _kinds(self) -> list[tuple[str, DataType]]:
        of_record = parse_schema(READ_COLUMNS)
        decoded_as = of_record if self._schema is None else self._schema
        return [
            *((name, decoded_as[name].dataType) for name in self._decoded),
            *((name, of_record[field].dataType) for field, name in self._own.items()),
        ]

    def parsed(self, records: DataFrame) -> DataFrame:
        """The rows of ``records``, which has READ_COLUMNS; refused records are among them."""
        frame = decoded(records, "raw" if self._schema is None else "json", self._schema)
        own = [F.col(SOURCE)[field].alias(name) for field, name in self._own.items()]
        # The key before the value, as everywhere.
        rows = frame.select(*own[:2], *map(quoted, self._decoded), *own[2:], VALUE, REFUSAL)
        return rows if self.folder is None else rows.withColumn(self.folder, self._foldered(rows))

    def _foldered(self, rows: DataFrame) -> Column:
        column = F.col(quoted(self._folder_of))
        kind = rows.schema[self._folder_of].dataType
        if isinstance(kind, TIMES):
            # The day by UTC: it must not depend on the zone of the machine.
            micros, day = F.unix_micros(column.cast("timestamp")), F.lit(_DAY_US)
            # Rounded down, also before 1970; no number on the way is less than the time.
            days = F.call_function("div", micros, day) - (micros % day < 0).cast("int")
            return F.date_from_unix_date(days.cast("int"))
        return F.when(~column.isin(*_NO_FOLDER), column) if isinstance(kind, StringType) else column

    def in_order(self, rows: DataFrame) -> DataFrame:
        """The rows of each task, in the order of the files: by folder, then by offset."""
        folders = [] if self.folder is None else [quoted(self.folder)]
        return rows.sortWithinPartitions(*folders, self.offset)

    def accepted(self, parsed: DataFrame) -> DataFrame:
        """The rows that are archived."""
        return parsed.where(F.col(REFUSAL).isNull()).drop(VALUE, REFUSAL)

    def accepted_or_error(self, parsed: DataFrame, log: str) -> DataFrame:
        """The rows that are archived, where no record may be refused: the first one that is raises
        an error."""
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
        """The records that are set aside, as they were, with the reason."""
        return parsed.where(F.col(REFUSAL).isNotNull()).select(
            *(F.col(name).alias(_OF_RECORD[field]) for field, name in self._own.items()),
            F.col(VALUE).alias("value"),
            F.col(REFUSAL)["message"].alias("error"),
        )


def decoded_once(parsed: DataFrame) -> DataFrame:
    """The rows of ``parsed``, behind an observation, which no filter passes: a filter that Spark
    moved before the decoding would decode each record again for every look at it."""
    return parsed.observe("quorate_decoded", F.count(REFUSAL).alias("bad"))


def quoted(name: str) -> str:
    """The expression that stands for the column ``name``, where Spark expects an expression."""
    ticked = name.replace("`", "``")
    return f"`{ticked}`"


def _check_comparable(schema: StructType) -> None:
    """Raise InvalidArgument for a type in the schema that has no hash, or that no file can have."""
    for field in schema:
        for kind in _within(field.dataType):
            if isinstance(kind, VariantType):
                raise InvalidArgument(
                    f"--schema: column {field.name} has a variant, which --verify cannot compare: "
                    f"write string for a value that is text, or a struct, array or map with types"
                )
            names = [one.name.lower() for one in kind] if isinstance(kind, StructType) else []
            for name in names:
                if names.count(name) > 1:
                    raise InvalidArgument(
                        f"--schema: column {field.name} has a struct with a field {name} twice: "
                        f"rename one of them"
                    )


def _within(kind: DataType) -> Iterator[DataType]:
    """The type itself, and all types that it is made of."""
    yield kind
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    for one in inner:
        yield from _within(one)


def row_hash(rows: DataFrame) -> Column:
    """The hash of all values in a row, however deep."""
    cells: list[Column] = []
    for field in rows.schema:
        cells += _cells(F.col(quoted(field.name)), field.dataType)
    return F.xxhash64(*cells)


def _cells(column: Column, kind: DataType) -> list[Column]:
    """The columns to hash for a value. By itself Spark's hash passes over null, also within a
    value, takes no account of where a list ends, and cannot take a map."""
    if isinstance(kind, StructType):
        fields = [_cells(column.getField(field.name), field.dataType) for field in kind]
        return [column.isNull(), *itertools.chain.from_iterable(fields)]
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _cells(F.map_entries(column), ArrayType(entry))
    if isinstance(kind, ArrayType):
        size = F.size(column)
        items = F.transform(column, lambda item: F.xxhash64(*_cells(item, kind.elementType)))
        # Most records have no headers, and no items are cheaper than an empty list of them.
        return [column.isNull(), size, F.when(size > 0, items)]
    return [column.isNull(), column]
