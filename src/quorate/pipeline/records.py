"""The rows of a transformation's result, as records of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from quorate.errors import InvalidArgument
from quorate.pipeline.decode import SOURCE
from quorate.spark.write.columns import check_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TIMES", "records", "without_source"]

# The formats of times in JSON: by itself Spark leaves out the digits below a millisecond.
TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

# The columns of a record with their types in a log, in the order of every frame that is written
# here.
_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}


def without_source(frame: DataFrame) -> DataFrame:
    """The frame without the column ``_source``, which is for the transformation and not written."""
    return frame.drop(SOURCE)


def records(frame: DataFrame, key: str | None, log: str) -> DataFrame:
    """The rows of ``frame`` as rows for the log ``log``: key, value, headers, timestamp, log.

    A frame with a column ``value`` has the columns that a log takes. The rows of any other frame
    become JSON objects, and ``key`` names the column that is also the key.
    """
    if not frame.columns:
        raise InvalidArgument("the transformation gives no column: there is nothing to write")
    if key is not None and key not in frame.columns:
        raise InvalidArgument(
            f"key = {key!r} is not a column of the result, which has {', '.join(frame.columns)}"
        )
    if "value" in frame.columns:
        check_columns(frame.schema, log)
        given = {name: F.col(name) for name in _COLUMNS if name in frame.columns}
    else:
        names = [name.lower() for name in frame.columns]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(
                    f"the result has the column {name} twice, which no JSON object can have"
                )
        given = {"value": F.to_json(F.struct(*map(_column, frame.columns)), TIMES)}
    if key is not None:
        given["key"] = _column(key).cast("string")
    columns = {
        name: given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS.items()
    }
    # For every row that it gives to Python, Spark goes through all null lists of the batch so far:
    # the time grows with the square of their number. Null headers mean no headers.
    none = F.array().cast(_COLUMNS["headers"])
    columns["headers"] = F.coalesce(columns["headers"], none).alias("headers")
    return frame.select(*columns.values(), F.lit(log).alias("log"))


def _column(name: str) -> Column:
    """The column of exactly that name: a dot in it is no field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")
