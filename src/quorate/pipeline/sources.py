"""Files that are to become records: where they are, what they are, and which columns they have."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pyspark.sql.types import StringType, StructField, StructType

from quorate.errors import InvalidArgument, SparkFailed
from quorate.pipeline.decoding import parse_schema
from quorate.pipeline.failures import plain_errors
from quorate.pipeline.files import Files, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quorate.pipeline.files import Found

__all__ = ["FORMATS", "Format", "Source", "find_source"]

Format = Literal["text", "json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

# What files are called, and what may come after that if they are compressed.
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": ("txt", "text", "log"),
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
_COMPRESSIONS = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")
# Of a file, to learn what its columns are called.
SAMPLED = 200
# A portion ends after so many bytes of files: little beside what a log can hold staged.
PORTION_BYTES = 256 << 20


class Source(NamedTuple):
    """What is read."""

    address: str
    format: Format
    # The columns, of formats that have them before a row is read.
    schema: StructType | None
    # Of CSV: the first line, which all files have. Lines are read as they are, and parsed later.
    header: str | None
    # The names that were met, which the option --value and others may mean.
    columns: list[str]
    # Of Spark's reader.
    options: dict[str, str]
    # Files that are there, and that are left alone.
    others: list[str]

    def in_portions(self, files_max: int | None) -> Source:
        """No more files at a time; None: no more than PORTION_BYTES."""
        if files_max is None:
            return self._replace(options=self.options | {"maxBytesPerTrigger": str(PORTION_BYTES)})
        return self._replace(options=self.options | {"maxFilesPerTrigger": str(files_max)})

    def stream(self, spark: SparkSession) -> DataFrame:
        """Rows as they come, with the column ``_metadata`` of Spark's files."""
        reader = spark.readStream.format("text" if self.format == "json" else self.format)
        if self.header is not None:
            reader = reader.schema(StructType([StructField(self.header, StringType())]))
        elif self.schema is not None:
            reader = reader.schema(self.schema)
        # A file is known by its path for ever. Spark would pass over one that comes late.
        reader = reader.option("maxFileAge", "36500d")
        return reader.options(**self.options).load(literal(self.address))

    def check_late(self, spark: SparkSession) -> None:
        """Raises InvalidArgument if files came since with columns that nobody knew of.

        Of text a line is taken whole, and Spark compares the headers of CSV by itself.
        """
        if self.format != "parquet":
            return
        known = {name.lower() for name in self.columns}
        for name in _merged(spark, self.address, [], self.options).fieldNames():
            if name.lower() not in known:
                raise InvalidArgument(
                    f"{self.address}: a file has come with the column {name}, which none had when "
                    f"this run began; run it again, and it is taken"
                )


def find_source(
    spark: SparkSession, address: str, asked: Format | None, ddl: str | None, *, waiting: bool
) -> Source:
    """Raises InvalidArgument if there is nothing to read, or nobody knows what it is.

    ``waiting`` means that files may come later.
    """
    files = Files(spark, address)
    if not files.exists():
        raise InvalidArgument(f"{address} does not exist: SRC is a file or a directory")
    if files.is_directory():
        found = [one for one in files.below() if not _hidden(one.name)]
        if not found and not (waiting and asked is not None):
            what = "no files are in it" if asked is not None else "no files are in it: --format?"
            raise InvalidArgument(f"{address}: {what}")
        names = [one.name for one in found]
        paths = [f"{address}/{name}" for name in names]
    else:
        names, paths, found = [address.rpartition("/")[2]], [address], []
    format_ = asked or _guess(address, names)
    options = _options(format_, found)
    others: list[str] = []
    if asked is None and files.is_directory():
        # Whatever else comes there, such as a file that is not finished, is not meant.
        options["pathGlobFilter"] = _pattern(format_)
        others = [name for name in names if _kind(name) != format_]
        paths = [f"{address}/{name}" for name in names if name not in others]
    if ddl is not None and format_ != "csv":
        raise InvalidArgument(f"--schema is for CSV; {format_} has its own columns")
    schema, header = _columns(spark, address, format_, paths, ddl, options)
    if schema is not None:
        columns = schema.fieldNames()
    else:
        columns = _fields(spark, paths[0]) if format_ == "json" and paths else []
    return Source(address, format_, schema, header, columns, options, others)


def _hidden(name: str) -> bool:
    """Spark passes over these, with all that is below."""
    return any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))


