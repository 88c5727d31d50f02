"""The memberships of a log: each counts from the moment its entry is in the log (R1).

A membership that counted only when it is committed would let two majorities decide that share no
node: one of the old voters, one of the new ones. So an entry that enters the log changes the
electorate at once, and an entry that is truncated changes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, InvariantBroken
from quorate.membership import LoggedMembership, decode_membership
from quorate.raft.electorate import Electorate
from quorate.types import ORIGIN, EntryKind, Index

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.entry import Entry
    from quorate.membership import Membership
    from quorate.types import NodeId

__all__ = ["Memberships"]


class Memberships:
    """The memberships that the log of one replica brings into force, one after the other."""

    __slots__ = (
        "_named", "_rows", "_unread", "candidates", "electorate", "learners", "members", "newest",
    )  # fmt: skip

    def __init__(self, membership: Membership) -> None:
        # Each membership with the index of its entry, in rising order. The first one is that of the
        # state, or the one that the log began with.
        self._rows = [LoggedMembership(ORIGIN.index, membership)]
        # The entries of this kind whose bodies this disk lost, in rising order.
        self._unread: list[Index] = []
        # The newest membership entry that the disk names, if it was not found; else 0.
        self._named = ORIGIN.index
        # The membership that counts now, its voters, and all nodes of it.
        self.newest: Membership
        self.electorate: Electorate
        self.members: tuple[NodeId, ...]
        # The nodes that may campaign: the voters of all memberships that may still come back. If
        # the newest one is not committed, its voters may all lack it, and only a node that it
        # removes has a log that is long enough to win.
        self.candidates: frozenset[NodeId]
        # The learners of all of them: a learner that an entry removes, which may still be
        # truncated, may have the longest log.
        self.learners: frozenset[NodeId]
        self._count()

    def _count(self) -> None:
        self.newest = self._rows[-1].membership
        self.electorate = Electorate(self.newest)
        self.members = self.newest.members
        rows = [row.membership for row in self._rows]
        self.candidates = frozenset(
            node for each in rows for node in (*each.voters, *each.outgoing)
        )
        self.learners = frozenset(node for each in rows for node in each.learners)

    @property
    def index(self) -> Index:
        """The index of the entry that set the newest membership; 0 if none did."""
        return self._rows[-1].index

    @property
    def known(self) -> bool:
        """Whether the newest membership is known: its entry is not lost on this disk. A node that
        does not know it must not count votes."""
        lost = self._unread[-1] if self._unread else ORIGIN.index
        return max(lost, self._named) <= self.index

    @property
    def indexes(self) -> set[Index]:
        """The membership entries that are known to be in the log, also if they are lost."""
        found = {*(row.index for row in self._rows), *self._unread, self._named}
        return found - {ORIGIN.index}

    def begin(self, applied: LoggedMembership | None, named: Index = ORIGIN.index) -> None:
        """Begin again with the membership of the state; if the state has none, with the one that
        the log began with. The entries after the state are taken next. ``named``: the newest
        membership entry that the disk names."""
        self._rows = [applied or self._rows[0]]
        self._unread = []
        self._named = named
        self._count()

    def found_all(self) -> None:
        """Note that every entry after the state was read: the membership that the disk names is
        among those that were taken, and goes with its entry if that is truncated."""
        self._named = ORIGIN.index

    def take(self, entries: Iterable[Entry]) -> None:
        """Note entries that enter the log. Raises InvariantBroken for a membership that this
        release cannot read."""
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        if not entry.whole:
            self._unread.append(entry.index)
            return
        try:
            membership = decode_membership(entry.body)
        except InvalidArgument as odd:
            raise InvariantBroken(
                f"entry {entry.index} cannot be read by this release: {odd}; upgrade this node"
            ) from odd
        self._rows.append(LoggedMembership(entry.index, membership))
        self._count()

    def note_applied(self, logged: LoggedMembership) -> None:
        """Note a membership that the state has now. If the disk lost its entry at the start, and
        gave it back since, it was not known."""
        if logged.index > self.index:
            self._rows.append(logged)
            self._count()

    def cut(self, first: Index) -> None:
        """Note that the entries from ``first`` on left the log."""
        self._unread = [each for each in self._unread if each < first]
        if self._named >= first > self.index:
            self._named = Index(first - 1)  # an older one may be lost, too
        if self.index >= first:
            while self.index >= first:
                self._rows.pop()
            self._count()

    def settle(self, committed: Index) -> None:
        """Forget the memberships that cannot come back: entries up to ``committed`` stay."""
        if len(self._rows) > 1 and self._rows[1].index <= committed:
            while len(self._rows) > 1 and self._rows[1].index <= committed:
                del self._rows[0]
            self._count()
