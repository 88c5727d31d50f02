"""The demo's pipeline, as a user would write it: orders that were paid in euros.

``quorate pipeline run`` runs it. A record that is no order goes to the log of dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.pipeline import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["paid"]


@pipeline(
    source="log:orders",
    decode="json",
    schema="id long, shop string, amount double, currency string",
    checks={"amount is positive": "amount > 0"},
    sink="log:paid",
    dead_letter="log:orders.dlq",
)
def paid(orders: DataFrame) -> DataFrame:
    return orders.where("currency = 'EUR'").select("id", "shop", "amount")
