"""Writes to logs with Spark: tasks stage their rows, and the driver publishes all of them."""
