"""The words that every layer shares: identifiers, positions and what a node must remember.

Nothing here knows about consensus, disks or sockets. Index 0 is the position before the first
entry: an empty log ends at index 0 with term 0 and chain 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NewType

__all__ = [
    "ORIGIN",
    "BootId",
    "EntryKind",
    "GroupId",
    "Index",
    "Membership",
    "NodeId",
    "Position",
    "Role",
    "Term",
    "VoteRecord",
]

NodeId = NewType("NodeId", str)
Index = NewType("Index", int)
Term = NewType("Term", int)


class Position(NamedTuple):
    """Where a log stands: two logs with the same position are the same log up to there."""

    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    term: Term
    chain: int


ORIGIN = Position(Index(0), Term(0), 0)


class GroupId(NamedTuple):
    """One log's life: a message of another group is never acted upon."""

    cluster: str
    incarnation: int


class BootId(NamedTuple):
    """One run of one node: the counter is durable and rises, the nonce tells clones apart."""

    counter: int
    nonce: int


class Role(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class EntryKind(IntEnum):
    """What an entry is. Numbers are part of the disk and wire formats and are never reused.

    The kinds after NOOP are named so that their numbers are fixed; a replica of this release stops
    at a kind that it does not know how to apply.
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
class Membership:
    """Who counts and who only receives. Fixed for now: changes bring ``outgoing`` voters."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    # While a change is under way a majority of both sets is needed; empty otherwise.
    outgoing: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """Term and vote, in one record so that neither can be on disk without the other."""

    number: int  # rises with every write: of two valid copies the higher one is the newer
    term: Term
    vote: NodeId | None
    boot: int  # rises with every open
    # The first entry that the log must have: what is below was trimmed.
    first: Index = Index(1)  # a NewType is the number itself
    # The number of the newest segment that the log must have.
    segment: int = 0
    # Entries that this node had acknowledged may be lost: it must not vote as if it had them.
    unsure: bool = False
    # From this byte of that segment on the log is being cut off; 0 if it is not. Everything below
    # was durable before: at open, what stands from here on counts for nothing.
    cutting: int = 0
    # What was drawn for that segment when it was made: another header there is not its own.
    nonce: int = 0
