"""More disks rot than a group can stand: it may stand still, but loses nothing quietly."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.sim.run import rotten_options, run

SEEDS = range(20, 56)
EVENTS = 6_000


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_nothing_is_lost_quietly_and_whoever_gives_up_says_why() -> None:
    sometimes: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run(rotten_options(seed, EVENTS))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        sometimes += outcome.sometimes
    # What this is about did happen.
    assert sometimes["damage found at open"]
    assert sometimes["stayed down with a damaged disk"] + sometimes["stopped for a damaged disk"]
