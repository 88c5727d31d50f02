"""How a record becomes a row of an archive, and where that row lies.

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
from quorate.pipeline.archive import APPEND_DATE, HIDDEN, NO_FOLDERS
from quorate.pipeline.decoding import (
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

    from quorate.pipeline.archive import Archive

__all__ = ["READ_COLUMNS", "Layout", "decoded_once", "quoted", "row_hash"]

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
# Texts that are no names for folders: readers take the second one for null.
_NO_FOLDER = ("", "__HIVE_DEFAULT_PARTITION__")


class Layout:
    """The columns of an archive, and its folders."""

    def __init__(self, archive: Archive) -> None:
        self._schema = None if archive.schema is None else parse_schema(archive.schema)
        if self._schema is not None:
            _check_comparable(self._schema)
        # What a value is decoded to.
        self._decoded = ["value"] if self._schema is None else self._schema.fieldNames()
        # The record's own, as the archive calls them. Spark does not tell a from A.
        taken = {name.lower(): name for name in self._decoded}
        self._own = {
            of_record: PREFIX + name if name in taken else name
            for of_record, name in _OF_RECORD.items()
        }
        for name in self._own.values():
            if name in taken:
                raise InvalidArgument(
                    f"--schema: with a column {name.removeprefix(PREFIX)} that of the record would "
                    f"be called {name}, and there is a column {taken[name]}: name one of the two "
                    f"otherwise"
                )
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

    def is_place_of(self, name: str) -> bool:
        """Whether files of the archive are called so, from its directory on."""
        *folders, _ = name.split("/")
        if self.folder is None:
            return not folders
        # Spark writes some characters of a name as others do in addresses.
        return [unquote(one.rpartition("=")[0]) for one in folders] == [self.folder]

    def _divide(self, by: str) -> None:
        """A day is the folder of a time; any other value is its own."""
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
                f"--partition-by {column}: a value of it ({kinds[column].simpleString()}) is no "
                f"folder"
            )
        folder = f"{column}_date" if isinstance(kinds[column], TIMES) else column
        if folder != column and folder.lower() in names:
            raise InvalidArgument(
                f"--partition-by {column}: its folder would be {folder}, which is a column"
            )
        if folder.startswith(HIDDEN):
            raise InvalidArgument(
                f"--partition-by {column}: readers pass over folders whose names begin so; choose "
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
        """The rows of ``records``, which has READ_COLUMNS, with those that are refused."""
        frame = decoded(records, "raw" if self._schema is None else "json", self._schema)
        own = [F.col(SOURCE)[field].alias(name) for field, name in self._own.items()]
        # The key before the value, as everywhere.
        rows = frame.select(*own[:2], *map(quoted, self._decoded), *own[2:], VALUE, REFUSAL)
        return rows if self.folder is None else rows.withColumn(self.folder, self._foldered(rows))

    def _foldered(self, rows: DataFrame) -> Column:
        column = F.col(quoted(self._folder_of))
        kind = rows.schema[self._folder_of].dataType
        if isinstance(kind, TIMES):
            # By UTC: the day must not depend on where it runs.
            micros, day = F.unix_micros(column.cast("timestamp")), F.lit(_DAY_US)
            # Rounded down, also before 1970, and without a number that is less than the time.
            days = F.call_function("div", micros, day) - (micros % day < 0).cast("int")
            return F.date_from_unix_date(days.cast("int"))
        return F.when(~column.isin(*_NO_FOLDER), column) if isinstance(kind, StringType) else column

    def in_order(self, rows: DataFrame) -> DataFrame:
        """The rows of each task as files have them."""
        folders = [] if self.folder is None else [quoted(self.folder)]
        return rows.sortWithinPartitions(*folders, self.offset)

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


def decoded_once(parsed: DataFrame) -> DataFrame:
    """The same. No filter passes what observes: it would decode each record again for every look
    at it."""
    return parsed.observe("quorate_decoded", F.count(REFUSAL).alias("bad"))


def quoted(name: str) -> str:
    """``name`` where Spark expects an expression."""
    ticked = name.replace("`", "``")
    return f"`{ticked}`"


def _check_comparable(schema: StructType) -> None:
    """Raise InvalidArgument if there is something in the schema that has no hash, or no file."""
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
                        f"name one of them otherwise"
                    )


def _within(kind: DataType) -> Iterator[DataType]:
    """The type itself, and all that it is made of."""
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
    """Of all that is in a row, however deep."""
    cells: list[Column] = []
    for field in rows.schema:
        cells += _cells(F.col(quoted(field.name)), field.dataType)
    return F.xxhash64(*cells)


def _cells(column: Column, kind: DataType) -> list[Column]:
    """What to hash of a value. By itself a hash passes over null, also within, takes no account of
    where a list ends, and cannot take a map."""
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
