"""A disk that remembers what was synced and forgets the rest, as real ones do.

Each file has a durable image and a list of writes that were not synced yet. A killed process
leaves those writes readable; a power cut keeps each of them, loses it or tears it. After a failed
sync they stay readable and no later sync covers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.flusher import VOTE_COPIES
from quorate.storage.recovery import Image
from quorate.storage.steps import File, Step, Sync, Truncate, WriteEntries, WriteVote
from quorate.types import ORIGIN, Index, Position, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.entry import Entry

__all__ = ["Disk", "Fate"]

# What a power cut makes of one un-synced write: "kept", "lost" or "torn".
Fate = str


class Disk:
    """One node's disk, at the level of vote records and entries."""

    def __init__(self) -> None:
        # The copies that exist; None is one that is not whole.
        self._votes: dict[File, VoteRecord | None] = {}
        self._durable_votes: dict[File, VoteRecord | None] = {}
        # Slots by index - 1; None is a slot that holds no whole entry.
        self._log: list[Entry | None] = []
        self._durable_log: list[Entry | None] = []
        self._pending: dict[File, list[Step]] = {file: [] for file in File}

    # -- what the invariants ask ---------------------------------------------------------------

    @property
    def durable_vote(self) -> VoteRecord | None:
        """The record that a node would find after a power cut right now."""
        records = [record for record in self._durable_votes.values() if record is not None]
        return max(records, key=lambda record: record.number, default=None)

    @property
    def durable_last(self) -> Index:
        return Index(len(self._durable_log))

    def durable_position(self, index: Index) -> Position | None:
        """What is durable at ``index``; None if nothing whole is."""
        if index == 0:
            return ORIGIN
        entry = self._durable_log[index - 1] if index <= len(self._durable_log) else None
        return entry.position if entry is not None else None

    @property
    def unsynced_votes(self) -> int:
        """In how many copies of the vote record the next power cut may leave anything."""
        return sum(bool(self._pending[file]) for file in VOTE_COPIES)

    @property
    def unsynced(self) -> int:
        return sum(len(steps) for steps in self._pending.values())

    # -- what a node does ----------------------------------------------------------------------

    def run(self, step: Step) -> None:
        """Carry out one step of a plan."""
        if isinstance(step, Sync):
            self._sync(step.file)
        elif isinstance(step, WriteVote):
            self._votes[step.file] = step.record
            self._pending[step.file].append(step)
        else:
            _change_log(self._log, step)
            self._pending[File.LOG].append(step)

    def image(self) -> Image:
        """What a process that opens the disk now can read."""
        return Image(dict(self._votes), tuple(self._log))

    def _sync(self, file: File) -> None:
        if file is File.LOG:
            for step in self._pending[file]:
                _change_log(self._durable_log, step)
        elif file in self._votes:
            self._durable_votes[file] = self._votes[file]
        self._pending[file].clear()

    # -- what happens to it --------------------------------------------------------------------

    def power_cut(self, fate: Callable[[], Fate]) -> None:
        """Ask ``fate`` for every un-synced write, entry by entry; what it spares is durable."""
        for file in VOTE_COPIES:
            for step in self._pending[file]:
                if isinstance(step, WriteVote):
                    _cut_vote(self._durable_votes, step, fate)
        self._votes = dict(self._durable_votes)
        for step in self._pending[File.LOG]:
            if isinstance(step, WriteEntries):
                for entry in step.entries:
                    _cut_write(self._durable_log, entry, fate)
            elif fate() != "lost":
                _change_log(self._durable_log, step)
        self._log = list(self._durable_log)
        for pending in self._pending.values():
            pending.clear()

    def fail(self) -> None:
        """A sync failed: what was written can still be read, and no later sync makes it durable.

        Linux marks the pages clean; only writing them again helps.
        """
        for pending in self._pending.values():
            pending.clear()

    def plant(self, entry: Entry) -> None:
        """Put ``entry`` where the log has another one, durably: what no sound disk does."""
        for log in (self._log, self._durable_log):
            del log[entry.index - 1 :]
            log.append(entry)


def _change_log(log: list[Entry | None], step: Step) -> None:
    if isinstance(step, Truncate):
        del log[step.first - 1 :]
    elif isinstance(step, WriteEntries):
        first = step.entries[0].index
        _extend_to(log, first - 1)
        log[first - 1 : first - 1 + len(step.entries)] = step.entries


def _extend_to(log: list[Entry | None], length: int) -> None:
    log.extend([None] * (length - len(log)))


def _cut_vote(
    votes: dict[File, VoteRecord | None], step: WriteVote, fate: Callable[[], Fate]
) -> None:
    if votes.get(step.file) == step.record:
        return  # the same bytes again, as in _cut_write
    outcome = fate()
    if outcome != "lost":
        votes[step.file] = step.record if outcome == "kept" else None


def _cut_write(log: list[Entry | None], entry: Entry, fate: Callable[[], Fate]) -> None:
    slot = entry.index - 1
    if slot < len(log) and log[slot] is entry:
        return  # the same bytes again: whichever of them arrived, the slot is whole
    outcome = fate()
    if outcome == "lost":
        return
    _extend_to(log, slot + 1)
    log[slot] = entry if outcome == "kept" else None
