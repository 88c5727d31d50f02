"""The wait of a starting node for others: for all of them once, then briefly for a majority."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.server.identity.members import Members
    from quorate.types import NodeId

__all__ = ["Meeting"]

log = logging.getLogger(__name__)

# A first start logs the nodes that it waits for: first after the first of these times, then at
# intervals of the second, and after the third as a warning.
FORMING_TELL_S = 1.0
FORMING_REPEAT_S = 10.0
FORMING_PATIENCE_S = 30.0
# How long a start waits for links to a majority.
MEET_S = 1.0


class Meeting:
    """Knows which peers were reached since the start, and wakes the start when there is news."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._met: set[NodeId] = set()
        self._news = asyncio.Event()

    def learnt(self) -> None:
        """Look again: a peer has introduced itself."""
        self._news.set()

    def reached(self, peer: NodeId) -> None:
        """Take note of a link to ``peer``."""
        self._met.add(peer)
        self._news.set()

    async def meet_all(self) -> None:
        """Wait until a first start has met each node once: see server/identity/roster.py."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        told_at = began + FORMING_TELL_S
        while missing := self._members.roster.missing:
            now = loop.time()
            if now >= told_at:
                told_at = now + FORMING_REPEAT_S
                level = logging.WARNING if now - began >= FORMING_PATIENCE_S else logging.INFO
                log.log(
                    level, "the first start waits: it needs every node once nodes=%s seconds=%d",
                    ",".join(missing), now - began,
                )  # fmt: skip
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(told_at - now):
                    await self._news.wait()

    async def meet_majority(self) -> None:
        """Wait a moment for links to a majority: a node that campaigns without them has to wait for
        its next election timeout."""
        majority = len(self._members.ids) // 2 + 1
        with suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                while 1 + len(self._met) < majority:
                    self._news.clear()
                    await self._news.wait()
