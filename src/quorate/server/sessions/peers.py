"""The sessions of peers that dialled this node: messages between replicas, and catalog calls."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from quorate.errors import Busy, InvalidArgument, QuorateError, Timeout
from quorate.types import NodeId
from quorate.wire.calls import AwaitCatalog, CatalogReached, decode_call, encode_result
from quorate.wire.frames import FrameKind
from quorate.wire.messages import decode_envelopes
from quorate.wire.requests import encode_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.net.connection import Connection
    from quorate.server.logs.catalog_service import CatalogService
    from quorate.server.logs.replicas import Replicas
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import NodeIdentity

__all__ = ["PeerSession", "RefusedFrames"]

log = logging.getLogger(__name__)

# Seconds between two log lines about refused frames of the same peer.
REPEAT_S = 60.0


class RefusedFrames:
    """Logs the frames that this node refused. The peer sees only that its link ended, and sends the
    frame again: so the line names the peer, and is limited to one per ``REPEAT_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Time of the last log line about each peer.
        self._told: dict[NodeId, float] = {}

    def tell(self, peer: NodeId, error: QuorateError) -> None:
        now = self._clock()
        if now - self._told.get(peer, -REPEAT_S) >= REPEAT_S:
            self._told[peer] = now
            log.warning(
                "a frame of a peer is refused, its link ends peer=%s error=%s",
                peer,
                f"{error.code}: {error}",
            )


class PeerSession:
    """The handler of one link from a peer."""

    def __init__(
        self,
        peer: NodeId,
        own: NodeIdentity,
        connection: Connection,
        replicas: Replicas,
        catalog_service: CatalogService,
        refused: RefusedFrames,
        *,
        calls_max: int,
    ) -> None:
        self._peer = peer
        self._cluster = own.cluster
        self._node = NodeId(own.node)
        self._connection = connection
        self._replicas = replicas
        self._catalog_service = catalog_service
        self._refused = refused
        self._calls_max = calls_max
        # Calls without an answer yet.
        self._tasks: set[asyncio.Task[None]] = set()

    def frame_received(self, frame: Frame) -> None:
        if frame.kind is FrameKind.PEER:
            envelopes = decode_envelopes(frame, self._cluster, self._peer, self._node)
            self._replicas.deliver(envelopes)
        elif frame.kind is FrameKind.CALL:
            request, call = decode_call(frame)
            if not isinstance(call, AwaitCatalog):
                raise InvalidArgument(f"a peer does not ask for {type(call).__name__}")
            if len(self._tasks) >= self._calls_max:
                # The link goes on: heartbeats and votes come over it, too.
                busy = Busy(f"{self._calls_max} questions of {self._peer} wait already")
                self._connection.send([encode_failure(request, busy)])
                return
            task = asyncio.get_running_loop().create_task(self._await_catalog(request, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            raise InvalidArgument(f"a peer does not send {frame.kind.name}")

    async def _await_catalog(self, request: int, call: AwaitCatalog) -> None:
        try:
            async with asyncio.timeout(call.timeout_ms / 1000):
                await self._catalog_service.reach(call.offset)
            reached = CatalogReached(call.offset, self._catalog_service.no_room)
            answer = encode_result(request, reached)
        except TimeoutError:
            late: QuorateError = Timeout(f"{self._node} is not at offset {call.offset} yet")
            answer = encode_failure(request, late)
        self._connection.send([answer])

    def closed(self, error: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()
        if isinstance(error, Timeout):
            log.info("link of a peer closed peer=%s: %s", self._peer, error)
        elif isinstance(error, QuorateError):
            self._refused.tell(self._peer, error)

    def writable(self, yes: bool) -> None:
        """Ignore the state of the write buffer: answers here are few and short, and messages to
        peers go over the links that this node dialled."""
