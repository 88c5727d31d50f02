"""The same seed gives the same history; its recorded choices give it again, and can be shrunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from verification.sim.adversaries import ADVERSARIES
from verification.sim.decisions import Decisions
from verification.sim.options import Options
from verification.sim.record import load, save
from verification.sim.run import ADVERSARIES_IN_TEN, options_of, run

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = 2_000
# Random faults and adversaries.
SEEDS = (0, 1, 3, 4, 7, 11, 12, 20, 41)


def traces(hash_seed: str) -> list[list[int]]:
    """What another process, with another hash seed, makes of the seeds."""
    program = (
        "from verification.sim.run import options_of, run\n"
        f"for seed in {SEEDS}:\n"
        f"    outcome = run(options_of(seed, {EVENTS}))\n"
        "    print(outcome.trace, outcome.events, outcome.acked, outcome.reads, outcome.virtual_us)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return [[int(number) for number in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.sim
def test_a_seed_is_the_same_history_in_every_process() -> None:
    here = []
    for seed in SEEDS:
        outcome = run(options_of(seed, EVENTS))
        here.append(
            [outcome.trace, outcome.events, outcome.acked, outcome.reads, outcome.virtual_us]
        )
    assert traces("1") == here
    assert traces("2") == here


@pytest.mark.sim
@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_choices_give_the_same_history(seed: int, tmp_path: Path) -> None:
    outcome = run(options_of(seed, EVENTS))
    save(tmp_path / "run.json", outcome)
    options, choices, rule = load(tmp_path / "run.json")
    again = run(options, choices)
    assert rule is None
    assert (again.trace, again.events) == (outcome.trace, outcome.events)
    assert again.choices == outcome.choices


def test_forgotten_choices_fall_back_to_their_defaults() -> None:
    """Without any choice nothing goes wrong: that is what shrinking aims at."""
    options = replace(options_of(4, EVENTS), timing=options_of(3, EVENTS).timing, limits={})
    outcome = run(options, [])
    assert outcome.violation is None
    assert outcome.choices == []
    assert outcome.faults == 0
    assert outcome.sometimes["message lost"] == 0


def test_streams_do_not_depend_on_each_other() -> None:
    one = Decisions("seed")
    other = Decisions("seed")
    other.stream("b").choose(0, lambda random: random.randrange(1000))
    draws = [
        decisions.stream("a").choose(0, lambda random: random.randrange(1000))
        for decisions in (one, other)
    ]
    assert draws[0] == draws[1]


def test_every_adversary_gets_its_seeds() -> None:
    seeds = 10 * -(-len(ADVERSARIES) // ADVERSARIES_IN_TEN)
    met = {options_of(seed, EVENTS).adversary for seed in range(seeds)}
    assert met == {None, *ADVERSARIES}
    alone = {options_of(seed, EVENTS, adversaries=False).adversary for seed in range(100)}
    assert alone == {None}


def test_options_survive_the_file(tmp_path: Path) -> None:
    options = options_of(17, EVENTS)
    text = json.dumps(options.as_dict())
    assert Options.from_dict(json.loads(text)) == options


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        load(path)