def _guess(address: str, names: list[str]) -> Format:
    """By those names that say something."""
    kinds = {kind for kind in map(_kind, names) if kind is not None}
    if len(kinds) == 1:
        return kinds.pop()
    shown = ", ".join(sorted({name.rpartition("/")[2] for name in names})[:3])
    what = "are of several kinds" if kinds else "may be anything"
    raise InvalidArgument(f"{address}: {shown} {what}; say --format {'|'.join(FORMATS)}")


def _kind(name: str) -> Format | None:
    parts = name.rpartition("/")[2].split(".")[1:]
    if parts and parts[-1] in _COMPRESSIONS:
        parts.pop()
    for format_, suffixes in _SUFFIXES.items():
        if parts and parts[-1] in suffixes:
            return format_
    return None


def _pattern(format_: Format) -> str:
    suffixes = _SUFFIXES[format_]
    compressed = [f"{one}.{how}" for one in suffixes for how in _COMPRESSIONS]
    return f"*.{{{','.join([*suffixes, *compressed])}}}"


def _options(format_: Format, found: list[Found]) -> dict[str, str]:
    options = {}
    foldered = any("=" in one.name for one in found)
    if not (format_ == "parquet" and foldered):
        # Else Spark would pass over files in folders that are no partitions.
        options["recursiveFileLookup"] = "true"
    if format_ == "csv":
        options |= {
            "header": "true",
            # The header of each file is compared, not passed over.
            "enforceSchema": "false",
            # A line is one column: nothing divides it, and quotes mean nothing yet.
            "sep": secrets.token_hex(8),
            "quote": "",
        }
    return options


def _columns(
    spark: SparkSession,
    address: str,
    format_: Format,
    paths: list[str],
    ddl: str | None,
    options: dict[str, str],
) -> tuple[StructType | None, str | None]:
    """What the columns are, if that is known before a row is read; and the header of CSV."""
    if format_ in ("text", "json"):
        return None, None
    if not paths and ddl is None:
        raise InvalidArgument(
            f"no files are there yet, so nobody knows the columns of {format_}"
            f"{': give --schema DDL' if format_ == 'csv' else '; put one there first'}"
        )
    if format_ == "parquet":
        return _merged(spark, address, paths, options), None
    names = spark.read.option("header", "true").csv(literal(paths[0])).columns if paths else []
    if ddl is None:
        schema = StructType([StructField(name, StringType()) for name in names])
    else:
        schema = parse_schema(ddl)
        # A file that is empty has none.
        if names:
            _check_header(paths[0], names, schema.fieldNames())
    return schema, _first_line(spark, paths) or ",".join(schema.fieldNames())


def _first_line(spark: SparkSession, paths: list[str]) -> str | None:
    """As it is in the file whose columns were taken: it is what the others are compared with."""
    lines = spark.read.text(literal(paths[0])).where("trim(value) != ''").take(1) if paths else []
    return lines[0].value if lines else None


def _merged(
    spark: SparkSession, address: str, paths: list[str], options: dict[str, str]
) -> StructType:
    """The columns of all files. They are read as a whole: folders are columns, too."""
    reader = spark.read.options(**options).option("mergeSchema", "true")
    try:
        with plain_errors():
            return reader.parquet(literal(address)).schema
    except SparkFailed:
        # Spark says which types, and neither of which column nor in which file.
        _check_types(spark, paths)
        raise


def _check_types(spark: SparkSession, paths: list[str]) -> None:
    """Raises InvalidArgument for the first column that two files have with different types."""
    first: dict[str, tuple[str, str]] = {}
    for path in sorted(paths):
        for one in spark.read.parquet(literal(path)).schema:
            kind = one.dataType.simpleString()
            before, where = first.setdefault(one.name.lower(), (kind, path))
            if kind != before:
                raise InvalidArgument(
                    f"{path}: column {one.name} is {kind}, and {before} in {where}; all files that "
                    f"are ingested together have the same: move one of them elsewhere"
                )


def _check_header(path: str, names: list[str], expected: list[str]) -> None:
    """Spark compares the header of each file, and does not say much."""
    for number, (found, meant) in enumerate(zip_longest(names, expected), 1):
        if found is None or meant is None or found.lower() != meant.lower():
            raise InvalidArgument(
                f"{path}: column {number} is {found or 'missing'} in the header, and "
                f"{meant or 'missing'} in --schema; the header has {', '.join(names)}"
            )


def _fields(spark: SparkSession, path: str) -> list[str]:
    """The names that the first objects of a file have."""
    names: dict[str, None] = {}
    for row in spark.read.text(literal(path)).take(SAMPLED):
        with suppress(ValueError):
            found = json.loads(row.value)
            names |= dict.fromkeys(found if isinstance(found, dict) else ())
    return list(names)
