"""Which peers refuse this node, and why: an operator is told, and a second process of it halts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quorate.errors import WrongDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.net.limits import NetworkLimits
    from quorate.server.members import Members
    from quorate.types import NodeId
    from quorate.wire.handshake import Refusal

__all__ = ["Refusals"]

# An earlier process of this node that has a link to a peer for so long is not gone.
SECOND_S = 15.0
# At least for so many keep-alive times: a link whose other end lost its power ends after three, or
# four.
KEEPALIVES = 15
# And for so many of the longest pauses between two dials: one dial proves little.
REDIALS = 6


class Refusals:
    """What peers answered instead of WELCOME, until they let this node in."""

    def __init__(
        self, members: Members, network: NetworkLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._members = members
        self._second_s = max(
            SECOND_S,
            KEEPALIVES * network.peer_keepalive_ms / 1000,
            REDIALS * network.redial_max_ms / 1000,
        )
        self._clock = clock
        self._texts: dict[NodeId, str] = {}
        # Peers with a link to an earlier process of this node: since when they say so again and
        # again, and when they last did.
        self._second: dict[NodeId, tuple[float, float]] = {}
        # Whether a peer has let this process in: then it may have acknowledged something.
        self._welcomed = False

    def take(self, peer: NodeId, refusal: Refusal) -> None:
        """Raises WrongDirectory if this node was started on a copy of the directory of one that
        runs: its links would end with a copy that is let in later."""
        self._texts[peer] = f"{refusal.code}: {refusal.message}"
        if not refusal.linked:
            self._second.pop(peer, None)
            return
        now = self._clock()
        began, last = self._second.get(peer, (now, now))
        # Two of the longest pauses between dials, or more.
        if now - last > self._second_s / 3:
            began = now  # this process stood still, and the link may have ended meanwhile
        self._second[peer] = began, now
        if now - began >= self._second_s:
            raise self._copied(peer)

    def _copied(self, peer: NodeId) -> WrongDirectory:
        own = self._members.own.node
        advice = (
            f"Another node has let this process in, so keep both directories; stop {own} where "
            f"else it runs, and start it here again"
            if self._welcomed
            else f"Remove this copy; if {own} is to run here, stop it where it runs and move its "
            f"directory"
        )
        return WrongDirectory(
            f"the data directory of {own} is a copy of one on which {own} runs: {peer} has had a "
            f"link to an earlier start of it for {self._second_s:g} s. {advice}"
        )

    def let_in(self, peer: NodeId) -> None:
        """``peer`` lets this node in."""
        self._welcomed = True
        self._texts.pop(peer, None)
        self._second.pop(peer, None)

    def forget(self, peer: NodeId) -> None:
        """``peer`` cannot be reached, so it refuses this node no longer."""
        self._texts.pop(peer, None)

    @property
    def by_majority(self) -> bool:
        """Whether those that do not refuse this node are no majority with it."""
        nodes = len(self._members.ids)
        return nodes - len(self._texts) < nodes // 2 + 1

    @property
    def text(self) -> str:
        """Who refuses this node, and what the last of them says; empty if none does."""
        if not self._texts:
            return ""
        *_, why = self._texts.values()
        refuse = "refuse" if len(self._texts) > 1 else "refuses"
        return f"{' and '.join(sorted(self._texts))} {refuse} this node: {why}"
