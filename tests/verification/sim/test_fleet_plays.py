"""Plays of five simulated nodes: each comes to its point in some seed, and breaks no rule there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from verification.fleet.clients import FleetClients
from verification.fleet.faults import FleetFaults
from verification.fleet.plays import told_earlier, told_twice
from verification.fleet.run import UNDER_FIRE_US
from verification.fleet.world import FleetWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.fleet.plays import Play

SEEDS = 4


def play_out(play: Callable[[FleetWorld, FleetFaults], Play], seed: int) -> Counter[str]:
    world = FleetWorld(seed, 5)
    clients = FleetClients(world)
    clients.run()
    faults = FleetFaults(world, clients)
    faults.begin(play)
    world.pass_time(UNDER_FIRE_US)
    return world.sometimes


@pytest.mark.sim
@pytest.mark.parametrize(
    ("play", "point"),
    [
        (told_earlier, "a node was told an earlier start than it was shown"),
        (told_twice, "a node was told two starts that contradict each other"),
    ],
)
def test_an_older_copy_finds_no_majority(
    play: Callable[[FleetWorld, FleetFaults], Play], point: str
) -> None:
    met = sum((play_out(play, seed) for seed in range(SEEDS)), Counter[str]())
    assert met[point] > SEEDS // 2
    assert met["older copy halted"]
