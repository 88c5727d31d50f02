"""What the core asks of its surroundings after a turn, and what it has to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quorate.raft.messages import Message
    from quorate.types import Index, NodeId, Term

__all__ = ["Event", "Happening", "Output", "Refusal"]


class Refusal(StrEnum):
    """Why a message was put aside. Each is counted; none changes any other state."""

    OTHER_CLUSTER = "other-cluster"
    OTHER_INCARNATION = "other-incarnation"
    NOT_ADDRESSED = "not-addressed"
    FROM_SELF = "from-self"
    UNKNOWN_PEER = "unknown-peer"
    EARLIER_BOOT = "earlier-boot"
    CLONED_BOOT = "cloned-boot"
    STALE_TERM = "stale-term"
    IMPOSSIBLE_TERM = "impossible-term"
    IMPOSSIBLE_INDEX = "impossible-index"
    BROKEN_CHAIN = "broken-chain"
    NOT_ASKED = "not-asked"
    LEADER_ALIVE = "leader-alive"
    NOT_LEADING = "not-leading"
    UNSURE = "unsure"
    NO_SPACE = "no-space"
    NOT_READABLE = "not-readable"


class Happening(StrEnum):
    """What the core reports: state changes and the rare paths worth counting."""

    FOLLOWS = "follows"
    PRE_CAMPAIGNS = "pre-campaigns"
    CAMPAIGNS = "campaigns"
    LEADS = "leads"
    STEPS_DOWN = "steps-down"
    VOTES = "votes"
    REFUSES_VOTE = "refuses-vote"
    HINT_STARTED = "hint-started"
    HINT_CANCELLED = "hint-cancelled"
    HINT_ENDED_STICKINESS = "hint-ended-stickiness"
    SPLIT_LEADERS = "split-leaders"
    TRUNCATES = "truncates"
    PEER_COMPARES = "peer-compares"
    PEER_STREAMS = "peer-streams"
    PEER_RESENT = "peer-resent"
    PEER_RESTARTED = "peer-restarted"
    PEER_THROTTLED = "peer-throttled"
    PEER_STALLED = "peer-stalled"
    PEER_BLOCKED = "peer-blocked"
    SLOW_DISK = "slow-disk"
    DAMAGED = "damaged"
    UNSURE = "unsure"
    SURE_AGAIN = "sure-again"
    DISK_FULL = "disk-full"


class Event(NamedTuple):
    """One report. ``peer``, ``index`` and ``detail`` are filled where they say something."""

    happening: Happening
    term: Term
    peer: NodeId | None = None
    index: Index | None = None  # type: ignore[assignment]  # nobody calls tuple's own
    detail: str = ""


@dataclass(slots=True)
class Output:
    """All of one turn. Messages may wait for the flush that holds what they depend on."""

    messages: list[tuple[NodeId, Message]] = field(default_factory=list)
    # (token, index) of reads that may be answered: the index is committed here.
    reads_confirmed: list[tuple[int, Index]] = field(default_factory=list)
    # Reads that got no confirmation; nothing happened.
    reads_refused: list[int] = field(default_factory=list)
    # This node has everything again that it may have lost: it may vote, and its disk may say so.
    sure: bool = False
    # Entries that were read from disk for peers; and whether some that could be sent were left for
    # another turn.
    fetched: int = 0
    more: bool = False
    events: list[Event] = field(default_factory=list)
