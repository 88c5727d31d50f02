"""The tests that docs/rules.md names in the row of a planted bug: they hunt it first.

A row names the tests that hold its rule. Most bugs are noticed by one of them, within seconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from verification.mutants.apply import PACKAGE
from verification.mutants.suites import PROCESS_TESTS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RuleTests", "rule_tests_of"]

ROOT = PACKAGE.parents[1]
TESTS = ROOT / "tests"
SCENARIOS = TESTS / "scenarios" / "test_scenarios.py"
# The last two columns of a row: tests and scenarios, then planted bugs.
_ROW = re.compile(r"\| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
_NAMES = re.compile(r"`([\w-]+)`")
_SCENARIO_NUMBERS = re.compile(r"\bS(\d+)\b")
_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


class RuleTests(NamedTuple):
    """Test files, and the names that select the tests of one rule in them."""

    files: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()


def rule_tests_of(mutant: str) -> RuleTests:
    """The tests in the row of ``mutant`` that start no node; none if the docs or the tests are not
    there."""
    names, scenarios = _rows().get(mutant, ((), ()))
    files = [path for name in names for path in _files().get(name, ())]
    if scenarios:
        files.append(SCENARIOS)
    started = {TESTS / name for name in PROCESS_TESTS}
    found = tuple(path for path in dict.fromkeys(files) if path not in started)
    return RuleTests(found, (*names, *scenarios)) if found else RuleTests()


@cache
def _rows() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """By planted bug: the names of the tests of its rule, and the beginnings of the scenarios'."""
    page = ROOT / "docs" / "rules.md"
    if not page.is_file():
        return {}
    rows = {}
    for tests, mutants in _ROW.findall(page.read_text(encoding="utf-8")):
        scenarios = tuple(f"s{int(one):02}-" for one in _SCENARIO_NUMBERS.findall(tests))
        for mutant in _NAMES.findall(mutants):
            rows[mutant] = (tuple(_NAMES.findall(tests)), scenarios)
    return rows


@cache
def _files() -> dict[str, list[Path]]:
    """By test: the files that define it."""
    files = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in _TEST.findall(path.read_text(encoding="utf-8")):
            files[name].append(path)
    return files
