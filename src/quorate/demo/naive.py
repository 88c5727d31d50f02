"""The same orders through a hand-written sink, to be killed beside the real one.

``python -m quorate.demo.naive ENDPOINTS SOURCE TARGET CHECKPOINT RECORDS``: a Spark job that
decodes and filters as the pipeline does, and appends each partition with the ordinary client.
It has no error, and it loses no order. But it appends again the rows that Spark repeats.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from quorate.client.blocking import Client
from quorate.spark.spark_session import session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, Row

__all__ = ["main"]

SCHEMA = "id long, shop string, amount double, currency string"
# Two cores, and a task may fail as often as on any cluster.
MASTER = "local[2,4]"
BATCH = 1000


def append(rows: Iterable[Row], endpoints: str, target: str) -> None:
    """Append all rows of a partition, batch by batch."""
    values = (row.value.encode() for row in rows)
    with Client(endpoints) as client:
        log = client.log(target)
        while batch := list(islice(values, BATCH)):
            log.append_batch(batch)


def main(endpoints: str, source: str, target: str, checkpoint: str, records: str) -> None:
    spark = session("naive", master=MASTER)
    stream = (
        spark.readStream.format("quorate")
        .option("endpoints", endpoints)
        .option("log", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records)
        .load()
    )
    paid = (
        stream.selectExpr(f"from_json(string(value), '{SCHEMA}') as row")
        .where("row.currency = 'EUR' and row.amount > 0")
        .selectExpr(
            "to_json(named_struct('id', row.id, 'shop', row.shop, 'amount', row.amount)) as value"
        )
    )

    def write(frame: DataFrame, _: int) -> None:
        frame.foreachPartition(partial(append, endpoints=endpoints, target=target))

    query = (
        paid.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
