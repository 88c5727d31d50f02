"""The driver that is killed: a stream and one batch after the other, from one log to two others.

``python -m verification.spark_chaos.job PLAN`` runs until it is killed; with ``--finish`` until
all records that are there have been written. Its state after a restart lies in the folder of the
plan: the checkpoint of the stream, and the number of batches done.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import quorate.spark
from quorate.client.blocking import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BATCH_RECORDS", "Plan", "batches_done"]

# The number of records in a batch; the number of the batch says which records they are.
BATCH_RECORDS = 2000
# The maximum of records that the stream takes at a time: less than waits for it, so that it is
# always at work. The last driver must still come to an end.
TRIGGER_RECORDS = 2000
FINISH_RECORDS = 1_000_000
PAUSE_S = 0.2
APP = "spark-chaos"
# Spark gives a worker ten seconds to start, and a busy machine may need more. The task has not
# begun then.
LATE = "Python worker failed to connect back"


class Plan(NamedTuple):
    """The paths, ports and logs of the jobs. A driver that is started again is given the same
    plan."""

    endpoints: str
    source: str
    # The log that the stream writes, and the log that the batches write.
    streamed: str
    batched: str
    folder: str
    # The first port of the range in which Spark looks for free ports.
    port: int

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def done(self) -> Path:
        """The file with the number of batches written. One more may be: its driver was killed."""
        return Path(self.folder, "batches-done")

    @property
    def at_work(self) -> Path:
        """The file that a driver makes once both its jobs are under way."""
        return Path(self.folder, "at-work")


def batches_done(plan: Plan) -> int:
    return int(plan.done.read_text(encoding="utf-8")) if plan.done.exists() else 0


def _session(plan: Plan) -> SparkSession:
    return quorate.spark.session(
        APP,
        # A task may fail three times: its worker is killed now and then.
        master="local[2,4]",
        config={
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(Path(plan.folder, "local")),
            "spark.sql.warehouse.dir": str(Path(plan.folder, "warehouse")),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.port": plan.port,
            "spark.blockManager.port": plan.port + 100,
            "spark.port.maxRetries": 64,
        },
    )


def _start_stream(spark: SparkSession, plan: Plan, *, finish: bool) -> StreamingQuery:
    reader = spark.readStream.format("quorate").option("endpoints", plan.endpoints)
    reader = reader.option("log", plan.source).option("startingOffsets", "earliest")
    records = FINISH_RECORDS if finish else TRIGGER_RECORDS
    rows = reader.option("maxOffsetsPerTrigger", str(records)).load()
    writer = rows.select("key", "value").writeStream.format("quorate")
    writer = writer.option("endpoints", plan.endpoints).option("log", plan.streamed)
    writer = writer.option("checkpointLocation", str(plan.checkpoint))
    return (writer.trigger(availableNow=True) if finish else writer).start()


def _write_next(spark: SparkSession, plan: Plan) -> None:
    """Write the next batch, if its records are there: the same records each time it is run."""
    number = batches_done(plan)
    start, stop = number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS
    with Client(plan.endpoints) as client:
        if client.log(plan.source).end_offset() < stop:
            return
    reader = spark.read.format("quorate").option("endpoints", plan.endpoints)
    reader = reader.option("log", plan.source).option("minPartitions", "2")
    reader = reader.option("startingOffsets", str(start)).option("endingOffsets", str(stop))
    writer = reader.load().select("key", "value").write.format("quorate")
    writer = writer.option("endpoints", plan.endpoints).option("log", plan.batched)
    writer = writer.option("txnAppId", APP).option("txnVersion", str(number))
    writer.mode("append").save()
    noted = plan.done.with_suffix(".new")
    noted.write_text(str(number + 1), encoding="utf-8")
    noted.replace(plan.done)


def run(plan: Plan, *, finish: bool) -> None:
    """Run both jobs. A batch during which a driver died is written again, and must be there
    once."""
    spark = _session(plan)
    if finish:
        _write_next(spark, plan)
    query = _start_stream(spark, plan, finish=finish)
    while not _is_through(query):
        problem = query.exception()
        if problem is not None and LATE not in str(problem):
            raise problem
        if problem is not None:
            query = _start_stream(spark, plan, finish=finish)
        if not finish:
            _write_next(spark, plan)
        if query.lastProgress is not None:
            plan.at_work.touch()
        time.sleep(PAUSE_S)
    spark.stop()


def _is_through(query: StreamingQuery) -> bool:
    return not query.isActive and query.exception() is None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.spark_chaos.job")
    parser.add_argument("plan", help="as JSON")
    parser.add_argument("--finish", action="store_true", help="end when all is written")
    parsed = parser.parse_args()
    run(Plan(*json.loads(parsed.plan)), finish=parsed.finish)


if __name__ == "__main__":
    main()
