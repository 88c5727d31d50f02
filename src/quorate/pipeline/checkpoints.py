"""The checkpoint of a pipeline: its location and its owner.

A checkpoint is the pipeline's identity. A run with a new checkpoint writes all records again; a run
with the checkpoint of another pipeline goes on where that one stood. So there is a default only
where it is the same for every run, and a file in the checkpoint names its owner.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files
from quorate.pipeline.job_session import is_local
from quorate.pipeline.run_lock import only_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["STARTED", "StreamCheckpoint", "checkpoint_for", "default_checkpoint", "query_id"]

# The files of this package, beside those of Spark.
OWNER, LOCK = "quorate.json", "quorate.lock"
# The file that Spark makes when a query is first started.
STARTED = "metadata"
# The key that the owner has only if the checkpoint belongs to a pipeline.
PIPELINE = "pipeline"


def default_checkpoint(file: Path, name: str) -> str:
    """The checkpoint beside ``file``, so that a command finds it from any working directory."""
    return (file.absolute().parent / ".quorate" / "checkpoints" / name).as_uri()


def checkpoint_for(given: str | None, default: str, master: str | None) -> str:
    """The given checkpoint, or the default. Raises InvalidArgument where the default would not be
    the same for every run."""
    if given is not None:
        return given
    if master is not None and not is_local(master):
        raise InvalidArgument(
            f"--checkpoint is needed with --master {master}: it says how far the job came, the next"
            f" run must find it, and a directory of this machine is not there for others; give one"
            f" on a file system that all of them have, such as hdfs:// or s3a://"
        )
    return default


def query_id(files: Files) -> str:
    """The id that Spark gave the query whose checkpoint the directory is. No two checkpoints have
    the same id, and a checkpoint that is moved keeps its id."""
    return str(json.loads(files.read(STARTED) or "{}")["id"])


class StreamCheckpoint:
    """A checkpoint, which may not exist yet."""

    def __init__(self, spark: SparkSession, location: str, owner: Mapping[str, str]) -> None:
        self.location = location
        # The properties that must not change from run to run, by their names in messages.
        self._owner = dict(owner)
        self._files = Files(spark, location)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note the owner of the checkpoint, and keep other runs out of it.

        Raises InvalidArgument if it has another owner, or if another run goes on from it now.
        """
        # Errors are raised before the lock makes the directory.
        self.check()
        with only_run(self._files, LOCK):
            if not self.check():
                self._files.write(OWNER, json.dumps(self._owner, indent=1) + "\n")
            yield

    def check(self) -> bool:
        """True if the checkpoint names its owner. Raises InvalidArgument if that is another one."""
        noted = self._files.read(OWNER)
        if noted is None:
            if self._files.exists(STARTED):
                raise InvalidArgument(
                    f"{self.location} is the checkpoint of a query that is no pipeline; "
                    f"give another directory with --checkpoint"
                )
            return False
        try:
            found = dict(json.loads(noted))
        except (TypeError, ValueError):
            raise self._strange(OWNER) from None
        if (PIPELINE in found) != (PIPELINE in self._owner):
            raise InvalidArgument(
                f"the checkpoint {self.location} is of {_whose(found)}, not of "
                f"{_whose(self._owner)}; give another directory with --checkpoint"
            )
        for what, expected in self._owner.items():
            if found.get(what) != expected:
                raise InvalidArgument(
                    f"the checkpoint {self.location} is of the {what} {found.get(what)}, not "
                    f"{expected}; with another --checkpoint the job starts over, and everything is "
                    f"written again"
                )
        return True

    def reached(self, log: str) -> int | None:
        """The offset up to which micro-batches are committed; None if no micro-batch is."""
        done = [name.rpartition("/")[2] for name in self._files.matching("commits/*")]
        numbers = [int(name) for name in done if name.isdecimal()]
        if not numbers:
            return None
        name = f"offsets/{max(numbers)}"
        # The file has a version, then the settings of the query, then a line for each source.
        last = (self._files.read(name) or "").strip().rpartition("\n")[2]
        try:
            return int(json.loads(last)[log]["offset"])
        except (KeyError, TypeError, ValueError):
            raise self._strange(name) from None

    def _strange(self, name: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self.location}/{name} is not what a pipeline wrote; give another --checkpoint"
        )


def _whose(owner: Mapping[str, str]) -> str:
    if PIPELINE in owner:
        return f"the pipeline {owner[PIPELINE]}"
    return f"an ingest of {owner.get('source')}"
