"""The columns that a frame may have to be written to a log, checked before a task is started."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructType,
    TimestampType,
)

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["ACCEPTED", "check_columns"]

# The types that each column may have, in the words of an error.
ACCEPTED = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key:string,value:binary>>, or with a string as value",
    "timestamp": "timestamp",
    "log": "string",
}
# Columns of a frame that was read from a log. The log that is written to gives them anew.
GIVEN_BY_LOGS = ("partition", "offset", "appendTime")


def check_columns(schema: StructType, log: str | None) -> None:
    """Raise InvalidArgument unless these columns can be written; ``log`` is the option."""
    names = schema.fieldNames()
    accepted = "; ".join(f"{name} ({kind})" for name, kind in ACCEPTED.items())
    for field in schema:
        if field.name not in ACCEPTED:
            raise InvalidArgument(
                f"column {field.name} {_advice(field.name)}; there are {accepted}"
            )
        if names.count(field.name) > 1:
            raise InvalidArgument(f"column {field.name} is there twice")
        if not _fits(field.name, field.dataType):
            raise InvalidArgument(
                f"column {field.name} is {field.dataType.simpleString()}; it may be "
                f"{ACCEPTED[field.name]}: cast it"
            )
    if "value" not in names:
        raise InvalidArgument(
            f"column value is missing: the frame has {', '.join(names) or 'no column'}; there are "
            f'{accepted}. To write whole rows: df.selectExpr("to_json(struct(*)) as value")'
        )
    if log is None and "log" not in names:
        raise InvalidArgument('log is missing: write .option("log", NAME), or add a column log')
    if log is not None and "log" in names:
        raise InvalidArgument(
            f"log is a column, and the option log = {log!r}: leave one of them out"
        )


def _advice(name: str) -> str:
    if name in GIVEN_BY_LOGS:
        return f"is given by the log: drop it, with df.drop({name!r})"
    close = get_close_matches(name.lower(), ACCEPTED, n=1, cutoff=0.6)
    return f"is not known; did you mean {close[0]}?" if close else "is not known"


def _fits(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, BinaryType | StringType)
    if name == "timestamp":
        return isinstance(kind, TimestampType)
    if name == "log":
        return isinstance(kind, StringType)
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    return (
        isinstance(pair, StructType)
        and pair.fieldNames() == ["key", "value"]
        and isinstance(pair["key"].dataType, StringType)
        and isinstance(pair["value"].dataType, BinaryType | StringType)
    )
