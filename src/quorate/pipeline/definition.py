"""The definition of a pipeline: its source, the decoding of records, the transformation, the sink.

A definition is checked when it is made, as far as that can be done without Spark and without a
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from quorate.errors import InvalidArgument
from quorate.pipeline.places import Place, parse_place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    Transform = Callable[["DataFrame"], "DataFrame"]

__all__ = ["DECODINGS", "Decoding", "Pipeline", "from_table", "pipeline"]

Decoding = Literal["json", "csv", "text", "raw"]

# The decodings, and whether each needs a schema, to check records against.
DECODINGS: dict[Decoding, bool] = {"json": True, "csv": True, "text": False, "raw": False}
# The keys of a TOML table besides the arguments of the decorator.
TABLE_ONLY = ("name", "sql")
ARGUMENTS = ("source", "sink", "decode", "schema", "checks", "dead_letter", "key")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, ready to be run. Calling it applies its transformation, as a test would."""

    # The name of checkpoints, and in progress and dead letters.
    name: str
    source: Place
    sink: Place
    decode: Decoding
    # The columns of a record, in Spark's DDL; None if the decoding needs no schema.
    schema: str | None
    # Conditions in SQL that every record has to meet, by name.
    checks: Mapping[str, str]
    # The log for records that cannot be decoded or fail a check; None: one of them fails the run.
    dead_letter: Place | None
    # The column that becomes the key of a record; None: no key.
    key: str | None
    # Either a function of a frame, or a query over the view `source`.
    transform: Transform | str

    def __call__(self, frame: DataFrame) -> DataFrame:
        if not isinstance(self.transform, str):
            return self.transform(frame)
        frame.createOrReplaceTempView("source")
        return frame.sparkSession.sql(self.transform)

    def seen_from(self, directory: Path) -> Pipeline:
        """The same pipeline, whose relative paths begin in ``directory``."""
        return replace(self, sink=self.sink.beside(directory))

    @property
    def may_refuse(self) -> bool:
        """True if a record can be refused, by the decoding or by a check."""
        return self.decode != "raw" or bool(self.checks)


def pipeline(
    *,
    source: str,
    sink: str,
    decode: Decoding = "raw",
    schema: str | None = None,
    checks: Mapping[str, str] | None = None,
    dead_letter: str | None = None,
    key: str | None = None,
) -> Callable[[Transform], Pipeline]:
    """Make a function of a frame the transformation of a pipeline, which has the function's name.

    ``source`` is "log:NAME", ``sink`` "log:NAME" or "parquet:DIR". ``decode`` is the format of a
    record's value: "json" or "csv" with a ``schema``, "text", or "raw" for bytes. ``checks`` are
    conditions in SQL, by a name that states the condition in words. Records that do not decode or
    fail a check go to ``dead_letter``, "log:NAME"; without it, the first such record fails the run.
    ``key`` is the column of the result that becomes the key of a record.

    Raises InvalidArgument for an argument that is invalid, or does not fit the others.
    """
    given = {
        "source": source,
        "sink": sink,
        "decode": decode,
        "schema": schema,
        "checks": checks,
        "dead_letter": dead_letter,
        "key": key,
    }

    def made(transform: Transform) -> Pipeline:
        if not callable(transform):
            raise InvalidArgument("@pipeline(…) stands before a function of a DataFrame")
        return _made(transform.__name__, given, transform)

    return made


def from_table(name: str, table: Mapping[str, Any]) -> Pipeline:
    """The pipeline of a TOML table, with SQL over the view ``source``. Its name is ``name`` unless
    the table has another."""
    known = (*TABLE_ONLY, *ARGUMENTS)
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.6)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InvalidArgument(f"a pipeline has no {key}; {meant}")
    sql = _text("sql", table.get("sql"))
    if sql is None:
        raise InvalidArgument('sql is missing: write sql = "SELECT … FROM source"')
    return _made(_text("name", table.get("name")) or name, table, sql)


def _made(name: str, given: Mapping[str, Any], transform: Transform | str) -> Pipeline:
    # The name becomes part of paths and identities.
    if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) is None:
        raise InvalidArgument(
            f"{name!r} cannot name a pipeline: use 1 to 100 letters, digits, dots, underscores or "
            f"hyphens"
        )
    for needed in ("source", "sink"):
        if given.get(needed) is None:
            raise InvalidArgument(f'{name}: {needed} is missing; write {needed} = "log:NAME"')
    letters = given.get("dead_letter")
    made = Pipeline(
        name=name,
        source=parse_place("source", given["source"], ["log"]),
        sink=parse_place("sink", given["sink"]),
        decode=_decoding(given.get("decode", "raw")),
        schema=_text("schema", given.get("schema")),
        checks=_checks(given.get("checks")),
        dead_letter=None if letters is None else parse_place("dead_letter", letters, ["log"]),
        key=_text("key", given.get("key")),
        transform=transform,
    )
    _check_whole(made)
    return made


def _check_whole(made: Pipeline) -> None:
    """Raise InvalidArgument if arguments that are valid by themselves do not fit each other."""
    if DECODINGS[made.decode] and made.schema is None:
        raise InvalidArgument(
            f'decode = "{made.decode}" needs a schema: write schema = "id long, amount double"'
        )
    if not DECODINGS[made.decode] and made.schema is not None:
        raise InvalidArgument(
            f'decode = "{made.decode}" has no schema; for columns write decode = "json"'
        )
    if made.sink == made.source:
        raise InvalidArgument(f"{made.source} is source and sink: it would read what it writes")
    if made.dead_letter in (made.source, made.sink):
        raise InvalidArgument(
            f"dead letters need a log of their own: {made.dead_letter} is the source or the sink"
        )
    if made.key is not None and made.sink.kind != "log":
        raise InvalidArgument(f"key = {made.key!r}: only records of a log have a key")


def _decoding(given: object) -> Decoding:
    for decoding in DECODINGS:
        if given == decoding:
            return decoding
    raise InvalidArgument(f"decode = {given!r} is none of {', '.join(DECODINGS)}")


def _text(what: str, given: object) -> str | None:
    if given is not None and not (isinstance(given, str) and given.strip()):
        raise InvalidArgument(f"{what} = {given!r} is not text")
    return given


def _checks(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(f'checks = {given!r}: write {{"amount is positive": "amount > 0"}}')
    for name, condition in given.items():
        if (
            _text("the name of a check", name) is None
            or _text(f"check {name!r}", condition) is None
        ):
            raise InvalidArgument(f"check {name!r} has no condition")
    return dict(given)
