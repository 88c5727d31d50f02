"""W9, W10 and W11: reading, writing and passing through Spark, beside Spark's own Parquet."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F

from bench.rounds import Turn, in_turn
from bench.spark_data import FILES, SCHEMA, write_files
from bench.spark_limit import ReadySource, TakingSink
from bench.spark_tuples import TupleSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bench.outcome import Outcome
    from bench.rounds import Row, Runner
    from bench.spark_data import Shape
    from quorate.client.blocking import Client, Log
    from quorate.testing import Cluster

__all__ = ["Bench", "Marks"]

COLUMNS = ("timestamp", "key", "value")
# Between two records of W11, more than a micro-batch takes.
GAP_S = 0.05
PATIENCE_S = 600.0


class Marks(NamedTuple):
    """After how many micro-batches of W11 the driver's memory is looked at."""

    early: int
    late: int


class Bench:
    """One session of Spark beside one cluster of three nodes."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, folder: Path, rounds: int, report: Runner
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._client: Client = cluster.client()
        self._folder = folder
        self._rounds = rounds
        self._report = report
        # By what is written: how many bytes Parquet has for each byte of the values.
        self.stored: dict[str, float] = {}
        for source in (TupleSource, ReadySource, TakingSink):
            spark.dataSource.register(source)

    # -- reading and writing -------------------------------------------------------------------

    def read_and_write(self, shape: Shape) -> list[Row]:
        """W10, then W9 on what it left."""
        self._report.say(f"{shape.name}: writing {shape.records} records as Parquet")
        given = self._folder / f"{shape.name}-given"
        write_files(shape, given)
        frame = self._spark.read.schema(SCHEMA).parquet(str(given))
        # Whoever is first would wait for Java to get warm.
        frame.write.format("noop").mode("overwrite").save()
        log, parquet = self._client.create_log(_unused()), self._folder / f"{shape.name}-parquet"
        self._write_log(frame, log)
        self._write_parquet(frame, parquet)
        files = sum(file.stat().st_size for file in parquet.glob("*.parquet"))
        self.stored[shape.name] = round(files / shape.bytes, 2)
        rows = self._writes(shape, frame, given)
        rows += self._reads(shape, log, parquet)
        self._client.delete_log(log.name)
        shutil.rmtree(given)
        shutil.rmtree(parquet)
        return rows

    def _writes(self, shape: Shape, frame: DataFrame, given: Path) -> list[Row]:
        def batch() -> Outcome:
            log = self._client.create_log(_unused())
            seconds = _timed(partial(self._write_log, frame, log))
            return self._checked(shape, log, seconds)

        def stream() -> Outcome:
            log = self._client.create_log(_unused())
            seconds = self._stream_files(given, log)
            return self._checked(shape, log, seconds)

        def parquet() -> Outcome:
            target = self._folder / _unused()
            seconds = _timed(partial(self._write_parquet, frame, target))
            shutil.rmtree(target)
            return _outcome("W10", shape, seconds)

        def limit() -> Outcome:
            writer = frame.select(*COLUMNS).write.format(TakingSink.name())
            writer = writer.option("records", shape.records).mode("append")
            return _outcome("W10", shape, _timed(writer.save))

        turns = [
            Turn("quorate", "batch", batch),
            Turn("quorate", "stream", stream),
            Turn("parquet", "", parquet),
            Turn("limit", "arrow", limit),
        ]
        return self._in_turn("W10", shape, turns)

    def _reads(self, shape: Shape, log: Log, parquet: Path) -> list[Row]:
        stopped, kept = self._copied("n1"), self._folder / _unused()
        kept.mkdir()
        by_cluster = {"endpoints": self._cluster.endpoints, "log": log.name}
        by_path = {"path": str(stopped), "log": log.name}
        ready = by_path | {"kept": str(kept)}

        def ours(form: str, options: dict[str, str]) -> Outcome:
            return _read(shape, self._spark.read.format(form).options(**options))

        def theirs() -> Outcome:
            return _read(shape, self._spark.read.format("parquet").option("path", str(parquet)))

        turns = [
            Turn("quorate", "cluster", partial(ours, "quorate", by_cluster)),
            Turn("quorate", "path", partial(ours, "quorate", by_path)),
            Turn("parquet", "", theirs),
            Turn("quorate", "tuples", partial(ours, TupleSource.name(), by_cluster)),
            Turn("limit", "arrow", partial(ours, ReadySource.name(), ready)),
        ]
        for turn in turns:  # a round that does not count
            turn.run()
        rows = self._in_turn("W9", shape, turns)
        shutil.rmtree(stopped)
        shutil.rmtree(kept)
        return rows

    def _in_turn(self, workload: str, shape: Shape, turns: list[Turn]) -> list[Row]:
        rows = in_turn(workload, turns, self._rounds, self._report)
        return [{**row, "shape": shape.name} for row in rows]

    def _write_log(self, frame: DataFrame, log: Log) -> None:
        writer = frame.select(*COLUMNS).write.format("quorate")
        writer = writer.option("endpoints", self._cluster.endpoints).option("log", log.name)
        writer.mode("append").save()

    def _write_parquet(self, frame: DataFrame, target: Path) -> None:
        frame.write.option("compression", "snappy").parquet(str(target))

    def _stream_files(self, given: Path, log: Log) -> float:
        """A million records in each micro-batch; how long all of them took."""
        rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES)
        writer = rows.parquet(str(given)).select(*COLUMNS).writeStream.format("quorate")
        writer = writer.option("endpoints", self._cluster.endpoints).option("log", log.name)
        checkpoint = self._folder / _unused()
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint)
        taken = [progress.durationMs["triggerExecution"] for progress in query.recentProgress]
        return float(sum(taken)) / 1000

    def _checked(self, shape: Shape, log: Log, seconds: float) -> Outcome:
        """All of it is there, nothing is left staged, and the log is gone afterwards."""
        if log.end_offset() != shape.records:
            raise RuntimeError(f"{log.end_offset()} of {shape.records} records were written")
        outcome = _outcome("W10", shape, seconds) | {"staged_bytes": self.staged_bytes()}
        self._client.delete_log(log.name)
        return outcome

    def staged_bytes(self) -> int:
        return sum(one["staged_bytes"] for one in self._client.status()["logs"])

    def _copied(self, name: str) -> Path:
        """The data of a node, as it lies on a disk while the node is down."""
        target = self._folder / f"{name}-{_unused()}"
        self._cluster.stop(name)
        shutil.copytree(self._cluster.data(name), target)
        self._cluster.begin(name)
        return target

    @property
    def _java(self) -> Any:
        """What this process talks to Java by."""
        return self._spark.sparkContext._gateway

    # -- passing through -----------------------------------------------------------------------

    def pass_through(self, samples: int, marks: Marks) -> list[Row]:
        """W11: one record at a time, from its append until it is seen behind a stream of Spark."""
        source, target = (self._client.create_log(_unused()) for _ in range(2))
        reader = self._spark.readStream.format("quorate").option("startingOffsets", "earliest")
        reader = reader.option("endpoints", self._cluster.endpoints).option("log", source.name)
        writer = reader.load().select("value").writeStream.format("quorate")
        writer = writer.option("endpoints", self._cluster.endpoints).option("log", target.name)
        checkpoint = self._folder / _unused()
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            row: Row = {"workload": "W11", "system": "quorate", "variant": "", "shape": ""}
            # First: its marks are counted from the beginning.
            row["memory"] = self._memory(query, source, marks)
            _wait(query, lambda: target.end_offset() == source.end_offset())
            row["rounds"] = [
                self._latencies(source, target, samples, number) for number in range(self._rounds)
            ]
            row["staged_bytes"] = self.staged_bytes()
        finally:
            query.stop()
        shutil.rmtree(checkpoint)
        for log in (source, target):
            self._client.delete_log(log.name)
        return [row]

    def _latencies(self, source: Log, target: Log, samples: int, number: int) -> Outcome:
        self._report.say(f"W11 round {number + 1} of {self._rounds}")
        seen = iter(target.read(target.end_offset(), follow=True))
        taken = []
        for _ in range(samples + 1):
            began = perf_counter()
            source.append(b"%d" % time.time_ns())
            next(seen)
            taken.append(1000 * (perf_counter() - began))
            time.sleep(GAP_S)
        # The first one of all waits until the query has begun.
        points = quantiles(taken[1:], n=100, method="inclusive")
        return {
            "workload": "W11",
            "p50_ms": round(points[49], 1),
            "p99_ms": round(points[98], 1),
            "samples": samples,
        }

    def _memory(self, query: StreamingQuery, source: Log, marks: Marks) -> dict[str, Any]:
        """Of the driver after so many micro-batches: Java and all that it started."""
        found: dict[str, Any] = {}
        ended = threading.Event()

        def feed() -> None:
            while not ended.wait(GAP_S):
                source.append(b"more")

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            for name, count in marks._asdict().items():
                self._report.say(f"W11: until micro-batch {count}")
                _wait(query, partial(_has_done, query, count))
                self._java.jvm.java.lang.System.gc()
                found[name] = {"batches": _batches(query), "memory_mb": self._memory_mb()}
        finally:
            ended.set()
            feeder.join()
        return found

    def _memory_mb(self) -> float:
        """Of Java and all that it started."""
        java: int = self._java.proc.pid
        return round(sum(map(_memory, [java, *_children(java)])) / 1e6, 1)


def _batches(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return progress.batchId if progress is not None else 0


def _has_done(query: StreamingQuery, count: int) -> bool:
    return _batches(query) >= count


def _wait(query: StreamingQuery, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        if (problem := query.exception()) is not None:
            raise RuntimeError(f"the query ended: {problem}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"W11 did not get on in {PATIENCE_S:g} s")
        time.sleep(0.05)


def _children(parent: int) -> list[int]:
    """And theirs. Workers come and go."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text(encoding="utf-8").split():
                found += [int(child), *_children(int(child))]
    return found


def _memory(pid: int) -> int:
    """What it has in memory, with its share of what it has together with others."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _read(shape: Shape, reader: DataFrameReader) -> Outcome:
    """Every row comes to Java, and nothing is done with it but that it is counted."""
    seen = Observation()
    frame = reader.schema(SCHEMA).load().observe(seen, F.count(F.lit(1)).alias("rows"))
    seconds = _timed(frame.write.format("noop").mode("overwrite").save)
    if seen.get["rows"] != shape.records:
        raise RuntimeError(f"{seen.get['rows']} of {shape.records} records were read")
    return _outcome("W9", shape, seconds)


def _timed(work: Callable[[], None]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _outcome(workload: str, shape: Shape, seconds: float) -> Outcome:
    return {
        "workload": workload,
        "records_per_s": round(shape.records / seconds, 1),
        "mb_per_s": round(shape.bytes / seconds / 1e6, 3),
        "seconds": round(seconds, 3),
    }


def _unused() -> str:
    return f"bench-{secrets.token_hex(4)}"
