"""Bugs that the simulator found, as shrunk records: each fails where its bug is planted again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verification.sim.record import load
from verification.sim.run import run

# Each is named after the mutant that brings its bug back.
RECORDS = sorted((Path(__file__).parent / "records").glob("*.json"))


def test_there_are_records() -> None:
    assert RECORDS


@pytest.mark.sim
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_bug_that_was_fixed_stays_fixed(path: Path) -> None:
    options, choices, rule = load(path)
    assert rule is not None
    assert run(options, choices).violation is None


@pytest.mark.sim
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_record_still_shows_its_bug(path: Path) -> None:
    """Otherwise the test above would assert nothing: make the record anew."""
    command = [
        sys.executable, "-m", "verification.sim", "--mutant", path.stem, "--replay", str(path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    _, _, rule = load(path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"recorded {rule}, now {rule}:" in done.stdout
