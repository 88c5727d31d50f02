"""Members that change in the simulator: its own reading of them, lost disks, and what runs meet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from quorate.entry import Entry, make_entry
from quorate.membership import Membership, encode_membership
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Term
from verification.sim.decisions import Decisions
from verification.sim.options import MEMBER_FAULTS, swarm
from verification.sim.run import options_of, run
from verification.sim.voter_sets import LoggedSets, VoterSets, first_sets, read_sets
from verification.sim.world import World

EVENTS = 2_000


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"n{number}") for number in numbers)


def sets(
    voters: tuple[int, ...], outgoing: tuple[int, ...] = (), index: int = 0, term: int = 0
) -> VoterSets:
    return VoterSets(Index(index), Term(term), nodes(*voters), nodes(*outgoing), (), 0)


def entry_of(membership: Membership) -> Entry:
    return make_entry(ORIGIN, Term(3), EntryKind.MEMBERSHIP, encode_membership(membership))


@pytest.mark.parametrize(
    "membership",
    [
        Membership(nodes(1)),
        Membership(nodes(1, 2, 3), learners=nodes(4), intent=2**40),
        Membership(nodes(4, 5, 6), outgoing=nodes(1, 2, 3), learners=nodes(1)),
        Membership((NodeId("n2#2"), NodeId("ä")), priorities=((NodeId("ä"), 7),)),
    ],
    ids=str,
)
def test_the_simulator_reads_members_by_itself(membership: Membership) -> None:
    row = read_sets(entry_of(membership))
    assert (row.index, row.term, row.intent) == (1, 3, membership.intent)
    assert row.voters == membership.voters
    assert row.outgoing == membership.outgoing
    assert row.learners == membership.learners
    assert row.members == membership.members


def test_each_set_needs_a_majority_of_its_own() -> None:
    row = sets((4, 5, 6), (1, 2, 3))
    assert row.agreed({*nodes(1, 2, 4, 5)}.__contains__)
    assert not row.agreed({*nodes(1, 2, 3, 4)}.__contains__)
    assert not row.agreed({*nodes(3, 4, 5, 6)}.__contains__)
    assert not sets((1, 2, 3, 4)).agreed({*nodes(1, 2)}.__contains__)


@pytest.mark.parametrize(
    ("one", "two", "share"),
    [
        (sets((1, 2, 3)), sets((1, 2, 3)), True),
        (sets((1, 2, 3)), sets((1, 2, 3, 4)), True),
        (sets((1, 2, 3)), sets((1, 2, 4)), False),
        (sets((1, 2, 3)), sets((1, 2, 3, 4, 5)), False),
        (sets((1,)), sets((2,)), False),
        (sets((1, 2, 3)), sets((4, 5, 6), (1, 2, 3)), True),
        (sets((4, 5, 6), (1, 2, 3)), sets((4, 5, 6)), True),
        (sets((4, 5, 6), (1, 2, 3)), sets((7, 8, 9)), False),
    ],
)
def test_two_memberships_share_majorities_or_not(
    one: VoterSets, two: VoterSets, share: bool
) -> None:
    assert one.shares_majorities(two) == share
    assert two.shares_majorities(one) == share


def test_the_members_of_a_log_follow_its_entries_both_ways() -> None:
    first = first_sets(nodes(1))
    learns, joint, last = (
        sets((1,), index=4, term=2),
        sets((2,), (1,), 6, 2),
        sets((2,), (), 7, 3),
    )
    rows = LoggedSets(first)
    for row in (learns, joint, last):
        rows.take(row)
    assert rows.newest == last
    assert rows.before(Term(3)) == joint
    assert rows.before(Term(1)) == first
    assert [*rows.since(Index(5))] == [learns, joint, last]
    rows.cut(6)
    assert rows.newest == joint
    rows.cut(3)
    assert rows.newest == first


@pytest.fixture
def world() -> World:
    options = replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={})
    made = World(options, Decisions("members", []))
    made.under_fire()
    return made


def test_a_minority_of_each_set_may_lose_its_disk(world: World) -> None:
    lost, leader = world.lost_disks, world.leader()
    assert leader is not None
    one, two = (node for node in world.nodes.values() if node is not leader)
    assert lost.allows(one)
    lost.lose(one)
    assert one.dead
    assert not lost.allows(two)
    assert not lost.allows(one), "it is lost already"
    assert lost.next_disk(one.name) == f"{one.name}#2"
    new = world.add_node(lost.next_disk(one.name))
    assert lost.next_disk(new.name) == f"{one.name}#3"
    assert lost.allows(new), "it is no voter"
    world.clients.changes.ask(leader, [leader.name, new.name], forced=True)
    assert not lost.allows(new), "it is to be one of two voters"


def test_the_disk_of_a_single_voter_is_not_lost() -> None:
    options = replace(swarm(8, EVENTS), nodes=1, faults=(), noise={}, limits={})
    world = World(options, Decisions("members", []))
    assert not world.lost_disks.allows(world.nodes[NodeId("n1")])


@pytest.mark.sim
def test_members_change_amid_faults_and_the_log_goes_on() -> None:
    met: Counter[str] = Counter()
    for seed in (3, 4, 5, 6):
        outcome = run(options_of(seed, 6_000, turned_on=frozenset(MEMBER_FAULTS)))
        assert outcome.violation is None
        met += outcome.sometimes
    assert {"members changed", "joint membership logged", "disk lost"} <= met.keys()


def test_seeds_change_members_in_their_share() -> None:
    seeds = [{*swarm(seed, EVENTS).faults} for seed in range(400)]
    changing = [faults for faults in seeds if faults.intersection(MEMBER_FAULTS)]
    assert 80 <= len(changing) <= 160
    assert all("replace" in faults for faults in changing if "wipe" in faults)
