"""Finding the format: by itself, by registration, over Spark Connect, without a Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_quorate
import quorate.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_rig import Place

# Runs in a process of its own: a Java process serves either Connect or a classic session.
CONNECT = """
import sys
import quorate.spark

endpoints, log, target, checkpoint = sys.argv[1:]
spark = quorate.spark.session(remote="local[2]", config={"spark.ui.enabled": False})
print(type(spark).__module__)

def read(reader):
    return reader.format("quorate").option("endpoints", endpoints).option("log", log)

try:
    read(spark.read).load().count()
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
spark.dataSource.register(quorate.spark.QuorateDataSource)
print(read(spark.read).load().count())
stream = read(spark.readStream).option("startingOffsets", "earliest").load()
query = stream.writeStream.format("memory").queryName("seen")
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print(spark.table("seen").count())

def write(writer):
    return writer.format("quorate").option("endpoints", endpoints).option("log", target)

rows = read(spark.read).load().select("key", "value")
for _ in range(2):
    write(rows.write).option("txnAppId", "copy").option("txnVersion", "1").mode("append").save()
print(read(spark.read).option("log", target).load().count())
writer = write(stream.select("key", "value").writeStream)
writer = writer.option("checkpointLocation", checkpoint + "-written").trigger(availableNow=True)
for _ in range(2):
    writer.start().awaitTermination()
print(read(spark.read).option("log", target).load().count())
try:
    write(stream.select("offset").writeStream).option("checkpointLocation", checkpoint + "-odd") \
        .trigger(availableNow=True).start().awaitTermination()
except Exception as error:
    print("is given by the log: drop it" in str(error))
try:
    read(spark.read).option("readfrom", "n7").load().count()
except Exception as error:
    print("none of any, leader, n1, n2, n3" in str(error))
spark.stop()
"""


def test_spark_finds_the_format_by_itself(place: Place) -> None:
    assert pyspark_quorate.DefaultSource is quorate.spark.QuorateDataSource
    assert place.read(place.log(records=3).name).count() == 3


def test_workers_run_this_python(spark: SparkSession) -> None:
    def executable(_: object) -> list[str]:
        return [sys.executable]

    found = spark.sparkContext.parallelize([0]).mapPartitions(executable).collect()
    assert set(found) == {sys.executable}


def test_a_second_call_gives_the_running_session(spark: SparkSession) -> None:
    assert quorate.spark.session().sparkContext is spark.sparkContext


@pytest.mark.spark_slow
def test_registration_over_connect_on_a_machine_without_java(place: Place) -> None:
    log, target = place.log(records=25), place.log("target")
    # The module that Spark would find by itself is hidden, as it is with --py-files.
    hidden = place.directory / "pyspark_quorate.py"
    hidden.write_text("", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PYTHONPATH": str(place.directory), "PATH": without_java(place.directory)}
    checkpoint = str(place.directory / "checkpoint")
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, place.cluster.endpoints, log.name, target.name, checkpoint],
        capture_output=True,
        text=True,
        env=environment,
        cwd=place.directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, found, batch, stream, saved, streamed, refused, told = done.stdout.split()
    assert module == "pyspark.sql.connect.session"
    assert found == "True", "nothing was found"
    assert (batch, stream) == ("25", "25")
    assert (saved, streamed) == ("25", "50"), "each is written once, though it was run twice"
    assert refused == "True"
    assert told == "True", "errors pass Connect, too"


def without_java(directory: Path) -> str:
    """A PATH with the programs that start scripts need, and no ``java``."""
    tools = directory / "bin"
    tools.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = tools / program.name
            if program.name != "java" and not link.exists():
                link.symlink_to(program)
    return str(tools)
