"""The Spark format ``quorate``: logs as DataFrames and streams, and a session that can run it.

::

    spark = quorate.spark.session()
    spark.read.format("quorate").option("endpoints", "127.0.0.1:7401").option(
        "log", "orders"
    ).load()
"""

from typing import TYPE_CHECKING

from quorate.spark.spark_session import session

if TYPE_CHECKING:
    from quorate.spark.source import QuorateDataSource

__all__ = ["QuorateDataSource", "session"]


def __getattr__(name: str) -> object:
    # The module needs PySpark, and its import error says so if PySpark is missing.
    if name == "QuorateDataSource":
        from quorate.spark.source import QuorateDataSource

        return QuorateDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
