"""One concept has one name: a class name is defined once below ``src``."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


def class_names() -> Counter[str]:
    """How often each class name is defined."""
    return Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )


def test_a_class_name_is_defined_once() -> None:
    twice = {name for name, count in class_names().items() if count > 1}
    assert twice == set(), "choose another name"
