"""The numbers of hops that a page names are those of its tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

PAGES = Path(__file__).resolve().parent.parent / "docs/internals"
# The walks of each page, in the order of its tables.
WALKS = {
    "append.md": ("append", "read"),
    "micro-batch.md": ("micro-batch in Spark", "micro-batch on the leader"),
}
NAME = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
ROW = re.compile(r"^\| (?P<where>[^|]+) \| (?P<hops>\d+) \| (?P<way>.+) \|$", re.MULTILINE)
SUMS = re.compile(
    r"These are (\d+) hops through (\d+) functions in (\d+) files; with the functions in brackets "
    r"(\d+) calls of (\d+) functions in (\d+) files\.".replace(" ", r"\s")
)


class Way(NamedTuple):
    """One table and the sentence below it."""

    rows: list[re.Match[str]]
    told: tuple[int, ...]


def ways(page: str) -> list[Way]:
    text = (PAGES / page).read_text().partition("\n## The hops\n")[2]
    found, start = [], 0
    for told in SUMS.finditer(text):
        table = text[start : told.start()]
        found.append(Way(list(ROW.finditer(table)), tuple(map(int, told.groups()))))
        start = told.end()
    return found


ALL_WAYS = [way for page in WALKS for way in ways(page)]


def without_brackets(way: str) -> str:
    return re.sub(r" \([^)]*\)", "", way)


def counted(ways: list[str]) -> tuple[int, int, int]:
    """Names, different names, and their files."""
    names = [name for way in ways for name in NAME.findall(way)]
    return len(names), len(set(names)), len({file for file, _ in names})


@pytest.mark.parametrize("page", WALKS)
def test_a_page_counts_each_of_its_walks(page: str) -> None:
    assert len(ways(page)) == len(WALKS[page])


@pytest.mark.parametrize("way", ALL_WAYS, ids=[name for walks in WALKS.values() for name in walks])
def test_the_sums_are_those_of_the_table(way: Way) -> None:
    everything = [row["way"] for row in way.rows]
    hops = list(map(without_brackets, everything))
    assert way.told == (*counted(hops), *counted(everything))


@pytest.mark.parametrize(
    "row", [row for way in ALL_WAYS for row in way.rows], ids=lambda row: row[1]
)
def test_a_row_has_as_many_hops_as_it_says(row: re.Match[str]) -> None:
    assert int(row["hops"]) == len(NAME.findall(without_brackets(row["way"])))
