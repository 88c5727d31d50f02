"""The peers that this node can reach, and since when it cannot reach the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quorate.errors import NoQuorum, NotLeader, QuorateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.types import NodeId

__all__ = ["Reachability"]


class Reachability:
    """Knows which peers this node has links to."""

    def __init__(
        self, peers: Iterable[NodeId], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        began = clock()
        self._peers = tuple(peers)
        # Peers without a link, and since when; for a peer that was never met, since the start.
        self._silent: dict[NodeId, float] = dict.fromkeys(self._peers, began)
        # The others, and since when.
        self._up: dict[NodeId, float] = {}

    def reached(self, peer: NodeId) -> None:
        self._silent.pop(peer, None)
        self._up.setdefault(peer, self._clock())

    def lost(self, peer: NodeId) -> None:
        self._silent.setdefault(peer, self._clock())
        self._up.pop(peer, None)

    def up_s(self, peer: NodeId) -> float:
        """Seconds since which there has been a link to ``peer``; 0 without one."""
        return self._clock() - self._up[peer] if peer in self._up else 0.0

    @property
    def majority(self) -> bool:
        """True if this node and the peers that it reaches are a majority."""
        return 2 * len(self._silent) < len(self._peers) + 1

    def explain(self, error: QuorateError) -> QuorateError:
        """Add the reason to ``error`` if a majority cannot be reached; else return it unchanged."""
        leaderless = isinstance(error, NotLeader) and error.leader is None
        if self.majority or not (leaderless or isinstance(error, NoQuorum)):
            return error
        return NoQuorum(f"{error}; {self._described()}")

    def _described(self) -> str:
        now = self._clock()
        silent = [f"{peer} for {now - since:.0f} s" for peer, since in self._silent.items()]
        nodes = len(self._peers) + 1
        return f"{len(silent)} of {nodes} nodes do not answer this one: {', '.join(silent)}"
