"""The pages of the documentation as text: their blocks, tables and quoted names, and the names that
the source and the tests define."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SRC = ROOT / "src"
SOURCE = SRC / "quorate"
TESTS = ROOT / "tests"
SCENARIOS = TESTS / "scenarios"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- Reading a page ---------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block, and where it begins and ends in its page's text."""

    language: str
    text: str
    start: int
    end: int


_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


def blocks(text: str) -> list[Block]:
    return [Block(found[1], found[2], *found.span()) for found in _FENCE.finditer(text)]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """Everything between backticks, outside of fenced blocks."""
    return _SPAN.findall(prose(text))


def section(text: str, heading: str) -> str:
    """From ``## heading`` to the next one."""
    begun = text.partition(f"\n## {heading}\n")
    assert begun[1], f"no section {heading!r}"
    return begun[2].partition("\n## ")[0]


def rows(text: str, columns: int) -> list[list[str]]:
    """The cells of all tables with so many columns, without heads and rulers."""
    found = []
    for before, line in pairwise(["", *text.splitlines()]):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        ruler = set(line) <= set("|-: ")
        inside = line.startswith("|") and before.startswith("|")
        if inside and not ruler and len(cells) == columns:
            found.append(cells)
    return found


def names(cell: str) -> list[str]:
    return _SPAN.findall(cell)


# --- Names in the source ----------------------------------------------------------------------


@cache
def definitions(path: Path) -> frozenset[str]:
    """Names at the top of a file, and ``Class.name`` for what a class defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for item in node.body for name in _defined(item)}
    return frozenset(found)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


@cache
def known_tests() -> frozenset[str]:
    return frozenset(
        name
        for path in TESTS.rglob("test_*.py")
        for name in definitions(path)
        if name.startswith("test_")
    )


@cache
def source_words() -> frozenset[str]:
    texts = [path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")]
    return frozenset(re.findall(r"--[a-z-]+|\w+", "\n".join(texts)))


@cache
def broken_rules(simulator: str) -> frozenset[str]:
    """The names under which a simulator reports violations."""
    folder = SRC / "verification" / simulator
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return frozenset(re.findall(r'Violation\(\s*"([\w-]+)"', "\n".join(texts)))
