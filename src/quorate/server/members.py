"""Who belongs to the cluster: which nodes there are, and which disk each of them lives on.

A node is its name and its storage id together. The first time that two nodes meet, each writes the
other's storage id down; from then on another disk under the same name is refused. What the old one
had promised is not on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quorate.errors import Busy, DiskFailed, InvalidArgument, QuorateError, WrongCluster
from quorate.server.manifest import PASSING
from quorate.types import NodeId
from quorate.wire.handshake import (
    FEATURES,
    PROTOCOL,
    Hello,
    Identity,
    Welcome,
    judge_hello,
)

if TYPE_CHECKING:
    from quorate.server.manifest import ManifestFile
    from quorate.server.settings import Settings

__all__ = ["Members"]

log = logging.getLogger(__name__)

STORAGE_BYTES = 16


class Members:
    """Judges whoever says who he is."""

    def __init__(self, own: Identity, settings: Settings, stored: ManifestFile) -> None:
        self.own = own
        self._settings = settings
        self._stored = stored
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

    def welcome(self) -> Welcome:
        own = self.own
        return Welcome(
            own.cluster, own.node, own.storage, own.boot, PROTOCOL, FEATURES,
            self._settings.record_bytes, self._settings.config.limits.batch_bytes, self.addresses,
        )  # fmt: skip

    def judge(self, hello: Hello) -> QuorateError | None:
        """Why whoever dialled is not let in; None if he is."""
        nodes = self._stored.manifest.nodes
        problem = judge_hello(hello, self.own, {node: nodes[node].storage for node in nodes})
        if problem is not None or hello.purpose == "client":
            return problem
        return self._bind(NodeId(hello.node or ""), hello.storage)

    def judge_welcome(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
        """Why the one who was dialled is not ``peer``; None if he is."""
        own = self.own
        if (welcome.cluster, welcome.node) != (own.cluster, peer):
            return WrongCluster(
                f"node {peer} of {own.cluster} was dialled, {welcome.node} of {welcome.cluster} "
                f"answered"
            )
        return self._bind(peer, welcome.storage)

    def _bind(self, peer: NodeId, storage: bytes) -> QuorateError | None:
        """Hold the disk of ``peer`` against the one it is known by."""
        if len(storage) != STORAGE_BYTES:
            return InvalidArgument(f"node {peer}: a storage id has {STORAGE_BYTES} bytes")
        if storage == self.own.storage:
            return WrongCluster(f"node {peer} runs on a copy of the disk of {self.own.node}")
        nodes = self._stored.manifest.nodes
        known = nodes[peer]
        if known.storage is None:
            return self._meet(peer, storage)
        if known.storage != storage:
            return WrongCluster(
                f"node {peer} has storage id {storage.hex()}, {self.own.node} knows it with "
                f"{known.storage.hex()}: a wiped or copied disk is not its old self"
            )
        return None

    def _meet(self, peer: NodeId, storage: bytes) -> QuorateError | None:
        """Once in the life of a node: it must be durable before anything rests on it."""
        nodes = self._stored.manifest.nodes
        unmet = nodes[peer]
        nodes[peer] = unmet._replace(storage=storage)
        try:
            self._stored.save_now()
        except OSError as error:
            nodes[peer] = unmet
            if error.errno in PASSING:
                return Busy(f"{self.own.node} cannot write down who {peer} is: {error.strerror}")
            raise DiskFailed(f"{self.own.node}: the manifest: {error}") from error
        log.info("peer met peer=%s storage=%s", peer, storage.hex())
        return None
