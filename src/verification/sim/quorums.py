"""The decisions of a run: which nodes agreed on each win and each commit, and whether they had to.

A leader decides by the members that its own log names, the newest ones, committed or not. The
simulator reads them from the entries by itself (``voter_sets.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from quorate.types import Index
from verification.sim.committed import is_committed
from verification.sim.violation import Violation
from verification.sim.voter_sets import LoggedSets, VoterSets, first_sets, is_membership, read_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.entry import Entry
    from quorate.types import NodeId, Position, Term
    from verification.sim.node import SimulatedNode
    from verification.sim.promises import Promises
    from verification.sim.world import World

__all__ = ["Quorums"]


class Quorums:
    """Judges decisions by the members that were in force."""

    def __init__(self, world: World, committed: Sequence[Entry], promises: Promises) -> None:
        self._world = world
        self._committed = committed
        self._promises = promises
        # The members that the last committed entry set, and those of all other entries that were
        # ever in a log.
        self.settled = first_sets(world.first_voters)
        self._made: dict[tuple[Index, Term], VoterSets] = {}
        # Whether any entry set members.
        self.changed = False

    # -- members -------------------------------------------------------------------------------

    @property
    def in_play(self) -> list[VoterSets]:
        """The members that may be in force at a node, now or later: those that are committed, and
        those that may be."""
        return [self.settled, *self._made.values()]

    def of_log(self, log: list[Entry]) -> LoggedSets:
        """The members that the entries of a process set when it begins."""
        rows = LoggedSets(first_sets(self._world.first_voters))
        for entry in log:
            if is_membership(entry):
                rows.take(self._read(entry))
        return rows

    def _read(self, entry: Entry) -> VoterSets:
        """The members that ``entry`` sets, also if this node lost its body."""
        known = self._made.get((entry.index, entry.term))
        if known is None and is_committed(self._committed, entry.position):
            entry = self._committed[entry.index - 1]
        return known or read_sets(entry)

    def entered(
        self, node: SimulatedNode, rows: LoggedSets, entry: Entry, log: list[Entry]
    ) -> None:
        """Note that ``entry``, which sets members, stands in the log of ``node`` now. ``log``: its
        entries before the turn."""
        key = (entry.index, entry.term)
        row, before = self._read(entry), rows.newest
        if key not in self._made and not is_committed(self._committed, entry.position):
            self._made[key] = row
            self.changed = True
            self._check_made(node, row, before, log)
        rows.take(row)

    def _check_made(
        self, node: SimulatedNode, row: VoterSets, before: VoterSets, log: list[Entry]
    ) -> None:
        """I11, when a leader logs ``row``: the members before are committed, and so is each entry
        of an earlier term."""
        earlier = bisect_left(log, row.term, key=lambda entry: entry.term)
        if max(before.index, earlier) > len(self._committed):
            raise Violation(
                "I11", f"{node.name} logs {row}, committed is {len(self._committed)}: {before}"
            )
        if not row.shares_majorities(before):
            raise Violation("I11", f"{node.name} logs {row}: no majority in common with {before}")
        if row.intent < before.intent:
            raise Violation("I11", f"{node.name} serves request {row.intent} after {before.intent}")
        self._world.sometimes["membership logged"] += 1
        self._world.sometimes["joint membership logged"] += bool(row.outgoing)

    def committed(self, new: Sequence[Entry]) -> None:
        """Note entries that were committed for the first time."""
        for entry in new:
            if is_membership(entry):
                self.settled = read_sets(entry)
        last = len(self._committed)
        if self._made:
            self._made = {key: row for key, row in self._made.items() if row.index > last}

    # -- decisions -----------------------------------------------------------------------------

    def check_win(self, node: SimulatedNode, term: Term, rows: LoggedSets) -> None:
        """I16: a leader was elected by the sets in force by its own log. It may be a learner, which
        campaigns last, and counts only the voters."""
        row = rows.before(term)
        if not any(node.name in each.members for each in rows.since(Index(0))):
            raise Violation("I16", f"{node.name} won {term}, and never was a member: {row}")
        voted = {name for name in row.deciding if self._promises.voted(name, term) == node.name}
        own = node.store.durable.vote
        if own is not None and (own.term, own.vote) == (term, node.name):
            voted.add(node.name)
        if not row.agreed(voted.__contains__):
            raise Violation("I16", f"{node.name} won {term} with {sorted(voted)}: {row}")
        self._check_memory(row.deciding & voted)
        self._world.sometimes["leader won by two majorities"] += bool(row.outgoing)

    def check_commit(
        self, node: SimulatedNode, position: Position, rows: LoggedSets, acks: dict[NodeId, Index]
    ) -> None:
        """I16 and I7: a leader commits what the sets in force by its own log acknowledged, and what
        is on their disks."""
        row, world = rows.newest, self._world
        have = {name for name in row.deciding if acks.get(name, 0) >= position.index}
        if world.was_durable(node, position):
            have.add(node.name)
        if not row.agreed(have.__contains__):
            raise Violation(
                "I16", f"{node.name} committed {position}, acknowledged by {sorted(have)}: {row}"
            )
        self.check_durable(node, position, row)
        self._check_memory(row.deciding & have)
        world.sometimes["committed by two majorities"] += bool(row.outgoing)

    def check_durable(self, node: SimulatedNode, position: Position, row: VoterSets) -> None:
        nodes, world = self._world.nodes, self._world
        if not row.agreed(lambda name: name in nodes and world.was_durable(nodes[name], position)):
            copies = world.durable_copies(position)
            raise Violation("I7", f"{node.name} committed {position}, {copies} copies: {row}")

    def _check_memory(self, counted: set[NodeId]) -> None:
        """I17: each node that was counted has its vote record of all earlier lives on its disk."""
        for name in counted:
            told = self._promises.last_vote(name)
            record = self._world.nodes[name].store.durable.vote
            if told is not None and (
                record is None
                or record.term < told[0]
                or (record.term == told[0] and record.vote != told[1])
            ):
                raise Violation("I17", f"{name} was counted, voted {told} and has {record}")
