"""Runs one seed: first with faults, then healed, when the cluster must come back by itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from traceback import extract_tb
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.errors import OffsetMismatch, QuorateError
from quorate.server.logs import catalog as catalogs
from verification.fleet.clients import ClientCall, DrawnLog, FleetClients
from verification.fleet.faults import FleetFaults
from verification.fleet.world import ELECTION_MS, FleetWorld
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from verification.fleet.node import FleetNode

__all__ = ["EXPECTED", "FleetOutcome", "run"]

# How long faults last, and how long a healed cluster may take for each demand.
UNDER_FIRE_US = 50 * ELECTION_MS * 1000
PATIENCE_US = 40 * ELECTION_MS * 1000

# Each of these must be met in some seed: a simulator that never gets into trouble proves nothing.
EXPECTED = (
    "append answered",
    "create answered",
    "create refused: OFFSET_MISMATCH",
    "create retried after delete",
    "delete answered",
    "delete retried",
    "first start that waited for a late node",
    "folder of a log restored",
    "killed amid deletions",
    "log deleted while there is no room to make it",
    "lists that overlap held a first start",
    "lost folder of a log reported",
    "node outlived a copy of it",
    "power cut within a manifest replacement",
    "put off: Make",
    "read answered",
    "recovered",
    "rolled back",
    "rolled-back node refused",
    "set answered",
    "started from a table",
    "started on a full disk",
    "wiped",
    "wiped node refused",
)


@dataclass(slots=True)
class FleetOutcome:
    """The result of one seed."""

    seed: int
    nodes: int
    events: int
    violation: Violation | None
    sometimes: Counter[str]
    # Stands for all committed entries and their order.
    trace: int


def run(seed: int) -> FleetOutcome:
    random = Random(f"fleet options/{seed}")
    world = FleetWorld(seed, random.choice((3, 3, 3, 4, 5)))
    violation = None
    # Few deletions are remembered in most seeds: late creates then meet the horizon.
    with _deletions_remembered(random.choice((1, 2, catalogs.GONE_MAX))):
        try:
            clients = _under_fire(world)
            _recover(world, clients)
        except Violation as found:
            violation = found
        except (QuorateError, LookupError, ValueError, TypeError, AttributeError) as error:
            place = extract_tb(error.__traceback__)[-1]
            violation = Violation("crash", f"{error!r} at {place.name}:{place.lineno}")
    trace = crc32c(repr(world.history.trace).encode())
    return FleetOutcome(seed, len(world.nodes), world.events, violation, world.sometimes, trace)


@contextmanager
def _deletions_remembered(most: int) -> Iterator[None]:
    before, catalogs.GONE_MAX = catalogs.GONE_MAX, most
    try:
        yield
    finally:
        catalogs.GONE_MAX = before


def _under_fire(world: FleetWorld) -> FleetClients:
    clients = FleetClients(world)
    faults = FleetFaults(world, clients)
    clients.run()
    faults.run()
    world.pass_time(UNDER_FIRE_US)
    return clients


# -- recovery ----------------------------------------------------------------------------------


def _recover(world: FleetWorld, clients: FleetClients) -> None:
    """Heal everything: no more faults, every node is up, spoiled ones too."""
    world.calm = True
    world.cuts.clear()
    for node in world.nodes.values():
        node.trouble.refusal = 0
        node.trouble.calls_left = None
        node.slowness = 1
        node.start()
    good = [node for node in world.nodes.values() if node.good]
    if not _formed_in_time(world, good):
        return
    _demand(world, "the catalog has a leader", lambda: any(node.leads_catalog for node in good))
    fresh = _create_fresh(world, clients)
    for name, incarnation in sorted(world.history.live.items()):
        _demand_append(world, clients, DrawnLog(name, incarnation, 0))
    _demand_call(world, clients, ClientCall("delete", fresh, patient=True))
    _demand(world, "every node has the logs of the catalog", lambda: _quiet(world, good))
    _check_acknowledged(world, clients)
    world.sometimes["recovered"] += 1


def _formed_in_time(world: FleetWorld, good: list[FleetNode]) -> bool:
    """Whether every node that is not spoiled takes part.

    A disk that was lost before all nodes had made their catalogs stops those that had not; then the
    run demands only safety.
    """
    spoiled = len(good) < len(world.nodes)

    def formed() -> bool:
        return all(node.process is not None and node.process.takes_part for node in good)

    if spoiled and not all(_has_formed(node) for node in good):
        world.pass_time(world.now + PATIENCE_US, formed)
        if not formed():
            world.sometimes["first start stopped by a lost disk"] += 1
            return False
        return True
    _demand(world, "every node takes part", formed)
    return True


def _has_formed(node: FleetNode) -> bool:
    manifest = node.directory.durable_manifest
    return manifest is not None and manifest.formed


def _demand(world: FleetWorld, what: str, reached: Callable[[], bool]) -> None:
    if not world.pass_time(world.now + PATIENCE_US, reached):
        raise Violation("liveness", f"not in {PATIENCE_US // 1_000_000} s: {what}")


def _create_fresh(world: FleetWorld, clients: FleetClients) -> DrawnLog:
    """Make a log under a new name. A client that is told to draw another incarnation does so:
    deletions that were asked for before may be carried out and forgotten meanwhile."""
    deadline = world.now + PATIENCE_US
    while True:
        call = clients.begin(ClientCall("create", clients.draw("fresh"), patient=True))
        _demand_answer(world, call)
        if call.succeeded:
            return call.log
        if not isinstance(call.answer, OffsetMismatch) or world.now > deadline:
            raise Violation("liveness", f"create of {call.log} is answered by {call.answer!r}")


def _demand_answer(world: FleetWorld, call: ClientCall) -> None:
    _demand(world, f"{call.kind} of {call.log} is answered", lambda: call.over)


def _demand_call(world: FleetWorld, clients: FleetClients, call: ClientCall) -> None:
    _demand_answer(world, clients.begin(call))
    if not call.succeeded:
        raise Violation("liveness", f"{call.kind} of {call.log} is answered by {call.answer!r}")


def _demand_append(world: FleetWorld, clients: FleetClients, log: DrawnLog) -> None:
    """Demand that an append succeeds, unless the log is deleted meanwhile: a deletion that was
    asked for before may come late."""
    call = clients.begin(ClientCall("append", log, patient=True))
    deleted = world.history.deleted
    _demand(world, f"{log} takes appends", lambda: call.over or log.incarnation in deleted)
    call.over = True


def _quiet(world: FleetWorld, good: list[FleetNode]) -> bool:
    """Whether every node has all committed entries, and exactly the logs of the catalog."""
    history = world.history
    for node in good:
        process = node.process
        if process is None or process.catalog.applied != history.records:
            return False
        wanted = {world.catalog, *history.live.values()}
        lost = wanted & node.lost_logs
        if {*process.replicas} != wanted - lost or {*process.down} != lost:
            return False
        missing = lost - node.directory.older_logs
        if {*process.manifest.logs} != wanted or {*node.directory.logs} != wanted - missing:
            return False
        for incarnation, replica in process.replicas.items():
            positions = history.log(incarnation).positions
            if replica.engine.core.raft.committed != len(positions):
                return False
        if any(history.log(one).intent != history.wanted_intent(one) for one in wanted):
            return False
    return True


def _check_acknowledged(world: FleetWorld, clients: FleetClients) -> None:
    """Check that the answers to clients hold in the end."""
    history = world.history
    live = {*history.live.values()}
    for incarnation in clients.told_made - history.deleted - live:
        raise Violation("acknowledged", f"log {incarnation:x} was created and is gone")
    for incarnation in clients.told_deleted & live:
        raise Violation("acknowledged", f"log {incarnation:x} was deleted and is there")
