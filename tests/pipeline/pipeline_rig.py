"""Commands of ``quorate pipeline``, their logs, and the records that they leave there."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from quorate.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    import quorate
    from quorate.client.results import Record
    from quorate.testing import Cluster

__all__ = ["Desk", "Ran", "headers", "pipeline_file"]

_numbers = itertools.count()


class Ran(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error that it failed with; lines before it may show its progress."""
        [line] = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")

    @property
    def document(self) -> Any:
        """The last line that ``--json`` printed."""
        return json.loads(self.out.strip().rpartition("\n")[2])


class Desk:
    """A directory, a cluster, and names for logs that no other test uses."""

    def __init__(
        self, cluster: Cluster, directory: Path, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.directory = directory
        self.prefix = f"p{next(_numbers)}"
        self._capture = capture

    def name(self, log: str) -> str:
        return f"{self.prefix}-{log}"

    def log(self, log: str) -> quorate.Log:
        """A new log, or one that was made so."""
        return self.client.log(self.name(log), create=True)

    def values(self, log: str) -> list[bytes]:
        return [record.value for record in self.records(log)]

    def records(self, log: str) -> list[Record]:
        found = self.client.log(self.name(log))
        return list(found.read(0, found.end_offset()))

    def run(self, *arguments: str | Path) -> Ran:
        """``quorate pipeline …`` in this process, on the session that runs."""
        self._capture.readouterr()
        status = main(["pipeline", *map(str, arguments)])
        out, err = self._capture.readouterr()
        return Ran(status, out.decode(), err.decode())

    def run_without_spark(self, *arguments: str | Path) -> Ran:
        """The same, of a command that must end before it asks for a session."""
        with patch("quorate.cli.pipeline.options.opened_session", side_effect=AssertionError):
            return self.run(*arguments)

    def done(self, *arguments: str | Path) -> Any:
        """The document of a command that must succeed."""
        ran = self.run(*arguments, "--json")
        assert ran.status == 0, ran.err
        return ran.document

    def write(self, name: str, text: str) -> Path:
        """A file here. Logs are called LOG-x in it: the log x of this test is meant."""
        file = self.directory / name
        file.write_text(text.replace("LOG-", self.name("")), encoding="utf-8")
        return file


def pipeline_file(body: str = "return df", /, **options: object) -> str:
    """The text of a pipeline from LOG-in to LOG-out, with other options where they are given."""
    given: dict[str, object] = {"source": "log:LOG-in", "sink": "log:LOG-out", **options}
    listed = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    return (
        "from pyspark.sql import functions as F\n"
        "from quorate.pipeline import pipeline\n"
        f"@pipeline({listed})\n"
        "def piped(df):\n"
        f"    {body}\n"
    )


def headers(record: Record) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}
