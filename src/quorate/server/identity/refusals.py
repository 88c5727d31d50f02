"""The peers that refuse this node, and their reasons: for operators, and to halt a second
process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quorate.errors import WrongDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.config import NetworkLimits
    from quorate.server.identity.members import Members
    from quorate.types import NodeId
    from quorate.wire.handshake import HandshakeRefusal

__all__ = ["Refusals"]

# After this time with a link to a peer, an earlier process of this node counts as running.
SECOND_S = 15.0
# The minimum in keep-alive times: a link ends after three or four when its other end loses power.
KEEPALIVES = 15
# The minimum in longest pauses between two dials: one dial proves little.
REDIALS = 6


class Refusals:
    """The answers of peers that sent a refusal instead of WELCOME, until they let this node in."""

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
        # Peers that report a link to an earlier process of this node: the time since when they do
        # so at each dial, and the time of the last report.
        self._second: dict[NodeId, tuple[float, float]] = {}
        # True if a peer has let this process in: then it may have acknowledged entries.
        self._welcomed = False

    def take(self, peer: NodeId, refusal: HandshakeRefusal) -> None:
        """Record the refusal of ``peer``. Raises WrongDirectory if this node was started on a copy
        of the data directory of a running node: if this copy were let in later, the links of that
        node would end."""
        self._texts[peer] = f"{refusal.code}: {refusal.message}"
        if not refusal.linked:
            self._second.pop(peer, None)
            return
        now = self._clock()
        began, last = self._second.get(peer, (now, now))
        # At least two of the longest pauses between dials.
        if now - last > self._second_s / 3:
            began = now  # this process was suspended, and the link may have ended meanwhile
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
        """Record that ``peer`` lets this node in."""
        self._welcomed = True
        self._texts.pop(peer, None)
        self._second.pop(peer, None)

    def forget(self, peer: NodeId) -> None:
        """Forget the refusal of ``peer``, which cannot be reached now."""
        self._texts.pop(peer, None)

    @property
    def by_majority(self) -> bool:
        """True if this node and the nodes that do not refuse it are no majority."""
        nodes = len(self._members.ids)
        return nodes - len(self._texts) < nodes // 2 + 1

    @property
    def text(self) -> str:
        """The peers that refuse this node, and the reason of the last one; empty if no peer
        does."""
        if not self._texts:
            return ""
        *_, why = self._texts.values()
        refuse = "refuse" if len(self._texts) > 1 else "refuses"
        return f"{' and '.join(sorted(self._texts))} {refuse} this node: {why}"
