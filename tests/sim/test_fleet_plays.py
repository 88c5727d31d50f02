"""Plays of five simulated nodes: each comes to its point in some seed, and breaks no rule there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from quorate.testing.fleet.clients import Clients
from quorate.testing.fleet.faults import Faults
from quorate.testing.fleet.plays import told_earlier, told_twice
from quorate.testing.fleet.run import UNDER_FIRE_US
from quorate.testing.fleet.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.testing.fleet.plays import Play

SEEDS = 4


def play_out(play: Callable[[World, Faults], Play], seed: int) -> Counter[str]:
    world = World(seed, 5)
    clients = Clients(world)
    clients.run()
    faults = Faults(world, clients)
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
def test_an_older_copy_finds_no_majority(play: Callable[[World, Faults], Play], point: str) -> None:
    met = sum((play_out(play, seed) for seed in range(SEEDS)), Counter[str]())
    assert met[point] > SEEDS // 2
    assert met["older copy halted"]
