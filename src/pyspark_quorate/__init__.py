"""Where Spark finds the format ``quorate``: it looks into modules whose names begin with pyspark_.

Not with ``--py-files``: register ``quorate.spark.QuorateDataSource`` there.
"""

from quorate.spark.source import QuorateDataSource as DefaultSource

__all__ = ["DefaultSource"]
