"""The wait of a node that stepped down in favour of others, before it does so again.

Every change of leaders takes some time without a leader. So a node that steps down and soon leads
again waits, twice as long each time, and never stops trying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.raft.state import RaftState

__all__ = ["Patience"]

# In election timeouts: the first wait, and the longest.
HANDOVER_ELECTIONS = 10
HANDOVER_ELECTIONS_MAX = 160


class Patience:
    """The wait between two times that this node steps down for one kind of reason."""

    __slots__ = ("_length", "_raft", "_until")

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft
        # The clock before which this node does not step down again, and the length of that wait.
        self._until = 0
        self._length = 0

    @property
    def waits(self) -> bool:
        return self._raft.clock < self._until

    def ends(self) -> bool:
        """Whether to step down now: the first time at once, later after the wait. If so, the next
        wait begins."""
        if self.waits:
            return False
        clock = self._raft.clock
        timeout = self._raft.election_ticks
        soon = clock < self._until + self._length
        longer = min(2 * self._length, HANDOVER_ELECTIONS_MAX * timeout)
        self._length = longer if soon else HANDOVER_ELECTIONS * timeout
        self._until = clock + self._length
        return True

    def forget(self) -> None:
        """Reset the wait, since another node leads: this node may step down at once again."""
        self._until = self._length = 0
