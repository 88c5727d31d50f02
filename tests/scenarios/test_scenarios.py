"""Plays every scenario file in this directory.

``pytest tests/scenarios --rewrite`` writes their output anew; read the difference before it is
committed. What a file says with ``expect`` is never rewritten.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verification.scenario import ScenarioError, parse, run_file
from verification.scenario.commands import COMMANDS

FILES = sorted(Path(__file__).parent.glob("*.txt"))

# The scenarios that the consensus core must pass, by their numbers in docs/rules.md. The
# numbers between them need what is not built yet: trimming, membership changes, bytes
# on a disk, a network.
NUMBERS = [
    *range(1, 9), *range(10, 16), 24, 25, 26, 27, *range(30, 44), *range(46, 50),
    *range(51, 54), 61,
]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    try:
        run_file(path, rewrite=request.config.getoption("--rewrite"))
    except ScenarioError as problem:
        pytest.fail(str(problem), pytrace=False)


def test_every_number_has_its_file() -> None:
    names = [re.fullmatch(r"s(\d\d)-[a-z0-9-]+", path.stem) for path in FILES]
    assert [int(name[1]) if name else None for name in names] == NUMBERS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_opens_with_its_situation_and_ends_with_what_it_expects(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    scenario = parse(path.name, text)
    assert text.startswith(f"# S{int(path.stem[1:3])}. ")
    assert "# At stake: " in text.partition("\n\n")[0]
    assert scenario.blocks[-1].commands[-1].name == "expect"


def test_every_command_is_used() -> None:
    used = {
        command.name
        for path in FILES
        for block in parse(path.name, path.read_text(encoding="utf-8")).blocks
        for command in block.commands
    }
    assert set(COMMANDS) <= used
