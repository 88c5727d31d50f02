"""Brings the logs that this node leads in line with the catalog: their members and their leaders.

Each node looks after the logs that it leads. A log whose newest membership is older than its
placement in the catalog gets that placement as its members. And a leader gives way to a voter with
a higher priority, once that voter has kept up for some time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from quorate.errors import QuorateError
from quorate.raft.changes import MemberChange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from quorate.membership import Membership
    from quorate.server.logs.catalog import Catalog, Placement
    from quorate.server.logs.replicas import HostedLog, Replicas
    from quorate.types import NodeId

__all__ = ["Placer", "Preferences", "next_change"]

log = logging.getLogger(__name__)

# Seconds between two looks at all logs.
LOOK_S = 1.0
# Leaderships that one look gives away at most: each costs the callers of its log a moment.
TRANSFERS_MAX = 5
# A node was up for this many times the settling time before it gets a leadership back: one that
# fails again and again must not be made the leader each time.
UP_TIMES = 6


def next_change(placement: Placement | None, newest: Membership) -> MemberChange | None:
    """The change of the members that ``placement`` asks for; None if ``newest``, the newest
    membership of the log, serves it or a later one (R14)."""
    if placement is None or placement.record <= newest.intent:
        return None
    return MemberChange(placement.membership)


class Preferences:
    """Tells when a leader gives way to the voter that is to lead: that voter has kept up, and its
    node was up, for long enough. Pure: the times are handed in, in seconds."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        # By log: the voter that is to lead, and since when it could.
        self._able: dict[int, tuple[NodeId, float]] = {}

    def due(self, incarnation: int, preferred: NodeId | None, up_s: float, now: float) -> bool:
        """Whether the leadership of a log goes to ``preferred`` now, whose node is up for ``up_s``.
        None: no voter is preferred to this node."""
        if preferred is None:
            self._able.pop(incarnation, None)
            return False
        known, since = self._able.get(incarnation, (None, now))
        if known != preferred:
            self._able[incarnation] = preferred, now
            return False
        return now - since >= self._settle_s and up_s >= UP_TIMES * self._settle_s

    def forget(self, incarnation: int) -> None:
        """Begin anew with a log: it is not led here, or the transfer was asked for."""
        self._able.pop(incarnation, None)


class Placer:
    """The task that carries placements and preferences out."""

    def __init__(
        self,
        replicas: Replicas,
        catalog: Catalog,
        up_s: Callable[[NodeId], float],
        settle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``up_s`` tells the seconds for which a node has been up."""
        self._replicas = replicas
        self._catalog = catalog
        self._up_s = up_s
        self._preferences = Preferences(settle_s)
        self._clock = clock
        # Logs with a change or a transfer that this task waits for.
        self._busy: set[int] = set()
        # The last error that was logged of each log.
        self._told: dict[int, str] = {}

    async def run(self) -> None:
        """Look at all logs again and again, without end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._look(tasks)
                    await asyncio.sleep(LOOK_S)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        transfers = 0
        for hosted in self._replicas:
            incarnation, core = hosted.incarnation, hosted.replica.engine.core
            if not hosted.replica.serves or core.leader is None:
                self._preferences.forget(incarnation)
                continue
            if incarnation in self._busy:
                continue
            placement = self._catalog.placement(incarnation)
            change = next_change(placement, core.raft.memberships.newest)
            if change is not None:
                self._begin(tasks, hosted, hosted.replica.change_members(change))
                continue
            preferred = core.transfers.preferred(core.leader)
            up_s = self._up_s(preferred) if preferred is not None else 0.0
            if not self._preferences.due(incarnation, preferred, up_s, self._clock()):
                continue
            if transfers < TRANSFERS_MAX:
                transfers += 1
                self._preferences.forget(incarnation)
                self._begin(tasks, hosted, hosted.replica.transfer(preferred))

    def _begin(
        self, tasks: asyncio.TaskGroup, hosted: HostedLog, work: Coroutine[Any, Any, object]
    ) -> None:
        self._busy.add(hosted.incarnation)
        tasks.create_task(self._carry_out(hosted, work))

    async def _carry_out(self, hosted: HostedLog, work: Coroutine[Any, Any, object]) -> None:
        """Do ``work`` for a log. If it fails, a later look begins it again."""
        name, incarnation, _ = hosted
        try:
            await work
        except QuorateError as error:
            told = f"{error.code}: {error}"
            if self._told.get(incarnation) != told:
                self._told[incarnation] = told
                log.warning("a log waits for its members or leader log=%s error=%s", name, told)
        else:
            self._told.pop(incarnation, None)
        finally:
            self._busy.discard(incarnation)
            if self._replicas.get(incarnation) is None:  # it was deleted, or halted
                self._told.pop(incarnation, None)
                self._preferences.forget(incarnation)
