"""The nodes that decide in one log: every count of voters asks the electorate.

A majority of the voters decides. While a change of members is under way, a majority of the outgoing
voters must agree as well (joint consensus, Raft § 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from quorate.membership import Membership
    from quorate.types import NodeId

__all__ = ["Electorate", "majority"]


def majority(voters: int) -> int:
    """The smallest number such that any two sets of that many voters share one."""
    return voters // 2 + 1


class Electorate:
    """The sets of voters of one membership: one set, or two while a change is under way."""

    __slots__ = ("_sets", "voters")

    def __init__(self, membership: Membership) -> None:
        # The voters of all sets: a node of any of them may campaign.
        self.voters = frozenset((*membership.voters, *membership.outgoing))
        sets = (membership.voters, membership.outgoing)
        # Each set, and how many of it are a majority.
        self._sets = tuple((frozenset(each), majority(len(each))) for each in sets if each)

    def won(self, nodes: Collection[NodeId]) -> bool:
        """Whether ``nodes`` hold a majority of each set. Nodes outside of a set do not count in
        it."""
        return all(len(each.intersection(nodes)) >= needed for each, needed in self._sets)

    def reached(self, values: Mapping[NodeId, int]) -> int:
        """The highest value that a majority of each set is at or above. A voter without a value is
        at 0."""
        reached = [
            sorted([values.get(voter, 0) for voter in each])[-needed] for each, needed in self._sets
        ]
        return min(reached)

    @property
    def fewest(self) -> int:
        """The smallest number of nodes that can decide."""
        return max(needed for _, needed in self._sets)
