"""The checkpoint of a pipeline: where it is, and whose.

It is the pipeline's identity. Whoever begins with another one writes everything again; whoever
takes that of another pipeline goes on where that one stood. So there is a default only where it is
the same for every run, and a file in it says whose it is.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument
from quorate.pipeline.files import Files
from quorate.pipeline.jobs import is_local
from quorate.pipeline.locking import only_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["STARTED", "Checkpoint", "checkpoint_for", "default_checkpoint", "query_id"]

# Beside what Spark keeps there.
OWNER, LOCK = "quorate.json", "quorate.lock"
# Spark makes it when a query is first started.
STARTED = "metadata"
# What only the owner of a pipeline's has.
PIPELINE = "pipeline"


def default_checkpoint(file: Path, name: str) -> str:
    """Beside the file, so that it is found from wherever the command is run."""
    return (file.absolute().parent / ".quorate" / "checkpoints" / name).as_uri()


def checkpoint_for(given: str | None, default: str, master: str | None) -> str:
    """Raises InvalidArgument where the default would not be the same for every run."""
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
    """What Spark calls the query whose checkpoint the directory is: no two of them are called the
    same, wherever they are moved."""
    return str(json.loads(files.read(STARTED) or "{}")["id"])


class Checkpoint:
    """A checkpoint, whether or not it is there yet."""

    def __init__(self, spark: SparkSession, location: str, owner: Mapping[str, str]) -> None:
        self.location = location
        # What must not change from run to run, by what it is called in messages.
        self._owner = dict(owner)
        self._files = Files(spark, location)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note whose it is, and keep other runs out of it.

        Raises InvalidArgument if it is somebody else's, or another run goes on from it now.
        """
        # What is wrong is said before the lock makes the directory.
        self.check()
        with only_run(self._files, LOCK):
            if not self.check():
                self._files.write(OWNER, json.dumps(self._owner, indent=1) + "\n")
            yield

    def check(self) -> bool:
        """Whether it is noted whose it is. Raises InvalidArgument if it is somebody else's."""
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
                    f"{expected}; with another --checkpoint all begins anew, and everything is "
                    f"written again"
                )
        return True

    def reached(self, log: str) -> int | None:
        """The offset up to which portions are committed; None if none is."""
        done = [name.rpartition("/")[2] for name in self._files.matching("commits/*")]
        numbers = [int(name) for name in done if name.isdecimal()]
        if not numbers:
            return None
        name = f"offsets/{max(numbers)}"
        # A version, then the settings of the query, then a line for each source.
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
