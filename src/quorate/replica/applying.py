"""The state of one replica: how it is restored at a start, what a turn applies to it, and the reads
that wait for it.

A turn applies a bounded number of entries: one answer of a slow peer may commit very many, and all
logs of a node share one thread. So the state may be behind the commit for some turns, and a read
that is confirmed waits until the state has reached its index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Busy, Corrupt, InvalidArgument
from quorate.raft.log import PIECE_BYTES
from quorate.raft.output import EventKind
from quorate.replica.engine_io import Answer, ReadAnswer
from quorate.replica.state_check import COMPARED_EVERY
from quorate.state.state import State
from quorate.types import EntryKind, Index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.entry import Entry
    from quorate.raft.state import RaftState
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.damage import DiskFinding

__all__ = ["Applier"]


class Applier:
    """Applies the committed entries to the state, in their order, and answers reads from it."""

    __slots__ = ("_apply_max", "_raft", "reads", "state")

    def __init__(self, raft: RaftState, checkpoint: Checkpoint | None, apply_max: int) -> None:
        self._raft = raft
        self._apply_max = apply_max
        # The confirmed reads that wait for the state, each with its token and index.
        self.reads: list[tuple[int, Index]] = []
        self.state = State()
        if checkpoint is not None:
            self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Start from ``checkpoint``; from the beginning of the log if it cannot be decoded."""
        raft, index = self._raft, checkpoint.position.index
        try:
            self.state = State.decode(checkpoint.sections)
        except InvalidArgument as odd:
            detail = f"unusable checkpoint: {odd}; the log was replayed from its beginning"
            raft.report(EventKind.DAMAGED, index=index, detail=detail)
        else:
            raft.applied = index

    def replay(self, named: Index) -> None:
        """Apply the entries after the checkpoint that this disk proves to be committed. ``named``:
        the newest membership entry that the disk names."""
        raft, last = self._raft, self._applicable
        for entry in raft.log.walk_whole(Index(raft.applied + 1), Index(last + 1)):
            self.state.apply(entry)
            raft.applied = entry.index
        if raft.applied < last:
            # A sealed segment is verified only when it is read: the damage is found only now.
            raft.without_body.add(Index(raft.applied + 1))
        self.state.take_work()
        self._find_memberships(named)

    def _find_memberships(self, named: Index) -> None:
        """Find the memberships that are set after the state: each counts from the moment it is in
        the log (R1), also behind an entry that this disk lost."""
        raft = self._raft
        memberships, log = raft.memberships, raft.log
        memberships.begin(self.state.membership, named)
        index, last = raft.applied, log.last_index
        holes = False
        while index < last:
            try:
                for entry in log.walk(Index(index + 1), Index(last + 1)):
                    memberships.take((entry,))
                    index = entry.index
            except Corrupt:
                index, holes = Index(index + 1), True
        if not holes:
            memberships.found_all()

    @property
    def _applicable(self) -> Index:
        """The last committed index before the first entry that this disk lost: none is skipped."""
        raft = self._raft
        committed, lost = raft.committed, raft.lost
        return committed if lost is None else min(committed, Index(lost - 1))

    def apply(self, compare: Callable[[Index], None]) -> bool:
        """Apply committed entries, and call ``compare`` after each that all replicas compare.
        Returns whether entries are left for another turn, which is to come at once.

        The entries of a turn, with the producers and attempts that they change, are ``apply_max``
        at most, but for the last entry.
        """
        raft, state, target = self._raft, self.state, self._applicable
        if raft.applied >= target:
            return False
        start, left = Index(raft.applied + 1), self._apply_max
        stop = min(Index(target + 1), Index(start + left))
        before = raft.applied
        for entry in self._next_entries(start, stop):
            state.apply(entry)
            raft.applied = entry.index
            if entry.kind is EntryKind.MEMBERSHIP and state.membership is not None:
                raft.memberships.note_applied(state.membership)
            if entry.index % COMPARED_EVERY == 0:
                compare(entry.index)
            left -= 1
            if state.work >= left:
                break
        return before < raft.applied < target

    def _next_entries(self, start: Index, stop: Index) -> Sequence[Entry]:
        """Entries from ``start`` on, at most up to ``stop`` - 1.

        They are only on disk if the disk did not give back one of them for a while. Then they come
        piece by piece, and end before the next entry that is lost.
        """
        raft = self._raft
        if start >= raft.log.first_in_memory:
            return raft.log.entries(start, stop)
        try:
            found = raft.log.slice(start, stop - start, PIECE_BYTES)
        except Busy:
            return ()  # a chore looks at its segment first
        if not found:
            raft.without_body.add(start)
        return found

    def note_finding(self, finding: DiskFinding) -> None:
        """Take what the reads of the log found out about its disk.

        Entries that are not applied are in memory, unless they are behind one that is lost: a bad
        copy of theirs on disk does not hinder the state.
        """
        raft = self._raft
        if finding.damage is not None:
            raft.report(EventKind.DAMAGED, detail=str(finding.damage))
        raft.without_body.update(index for index in finding.bad if index <= raft.applied)
        raft.without_body.difference_update(finding.readable)

    # -- reads ---------------------------------------------------------------------------------

    def confirm(self, token: int, index: Index) -> None:
        """Take a read that is answered once the state has reached ``index``."""
        self.reads.append((token, index))

    def answer_reads(self, answers: list[Answer]) -> None:
        """Answer the reads whose index the state has reached, or cannot reach because of a lost
        entry."""
        applied, lost = self._raft.applied, self._raft.lost
        waiting = []
        for token, index in self.reads:
            if index <= applied:
                answers.append(Answer(token, ReadAnswer(applied, self.state.end)))
            elif lost is not None and lost <= index:
                answers.append(Answer(token, self.damaged(lost)))
            else:
                waiting.append((token, index))
        self.reads = waiting

    def damaged(self, lost: Index) -> Corrupt:
        """The error of a read that needs the entry ``lost``."""
        node = self._raft.node
        return Corrupt(f"entry {lost} is damaged on this disk: {node} cannot answer; ask another")
