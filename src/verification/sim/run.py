"""Runs one seed, or the recorded choices of one, and reports the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from traceback import extract_tb
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.errors import QuorateError, ReplicaHalted
from verification.sim.adversaries import ADVERSARIES, SETTINGS
from verification.sim.decisions import Choice, Decisions
from verification.sim.options import swarm
from verification.sim.recovery_phase import (
    end_over_budget,
    recover_cluster,
    serve_without_room,
)
from verification.sim.violation import Violation
from verification.sim.world import World

if TYPE_CHECKING:
    from collections import Counter

    from verification.sim.options import Options

__all__ = ["Outcome", "options_of", "rotten_options", "run"]


@dataclass(slots=True)
class Outcome:
    """The result of one run."""

    options: Options
    events: int
    virtual_us: int
    trace: int
    violation: Violation | None
    acked: int
    reads: int
    faults: int
    choices: list[Choice] = field(repr=False)
    sometimes: Counter[str] = field(repr=False)


# The number of seeds out of ten that run a scripted adversary instead of random faults.
ADVERSARIES_IN_TEN = 3


def options_of(
    seed: int,
    events: int,
    *,
    adversaries: bool = True,
    turned_on: frozenset[str] = frozenset(),
) -> Options:
    """The options of ``seed``. Faults and switches of ``turned_on`` are on; an adversary of
    ``turned_on`` takes the place of the one that is its turn."""
    options = swarm(seed, events, turned_on)
    if not adversaries or seed % 10 >= ADVERSARIES_IN_TEN:
        return options
    turn = seed // 10 * ADVERSARIES_IN_TEN + seed % 10
    names = [name for name in ADVERSARIES if name in turned_on] or list(ADVERSARIES)
    name = names[turn % len(names)]
    settings = {"nodes": 3, "faults": (), "uneven_sizes": False, "adversary": name}
    return replace(options, **{**settings, **SETTINGS.get(name, {})})


def rotten_options(seed: int, events: int, turned_on: frozenset[str] = frozenset()) -> Options:
    """The options of ``seed`` with disks that rot beyond what a group can stand."""
    options = swarm(seed, events, turned_on)
    faults = tuple(sorted({*options.faults, "kill", "power", "rot"}))
    return replace(options, nodes=max(3, options.nodes), faults=faults, over_budget=True)


def run(options: Options, choices: list[Choice] | None = None) -> Outcome:
    """Run ``options`` with drawn choices, or with recorded ones."""
    world = World(options, Decisions(str(options.seed), choices))
    violation = None
    try:
        world.under_fire()
        if options.over_budget:
            end_over_budget(world)
        elif options.stays_full:
            serve_without_room(world)
        else:
            recover_cluster(world)
    except Violation as found:
        violation = found
    except ReplicaHalted as halt:
        # A check looked at a replica whose own state contradicts itself.
        violation = Violation("halt", str(halt))
    except (QuorateError, LookupError, ValueError, TypeError, AttributeError) as error:
        place = extract_tb(error.__traceback__)[-1]
        violation = Violation("harness", f"{error!r} at {place.name}:{place.lineno}")
    for node in world.nodes.values():
        world.note_refusals(node)
    return Outcome(
        options=options,
        events=world.events,
        virtual_us=world.now,
        trace=crc32c(repr(world.invariants.ends()).encode(), world.trace),
        violation=violation,
        acked=world.clients.acked,
        reads=world.clients.read,
        faults=world.faults.injected,
        choices=world.decisions.noted(),
        sometimes=world.sometimes,
    )
