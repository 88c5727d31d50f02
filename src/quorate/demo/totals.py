"""The sum of the paid orders of every shop, computed by Spark from the log of paid orders.

``python -m quorate.demo.totals ENDPOINTS LOG`` prints one line of JSON: for each shop, the number
of orders and of cents.
"""

from __future__ import annotations

import json
import sys

from quorate.spark.spark_session import session

__all__ = ["main"]

MASTER = "local[2]"
# Cents are added: a sum of euros would have rounding errors.
SUMS = """
    select row.shop, count(*) as orders, sum(bigint(round(100 * row.amount))) as cents
    from {decoded} group by row.shop
"""


def main(endpoints: str, log: str) -> None:
    spark = session("totals", master=MASTER, config={"spark.sql.shuffle.partitions": 2})
    reader = spark.read.format("quorate").option("endpoints", endpoints).option("log", log)
    orders = reader.schema("value binary").load()
    decoded = orders.selectExpr("from_json(string(value), 'shop string, amount double') as row")
    totals = spark.sql(SUMS, decoded=decoded).collect()
    found = {row["shop"]: {"orders": row["orders"], "cents": row["cents"]} for row in totals}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
