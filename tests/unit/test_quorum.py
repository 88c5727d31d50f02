"""Counting majorities, against counting by hand."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from quorate.raft.quorum import majority, reached_by_majority


@pytest.mark.parametrize("voters", range(1, 10))
def test_a_majority_is_the_smallest_set_that_always_overlaps(voters: int) -> None:
    def overlap(size: int) -> bool:
        sets = [set(chosen) for chosen in combinations(range(voters), size)]
        return all(one & other for one in sets for other in sets)

    assert majority(voters) == next(size for size in range(1, voters + 1) if overlap(size))


@pytest.mark.parametrize("voters", range(1, 6))
def test_what_a_majority_reached_is_counted_right(voters: int) -> None:
    for values in product(range(4), repeat=voters):
        reached = [
            level for level in range(4) if 2 * sum(value >= level for value in values) > voters
        ]
        assert reached_by_majority(values) == max(reached)
