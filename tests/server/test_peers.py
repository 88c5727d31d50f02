"""What a peer may say, and what a node does with what it should not have said."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from server_rig import CLUSTER, ROOM, Cluster, WireClient, in_loop, next_start

from quorate.errors import Busy, Timeout
from quorate.net.dialling import dial
from quorate.raft.messages import Envelope, Heartbeat
from quorate.server.peers import TASKS_MAX
from quorate.types import ORIGIN, BootId, GroupId, NodeId, Term
from quorate.wire.calls import AwaitCatalog, CatalogReached, Status, encode_call
from quorate.wire.frames import FrameKind, encode_frame
from quorate.wire.handshake import Hello
from quorate.wire.messages import encode_envelopes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def as_peer(cluster: Cluster) -> AsyncIterator[WireClient]:
    """A link to n1 from somebody who says what n2 would say."""
    introduction = next_start(cluster.settings[NodeId("n2")].data_dir.parent, "n2")
    hello = Hello("control", cluster=CLUSTER, node="n2", target="n1", introduction=introduction)
    connection, _ = await dial(cluster.address("n1"), hello, timeout=5, limits=ROOM)
    peer = WireClient(connection)
    yield peer
    connection.close()
    await peer.ended


@asynccontextmanager
async def lonely(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One node of a cluster of two that has met the other."""
    async with Cluster.started(tmp_path, 2) as cluster:
        await cluster.stop("n2")
        yield cluster


@in_loop
async def test_a_peer_waits_for_the_catalog(tmp_path: Path) -> None:
    async with lonely(tmp_path) as cluster, as_peer(cluster) as peer:
        assert await peer.call(AwaitCatalog(0, 1000)) == CatalogReached(0)
        with pytest.raises(Timeout, match="n1 is not at offset 9 yet"):
            await peer.call(AwaitCatalog(9, 10))
        waiting = asyncio.create_task(peer.call(AwaitCatalog(9, 60_000)))
        assert await peer.call(AwaitCatalog(0, 1000)) == CatalogReached(0)
        waiting.cancel()
        # The node gives it up with the link: `in_loop` looks.


@in_loop
async def test_too_many_questions_are_busy_and_the_link_stays(tmp_path: Path) -> None:
    async with lonely(tmp_path) as cluster, as_peer(cluster) as peer:
        waiting = [
            asyncio.create_task(peer.call(AwaitCatalog(9, 60_000))) for _ in range(TASKS_MAX)
        ]
        await asyncio.sleep(0)  # they are asked in this order
        with pytest.raises(Busy, match=f"{TASKS_MAX} questions of n2 wait already"):
            await peer.call(AwaitCatalog(0, 1000))
        assert not peer.connection.closed
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


@in_loop
async def test_messages_for_a_log_that_is_not_here_are_counted(tmp_path: Path) -> None:
    async with lonely(tmp_path) as cluster, as_peer(cluster) as peer:
        message = Heartbeat(Term(1), 1, ORIGIN)
        envelope = Envelope(GroupId(CLUSTER, 77), NodeId("n2"), NodeId("n1"), BootId(1, 1), message)
        peer.connection.send(encode_envelopes([envelope] * 2000))
        assert await peer.call(AwaitCatalog(0, 1000)) == CatalogReached(0)
        assert cluster.nodes["n1"].metrics.stray_messages == 2000


@pytest.mark.parametrize(
    "frame",
    [
        encode_call(1, Status()),
        encode_frame(FrameKind.APPEND, bytes(40)),
        encode_frame(FrameKind.PEER, b"nonsense"),
    ],
)
@in_loop
async def test_what_no_peer_says_ends_its_link_only(frame: bytes, tmp_path: Path) -> None:
    async with lonely(tmp_path) as cluster:
        async with as_peer(cluster) as peer:
            peer.connection.send([frame])
            await peer.ended
        async with WireClient.to(cluster.address("n1")) as client:
            assert (await client.call(Status())).id == "n1"
