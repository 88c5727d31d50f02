"""The guide, followed from top to bottom: its files, commands and outputs are those of the page."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quorate.testing
from quorate.cli.main import main
from quorate.pipeline.pipeline_file import load

if TYPE_CHECKING:
    from quorate.testing import Cluster

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "pipelines.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The steps of the page that install packages, or that only a shell can do.
_BY_HAND = ("pip install", "echo ")


class Reader:
    """Follows the page, in a directory of its own."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._names: dict[str, object] = {}
        self.printed = ""
        self.ran = 0

    def py(self, text: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(text.replace("127.0.0.1:7401", self._cluster.endpoints), self._names)
        self.printed = out.getvalue()
        self.ran += 1

    def file(self, text: str) -> None:
        file = self._directory / "paid.py"
        file.write_text(text, encoding="utf-8")
        self._names["paid"] = load(file)

    def toml(self, text: str) -> None:
        file = self._directory / "paid.toml"
        file.write_text(text, encoding="utf-8")
        same, python = load(file), load(self._directory / "paid.py")
        assert same.name == python.name
        assert (same.source, same.sink, same.dead_letter) == (
            python.source,
            python.sink,
            python.dead_letter,
        )
        assert (same.schema, same.checks, same.key) == (python.schema, python.checks, python.key)

    def console(self, text: str) -> None:
        for line in text.splitlines():
            typed = line.removeprefix("$ ")
            if typed.startswith(_BY_HAND):
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main(shlex.split(typed)[1:]) == 0
            self.printed = out.getvalue().replace(self._directory.as_uri(), "file:///data")
            self.ran += 1

    def text(self, text: str) -> None:
        assert self.printed == text


@pytest.mark.spark_slow
@pytest.mark.usefixtures("spark")
def test_the_guide_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with quorate.testing.cluster(nodes=3, cuttable=False) as cluster:
        monkeypatch.setenv("QUORATE_ENDPOINTS", cluster.endpoints)
        reader = Reader(cluster, tmp_path)
        for language, text in _FENCE.findall(GUIDE.read_text(encoding="utf-8")):
            getattr(reader, language)(text)
    assert reader.ran == 11
