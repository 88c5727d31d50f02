"""The nodes of the cluster: their addresses, and the checks of peers and clients that connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from quorate.errors import Busy, QuorateError
from quorate.server.identity.roster import Roster
from quorate.storage.disk_errors import PASSING
from quorate.types import NodeId
from quorate.wire.handshake import (
    FEATURES,
    PROTOCOL,
    Hello,
    NodeIdentity,
    Welcome,
    judge_hello,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.server.manifest import ManifestFile
    from quorate.server.settings import Settings
    from quorate.wire.handshake import Seen

__all__ = ["Members"]


class Members:
    """Knows the addresses of all nodes, and judges the HELLO or WELCOME of a peer or client."""

    def __init__(self, own: NodeIdentity, settings: Settings, stored: ManifestFile) -> None:
        """Counts this start of the node: see :class:`Roster`. Raises Busy if the disk has no space
        to record it."""
        self.own = own
        self._settings = settings
        self._stored = stored
        try:
            self.roster = Roster(own, stored.manifest, stored.save_now)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            raise Busy(
                f"{own.node} cannot write down that it starts: {error.strerror}; free some space"
            ) from None
        nodes = stored.manifest.nodes
        # Where clients reach each node.
        self.addresses: dict[str, str] = {node: nodes[node].address for node in nodes}
        if settings.advertise is not None:
            self.addresses[own.node] = settings.advertise
        # Where this node reaches its peers.
        self.peers = {
            node: settings.dial.get(node, nodes[node].address) for node in nodes if node != own.node
        }

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self._stored.manifest.nodes))

    def hello(self, purpose: Literal["control", "bulk"], peer: NodeId) -> Hello:
        own, introduction = self.own, self.roster.introduce()
        return Hello(
            purpose, cluster=own.cluster, node=own.node, target=peer, introduction=introduction
        )

    def welcome(self) -> Welcome:
        own, limits = self.own, self._settings.config.limits
        return Welcome(
            own.cluster, own.node, self.roster.introduce(), PROTOCOL, FEATURES,
            self._settings.record_bytes, limits.batch_bytes, self.addresses,
        )  # fmt: skip

    def judge(self, hello: Hello, linked: Callable[[NodeId], bool]) -> QuorateError | None:
        """The error that refuses the sender of ``hello``; None if it is let in. ``linked`` tells
        whether a link to a process of a node is open."""
        problem = judge_hello(hello, self.own)
        if problem is not None or hello.introduction is None or hello.purpose == "client":
            return problem
        peer = NodeId(hello.node or "")
        return self.roster.judge(peer, hello.introduction, linked=linked(peer))

    def judge_welcome(
        self, peer: NodeId, welcome: Welcome, linked: Callable[[NodeId], bool]
    ) -> QuorateError | None:
        """The error if the node that was dialled is not ``peer``; None if it is."""
        return self.roster.judge(peer, welcome.introduction, linked=linked(peer))

    def known(self, hello: Hello, linked: Callable[[NodeId], bool]) -> tuple[Seen | None, bool]:
        """The facts that a refused peer is told: this node's record of it, and whether an earlier
        process of that peer has a link."""
        own, said, peer = self.own, hello.introduction, NodeId(hello.node or "")
        meant = (hello.cluster, hello.target) == (own.cluster, own.node)
        if said is None or not meant or peer not in self.peers:
            return None, False
        return self.roster.seen(peer), self.roster.is_second(peer, said) and linked(peer)
