"""The hand-over of all leaderships of a node that stops.

A leader that just stopped would cost the callers of its log an election timeout, and requests that
are in the log an unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.errors import Busy, QuorateError
from quorate.replica.engine_io import Stopping
from quorate.types import Role

if TYPE_CHECKING:
    from quorate.server.logs.replicas import HostedLog, Replicas

__all__ = ["give_up_leaderships"]

# Logs whose leadership is transferred at once. Each new leader needs its vote record on disk in an
# election timeout, and the disk of one node may have to write all of them.
TOGETHER = 16
# Seconds between two looks at a campaign under way.
LOOK_S = 0.01
# Seconds for which a node that gave leaderships away still answers: a client that tries again, at
# the latest after its longest pause, is told the new leader. A request that the closed connection
# takes along has an unknown outcome.
TELL_S = 0.25

log = logging.getLogger(__name__)


async def give_up_leaderships(replicas: Replicas, timeout_s: float) -> None:
    """Give the leadership of each log that this node leads to another node, the catalog's last.
    Returns when that is done and clients had the time to learn it, or when there is no more time; a
    failure is logged, never raised."""
    logs = replicas.everything
    for one in logs:
        # The peers learn of it: none gives this node a leadership from now on.
        one.replica.give(Stopping())
    # Messages that came before may begin a campaign in the turn that takes the note.
    await asyncio.sleep(0)
    # Callers find other logs in the catalog meanwhile.
    logs.sort(key=lambda one: one.incarnation == replicas.catalog_incarnation)
    given, failed = list[str](), dict[str, str]()
    together = asyncio.Semaphore(TOGETHER)
    # The catalog has some time of its own, even if another log finds no leader.
    for part, seconds in ((logs[:-1], 0.75 * timeout_s), (logs[-1:], 0.25 * timeout_s)):
        with suppress(TimeoutError):  # the logs that are left are named below
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(_give_up(one, together, given, failed) for one in part))
    if given:
        await asyncio.sleep(TELL_S)
    left = {
        one.name: failed.get(one.name, "there was no time")
        for one in logs
        if one.replica.engine.role is Role.LEADER
    }
    if left:
        name, reason = next(iter(left.items()))
        log.warning(
            "node stops as the leader of logs that no other node took over logs=%s first=%s "
            "reason=%s", len(left), name, reason,
        )  # fmt: skip


async def _give_up(
    one: HostedLog, together: asyncio.Semaphore, given: list[str], failed: dict[str, str]
) -> None:
    """Transfer the leadership of one log, if this node leads or is about to."""
    engine = one.replica.engine
    while engine.role is Role.CANDIDATE:  # noqa: ASYNC110  # the engine tells no end of a campaign
        await asyncio.sleep(LOOK_S)
    if engine.role is not Role.LEADER:
        return
    async with together:
        while True:
            try:
                await one.replica.transfer(None)
            except Busy as busy:
                # A change of the members is about to end.
                failed[one.name] = str(busy)
                await asyncio.sleep(LOOK_S)
            except QuorateError as error:
                failed[one.name] = str(error)
                return
            else:
                given.append(one.name)
                return
