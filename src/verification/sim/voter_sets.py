"""The sets of voters that decide, by the simulator's own account.

Reads the bodies of MEMBERSHIP entries by itself and works out which sets had to agree. It shares no
code with ``quorate/membership.py`` and the electorate of the core, which may have the bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.types import EntryKind, Index, NodeId, Term
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from quorate.entry import Entry

__all__ = ["LoggedSets", "VoterSets", "first_sets", "is_membership", "majority", "read_sets"]

# Where the body of the entry has the numbers of its voters, outgoing voters and learners; its
# intent; and the first member.
COUNTS = slice(4, 7)
INTENT = slice(8, 16)
MEMBERS_AT = 16


def majority(nodes: Collection[NodeId]) -> int:
    return len(nodes) // 2 + 1


class VoterSets(NamedTuple):
    """The members that one entry sets."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: Term
    voters: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    intent: int
    # The members of priority 0: they lead only while no other voter can.
    leads_last: frozenset[NodeId] = frozenset()

    @property
    def sets(self) -> tuple[tuple[NodeId, ...], ...]:
        """Each of these needs a majority of its own."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    @property
    def deciding(self) -> set[NodeId]:
        """The nodes that stand in any of the sets."""
        return {*self.voters, *self.outgoing}

    @property
    def members(self) -> tuple[NodeId, ...]:
        """All nodes that hold the log, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))

    @property
    def fewest(self) -> int:
        """The smallest number of nodes that can decide."""
        return max(majority(each) for each in self.sets)

    def agreed(self, says_yes: Callable[[NodeId], bool]) -> bool:
        """Whether a majority of each set says yes."""
        return all(sum(map(says_yes, each)) >= majority(each) for each in self.sets)

    def shares_majorities(self, other: VoterSets) -> bool:
        """Whether each decision here has a node in common with each decision there: a majority of
        some set here meets every majority of some set there."""
        return any(
            majority(one) + majority(two) > len({*one, *two})
            for one in self.sets
            for two in other.sets
        )


def first_sets(voters: Iterable[NodeId]) -> VoterSets:
    """The members that a log begins with: no entry sets them."""
    return VoterSets(Index(0), Term(0), tuple(voters), (), (), 0)


def read_sets(entry: Entry) -> VoterSets:
    """The members that a MEMBERSHIP entry sets."""
    body = entry.body
    counts = body[COUNTS]
    names = []
    leads_last = set()
    position = MEMBERS_AT
    for _ in range(sum(counts)):
        end = position + 2 + body[position]
        names.append(NodeId(body[position + 2 : end].decode()))
        if not body[position + 1]:
            leads_last.add(names[-1])
        position = end
    if any(body[position:]) or len({*names[: counts[0]]}) != counts[0]:
        raise Violation("members", f"entry {entry.index} has an odd body: {body.hex()}")
    voters, both = counts[0], counts[0] + counts[1]
    return VoterSets(
        entry.index,
        entry.term,
        tuple(names[:voters]),
        tuple(names[voters:both]),
        tuple(names[both:]),
        int.from_bytes(body[INTENT], "little"),
        frozenset(leads_last),
    )


class LoggedSets:
    """The members that one log brought into force, entry by entry."""

    __slots__ = ("_rows",)

    def __init__(self, first: VoterSets) -> None:
        self._rows = [first]

    @property
    def newest(self) -> VoterSets:
        """The members that count: the entry of this log that set them need not be committed."""
        return self._rows[-1]

    def take(self, row: VoterSets) -> None:
        self._rows.append(row)

    def cut(self, last: int) -> None:
        """Note that the entries after ``last`` left the log."""
        while self._rows[-1].index > last:
            self._rows.pop()

    def before(self, term: Term) -> VoterSets:
        """The members that counted when ``term`` was won: those that entries of earlier terms
        set."""
        return next(row for row in reversed(self._rows) if row.term < term or not row.index)

    def since(self, index: Index) -> Sequence[VoterSets]:
        """The members that counted for the entry at ``index``, and all that came after them."""
        first = max(place for place, row in enumerate(self._rows) if row.index <= index)
        return self._rows[first:]


def is_membership(entry: Entry) -> bool:
    return entry.kind is EntryKind.MEMBERSHIP
