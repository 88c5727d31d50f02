"""The guide to moving data, followed from top to bottom: commands print its outputs."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

import quorate.testing
from quorate.cli.main import main

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "moving-data.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The words that differ from run to run: durations, sizes of compressed files, times.
_VARIES = re.compile(r"^(bytes|seconds) .*$|\b[0-9a-f]{16}\b", re.MULTILINE)


@pytest.mark.spark_slow
@pytest.mark.usefixtures("spark")
def test_the_guide_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    printed = ""
    ran = 0
    with quorate.testing.cluster(nodes=3, cuttable=False) as cluster:
        monkeypatch.setenv("QUORATE_ENDPOINTS", cluster.endpoints)
        for language, text in _FENCE.findall(GUIDE.read_text(encoding="utf-8")):
            here = text.replace("/data", str(tmp_path)).replace("127.0.0.1:7401", cluster.endpoints)
            if language == "text":
                assert _VARIES.sub("…", printed) == _VARIES.sub("…", text)
                continue
            if here.startswith("$ pip install"):
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out:
                if language == "py":
                    exec(here, names)
                else:
                    assert main(shlex.split(here.removeprefix("$ "))[1:]) == 0
            printed = out.getvalue().replace(str(tmp_path), "/data")
            ran += 1
    assert ran == 11
