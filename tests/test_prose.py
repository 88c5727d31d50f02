"""The words of comments and docstrings: each sentence names the thing that it is about.

``whoever``, ``nobody`` and ``what …`` take the place of a noun that the reader has to know already.
They are counted for each package, in a thousand words of comments and docstrings. The ceilings only
fall: the goal is 3 and 4 in a thousand everywhere.
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

SOURCE = Path(__file__).resolve().parent.parent / "src" / "quorate"

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
    "testing": (13.5, 20.5),
    "wire": (3.0, 4.0),
}


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
    return found


@pytest.mark.parametrize("package", sorted(packages()))
def test_sentences_name_their_thing(package: str) -> None:
    texts = (text for path in packages()[package] for text in prose(path.read_text()))
    pronouns, whats = shares(texts)
    most_pronouns, most_whats = CEILINGS[package]
    assert pronouns <= most_pronouns
    assert whats <= most_whats


def test_every_ceiling_belongs_to_a_package() -> None:
    assert CEILINGS.keys() == packages().keys()


def test_comments_and_docstrings_are_counted_and_code_is_not() -> None:
    text = '"""Whoever asks."""\n\nwhat = "nobody"  # what it is\n\n\ndef f():\n    """Sum."""\n'
    pronouns, whats = shares(prose(text))
    assert pronouns == pytest.approx(1000 / 6)
    assert whats == pytest.approx(1000 / 6)
