"""A pipeline: orders that were paid in euros, and dead letters for whatever is no order.

::

    quorate log create paid
    quorate log create orders.dlq
    quorate pipeline run examples/paid_orders.py --dry-run
    quorate pipeline run examples/paid_orders.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.pipeline import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pipeline(
    source="log:orders",
    decode="json",
    schema="id long, amount double, currency string",
    checks={"amount is positive": "amount > 0"},
    sink="log:paid",
    dead_letter="log:orders.dlq",
    key="id",
)
def paid(orders: DataFrame) -> DataFrame:
    return orders.where("currency = 'EUR'").select("id", "amount")
