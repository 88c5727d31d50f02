"""A Spark session that can run the format ``quorate``, without any set-up of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["session"]

# The first version whose streams accept a limit on the size of a micro-batch.
PYSPARK_MIN = (4, 2)
INSTALL = "install it with: pip install 'quorate[spark]'"
# Logs errors only: Spark logs much when it starts.
LOGGING = Path(__file__).with_name("log4j2.properties")
# Spark makes one Java method of a whole stage. A stage that parses and checks is soon longer than
# the methods that Java compiles by default, and then it is interpreted for ever.
COMPILE_LONG_METHODS = "-XX:-DontCompileHugeMethods"


def session(
    app: str = "quorate",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """The running session, or a new one.

    ``master`` is as Spark knows it: "local[4]", "spark://host:7077"; without it Spark decides: all
    cores of this machine, unless ``spark-submit`` was told otherwise. ``remote`` is a Spark Connect
    server instead: "sc://host:15002". ``config`` takes precedence over the settings made here.

    Workers run the Python of this process. Java is the system's if it is 17 or newer, otherwise the
    one that the extra ``spark`` brings. Raises ImportError if PySpark is missing or too old,
    RuntimeError without a Java.
    """
    _require_pyspark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    settings: dict[str, str | int | bool] = {}
    if remote is None or remote.startswith("local"):
        _prepare(os.environ)
        settings |= _java_settings()
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _require_pyspark() -> None:
    try:
        from pyspark.version import __version__ as version
    except ImportError as error:
        raise ImportError(f"quorate.spark needs PySpark; {INSTALL} ({error})") from error
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < PYSPARK_MIN:
        least = ".".join(map(str, PYSPARK_MIN))
        raise ImportError(f"quorate.spark needs PySpark {least} or newer, not {version}; {INSTALL}")


def _prepare(environment: os._Environ[str]) -> None:
    """Set ``environment`` for the Java process that is about to start, and for its workers."""
    # Without this, Spark takes the first python3 on the PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    home = java_home(environment)
    if home is not None:
        environment["JAVA_HOME"] = str(home)


def _java_settings() -> dict[str, str]:
    logging = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    return {
        # The progress bar would overwrite the output of a program.
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"{logging} {COMPILE_LONG_METHODS}",
        "spark.executor.extraJavaOptions": COMPILE_LONG_METHODS,
    }
