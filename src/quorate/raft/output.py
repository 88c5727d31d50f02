"""The output of the core after a turn: messages to send, answers to reads, and events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quorate.errors import QuorateError
    from quorate.raft.messages import Message
    from quorate.types import Index, NodeId, Term

__all__ = ["Event", "EventKind", "MembersChanged", "Output", "Refusal", "Transferred"]


class Refusal(StrEnum):
    """The reason for refusing a message. Refusals are counted, and change no other state."""

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


class EventKind(StrEnum):
    """The kind of an event: a state change, or a rare path that is worth counting."""

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
    LACKS_FILES = "lacks-files"
    TRANSFERS = "transfers"
    TRANSFERRED = "transferred"
    TRANSFER_FAILED = "transfer-failed"
    TAKES_OVER = "takes-over"


class Event(NamedTuple):
    """One event. ``peer``, ``index`` and ``detail`` are set where the kind has them."""

    kind: EventKind
    term: Term
    peer: NodeId | None = None
    index: Index | None = None  # type: ignore[assignment]  # hides tuple.index, which is not called
    detail: str = ""


class Transferred(NamedTuple):
    """The result of a transfer of the leadership: ``leader`` leads now."""

    leader: NodeId


class MembersChanged(NamedTuple):
    """The members are those that were asked for, by the entry at ``index``."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called


@dataclass(slots=True)
class Output:
    """The output of one turn. A message may wait for the flush of the state it depends on."""

    messages: list[tuple[NodeId, Message]] = field(default_factory=list)
    # (token, index) of reads that may be answered: the index is committed here.
    reads_confirmed: list[tuple[int, Index]] = field(default_factory=list)
    # Tokens of reads that got no confirmation; they had no effect.
    reads_refused: list[int] = field(default_factory=list)
    # (token, result) of the transfers of the leadership and the changes of the members that ended.
    ended: list[tuple[int, Transferred | MembersChanged | QuorateError]] = field(
        default_factory=list
    )
    # Whether this node became sure: it has all entries again that it may have lost. It may vote,
    # and its disk may record that.
    sure: bool = False
    # The number of entries that were read from disk for peers; and whether some entries that could
    # be sent were left for another turn.
    fetched: int = 0
    more: bool = False
    events: list[Event] = field(default_factory=list)
