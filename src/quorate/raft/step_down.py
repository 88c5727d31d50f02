"""The reasons for which a leader steps down: other nodes are alive and can do work that it cannot.

A leader that steps down for one of these reasons bars itself from the next campaign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.raft.transfer import ALIVE_HEARTBEATS

if TYPE_CHECKING:
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState
    from quorate.types import Index, NodeId

__all__ = ["StepDown"]

# Election timeouts without a commit before a leader steps down for a majority without room.
BEGIN_ELECTIONS = 3


class StepDown:
    """Decides whether one leadership should end in favour of other nodes."""

    __slots__ = (
        "_began_at",
        "_committed",
        "_committed_at",
        "_had_room_at",
        "_moved_at",
        "_progress",
        "_raft",
    )  # fmt: skip

    def __init__(self, raft: RaftState, progress: dict[NodeId, Progress]) -> None:
        self._raft = raft
        self._progress = progress
        self._began_at = raft.clock
        # The committed index when it last rose or was the end of the log, and the clock then.
        self._committed = raft.committed
        self._committed_at = raft.clock
        # The clock when the own disk last had room.
        self._had_room_at = raft.clock
        # The clock when the own disk last completed a write or had none to do.
        self._moved_at = raft.clock

    def disk_too_slow(self) -> bool:
        """Whether the own oldest write is stuck while a majority of others has synced past it."""
        raft = self._raft
        if raft.persisted == raft.log.last_index:
            self._moved_at = raft.clock
            return False
        limit = 2 * raft.election_ticks
        ahead = [peer.node for peer in self._progress.values() if peer.match > raft.persisted]
        return raft.clock - self._moved_at > limit and raft.electorate.won(ahead)

    def others_have_room(self) -> bool:
        """Whether the own disk is full for good, or has no room for a client's request, and a
        majority of others has that room.

        This must last for an election timeout: space allocated ahead may run short for a moment.
        """
        raft = self._raft
        since = raft.clock - raft.election_ticks
        if not raft.full and not raft.lacking:
            self._had_room_at = raft.clock
        if self._had_room_at >= since:
            return False
        # A full disk takes no entry at all: then any disk that takes one is better.
        needs = 0 if raft.full else raft.lacking
        heard = [peer for peer in self._progress.values() if peer.heard_at >= since]
        with_room = [peer.node for peer in heard if peer.full is False and peer.room >= needs]
        return raft.electorate.won(with_room)

    def others_can_begin(self) -> bool:
        """Whether a majority of others has no room for an entry of this log that is not committed.
        Then this leadership commits no more entries, and one of theirs would: another entry takes
        the place, a noop or one that fits. Or they have no room for a noop either, and need none:
        all of their entries are committed.

        If that entry is committed after all, some of them have it, and this is no majority.
        """
        raft = self._raft
        timeout = raft.election_ticks
        if raft.committed > self._committed or raft.all_committed:
            self._committed, self._committed_at = raft.committed, raft.clock
        if raft.clock - self._committed_at < BEGIN_ELECTIONS * timeout:
            return False
        since = raft.clock - timeout
        stuck = [peer for peer in self._progress.values() if peer.full and peer.heard_at >= since]
        able = [
            peer.node for peer in stuck if peer.room >= HEADER_BYTES or peer.match <= raft.committed
        ]
        return raft.electorate.won(able)

    def others_can_feed(self) -> Index | None:
        """The damaged entry for which another node should lead: a live peer needs it, and another
        live peer has all committed entries, so it can win and may have that entry undamaged.

        The need must last for an election timeout, and both peers must have answered recent
        heartbeats: a leader that hands over to a dead node ends the reads that it could have
        answered.
        """
        raft = self._raft
        timing = raft.config.timing
        since = raft.clock - raft.election_ticks
        heard = raft.clock - raft.ticks(ALIVE_HEARTBEATS * timing.heartbeat_ms)
        live = [peer for peer in self._progress.values() if peer.heard_at >= heard]
        blocked = [peer for peer in live if peer.lacks > peer.match and peer.lacks_since <= since]
        able = [peer for peer in live if peer.match >= raft.committed and self._votes(peer)]
        if not blocked or not able:
            return None
        return min(peer.lacks for peer in blocked)

    def others_can_serve(self) -> bool:
        """Whether this node cannot apply an entry, and a live peer has the whole log: that peer may
        be able to."""
        raft = self._raft
        timing = raft.config.timing
        heard = raft.clock - raft.ticks(ALIVE_HEARTBEATS * timing.heartbeat_ms)
        if raft.lost is None or raft.clock - self._began_at < raft.election_ticks:
            return False
        last = raft.log.last_index
        return any(
            peer.match == last and peer.heard_at >= heard and self._votes(peer)
            for peer in self._progress.values()
        )

    def _votes(self, peer: Progress) -> bool:
        """Whether ``peer`` is a voter: only a voter may lead."""
        return peer.node in self._raft.electorate.voters

    def own_copy_moved(self) -> None:
        self._moved_at = self._raft.clock
