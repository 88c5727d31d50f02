"""Dead letters: records that were refused, unchanged, with headers that say why.

A record may be so large that there is no room for those headers. Its letter has only the headers,
and one more that tells how many bytes were left out: the headers tell anyway where the record is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from quorate.pipeline.decode import REFUSAL, SOURCE, VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LEFT_OUT", "LETTER_HEADERS", "letters"]

# The headers of a letter, after those of the record.
LETTER_HEADERS = ("error.code", "error.message", "source.log", "source.offset", "pipeline")
# The header before these, in a letter without its record: the bytes of key, value and headers.
LEFT_OUT = "record.left_out"
# The most characters of a message: the condition of a check may have any length.
MESSAGE_MAX = 1000
_HEADERS = "array<struct<key:string,value:binary>>"


def letters(refused: DataFrame, pipeline: str, log: str | None, bytes_max: int) -> DataFrame:
    """The letters as rows for the log ``log``: key, value, headers, timestamp, log.

    The log takes no record with more than ``bytes_max`` bytes. Without a log the first letter
    raises an error, in the task that met it.
    """
    source, refusal = F.col(SOURCE), F.col(REFUSAL)
    said = (
        refusal["code"],
        F.substring(refusal["message"], 1, MESSAGE_MAX),
        source["log"],
        source["offset"].cast("string"),
        F.lit(pipeline),
    )
    added = F.array(*map(_header, LETTER_HEADERS, said)).cast(_HEADERS)
    before = F.coalesce(source["headers"], F.array().cast(_HEADERS))
    key, value = source["key"], F.col(VALUE)
    size = _size(key, value, before)
    fits = _size(key, value, F.concat(before, added)) <= bytes_max
    left_out = F.array(_header(LEFT_OUT, size.cast("string"))).cast(_HEADERS)
    return refused.select(
        F.when(fits, key).alias("key"),
        F.when(fits, value).otherwise(F.lit(b"")).alias("value"),
        F.concat(F.when(fits, before).otherwise(left_out), added).alias("headers"),
        source["timestamp"].alias("timestamp"),
        (_raised() if log is None else F.lit(log)).alias("log"),
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _size(key: Column, value: Column, headers: Column) -> Column:
    """The bytes of a record, as limits.record_bytes counts them."""
    names, contents = headers["key"], headers["value"].cast("array<string>")
    return (
        F.coalesce(F.octet_length(key), F.lit(0))
        + F.octet_length(value)
        + F.octet_length(F.array_join(names, ""))
        + F.octet_length(F.array_join(contents, ""))
    )


def _raised() -> Column:
    source, refusal = F.col(SOURCE), F.col(REFUSAL)
    told = F.concat(
        refusal["code"],
        F.lit(": "),
        source["log"],
        F.lit(" offset "),
        source["offset"].cast("string"),
        F.lit(": "),
        refusal["message"],
        F.lit('; to keep such records aside and go on, declare dead_letter = "log:NAME"'),
    )
    return F.raise_error(told).cast("string")
