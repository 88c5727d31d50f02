"""Dead letters: records that were refused, as they were, with headers that say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from quorate.pipeline.decoding import REFUSAL, SOURCE, VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LETTER_HEADERS", "letters"]

# Put after those that the record had.
LETTER_HEADERS = ("error.code", "error.message", "source.log", "source.offset", "pipeline")
_HEADERS = "array<struct<key:string,value:binary>>"


def letters(refused: DataFrame, pipeline: str, log: str | None) -> DataFrame:
    """Rows for the log ``log``: key, value, headers, timestamp, log.

    Without a log the first one raises, in the task that met it.
    """
    source, refusal = F.col(SOURCE), F.col(REFUSAL)
    said = (
        refusal["code"],
        refusal["message"],
        source["log"],
        source["offset"].cast("string"),
        F.lit(pipeline),
    )
    added = F.array(*map(_header, LETTER_HEADERS, said)).cast(_HEADERS)
    before = F.coalesce(source["headers"], F.array().cast(_HEADERS))
    return refused.select(
        source["key"].alias("key"),
        F.col(VALUE).alias("value"),
        F.concat(before, added).alias("headers"),
        source["timestamp"].alias("timestamp"),
        (_raised() if log is None else F.lit(log)).alias("log"),
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


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
