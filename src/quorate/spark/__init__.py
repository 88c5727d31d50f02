"""Logs as DataFrames and streams: the format ``quorate``, and a session that has what it needs.

::

    spark = quorate.spark.session()
    spark.read.format("quorate").option("endpoints", "127.0.0.1:7401").option(
        "log", "orders"
    ).load()
"""

from typing import TYPE_CHECKING

from quorate.spark.sessions import session

if TYPE_CHECKING:
    from quorate.spark.source import QuorateDataSource

__all__ = ["QuorateDataSource", "session"]


def __getattr__(name: str) -> object:
    # Needs PySpark, and says so if it is missing.
    if name == "QuorateDataSource":
        from quorate.spark.source import QuorateDataSource

        return QuorateDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
