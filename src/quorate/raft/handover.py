"""The reasons for which a leader steps down: other nodes are alive and can do work that it cannot.

A leader that steps down for one of these reasons bars itself from the next campaign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES

if TYPE_CHECKING:
    from quorate.raft.progress import Progress
    from quorate.raft.roles import Standing
    from quorate.types import Index, NodeId

__all__ = ["Handover"]

# Election timeouts without a commit before a leader steps down for a majority without room.
BEGIN_ELECTIONS = 3
# A peer that was heard within this many heartbeat intervals is alive.
ALIVE_HEARTBEATS = 3


class Handover:
    """Decides whether one leadership should end in favour of other nodes."""

    __slots__ = (
        "_began_at", "_committed", "_committed_at", "_moved_at", "_progress", "_roomy_at",
        "_standing",
    )  # fmt: skip

    def __init__(self, standing: Standing, progress: dict[NodeId, Progress]) -> None:
        self._standing = standing
        self._progress = progress
        self._began_at = standing.clock
        # The committed index when it last rose or was the end of the log, and the clock then.
        self._committed = standing.committed
        self._committed_at = standing.clock
        # The clock when the own disk last had room.
        self._roomy_at = standing.clock
        # The clock when the own disk last completed a write or had none to do.
        self._moved_at = standing.clock

    def disk_too_slow(self) -> bool:
        """Whether the own oldest write is stuck while a majority of others has synced past it."""
        standing = self._standing
        if standing.persisted == standing.log.last_index:
            self._moved_at = standing.clock
            return False
        limit = 2 * standing.election_ticks
        ahead = sum(peer.match > standing.persisted for peer in self._progress.values())
        return standing.clock - self._moved_at > limit and ahead >= standing.quorum

    def others_have_room(self) -> bool:
        """Whether the own disk is full for good, or has no room for a client's request, and a
        majority of others has that room.

        This must last for an election timeout: space allocated ahead may run short for a moment.
        """
        standing = self._standing
        since = standing.clock - standing.election_ticks
        if not standing.full and not standing.lacking:
            self._roomy_at = standing.clock
        if self._roomy_at >= since:
            return False
        # A full disk takes no entry at all: then any disk that takes one is better.
        needs = 0 if standing.full else standing.lacking
        heard = [peer for peer in self._progress.values() if peer.heard_at >= since]
        roomy = sum(peer.full is False and peer.room >= needs for peer in heard)
        return roomy >= standing.quorum

    def others_can_begin(self) -> bool:
        """Whether a majority of others has no room for an entry of this log that is not committed.
        Then this leadership commits no more entries, and one of theirs would: another entry takes
        the place, a noop or one that fits. Or they have no room for a noop either, and need none:
        all of their entries are committed.

        If that entry is committed after all, some of them have it, and this is no majority.
        """
        standing = self._standing
        timeout = standing.election_ticks
        if standing.committed > self._committed or standing.all_committed:
            self._committed, self._committed_at = standing.committed, standing.clock
        if standing.clock - self._committed_at < BEGIN_ELECTIONS * timeout:
            return False
        since = standing.clock - timeout
        stuck = [peer for peer in self._progress.values() if peer.full and peer.heard_at >= since]
        able = [
            peer for peer in stuck if peer.room >= HEADER_BYTES or peer.match <= standing.committed
        ]
        return len(able) >= standing.quorum

    def others_can_feed(self) -> Index | None:
        """The damaged entry for which another node should lead: a live peer needs it, and another
        live peer has all committed entries, so it can win and may have that entry undamaged.

        The need must last for an election timeout, and both peers must have answered recent
        heartbeats: a leader that hands over to a dead node ends the reads that it could have
        answered.
        """
        standing = self._standing
        timing = standing.config.timing
        since = standing.clock - standing.election_ticks
        heard = standing.clock - standing.ticks(ALIVE_HEARTBEATS * timing.heartbeat_ms)
        lively = [peer for peer in self._progress.values() if peer.heard_at >= heard]
        blocked = [peer for peer in lively if peer.lacks > peer.match and peer.lacks_since <= since]
        if not blocked or not any(peer.match >= standing.committed for peer in lively):
            return None
        return min(peer.lacks for peer in blocked)

    def others_can_serve(self) -> bool:
        """Whether this node cannot apply an entry, and a live peer has the whole log: that peer may
        be able to."""
        standing = self._standing
        timing = standing.config.timing
        heard = standing.clock - standing.ticks(ALIVE_HEARTBEATS * timing.heartbeat_ms)
        if standing.lost is None or standing.clock - self._began_at < standing.election_ticks:
            return False
        last = standing.log.last_index
        return any(
            peer.match == last and peer.heard_at >= heard for peer in self._progress.values()
        )

    def own_copy_moved(self) -> None:
        self._moved_at = self._standing.clock
