"""The messages between replicas. One class per message; an object is never changed once sent.

Every message carries its sender's term. :class:`Envelope` adds the group, the sender, the receiver
and the boot of the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from quorate.types import BootId, GroupId, Index, NodeId, Position, Term

if TYPE_CHECKING:
    from quorate.entry import Entry

__all__ = [
    "FIRST_STREAM",
    "ROOM_UNBOUNDED",
    "TERM_LEAP_MAX",
    "Ack",
    "Append",
    "Compare",
    "Envelope",
    "Heartbeat",
    "HeartbeatReply",
    "Message",
    "MessageKind",
    "Mismatch",
    "PreVote",
    "PreVoteReply",
    "ReadIndex",
    "ReadIndexReply",
    "RequestId",
    "StateHash",
    "Transfer",
    "TransferRefused",
    "Vote",
    "VoteReply",
    "keeps_order",
]

# A term this far above the own one is a lie: no node missed so many elections, and a node that
# adopts the highest number of all leaves no term in which a leader could be elected again.
TERM_LEAP_MAX = 1 << 32

# The number of a leadership's first stream to a peer.
FIRST_STREAM = 1
# The room on a disk on which more space can be allocated.
ROOM_UNBOUNDED = (1 << 64) - 1


class MessageKind(IntEnum):
    """The number of each message on the wire, fixed for ever. FILL and its reply are reserved: a
    peer whose entries are gone will be sent a snapshot with them. 17 and 18 are reserved for the
    repair of damaged entries."""

    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    COMPARE = 5
    APPEND = 6
    ACK = 7
    MISMATCH = 8
    HEARTBEAT = 9
    HEARTBEAT_REPLY = 10
    READ_INDEX = 11
    READ_INDEX_REPLY = 12
    TRANSFER = 13
    FILL = 14
    FILL_REPLY = 15
    STATE_HASH = 16
    TRANSFER_REFUSED = 19


class RequestId(NamedTuple):
    """Names a question so that its answer cannot be taken for the answer to another one.

    The boot counter is part of it: after a restart numbers begin again, and late answers still
    arrive.
    """

    boot: int
    number: int


@dataclass(slots=True)
class PreVote:
    """Would you vote for me in term + 1? The question changes no term."""

    term: Term
    request: RequestId
    last: Position


@dataclass(slots=True)
class PreVoteReply:
    term: Term
    request: RequestId
    granted: bool


@dataclass(slots=True)
class Vote:
    """Vote for me in this term (Raft § 5.2). ``transfer``: the leader of the term before asked me
    to take over, so a voter that still hears it votes all the same."""

    term: Term
    last: Position
    transfer: bool = False


@dataclass(slots=True)
class VoteReply:
    """You have my vote, or not. ``room`` and ``full`` are those of a heartbeat reply: a new leader
    must know them before it logs an entry."""

    term: Term
    granted: bool
    room: int = ROOM_UNBOUNDED
    full: bool = False


@dataclass(slots=True)
class Compare:
    """Is your log the same as mine up to ``prev``? Opens stream ``number``."""

    term: Term
    number: int
    prev: Position


@dataclass(slots=True)
class Append:
    """``entries`` follow ``prev``. Part of the stream that Compare ``number`` opened."""

    term: Term
    number: int
    prev: Position
    entries: tuple[Entry, ...]
    committed: Index

    @property
    def last_index(self) -> Index:
        """The last index whose agreement with the leader this message proves."""
        return Index(self.prev.index + len(self.entries))


@dataclass(slots=True)
class Ack:
    """My log is yours up to ``match``, and up to there it is on my disk."""

    term: Term
    number: int
    match: Index


@dataclass(slots=True)
class Mismatch:
    """My log is not yours at ``prev``.

    ``hint_term`` is the term of my entry there and ``hint_index`` the first index of that term in
    my log; if my log ends before ``prev``, ``hint_term`` is 0 and ``hint_index`` is my last + 1.
    """

    term: Term
    number: int
    prev: Index
    hint_index: Index
    hint_term: Term


@dataclass(slots=True)
class Heartbeat:
    """I lead. ``committed`` proves itself: it holds for every log that has that very position.

    ``round`` is the newest read round: the reply confirms all rounds up to it.
    """

    term: Term
    round: int
    committed: Position


@dataclass(slots=True)
class HeartbeatReply:
    """I heard you, and confirm the read rounds up to ``round``. ``room`` is the maximum of bytes of
    entries that my disk takes, or ROOM_UNBOUNDED while more can be allocated. ``full``: that is too
    little for clients' appends, or for the entry that you sent last. ``unfit``: do not transfer the
    leadership to me, because I stop or cannot serve."""

    term: Term
    round: int
    room: int = ROOM_UNBOUNDED
    full: bool = False
    unfit: bool = False


@dataclass(slots=True)
class ReadIndex:
    """Which index must I have applied to answer a linearizable read? Asked by a follower."""

    term: Term
    request: RequestId


@dataclass(slots=True)
class ReadIndexReply:
    """You must have applied ``index``. It is None if I cannot say now."""

    term: Term
    request: RequestId
    index: Index | None


@dataclass(slots=True)
class StateHash:
    """My state after ``index`` has this digest; every replica's must. ``asks``: another
    digest differs, and I want yours. An answer does not ask, so that the exchange ends."""

    term: Term
    index: Index
    digest: int
    asks: bool = False


@dataclass(slots=True)
class Transfer:
    """Campaign at once, without a pre-vote, if your log ends at ``last`` (Raft thesis § 3.10). Mine
    ends there, and I log no more."""

    term: Term
    last: Position
    # The number of this question among those of the leadership.
    number: int


@dataclass(slots=True)
class TransferRefused:
    """I do not campaign: my log ends elsewhere, or I cannot serve."""

    term: Term
    # That of the question: a late answer to an earlier one says nothing about this one.
    number: int


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Compare
    | Append
    | Ack
    | Mismatch
    | Heartbeat
    | HeartbeatReply
    | ReadIndex
    | ReadIndexReply
    | StateHash
    | Transfer
    | TransferRefused
)


def keeps_order(message: Message) -> bool:
    """Whether a link must deliver ``message`` behind all that it was given before: an Append, and
    the question whether entries arrived. If the question overtakes the entries, they are sent again
    while they are under way.

    A leader's first question need not wait: no entries that were sent before it are of its term.
    """
    return type(message) is Append or (type(message) is Compare and message.number > FIRST_STREAM)


@dataclass(slots=True)
class Envelope:
    """A message with the identities that every receiver checks before it reads the message."""

    group: GroupId
    source: NodeId
    target: NodeId
    boot: BootId
    message: Message
