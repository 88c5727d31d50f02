"""Each rule of the fleet is given a violation, and must raise the alarm.

Whole nodes are played until they serve a log; then one thing in them, or in what the world
remembers, is made wrong.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from quorate.commands import Receipt
from quorate.errors import Damaged, LogNotFound
from quorate.server.logs.catalog import LogFacts
from quorate.server.manifest import ASIDE
from quorate.storage.manifest import LogState
from quorate.types import Index, Position, Term
from verification.fleet import run as fleet
from verification.fleet.clients import ClientCall, DrawnLog, FleetClients
from verification.fleet.shortages import Shortages
from verification.fleet.world import ELECTION_MS, FleetWorld
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.fleet.node import FleetNode
    from verification.fleet.process import Process
    from verification.fleet.replica import FleetReplica

ELECTION_US = ELECTION_MS * 1000
STRANGE = b"another disk, 16"


class Case:
    """Three nodes that serve one log, and what most checks want of them."""

    def __init__(self) -> None:
        self.world = FleetWorld(7, 3)
        self.world.calm = True
        self.rules = self.world.history
        self.clients = FleetClients(self.world)
        for node in self.world.nodes.values():
            node.start()
        self.one, self.other, _ = self.world.nodes.values()
        self.pass_time(8)
        made = self.clients.begin(ClientCall("create", self.clients.draw("orders"), patient=True))
        self.pass_time(8)
        assert made.succeeded
        self.log: DrawnLog = made.log
        self.incarnation = made.log.incarnation

    def pass_time(self, elections: int) -> None:
        self.world.pass_time(self.world.now + elections * ELECTION_US)

    def process(self, node: FleetNode) -> Process:
        assert node.process is not None
        return node.process

    @property
    def leader(self) -> FleetReplica:
        """Of the catalog."""
        node = next(node for node in self.world.nodes.values() if node.leads_catalog)
        return self.process(node).replicas[self.world.catalog]

    def receipt(self, offset: int, index: int, term: int = 1) -> Receipt:
        return Receipt(offset, 1, Index(index), Term(term), 2)

    def record(self, op: str, name: str, incarnation: int) -> dict[str, Any]:
        return {"op": op, "name": name, "incarnation": incarnation.to_bytes(16, "little")}

    def said(self, node: FleetNode) -> Any:
        return self.process(node).roster.introduce()


# -- logs ---------------------------------------------------------------------------------------


def two_histories(case: Case) -> None:
    case.rules.log(case.world.catalog).positions[0] = Position(Index(1), Term(1), 77)
    case.leader.checked = Index(0)
    case.rules.turned(case.leader)


def two_leaders_of_a_term(case: Case) -> None:
    leader = case.leader
    case.rules.log(case.world.catalog).leaders[leader.engine.core.raft.term] = 99
    leader.led = False
    case.rules.turned(leader)


def a_leader_that_lacks_an_entry(case: Case) -> None:
    known, leader = case.rules.log(case.world.catalog), case.leader
    known.positions.append(Position(Index(1000), Term(1), 77))
    known.terms.append(Term(0))
    leader.led = False
    case.rules.turned(leader)


def a_log_that_comes_back(case: Case) -> None:
    case.rules.deleted.add(5)
    case.rules._take(case.record("create", "clicks", 5))


def a_name_with_two_logs(case: Case) -> None:
    case.rules._take(case.record("create", "orders", 5))


def a_deletion_of_another_log(case: Case) -> None:
    case.rules._take(case.record("delete", "orders", 5))


# -- what clients were told ---------------------------------------------------------------------


def an_offset_that_is_given_twice(case: Case) -> None:
    case.rules.log(case.incarnation).acknowledged[0] = b"one"
    case.rules.appended(case.incarnation, case.receipt(0, 1), b"another")


def an_append_that_is_not_committed(case: Case) -> None:
    case.rules.appended(case.incarnation, case.receipt(0, 1000), b"one")


def a_read_that_misses_a_record(case: Case) -> None:
    case.rules.read(case.incarnation, 5, 4)


def a_create_after_the_deletion(case: Case) -> None:
    case.rules.created(case.incarnation, deleted_before=True)


def a_create_that_is_not_committed(case: Case) -> None:
    case.rules.created(5, deleted_before=False)


def a_deletion_that_is_not_committed(case: Case) -> None:
    case.rules.removed(case.incarnation)


def a_deletion_that_no_node_carried_out(case: Case) -> None:
    case.rules.deleted.add(case.incarnation)
    case.rules.removed(case.incarnation)


def a_log_that_is_refused_as_gone(case: Case) -> None:
    case.clients._judge_refusal(ClientCall("append", case.log), LogNotFound("it is gone"))


def a_log_that_is_gone_in_the_end(case: Case) -> None:
    case.clients.told_made.add(5)
    fleet._check_acknowledged(case.world, case.clients)


def a_log_that_is_there_in_the_end(case: Case) -> None:
    case.clients.told_deleted.add(case.incarnation)
    fleet._check_acknowledged(case.world, case.clients)


# -- disks and starts ---------------------------------------------------------------------------


def a_catalog_on_a_second_disk(case: Case) -> None:
    case.one.directory.storage = STRANGE
    case.rules.opens_catalog(case.process(case.one))


def a_first_start_that_a_node_does_not_know(case: Case) -> None:
    process = case.process(case.one)
    process.manifest.logs.clear()
    case.rules._bound.clear()
    case.rules.opens_catalog(process)


def a_disk_that_is_replaced(case: Case) -> None:
    storage = case.one.directory.storage
    assert storage is not None
    case.rules._bound[storage, case.other.name] = STRANGE
    case.rules.saved(case.one)


def a_disk_that_is_heard_of_and_not_written_down(case: Case) -> None:
    said = case.said(case.other)
    manifest = case.process(case.one).manifest
    for name in manifest.nodes:
        manifest.nodes[name] = manifest.nodes[name]._replace(storage=None)
    case.process(case.one).kept_manifest.save_now()
    case.rules.accepted(case.one, case.other, said)


def an_older_copy_that_is_accepted(case: Case) -> None:
    case.other.rolled_back = True
    case.rules.accepted(case.one, case.other, case.said(case.other))


def an_older_copy_that_a_node_accepts_against_what_it_was_told(case: Case) -> None:
    case.other.rolled_back = True
    case.other.unsuspected_by = {case.one.name}
    said = case.said(case.other)
    case.rules.accepted(case.one, case.other, said)  # it knows nothing else
    said.boot += 1
    case.rules.accepted(case.one, case.other, said)


def an_older_copy_that_goes_on(case: Case) -> None:
    case.one.rolled_back = True
    starts = case.process(case.one).manifest.starts
    starts[max(starts)] += 1
    case.process(case.one).kept_manifest.save_now()
    case.rules.accepted(case.one, case.other, case.said(case.other))


def an_older_copy_that_is_not_marked(case: Case) -> None:
    case.rules.gave_up(case.one)


def a_start_on_a_marked_directory(case: Case) -> None:
    case.one.kill()
    case.one.marked = True
    case.one.start()


def another_disk_that_is_accepted(case: Case) -> None:
    said = case.said(case.other)
    case.other.directory.storage = STRANGE
    case.rules.accepted(case.one, case.other, said)


def a_node_that_another_one_knows_by_another_disk(case: Case) -> None:
    said = case.said(case.other)
    case.one.directory.storage = STRANGE
    case.one.wiped = True
    case.rules.accepted(case.one, case.other, said)


def a_start_that_cannot_be_counted(case: Case) -> None:
    case.one.directory.root.unlink(ASIDE)
    case.one.allocated_ahead = True
    Shortages(case.world, case.clients).full_start(case.one)


# -- manifests ----------------------------------------------------------------------------------


def a_manifest_ahead_of_the_catalog(case: Case) -> None:
    case.rules.records = 0
    case.rules.saved(case.one)


def a_log_that_is_said_to_be_made(case: Case) -> None:
    case.one.directory._durable_logs.pop(case.incarnation)
    case.rules.saved(case.one)


def a_deletion_that_was_not_asked_for(case: Case) -> None:
    logs = case.process(case.one).manifest.logs
    logs[case.incarnation] = logs[case.incarnation]._replace(state=LogState.DELETING)
    case.process(case.one).kept_manifest.save_now()


def files_of_a_log_that_is_forgotten(case: Case) -> None:
    case.rules.dropped(case.one, case.incarnation)


def logs_without_a_manifest(case: Case) -> None:
    case.one.directory.root = type(case.one.directory.root)(case.one.trouble, refusable=True)
    case.rules.check_manifest(case.one)


def a_lost_log_that_is_made_anew(case: Case) -> None:
    case.one.directory.lost_logs.add(5)
    [*case.process(case.one)._make(LogFacts("orders", 5, (), 0))]


def a_halt_on_a_sound_disk(case: Case) -> None:
    def halt() -> None:
        raise Damaged("the manifest is damaged")

    case.process(case.one).run(halt)


def a_demand_that_is_not_met(case: Case) -> None:
    fleet._demand(case.world, "the impossible", lambda: False)


CASES: tuple[tuple[Callable[[Case], None], str], ...] = (
    (two_histories, "one-history"),
    (two_leaders_of_a_term, "one-leader"),
    (a_leader_that_lacks_an_entry, "leader"),
    (a_log_that_comes_back, "deleted"),
    (a_create_after_the_deletion, "deleted"),
    (a_name_with_two_logs, "name"),
    (a_deletion_of_another_log, "name"),
    (an_offset_that_is_given_twice, "offsets"),
    (an_append_that_is_not_committed, "acknowledged"),
    (a_create_that_is_not_committed, "acknowledged"),
    (a_deletion_that_is_not_committed, "acknowledged"),
    (a_log_that_is_refused_as_gone, "acknowledged"),
    (a_log_that_is_gone_in_the_end, "acknowledged"),
    (a_log_that_is_there_in_the_end, "acknowledged"),
    (a_read_that_misses_a_record, "read"),
    (a_deletion_that_no_node_carried_out, "removed"),
    (a_catalog_on_a_second_disk, "wiped"),
    (another_disk_that_is_accepted, "wiped"),
    (a_node_that_another_one_knows_by_another_disk, "wiped"),
    (a_first_start_that_a_node_does_not_know, "first-start"),
    (a_disk_that_is_replaced, "disk"),
    (a_disk_that_is_heard_of_and_not_written_down, "disk"),
    (an_older_copy_that_is_accepted, "rolled-back"),
    (an_older_copy_that_a_node_accepts_against_what_it_was_told, "rolled-back"),
    (an_older_copy_that_goes_on, "rolled-back"),
    (an_older_copy_that_is_not_marked, "rolled-back"),
    (a_start_on_a_marked_directory, "rolled-back"),
    (a_start_that_cannot_be_counted, "full-start"),
    (a_manifest_ahead_of_the_catalog, "manifest"),
    (a_log_that_is_said_to_be_made, "manifest"),
    (a_deletion_that_was_not_asked_for, "manifest"),
    (files_of_a_log_that_is_forgotten, "manifest"),
    (logs_without_a_manifest, "manifest"),
    (a_lost_log_that_is_made_anew, "lost-log"),
    (a_halt_on_a_sound_disk, "halt"),
    (a_demand_that_is_not_met, "liveness"),
)


@pytest.mark.parametrize(("spoil", "rule"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_the_alarm_is_raised(spoil: Callable[[Case], None], rule: str) -> None:
    case = Case()
    with pytest.raises(Violation) as found:
        spoil(case)
    assert found.value.rule == rule


def test_nodes_that_are_well_raise_none() -> None:
    case = Case()
    fleet._recover(case.world, case.clients)
    assert case.world.sometimes["recovered"] == 1
    case.rules.accepted(case.one, case.other, case.said(case.other))


@pytest.mark.parametrize("what", ["replicas", "down", "directory"])
def test_a_node_with_other_logs_than_the_catalog_is_not_at_rest(what: str) -> None:
    case = Case()
    good = [*case.world.nodes.values()]
    assert fleet._quiet(case.world, good)
    process: Any = case.process(case.one)
    if what == "directory":
        del case.one.directory.logs[case.incarnation]
    elif what == "replicas":
        del process.replicas[case.incarnation]
    else:
        process.down[case.incarnation] = SimpleNamespace()
    assert not fleet._quiet(case.world, good)
