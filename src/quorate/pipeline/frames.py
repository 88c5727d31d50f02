"""The frames of a pipeline: the result of its transformation, and the dead letters beside it.

Both come from one source. Where a record can be refused, the source is read once for each frame:
the transformation may change its rows in any way, so refused records cannot travel through it.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from quorate.errors import InvalidArgument, SparkFailed
from quorate.pipeline.dead_letters import letters
from quorate.pipeline.decode import REFUSAL, accepted, checked, decoded, parse_schema, refused
from quorate.pipeline.records import records, without_source
from quorate.pipeline.spark_errors import plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from quorate.pipeline.definition import Pipeline

__all__ = ["LETTER", "ROW", "Built", "build", "for_log", "paired"]

# The columns of a frame with rows and letters: one of them is null in every row.
ROW, LETTER = "_row", "_letter"


class Built(NamedTuple):
    """The frames of a pipeline, which count their rows: read, dead_letters, written."""

    # The columns that the transformation is given, and its result.
    given: StructType
    rows: DataFrame
    # Letters, with the columns that a log takes; None if no record can be refused.
    letters: DataFrame | None
    # Records that are refused, with the reason; None if no record can be refused.
    refused: DataFrame | None


def build(pipeline: Pipeline, source: DataFrame, letter_bytes_max: int) -> Built:
    """The frames of ``pipeline`` over ``source``.

    ``source`` has the columns that decoding needs, of a batch or of a stream. No letter has more
    bytes than ``letter_bytes_max``.
    """
    schema = None if pipeline.schema is None else parse_schema(pipeline.schema)
    whole = decoded(source, pipeline.decode, schema)
    for name, condition in pipeline.checks.items():
        with _about(f'check "{name}"'):
            whole.select(F.expr(condition).cast("boolean"))
    whole = checked(whole, pipeline.checks)
    everything = F.count(F.lit(1))
    if not pipeline.may_refuse:
        given = accepted(whole.observe("quorate_source", everything.alias("read")))
        kept = bad = None
    else:
        # The observations also keep Spark from evaluating a filter, with all decoding, twice.
        bad_count = F.count(F.when(F.col(REFUSAL).isNotNull(), 1))
        given = accepted(whole.observe("quorate_accepted", bad_count.alias("_refused")))
        judged = whole.observe(
            "quorate_source", everything.alias("read"), bad_count.alias("dead_letters")
        )
        bad = refused(judged)
        log = None if pipeline.dead_letter is None else pipeline.dead_letter.name
        kept = letters(bad, pipeline.name, log, letter_bytes_max)
    rows = without_source(_transformed(pipeline, given))
    rows = rows.observe("quorate_rows", everything.alias("written"))
    return Built(given.schema, rows, kept, bad)


def for_log(pipeline: Pipeline, built: Built) -> DataFrame:
    """The rows and letters to be written, each with the log that it is for."""
    out = records(built.rows, pipeline.key, pipeline.sink.name)
    return out if built.letters is None else out.unionByName(built.letters)


def paired(built: Built) -> DataFrame:
    """The rows and letters in one frame, so that both come from the same micro-batch."""
    row = F.struct("*") if built.rows.columns else F.struct()
    if built.letters is None:
        return built.rows.select(row.alias(ROW))
    # The types themselves, not their text, which would need quotes around some names.
    no_row = F.lit(None).cast(built.rows.schema)
    no_letter = F.lit(None).cast(built.letters.schema)
    return built.rows.select(row.alias(ROW), no_letter.alias(LETTER)).union(
        built.letters.select(no_row.alias(ROW), F.struct("*").alias(LETTER))
    )


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Put ``what`` in front of an error that Spark raises inside."""
    try:
        with plain_errors():
            yield
    except SparkFailed as error:
        raise SparkFailed(f"{what}: {error}") from error.__cause__


def _transformed(pipeline: Pipeline, given: DataFrame) -> DataFrame:
    try:
        result = pipeline(given)
    except PySparkException as error:
        # The error keeps Spark's own words.
        with _about(_where(pipeline, error)):
            raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise SparkFailed(f"{pipeline.name}: {type(error).__name__}: {error} ({where})") from error
    if not isinstance(result, DataFrame):
        raise InvalidArgument(
            f"{pipeline.name} gives {type(result).__name__}, not a DataFrame: return one"
        )
    if result.isStreaming != given.isStreaming:
        raise InvalidArgument(
            f"{pipeline.name} returns a frame that is not made from the one that it is given"
        )
    return result


def _where(pipeline: Pipeline, error: Exception) -> str:
    """The place of an error: the query, or the nearest line of the file that has the function."""
    if isinstance(pipeline.transform, str):
        return f"{pipeline.name}, sql"
    code = getattr(pipeline.transform, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one for one in frames if code is not None and one.filename == code.co_filename]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else pipeline.name
