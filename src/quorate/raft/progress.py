"""The progress of one peer as its leader knows it, and the window of entries under way to the peer.

::

              agreed                    mismatch, time-out, restart, stall
    COMPARE ──────────▶ APPEND      APPEND ──────────▶ COMPARE

             damaged                    after a while
    APPEND ──────────▶ BLOCKED      BLOCKED ──────────▶ COMPARE

In COMPARE one small question is open at a time; in APPEND entries stream ahead of their acks. A
peer is BLOCKED while the next entry that it needs is damaged on the leader's disk.
FILL, for a peer that needs entries that are gone, comes with trimming.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from quorate.raft.messages import FIRST_STREAM, ROOM_UNBOUNDED
from quorate.types import Index, NodeId

__all__ = ["PADDING_BYTES", "Progress", "ProgressState"]

# Maximum bytes of disk that an append takes besides its entries: two pages that it does not fill.
PADDING_BYTES = 8192


class ProgressState(StrEnum):
    COMPARE = "compare"
    APPEND = "append"
    BLOCKED = "blocked"


class Progress:
    """The progress of one peer. It belongs to one leadership and one boot of the peer, and is
    dropped with either."""

    __slots__ = (
        "commit_sent", "differs", "full", "heard_at", "inflight", "inflight_bytes", "lacks",
        "lacks_since", "match", "moved_at", "next", "node", "number", "quota", "removed_by",
        "removed_until", "room", "round", "sent_at", "since_told", "state", "throttled", "told",
        "unfit",
    )  # fmt: skip

    def __init__(
        self, node: NodeId, next_index: Index, clock: int, number: int = FIRST_STREAM
    ) -> None:
        self.node = node
        self.state = ProgressState.COMPARE
        # The peer has the leader's log up to this index, on its disk. Never goes back.
        self.match = Index(0)
        # The index of the first entry not sent yet; above match.
        self.next = next_index
        # The lowest index at which the peer is known to have another entry, or none, as it answered
        # last; 0 before its first such answer.
        self.differs = Index(0)
        # The number of the stream: carried by a question, its repetitions and the appends that
        # follow its answer. An answer with another number belongs to a stream that was given up.
        self.number = number
        # The clock at which the open question was sent, or the oldest unacked append, or at which
        # the last ack before that came in; None if no question or append is open.
        self.sent_at: int | None = None
        # (last index, bytes) of each unacked append, oldest first.
        self.inflight: deque[tuple[Index, int]] = deque()
        self.inflight_bytes = 0
        # The newest read round that the peer has confirmed.
        self.round = 0
        # The committed index that the newest message to the peer can prove to it.
        self.commit_sent = Index(0)
        # Maximum bytes that the peer's disk takes, and whether that is too little, as the peer told
        # last; None until it told.
        self.room = ROOM_UNBOUNDED
        self.full: bool | None = None
        # The entry that removed the peer from the members; None for a member. The clock until which
        # the peer is fed all the same, and whether it was sent the commit of that entry.
        self.removed_by: Index | None = None
        self.removed_until = 0
        self.told = False
        # Whether the peer told last that the leadership must not be transferred to it.
        self.unfit = False
        # Maximum bytes of that room for appends that were sent since then or were unacked then.
        self.since_told = 0
        # The entry that was last found damaged when the peer needed it, and the clock when that
        # began; the peer still needs it while it is above match.
        self.lacks = Index(0)
        self.lacks_since = clock
        # The clock when the last message of the peer arrived; and when match last rose or could not
        # be expected to rise.
        self.heard_at = clock
        self.moved_at = clock
        # Bytes that may still be sent to the peer in this second while it catches up.
        self.quota = 0
        self.throttled = False

    def heard_within(self, clock: int, ticks: int) -> bool:
        """Whether a message of the peer arrived at most ``ticks`` before ``clock``."""
        return clock - self.heard_at <= ticks

    def overdue(self, clock: int, ticks: int) -> bool:
        """Whether the peer has owed an answer for ``ticks``."""
        return self.sent_at is not None and clock - self.sent_at >= ticks

    def compare(self, next_index: Index) -> None:
        """Give up the stream and ask where the logs agree, beginning below ``next_index``."""
        self.state = ProgressState.COMPARE
        self.number += 1
        self.next = max(next_index, Index(self.match + 1))
        self.sent_at = None
        self.inflight.clear()
        self.inflight_bytes = 0

    def block(self, clock: int) -> None:
        """Send no entries until the logs are compared again: the next entry cannot be sent."""
        if self.lacks != self.next:
            self.lacks, self.lacks_since = self.next, clock
        self.compare(self.next)
        self.state = ProgressState.BLOCKED

    def stream(self) -> None:
        """Send the entries after match: the logs agree up to there."""
        self.state = ProgressState.APPEND
        self.sent_at = None

    def sent(self, last: Index, size: int, clock: int) -> None:
        """Note that an append with entries up to ``last`` was sent."""
        self.inflight.append((last, size))
        self.inflight_bytes += size
        self.since_told += size + PADDING_BYTES
        self.next = Index(last + 1)
        if self.sent_at is None:
            self.sent_at = clock

    def tells_room(self, room: int, *, full: bool) -> None:
        """Note that the peer's disk takes ``room`` bytes besides the acknowledged entries."""
        self.room, self.full = room, full
        self.since_told = self.inflight_bytes + PADDING_BYTES * len(self.inflight)

    def acked(self, match: Index, clock: int) -> bool:
        """Note that the peer has all entries up to ``match`` on disk. Returns whether it is new."""
        if match <= self.match:
            return False
        self.match = match
        self.moved_at = clock
        self.next = max(self.next, Index(match + 1))
        while self.inflight and self.inflight[0][0] <= match:
            self.inflight_bytes -= self.inflight.popleft()[1]
        if self.state is ProgressState.APPEND:
            self.sent_at = clock if self.inflight else None
        return True
