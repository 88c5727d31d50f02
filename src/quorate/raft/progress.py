"""What the leader knows of one peer, and the window of what is on its way there.

::

              agreed                    mismatch, time-out, restart, stall
    COMPARE ──────────▶ APPEND      APPEND ──────────▶ COMPARE

             damaged                    after a while
    APPEND ──────────▶ BLOCKED      BLOCKED ──────────▶ COMPARE

In COMPARE one small question is out at a time; in APPEND entries stream ahead of their acks. A peer
is BLOCKED while the next entry that it needs is damaged on the leader's disk.
FILL, for a peer whose entries are gone, comes with trimming.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from quorate.raft.messages import FIRST_STREAM, ROOM_UNBOUNDED
from quorate.types import Index, NodeId

__all__ = ["PADDING_BYTES", "Progress", "ProgressState"]

# What an append takes of a disk at most, besides its entries: two pages that it does not fill.
PADDING_BYTES = 8192


class ProgressState(StrEnum):
    COMPARE = "compare"
    APPEND = "append"
    BLOCKED = "blocked"


class Progress:
    """Belongs to one leadership and to one boot of the peer; forgotten with either."""

    __slots__ = (
        "commit_sent", "full", "heard_at", "inflight", "inflight_bytes", "lacks",
        "lacks_since", "match", "moved_at", "next", "node", "number", "quota", "room", "round",
        "sent_at", "since_told", "state", "throttled",
    )  # fmt: skip

    def __init__(
        self, node: NodeId, next_index: Index, clock: int, number: int = FIRST_STREAM
    ) -> None:
        self.node = node
        self.state = ProgressState.COMPARE
        # The peer has the leader's log up to here, on its disk. Never goes back.
        self.match = Index(0)
        # The first entry not sent yet; above match.
        self.next = next_index
        # The stream: carried by a question, its repetitions and the appends that follow its
        # answer. An answer that names another number belongs to a stream that was given up.
        self.number = number
        # The clock at which the open question, or the oldest unacked append, was sent; None if
        # nothing is out.
        self.sent_at: int | None = None
        # (last index, bytes) of each unacked append, oldest first.
        self.inflight: deque[tuple[Index, int]] = deque()
        self.inflight_bytes = 0
        # The newest read round that the peer vouched for.
        self.round = 0
        # The committed index that the newest message to the peer can prove to it.
        self.commit_sent = Index(0)
        # Bytes that the peer's disk takes at most, and whether that is too little, by what it said
        # last; None until it said so.
        self.room = ROOM_UNBOUNDED
        self.full: bool | None = None
        # What it was sent since then, or had not acknowledged then, takes of that at most.
        self.since_told = 0
        # The entry that was last found damaged when the peer needed it, and since when; it still
        # does while that is above match.
        self.lacks = Index(0)
        self.lacks_since = clock
        # When any message of the peer came in; when match last rose or had nothing to rise to.
        self.heard_at = clock
        self.moved_at = clock
        # Bytes that may still go to the peer in this second while it catches up.
        self.quota = 0
        self.throttled = False

    def compare(self, next_index: Index) -> None:
        """Give the stream up and ask where the logs agree, beginning below ``next_index``."""
        self.state = ProgressState.COMPARE
        self.number += 1
        self.next = max(next_index, Index(self.match + 1))
        self.sent_at = None
        self.inflight.clear()
        self.inflight_bytes = 0

    def block(self, clock: int) -> None:
        """The next entry cannot be sent: nothing is, until the logs are compared again."""
        if self.lacks != self.next:
            self.lacks, self.lacks_since = self.next, clock
        self.compare(self.next)
        self.state = ProgressState.BLOCKED

    def stream(self) -> None:
        """The logs agree up to match: send what follows."""
        self.state = ProgressState.APPEND
        self.sent_at = None

    def sent(self, last: Index, size: int, clock: int) -> None:
        """An append up to ``last`` is on its way."""
        self.inflight.append((last, size))
        self.inflight_bytes += size
        self.since_told += size + PADDING_BYTES
        self.next = Index(last + 1)
        if self.sent_at is None:
            self.sent_at = clock

    def tells_room(self, room: int, *, full: bool) -> None:
        """The peer's disk takes ``room`` bytes besides what it has acknowledged."""
        self.room, self.full = room, full
        self.since_told = self.inflight_bytes + PADDING_BYTES * len(self.inflight)

    def acked(self, match: Index, clock: int) -> bool:
        """The peer has everything up to ``match`` on disk. Whether that is news."""
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
