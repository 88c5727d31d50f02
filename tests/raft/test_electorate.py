"""Counting majorities, against counting by hand."""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import TYPE_CHECKING

import pytest

from quorate.membership import Membership
from quorate.raft.electorate import Electorate, majority
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = tuple(NodeId(f"n{number}") for number in range(1, 6))


@pytest.mark.parametrize("voters", range(1, 10))
def test_a_majority_is_the_smallest_set_that_always_overlaps(voters: int) -> None:
    def overlap(size: int) -> bool:
        sets = [set(chosen) for chosen in combinations(range(voters), size)]
        return all(one & other for one in sets for other in sets)

    assert majority(voters) == next(size for size in range(1, voters + 1) if overlap(size))


def agree(agreeing: set[NodeId], members: tuple[NodeId, ...]) -> bool:
    return 2 * sum(member in agreeing for member in members) > len(members)


def subsets(nodes: tuple[NodeId, ...]) -> Iterator[tuple[NodeId, ...]]:
    return chain.from_iterable(combinations(nodes, size) for size in range(len(nodes) + 1))


@pytest.mark.parametrize("voters", range(1, 6))
def test_what_a_majority_reached_is_counted_right(voters: int) -> None:
    electorate = Electorate(Membership(NODES[:voters]))
    for values in product(range(4), repeat=voters):
        reached = [
            level for level in range(4) if 2 * sum(value >= level for value in values) > voters
        ]
        assert electorate.reached(dict(zip(NODES, values, strict=False))) == max(reached)


@pytest.mark.parametrize("new", [each for each in subsets(NODES[:4]) if each])
def test_during_a_change_each_set_needs_a_majority_of_its_own(new: tuple[NodeId, ...]) -> None:
    for old in subsets(NODES[:4]):
        electorate = Electorate(Membership(new, (), old))
        for agreeing in map(set, subsets(NODES)):
            both = agree(agreeing, new) and (not old or agree(agreeing, old))
            assert electorate.won(agreeing) is both
            reached = electorate.reached(dict.fromkeys(agreeing, 7))
            assert reached == (7 if both else 0)


def test_neighbouring_memberships_of_a_change_share_a_node_of_any_majorities() -> None:
    for new, old in product([each for each in subsets(NODES[:4]) if each], repeat=2):
        joint = Electorate(Membership(new, (), old))
        for alone in (Electorate(Membership(new)), Electorate(Membership(old))):
            winners = [set(each) for each in subsets(NODES[:4]) if joint.won(each)]
            others = [set(each) for each in subsets(NODES[:4]) if alone.won(each)]
            assert all(one & other for one in winners for other in others)


def test_a_learner_decides_nothing() -> None:
    electorate = Electorate(Membership(NODES[:3], NODES[3:5]))
    assert electorate.voters == set(NODES[:3])
    assert not electorate.won({NODES[0], *NODES[3:5]})
    assert electorate.reached({NODES[0]: 9, NODES[3]: 9, NODES[4]: 9}) == 0


@pytest.mark.parametrize(("new", "old", "fewest"), [(3, 0, 2), (1, 3, 2), (5, 3, 3), (2, 1, 2)])
def test_the_fewest_nodes_that_decide(new: int, old: int, fewest: int) -> None:
    assert Electorate(Membership(NODES[:new], (), NODES[:old])).fewest == fewest
