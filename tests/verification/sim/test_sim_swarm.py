"""Some seeds: no rule is broken. Continuous integration runs more, which meet every trouble."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from verification.sim.sometimes import EXPECTED

SEEDS = 40
EVENTS_PER_SEED = 10_000


def run_sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verification.sim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.sim
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_rule() -> None:
    done = run_sim("--seeds", str(SEEDS))
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"sim: seeds=(\d+) events=(\d+) events_per_s=(\d+) violations=(\d+)", last)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seeds, events, _, violations = (int(number) for number in found.groups())
    assert (seeds, violations) == (SEEDS, 0), done.stdout
    assert events >= SEEDS * EVENTS_PER_SEED
    assert done.returncode == 0


def test_a_trouble_that_no_seed_met_fails_the_run() -> None:
    done = run_sim("--seeds", "1", "--sometimes")
    missing = [line for line in done.stdout.splitlines() if line.startswith("never met: ")]
    assert missing
    assert {line.removeprefix("never met: ") for line in missing} <= {*EXPECTED}
    assert done.returncode == 1
