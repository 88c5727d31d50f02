"""The page on the storage format shows the bytes that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format-storage.md"
TEXT = PAGE.read_text(encoding="utf-8")

# Which bytes of the example each table is about: file, position and length.
TABLES = {
    "Segment header": ("0000000000000001.segment", 0, 116),
    "Block head": ("0000000000000001.segment", 4096, 64),
    "Footer": ("0000000000000001.segment", 8192, 84),
    "Index file": ("0000000000000001.index", 0, 136),
    "Vote record": ("vote-a", 0, 156),
    "Mark of a clean stop": ("clean", 0, 60),
}


def example_files() -> dict[str, bytes]:
    """The files that the example prints; that it does is checked where all examples are run."""
    files: dict[str, bytearray] = {}
    content = bytearray()
    for line in TEXT.partition("```text\n")[2].partition("```")[0].splitlines():
        if found := re.fullmatch(r"(\S+), (\d+) bytes", line):
            content = files[found[1]] = bytearray(int(found[2]))
        else:
            start, _, shown = line.strip().partition("  ")
            data = bytes.fromhex(shown)
            content[int(start, 16) : int(start, 16) + len(data)] = data
    return {name: bytes(data) for name, data in files.items()}


@pytest.mark.parametrize("heading", TABLES)
def test_the_tables_show_the_bytes_of_the_example(heading: str) -> None:
    name, position, length = TABLES[heading]
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| [\w ]+ \| (?:0|`([0-9a-f ]+)`) \|", section, re.M)
    assert rows
    expected = 0
    for offset, size, shown in rows:
        assert int(offset) == expected
        part = example_files()[name][position + expected :][: int(size)]
        assert bytes.fromhex(shown).ljust(int(size), b"\0") == part, f"{heading} at {offset}"
        expected += int(size)
    assert expected == length


def test_the_copies_of_the_vote_record_are_the_same() -> None:
    files = example_files()
    assert files["vote-a"] == files["vote-b"]
    assert not any(files["spare"])
