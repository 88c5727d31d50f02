"""Rot in the simulator: what a spoiled disk remembers, what is proved, and the budget per entry."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from quorate.storage.flusher import Flusher
from quorate.storage.layout import PAGE
from verification.disk.inode import KEPT, LOST, TORN
from verification.disk.simulated import SimulatedDisk
from verification.sim.adversaries import SETTINGS
from verification.sim.decisions import Decisions
from verification.sim.options import Options, swarm
from verification.sim.proofs import is_proved, marked_end, proved_bytes
from verification.sim.rot import rot_body, rot_tail
from verification.sim.run import options_of
from verification.sim.violation import Violation
from verification.sim.world import World

if TYPE_CHECKING:
    from quorate.types import Index

EVENTS = 3_000


def quiet(**settings: object) -> Options:
    options = replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={}, uneven=False)
    return replace(options, disk_us=200, **settings)  # type: ignore[arg-type]


def disk_with(data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    file = disk.create("file")
    file.write(0, [data])
    file.sync()
    disk.sync_directory()
    return disk


# --- The disk ---------------------------------------------------------------------------------


def test_a_spoiled_file_remembers_what_was_written() -> None:
    disk = disk_with(b"a" * PAGE)
    disk.spoil("file", 10, b"bad")
    assert bytes(disk.durable["file"][10:13]) == b"bad"
    assert bytes(disk.sound["file"]) == b"a" * PAGE
    disk.lose("file")
    assert "file" not in disk.durable
    assert disk.is_durable("file")
    assert bytes(disk.sound["file"]) == b"a" * PAGE


def test_a_page_that_is_written_over_is_remembered() -> None:
    disk = disk_with(b"a" * PAGE + b"b" * PAGE)
    file = disk.open("file")
    file.write(PAGE, [b"c" * PAGE])
    file.write(0, [b"a" * PAGE])
    file.sync()
    assert disk.files["file"].older == {PAGE: b"b" * PAGE}


@pytest.mark.parametrize("spoils", [False, True])
def test_a_torn_write_may_leave_anything_in_the_page_around_it(spoils: bool) -> None:
    disk = disk_with(b"a" * 3 * PAGE)
    disk.spoils_page = lambda name, position: spoils
    disk.open("file").write(PAGE + 100, [b"b" * (PAGE - 100)])
    disk.open("file").write(2 * PAGE, [b"c" * PAGE])
    disk.power_cut(lambda: TORN)
    data = disk.files["file"].content
    assert (data[PAGE : PAGE + 100] == b"a" * 100) == (not spoils)
    assert disk.sound["file"][PAGE : PAGE + 100] == b"a" * 100, "as if nothing had rotted"
    assert data[:PAGE] == b"a" * PAGE, "no write touched this page"
    assert set(data[2 * PAGE :]) == set(b"ac"), "a write of whole pages tears only itself"


@pytest.mark.parametrize("fate", [KEPT, LOST])
def test_a_write_that_is_not_torn_leaves_its_page_alone(fate: int) -> None:
    disk = disk_with(b"a" * PAGE)
    disk.spoils_page = lambda name, position: True
    disk.open("file").write(100, [b"b"])
    disk.power_cut(lambda: fate)
    assert disk.files["file"].content.count(b"a") == PAGE - (fate == KEPT)


# --- Proofs -----------------------------------------------------------------------------------


def test_what_was_flushed_is_proved_soon() -> None:
    world = World(quiet(), Decisions("proofs", []))
    world.under_fire()
    world.clients.stop()
    world.run_until(lambda: False, world.now + 1_000_000)
    for node in world.nodes.values():
        assert is_proved(node.store)
        (name, end) = max(proved_bytes(node.store).items())
        log = node.store.log
        assert log is not None
        assert (int(name[:16]), end) == (log.segments[-1].number, log.segments[-1].end - PAGE)
    assert world.sometimes["last flush proved"]


def test_a_node_that_stops_proving_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flusher, "unproven", property(lambda self: False))
    world = World(quiet(client_gap_us=50_000), Decisions("proofs", []))
    with pytest.raises(Violation, match=r"proof: n\d does not prove its last flush"):
        world.under_fire()


# --- The budget -------------------------------------------------------------------------------


def old_world() -> World:
    """Nodes whose checkpoints cover many entries."""
    world = World(quiet(segment_bytes=40 * 1024), Decisions("losses", []))
    world.under_fire()
    world.clients.stop()
    world.run_until(lambda: False, world.now + 1_000_000)
    return world


def test_each_entry_keeps_a_majority_less_one_of_whole_copies_on_fit_nodes() -> None:
    world = old_world()
    random = drawn()
    first, second, third = world.nodes.values()
    spoiled: dict[Index, int] = {}
    for node in (first, second, third):
        had = {place.position.index for place in world.losses.spoilable_bodies(node)}
        for _ in range(5):
            assert rot_body(node, random)
        left = {place.position.index for place in world.losses.spoilable_bodies(node)}
        for index in had - left:
            spoiled[index] = spoiled.get(index, 0) + 1
    assert spoiled
    assert max(spoiled.values()) <= 2, "one of three copies is always whole"
    assert not world.losses.unfit


def test_nobody_becomes_unfit_who_has_the_only_whole_copies() -> None:
    world = old_world()
    first, second, third = world.nodes.values()
    assert world.losses.allows(second)
    while rot_body(first, drawn()):
        pass
    while rot_body(second, drawn()):
        pass
    assert not world.losses.allows(third)


def test_unfit_nodes_are_a_minority() -> None:
    world = old_world()
    first, second, _ = world.nodes.values()
    first.stop()
    world.run_until(lambda: not first.stopping, world.now + 1_000_000)
    assert marked_end(first.store) is not None
    assert rot_tail(first, drawn())
    assert world.losses.allows(first)
    assert not world.losses.allows(second)


def drawn() -> Random:
    return Random(1)


# --- The plays --------------------------------------------------------------------------------

PLAYS = {
    "marked_tail": "died while it opened a rotten disk",
    "returned_mark": "earlier mark of a clean stop returned",
    "two_old_rots": "two old entries rotten on two nodes",
    "two_new_rots": "two new entries rotten on two nodes",
    "returned_page": "page of a cut returned",
    "rotten_replay": "entry rotten that a replay comes to",
    "torn_cut": "page torn around a write",
    "full_disks": "leader changed on full disks",
    "big_entry": "batch logged that peers have no room for",
    "late_shortage": "ready leader behind a batch without room",
    "replaced_entries": "leader over two disks full of replaced entries",
}


@pytest.mark.parametrize("name", PLAYS)
def test_a_play_gets_to_its_case(name: str) -> None:
    met = 0
    for seed in range(6):
        settings = {"nodes": 3, "faults": (), "adversary": name, **SETTINGS[name]}
        world = World(replace(swarm(seed, EVENTS), **settings), Decisions(str(seed)))
        world.under_fire()
        met += world.sometimes[PLAYS[name]]
    assert met


def test_every_seed_has_what_is_turned_on() -> None:
    asked = frozenset({"rot_old", "two_old_rots", "torn_pages"})
    options = options_of(0, EVENTS, turned_on=asked)
    assert options.adversary == "two_old_rots"
    assert options.torn_pages
    assert "rot_old" in options_of(5, EVENTS, turned_on=asked).faults
    assert Options.from_dict(options.as_dict()) == options
