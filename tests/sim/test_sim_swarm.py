"""A hundred seeds and more: no rule broken, and every kind of trouble met."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from quorate.testing.sim.sometimes import EXPECTED

SEEDS = 120
EVENTS_PER_SEED = 10_000


@pytest.mark.sim
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_rule_and_every_trouble_is_met() -> None:
    command = [sys.executable, "-m", "quorate.testing.sim", "--seeds", str(SEEDS), "--sometimes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"sim: seeds=(\d+) events=(\d+) events_per_s=(\d+) violations=(\d+)", last)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seeds, events, _, violations = (int(number) for number in found.groups())
    assert (seeds, violations) == (SEEDS, 0), done.stdout
    assert events >= SEEDS * EVENTS_PER_SEED
    assert "never met" not in done.stdout, done.stdout
    assert done.returncode == 0
    assert len(EXPECTED) >= 20
