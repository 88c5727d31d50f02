"""Reads of logs with Spark: frames and streams, of a cluster and of a data directory."""
