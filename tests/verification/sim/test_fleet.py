"""Whole nodes, simulated: handshakes, manifests, the catalog and several logs on each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from verification.fleet.run import EXPECTED

SEEDS = 12


def run_python(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_no_seed_of_the_fleet_breaks_a_rule_and_every_trouble_is_met() -> None:
    done = run_python("-m", "verification.fleet", "--seeds", str(SEEDS), "--sometimes")
    last = done.stdout.splitlines()[-1]
    pattern = r"fleet: seeds=(\d+) events=(\d+) events_per_s=\d+ violations=(\d+)"
    found = re.fullmatch(pattern, last)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seeds, events, violations = (int(number) for number in found.groups())
    assert (seeds, violations) == (SEEDS, 0), done.stdout
    assert events > SEEDS * 10_000
    assert "never met" not in done.stdout, done.stdout
    assert done.returncode == 0
    assert len(EXPECTED) >= 20


@pytest.mark.sim
def test_a_seed_of_the_fleet_is_the_same_history_in_every_process() -> None:
    code = "from verification.fleet.run import run; one = run(2); print(one.trace, one.events)"
    first, second = (run_python("-c", code, hash_seed=seed).stdout for seed in "12")
    assert first == second != ""


@pytest.mark.sim
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutant", "rule", "start"),
    [
        ("first-start-with-a-majority", "first-start", 0),
        ("copy-at-the-same-start-accepted", "rolled-back", 0),
        ("told-starts-ignored", "rolled-back", 0),
        ("known-disk-replaced", "disk", 0),
        ("next-manifest-not-allocated", "full-start", 0),
        ("deletion-put-off-counts-as-done", "removed", 0),
        # The first seed that finds it is 42.
        ("incarnation-drawn-in-the-future", "deleted", 40),
    ],
)
def test_a_planted_bug_is_found_and_its_seed_can_be_run_again(
    mutant: str, rule: str, start: int
) -> None:
    found = run_python(
        "-m", "verification.fleet", "--jobs", "1", "--stop-at-first", "--mutant", mutant,
        "--start", str(start),
    )  # fmt: skip
    assert found.returncode == 1, found.stdout + found.stderr
    failure, again, last = found.stdout.splitlines()[-3:]
    assert re.match(rf"seed \d+ \(\d nodes\): {rule}: ", failure)
    assert last.endswith("violations=1")
    _, arguments = again.split("again: python ")
    repeated = run_python(*arguments.split(), "--mutant", mutant)
    assert failure in repeated.stdout
