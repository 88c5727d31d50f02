"""The replay of dead letters to a log: as they were before they failed, and each once.

The log that the letters go to remembers how far the replay went, in the same entry that makes them
visible. So there is no other state that could be lost, and a run that is cut short is simply run
again. The log knows a replay by the incarnation of the letters' log and by the condition: another
condition is another replay, which begins at the first letter.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.staging import last_publication
from quorate.errors import InvalidArgument
from quorate.pipeline.dead_letters import LEFT_OUT, LETTER_HEADERS
from quorate.pipeline.job_watch import run_batch
from quorate.spark.read.cluster_logs import ClusterLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from quorate.client.blocking import Log
    from quorate.pipeline.job_watch import Watch
    from quorate.spark.cluster_address import ClusterAddress
    from quorate.spark.read.planning import LogExtent

__all__ = ["COLUMNS", "Replayed", "replay"]

# About the bytes that are read before each publish: little beside the bytes that a log can hold
# staged.
TRANSACTION_BYTES = 256 << 20


def _header(name: str) -> str:
    """The value, in SQL, of the last header of that name: an earlier one is the record's own."""
    found = f"filter(headers, header -> header.key = '{name}')"
    return f"string(try_element_at({found}, -1).value)"


# The columns that a condition may use, each in SQL over the columns of a log.
COLUMNS = {
    "key": "string(key)",
    "value": "string(value)",
    "offset": "offset",
    "timestamp": "timestamp",
    "error_code": _header("error.code"),
    "error_message": _header("error.message"),
    "source_log": _header("source.log"),
    "source_offset": f"try_cast({_header('source.offset')} as bigint)",
    "pipeline": _header("pipeline"),
    "left_out": f"try_cast({_header(LEFT_OUT)} as bigint)",
}
# The number of headers that a letter adds, and their names.
_ADDED = len(LETTER_HEADERS)
_NAMES = ", ".join(f"'{name}'" for name in LETTER_HEADERS)
# The record's own headers: without those that the letter added, which come last.
_ORIGINAL = f"""
    if(transform(slice(headers, -{_ADDED}, {_ADDED}), header -> header.key) = array({_NAMES}),
       slice(headers, 1, size(headers) - {_ADDED}),
       headers)
"""


class Replayed(NamedTuple):
    """The result of one run."""

    # The letters that the run read: from the first offset to before the second.
    start: int
    stop: int
    # The number of these letters that were appended.
    replayed: int

    @property
    def skipped(self) -> int:
        """The number of letters that do not fit the condition."""
        return self.stop - self.start - self.replayed


def replay(
    spark: SparkSession,
    cluster: ClusterAddress,
    letters: Log,
    to: Log,
    where: str | None,
    watch: Watch,
) -> Replayed:
    """Append the letters that fit ``where`` to the log ``to``, but for those of earlier runs."""
    if letters.name == to.name:
        raise InvalidArgument(f"{to.name} is where the letters are: name the log they came from")
    app = _app(letters, where)
    source = ClusterLog(letters)
    seen = source.extent()
    last = last_publication(to, app)
    start = seen.first if last is None else max(seen.first, last.batch_id)
    replayed = 0
    for begin, end in _transactions(source, seen, start):
        rows = _letters(spark, cluster, letters.name, begin, end)
        rows = rows if where is None else _fitting(rows, where)
        writer = rows.selectExpr(
            "_key as key", f"{_value(letters.name)} as value", "_headers as headers", "timestamp"
        )
        save = (
            writer.write.format("quorate")
            .options(**cluster.options)
            .option("log", to.name)
            .option("txnAppId", app)
            .option("txnVersion", end)
            .mode("append")
            .save
        )
        run_batch(spark, save, watch)
        last = last_publication(to, app)
        if last is not None and last.batch_id == end:
            replayed += last.count
    return Replayed(start, seen.end, replayed)


def _app(letters: Log, where: str | None) -> str:
    """The id by which the log knows a replay."""
    condition = hashlib.sha256((where or "").strip().encode()).hexdigest()[:16]
    return f"replay-{letters.incarnation}-{condition}"


def _transactions(source: ClusterLog, seen: LogExtent, start: int) -> Iterator[tuple[int, int]]:
    if start >= seen.end:
        return
    size = max(1.0, source.record_bytes(start, seen.end))
    most = max(1, int(TRANSACTION_BYTES / size))
    for begin in range(start, seen.end, most):
        yield begin, min(begin + most, seen.end)


def _letters(
    spark: SparkSession, cluster: ClusterAddress, log: str, start: int, stop: int
) -> DataFrame:
    """The columns that a condition sees, followed by those that are appended."""
    reader = spark.read.format("quorate").options(**cluster.options).option("log", log)
    frame = reader.option("startingOffsets", start).option("endingOffsets", stop).load()
    columns = [f"{made} as {name}" for name, made in COLUMNS.items()]
    return frame.selectExpr(*columns, "key as _key", "value as _value", f"{_ORIGINAL} as _headers")


def _value(letters: str) -> str:
    """The value of a letter's record, in SQL. A letter without its record has no value to append,
    and raises an error."""
    told = (
        f"concat('{InvalidArgument.code}: {letters} offset ', offset, ' has no record, only its "
        f"place: with the headers of a letter it was larger than limits.record_bytes. It is at ', "
        f"source_log, ' offset ', source_offset, '; replay the others with --where \"left_out is "
        f"null\"')"
    )
    return f"if(left_out is null, _value, cast(raise_error({told}) as binary))"


def _fitting(rows: DataFrame, where: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return rows.where(where)
    except AnalysisException as error:
        text = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
        raise InvalidArgument(f"--where {where!r}: {text} There are {', '.join(COLUMNS)}") from None
