"""The tables in this folder tell the truth: each test that they name exists, and is named."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NAME = re.compile(r"\btest_[a-z0-9_]+\b(?!\.py)")
DEFINED = re.compile(r"^def (test_[a-z0-9_]+)\(", re.MULTILINE)


def texts(folder: Path) -> list[str]:
    own = Path(__file__).name
    return [path.read_text("utf-8") for path in folder.glob("test_*.py") if path.name != own]


def test_every_test_in_a_table_exists_and_every_test_is_in_a_table() -> None:
    tables = [text.split('"""')[1] for text in texts(HERE)]
    named = {name for table in tables for name in NAME.findall(table)}
    here = {name for text in texts(HERE) for name in DEFINED.findall(text)}
    folders = (HERE.parent, HERE.parent / "raft", HERE.parent / "replica")
    elsewhere = {
        name for folder in folders for text in texts(folder) for name in DEFINED.findall(text)
    }
    assert named - here - elsewhere == set()
    assert here - named == set()
