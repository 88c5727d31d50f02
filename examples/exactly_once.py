"""A PySpark job from one log to another: every row once, whatever is killed on the way.

``python examples/exactly_once.py orders paid CHECKPOINT`` with a cluster at QUORATE_ENDPOINTS or
127.0.0.1:7401. It takes what is there and ends; run again, it goes on where it was. Kill it as
often as you like: it is known by its checkpoint, and what was written is not written again.
"""

from __future__ import annotations

import os
import sys

import quorate.spark

ENDPOINTS = os.environ.get("QUORATE_ENDPOINTS", "127.0.0.1:7401")
SCHEMA = "id long, amount double, currency string"


def main(source: str, target: str, checkpoint: str) -> None:
    spark = quorate.spark.session("exactly once")
    orders = (
        spark.readStream.format("quorate")
        .option("endpoints", ENDPOINTS)
        .option("log", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100000")
        .load()
    )
    paid = (
        orders.selectExpr(f"from_json(string(value), '{SCHEMA}') as paid")
        .where("paid.currency = 'EUR'")
        .selectExpr("string(paid.id) as key", "to_json(paid) as value")
    )
    query = (
        paid.writeStream.format("quorate")
        .option("endpoints", ENDPOINTS)
        .option("log", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{sum(progress.numInputRows for progress in query.recentProgress)} records read")


if __name__ == "__main__":
    main(*sys.argv[1:])
