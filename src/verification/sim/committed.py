"""The entries that any node ever committed in a run, in order: the one log that all logs must hold.

Entries are compared by position: the chain stands for all entries up to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.entry import Entry
    from quorate.raft.state import RaftState
    from quorate.types import Position

__all__ = ["has_committed", "is_committed", "position_in"]


def is_committed(committed: Sequence[Entry], position: Position) -> bool:
    """Whether the entry at ``position`` is one of those that were committed."""
    index = position.index
    return index <= len(committed) and committed[index - 1].position == position


def has_committed(committed: Sequence[Entry], raft: RaftState, index: Index) -> bool:
    """Whether the log of ``raft`` holds the entry that was committed at ``index``."""
    log = raft.log
    # Below the window the disk may be spoiled; the position at the begin of the window stands for
    # every entry below.
    index = max(index, Index(log.first_in_memory - 1))
    if index == 0:
        return True
    return index <= log.last_index and log.position(index) == committed[index - 1].position


def position_in(committed: Sequence[Entry], raft: RaftState, index: Index) -> Position:
    """The position of the log of ``raft`` at ``index``. Entries that left its memory were
    committed: a check need not read the disk for them, which may be spoiled."""
    if 0 < index < raft.log.first_in_memory - 1 and index <= len(committed):
        return committed[index - 1].position
    return raft.log.position(index)
