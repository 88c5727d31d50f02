"""The words of comments, docstrings and pages: each sentence names the thing that it is about.

``whoever``, ``nobody`` and ``what …`` take the place of a noun that the reader has to know already.
They are counted in a thousand words: for each package in its comments and docstrings, for the
documentation in its prose, page by page and as a whole. The ceilings only fall.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "quorate"
VERIFICATION = ROOT / "src" / "verification"
# The pages of measurements are not listed: the benchmarks write them.
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "benchmarks" not in path.name),
]

PRONOUNS = frozenset(
    f"{first}{last}"
    for first in ("some", "any", "every", "no")
    for last in ("body", "one", "thing")
    if first + last != "noone"
) | {"whatever", "whichever", "whoever", "whomever"}  # fmt: skip

# Per thousand words: pronouns of PRONOUNS, and "what".
CEILINGS: dict[str, tuple[float, float]] = {
    "cli": (3.0, 4.0),
    "client": (3.0, 4.0),
    "config": (3.0, 4.0),
    "demo": (3.0, 4.0),
    "net": (3.0, 4.0),
    "pipeline": (3.0, 4.0),
    "quorate": (3.0, 4.0),
    "raft": (3.0, 4.0),
    "replica": (3.0, 4.0),
    "server": (3.0, 4.0),
    "spark": (3.0, 4.0),
    "state": (3.0, 4.0),
    "storage": (3.0, 4.0),
    "testing": (3.0, 4.0),
    "verification": (3.0, 4.0),
    "wire": (3.0, 4.0),
}

# The same for all pages together, and for each of them.
DOCS_CEILING = (0.5, 1.0)
PAGE_CEILING = (3.0, 4.0)

_QUOTES = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def page_prose(path: Path) -> str:
    """A page without code, output and names between backticks."""
    return _QUOTES.sub("", path.read_text(encoding="utf-8"))


def prose(text: str) -> Iterator[str]:
    """The comments and docstrings of a source file."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def shares(texts: Iterator[str]) -> tuple[float, float]:
    """How many of a thousand words are pronouns, and how many are "what"."""
    words = Counter(word for text in texts for word in re.findall(r"[a-z']+", text.lower()))
    pronouns = sum(words[pronoun] for pronoun in PRONOUNS)
    total = max(1, words.total())
    return 1000 * pronouns / total, 1000 * words["what"] / total


def packages() -> dict[str, list[Path]]:
    """The files of each package; those beside the packages are one of their own."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        found.setdefault(parts[0] if len(parts) > 1 else "quorate", []).append(path)
    return {**found, "verification": sorted(VERIFICATION.rglob("*.py"))}


@pytest.mark.parametrize("package", sorted(packages()))
def test_sentences_name_their_thing(package: str) -> None:
    texts = (text for path in packages()[package] for text in prose(path.read_text()))
    pronouns, whats = shares(texts)
    most_pronouns, most_whats = CEILINGS[package]
    assert pronouns <= most_pronouns
    assert whats <= most_whats


def test_every_ceiling_belongs_to_a_package() -> None:
    assert CEILINGS.keys() == packages().keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_names_its_things(page: Path) -> None:
    pronouns, whats = shares(iter([page_prose(page)]))
    assert pronouns <= PAGE_CEILING[0]
    assert whats <= PAGE_CEILING[1]


def test_the_documentation_names_its_things() -> None:
    pronouns, whats = shares(map(page_prose, PAGES))
    assert pronouns <= DOCS_CEILING[0]
    assert whats <= DOCS_CEILING[1]


def test_quoted_words_of_a_page_are_not_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Nobody runs `what` here.\n\n```text\nwhat\n```\n")
    pronouns, whats = shares(iter([page_prose(page)]))
    assert pronouns == pytest.approx(1000 / 3)
    assert whats == 0


def test_comments_and_docstrings_are_counted_and_code_is_not() -> None:
    text = '"""Whoever asks."""\n\nwhat = "nobody"  # what it is\n\n\ndef f():\n    """Sum."""\n'
    pronouns, whats = shares(prose(text))
    assert pronouns == pytest.approx(1000 / 6)
    assert whats == pytest.approx(1000 / 6)
