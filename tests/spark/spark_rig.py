"""Reads of a log through Spark, and their results."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    import quorate
    from quorate.testing import Cluster

__all__ = ["Place", "fill", "offsets", "refused", "unused_name"]

_numbers = itertools.count()


def unused_name() -> str:
    """For all tests share one cluster."""
    return f"t{next(_numbers)}"


class Place:
    """A Spark session beside a cluster, and names for logs that no other test uses."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.client = cluster.client()
        # Of this test alone.
        self.directory = directory
        self.prefix = unused_name()

    def log(self, name: str = "log", records: int = 0) -> quorate.Log:
        """A new log with so many records: b"0", b"1", …"""
        log = self.client.create_log(f"{self.prefix}-{name}")
        if records:
            fill(log, records)
        return log

    def again(self, log: quorate.Log) -> quorate.Log:
        """The next life of a log."""
        self.client.delete_log(log.name)
        return self.client.create_log(log.name)

    def read(self, log: str, **options: object) -> DataFrame:
        return self.reader(log, **options).load()

    def columns(self, log: str, schema: str) -> DataFrame:
        """Only those of ``schema``."""
        return self.reader(log).schema(schema).load()

    def reader(self, log: str, **options: object) -> DataFrameReader:
        reader = self.spark.read.format("quorate").option("endpoints", self.cluster.endpoints)
        reader = reader.option("log", log)
        for key, value in options.items():
            reader = reader.option(key, str(value))
        return reader

    def stream(self, log: str, **options: object) -> DataStreamReader:
        reader = self.spark.readStream.format("quorate")
        reader = reader.option("endpoints", self.cluster.endpoints).option("log", log)
        for key, value in options.items():
            reader = reader.option(key, str(value))
        return reader

    def available(self, log: str, **options: object) -> StreamingQuery:
        """A query that took the records that were there, and has ended."""
        query = self.start(self.stream(log, **options).load(), available=True)
        query.awaitTermination()
        return query

    def start(self, frame: DataFrame, *, available: bool = False) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / "rows"))
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(availableNow=True) if available else writer).start()

    def rows(self, log: quorate.Log) -> list[int]:
        """The offsets of ``log`` that a query has written, sorted."""
        frame = self.spark.read.parquet(str(self.directory / "rows"))
        return offsets(frame.where(frame["log"] == log.name))


def fill(log: quorate.Log, records: int, batch: int = 100) -> None:
    """So many records more, each with its offset as its value."""
    start = log.end_offset()
    for first in range(start, start + records, batch):
        last = min(first + batch, start + records)
        log.append_batch([b"%d" % number for number in range(first, last)])


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def refused(frame: DataFrame) -> str:
    """The text of the error that the frame's first action ends with."""
    # Spark has a class for each way that an error may take, and several of them may be taken.
    with pytest.raises(Exception) as caught:
        frame.collect()
    return str(caught.value)
