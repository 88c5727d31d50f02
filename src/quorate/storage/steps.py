"""The steps of which every write to disk is made.

A flush is a plan: a list of these, carried out one by one by whoever owns the disk. A crash may
come between any two. The steps work on whole entries for now; the byte-level engine replaces what
is behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.types import Index, VoteRecord

__all__ = ["File", "Step", "Sync", "Truncate", "WriteEntries", "WriteVote"]


class File(StrEnum):
    """What can be synced on its own. The vote record has two copies."""

    VOTE_A = "vote-a"
    VOTE_B = "vote-b"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class WriteVote:
    file: File
    record: VoteRecord


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop the entry at ``first`` and all after it."""

    first: Index


@dataclass(frozen=True, slots=True)
class WriteEntries:
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    file: File


Step = WriteVote | Truncate | WriteEntries | Sync
