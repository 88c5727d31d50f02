"""The examples of the guide run, and print the output below them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import quorate.testing
from quorate.spark.read.columns import COLUMNS
from quorate.spark.read.options import NAMES

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "spark.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESSES = re.compile(r"127\.0\.0\.1:740\d(,127\.0\.0\.1:740\d)*")


@pytest.mark.spark_slow
@pytest.mark.usefixtures("spark")
def test_the_examples_run(tmp_path: Path) -> None:
    """The page asks for a session and is given the one that runs."""
    names: dict[str, object] = {}
    printed = ""
    ran = 0
    with quorate.testing.cluster(nodes=3, logs=["orders"], cuttable=False) as cluster:
        log = cluster.client().log("orders")
        log.append_batch([b"one", b"two", b"three"], keys=[b"apple", b"pear", None])
        for language, text in _FENCE.findall(GUIDE.read_text(encoding="utf-8")):
            if language == "py":
                if "/var/lib/quorate" in text:
                    # With this write it stands on every disk that the others are committed.
                    log.append(b"four")
                    for node in cluster.nodes:
                        cluster.stop(node)
                here = _ADDRESSES.sub(cluster.endpoints, text)
                here = here.replace("/var/lib/quorate/n1", str(cluster.data("n1")))
                here = here.replace("/data/", f"{tmp_path}/")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(here, names)
                printed = out.getvalue()
                ran += 1
            elif language == "text":
                assert printed == text
    assert ran >= 8


def test_every_option_and_column_is_in_the_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed >= {*NAMES, *COLUMNS.fieldNames(), "appendTime"}
