"""The files that are to become records: their place, their format and their columns."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pyspark.sql.types import StringType, StructField, StructType

from quorate.errors import InvalidArgument, SparkFailed
from quorate.pipeline.decode import parse_schema
from quorate.pipeline.files import Files, literal
from quorate.pipeline.spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quorate.pipeline.files import Found

__all__ = ["FORMATS", "Format", "Source", "find_source"]

Format = Literal["text", "json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

# The suffixes of files, and those that may follow if the files are compressed.
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": ("txt", "text", "log"),
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
_COMPRESSIONS = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")
# The lines of a file that are read to learn the names of its columns.
SAMPLED = 200
# The bytes of files after which a micro-batch ends: little beside the bytes that a log can hold
# staged.
MICRO_BATCH_BYTES = 256 << 20


class Source(NamedTuple):
    """The files that are read, with their format and columns."""

    address: str
    format: Format
    # The columns, of formats whose columns are known before a row is read.
    schema: StructType | None
    # The first line of CSV, which all files have. Lines are read as they are, and parsed later.
    header: str | None
    # The names of columns that were found, which the option --value and others may name.
    columns: list[str]
    # The options of Spark's reader.
    options: dict[str, str]
    # Files of other formats in the directory, which are left alone.
    others: list[str]

    def in_micro_batches(self, files_max: int | None) -> Source:
        """The same source with at most ``files_max`` files in a micro-batch; None: at most
        MICRO_BATCH_BYTES."""
        if files_max is None:
            return self._replace(
                options=self.options | {"maxBytesPerTrigger": str(MICRO_BATCH_BYTES)}
            )
        return self._replace(options=self.options | {"maxFilesPerTrigger": str(files_max)})

    def stream(self, spark: SparkSession) -> DataFrame:
        """The rows of the files as a stream, with the column ``_metadata`` of Spark's files."""
        reader = spark.readStream.format("text" if self.format == "json" else self.format)
        if self.header is not None:
            reader = reader.schema(StructType([StructField(self.header, StringType())]))
        elif self.schema is not None:
            reader = reader.schema(self.schema)
        # Spark remembers a file by its path for ever. By default it would pass over a late file.
        reader = reader.option("maxFileAge", "36500d")
        return reader.options(**self.options).load(literal(self.address))

    def check_late(self, spark: SparkSession) -> None:
        """Raise InvalidArgument if files with columns that are not in ``columns`` came since.

        Only Parquet is checked: lines of text are taken whole, and Spark compares the headers of
        CSV by itself.
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
    """The source at ``address``. Raises InvalidArgument if there are no files, or if their format
    or columns cannot be told.

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
        # Only files of the format are read: not a file that is unfinished, for example.
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
    """True for a file that Spark passes over: its name, or that of a folder above, is hidden."""
    return any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))


def _guess(address: str, names: list[str]) -> Format:
    """The format of the files, by those names that have a known suffix."""
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
        # Without this, Spark would pass over files in folders that are no partitions.
        options["recursiveFileLookup"] = "true"
    if format_ == "csv":
        options |= {
            "header": "true",
            # The header of each file is compared, not passed over.
            "enforceSchema": "false",
            # A line is one column: no text divides it, and quotes have no meaning yet.
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
    """The columns, if they are known before a row is read; and the header of CSV."""
    if format_ in ("text", "json"):
        return None, None
    if not paths and ddl is None:
        raise InvalidArgument(
            f"no files are there yet, so the columns of {format_} are not known"
            f"{': give --schema DDL' if format_ == 'csv' else '; put one there first'}"
        )
    if format_ == "parquet":
        return _merged(spark, address, paths, options), None
    names = spark.read.option("header", "true").csv(literal(paths[0])).columns if paths else []
    if ddl is None:
        schema = StructType([StructField(name, StringType()) for name in names])
    else:
        schema = parse_schema(ddl)
        # An empty file has no header.
        if names:
            _check_header(paths[0], names, schema.fieldNames())
    return schema, _first_line(spark, paths) or ",".join(schema.fieldNames())


def _first_line(spark: SparkSession, paths: list[str]) -> str | None:
    """The header of the file whose columns were taken, unparsed: Spark compares the headers of all
    other files with it."""
    lines = spark.read.text(literal(paths[0])).where("trim(value) != ''").take(1) if paths else []
    return lines[0].value if lines else None


def _merged(
    spark: SparkSession, address: str, paths: list[str], options: dict[str, str]
) -> StructType:
    """The columns of all files. The directory is read as a whole: folders are columns, too."""
    reader = spark.read.options(**options).option("mergeSchema", "true")
    try:
        with plain_errors():
            return reader.parquet(literal(address)).schema
    except SparkFailed:
        # Spark's error names the types, and neither the column nor the file.
        _check_types(spark, paths)
        raise


def _check_types(spark: SparkSession, paths: list[str]) -> None:
    """Raise InvalidArgument for the first column that two files have with different types."""
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
    """Raise InvalidArgument for the first column in which the header differs from the schema: Spark
    compares the header of each file, too, but its error does not say much."""
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
