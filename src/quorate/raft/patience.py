"""How long a leader that left leading to others waits before it does so again.

Every change of leaders is some time without one. So a node that gives up and soon leads again
waits, twice as long each time, and never stops trying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.raft.roles import Standing

__all__ = ["Patience"]

# In election timeouts: the first wait, and the longest.
HANDOVER_ELECTIONS = 10
HANDOVER_ELECTIONS_MAX = 160


class Patience:
    """With one kind of reason to give up."""

    __slots__ = ("_length", "_standing", "_until")

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        # The clock before which this node does not give up again, and how long it waits for that.
        self._until = 0
        self._length = 0

    @property
    def waits(self) -> bool:
        return self._standing.clock < self._until

    def ends(self) -> bool:
        """Whether to give up now: at once for the first time, and after the wait. The next one
        begins."""
        if self.waits:
            return False
        clock = self._standing.clock
        timeout = self._standing.election_ticks
        soon = clock < self._until + self._length
        longer = min(2 * self._length, HANDOVER_ELECTIONS_MAX * timeout)
        self._length = longer if soon else HANDOVER_ELECTIONS * timeout
        self._until = clock + self._length
        return True

    def forget(self) -> None:
        """What this node gave up was taken on: it may give up at once again."""
        self._until = self._length = 0
