"""The types that every layer shares: identifiers, positions and the vote record of a node.

This module knows neither consensus nor disks nor sockets. Index 0 is the position before the first
entry: an empty log ends at index 0 with term 0 and chain 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NewType

__all__ = [
    "ORIGIN",
    "PRIORITY",
    "PRIORITY_MAX",
    "BootId",
    "EntryKind",
    "GroupId",
    "Index",
    "NodeId",
    "Position",
    "Role",
    "Term",
    "VoteRecord",
]

NodeId = NewType("NodeId", str)
Index = NewType("Index", int)
Term = NewType("Term", int)

# The priority of a node in a log for which none was set, and the highest one.
PRIORITY = 100
PRIORITY_MAX = 255


class Position(NamedTuple):
    """The end of a log: two logs with the same position are the same log up to there."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: Term
    chain: int


ORIGIN = Position(Index(0), Term(0), 0)


class GroupId(NamedTuple):
    """The identity of one log's life: a message of another group is never acted upon."""

    cluster: str
    incarnation: int


class BootId(NamedTuple):
    """The identity of one run of a node: the counter is durable and rises, the nonce tells clones
    apart."""

    counter: int
    nonce: int


class Role(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class EntryKind(IntEnum):
    """The kind of an entry. Numbers are part of the disk and wire formats and are never reused.

    TRIM is reserved: its number is fixed, and a replica of this release stops at such an entry,
    which it does not know how to apply.
    """

    DATA = 1
    NOOP = 2
    MEMBERSHIP = 3
    STAGE = 4
    PUBLISH = 5
    TRIM = 6
    PRODUCER = 7
    FENCE = 8


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """Term and vote, in one record so that neither can be on disk without the other."""

    number: int  # rises with every write: of two valid copies the higher one is the newer
    term: Term
    vote: NodeId | None
    boot: int  # rises with every open
    # The first entry that the log must have: the entries below were trimmed.
    first: Index = Index(1)  # a NewType is the number itself
    # The number of the newest segment that the log must have.
    segment: int = 0
    # Entries that this node had acknowledged may be lost: it must not vote as if it had them.
    unsure: bool = False
    # The log is being cut off from this byte of that segment on; 0 if it is not. All bytes below
    # were durable before: at open, the bytes from here on do not count.
    cutting: int = 0
    # What was drawn for that segment when it was made: another header there is not its own.
    nonce: int = 0
    # While the log is being cut off, the entry that it will end with: an older page may hold other
    # entries that end before the cut as well. ORIGIN if it is not being cut off.
    before: Position = ORIGIN
