"""Which peers can be reached, and since when the others cannot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quorate.errors import NoQuorum, NotLeader, QuorateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.types import NodeId

__all__ = ["Presence"]

# How a NOT_LEADER ends when nobody is known to lead.
_NOBODY = "leader: none"


class Presence:
    """What this node's links know of its peers."""

    def __init__(
        self, peers: Iterable[NodeId], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        began = clock()
        self._peers = tuple(peers)
        # Peers without a link, and since when; those that were never met, since the start.
        self._silent: dict[NodeId, float] = dict.fromkeys(self._peers, began)

    def reached(self, peer: NodeId) -> None:
        self._silent.pop(peer, None)

    def lost(self, peer: NodeId) -> None:
        self._silent.setdefault(peer, self._clock())

    @property
    def majority(self) -> bool:
        """Whether this node and those whom it reaches are one."""
        return 2 * len(self._silent) < len(self._peers) + 1

    def explain(self, error: QuorateError) -> QuorateError:
        """The same, with what is known here about why: a majority that cannot be reached."""
        text = str(error)
        nobody = isinstance(error, NotLeader) and text.endswith(_NOBODY)
        if self.majority or not (nobody or isinstance(error, NoQuorum)):
            return error
        return NoQuorum(f"{text.removesuffix(_NOBODY).rstrip('; ')}; {self._described()}")

    def _described(self) -> str:
        now = self._clock()
        silent = [f"{peer} for {now - since:.0f} s" for peer, since in self._silent.items()]
        nodes = len(self._peers) + 1
        return f"{len(silent)} of {nodes} nodes do not answer this one: {', '.join(silent)}"
