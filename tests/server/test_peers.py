"""What a peer may say, and what a node does with what it should not have said."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from server_rig import (
    CLUSTER,
    CONFIG,
    ROOM,
    Cluster,
    WireClient,
    create,
    find,
    in_loop,
    next_start,
    until,
)

from quorate.config import Config, Limits, NetworkLimits, Server, Storage
from quorate.entry import HEADER_BYTES, RUNS_MAX, make_entry
from quorate.entry_body import RUN_BYTES, pack_batches
from quorate.errors import Busy, Timeout
from quorate.net.dialling import dial
from quorate.net.links import MESSAGES_PER_FRAME
from quorate.raft.messages import Append, Envelope, Heartbeat
from quorate.types import ORIGIN, BootId, EntryKind, GroupId, Index, NodeId, Term
from quorate.wire.calls import AwaitCatalog, CatalogReached, Status, encode_call
from quorate.wire.frames import PEER, FrameKind, encode_frame
from quorate.wire.handshake import Hello
from quorate.wire.messages import encode_envelopes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# Calls of one link without an answer.
CALLS = 8


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
async def lonely(tmp_path: Path, **changes: Any) -> AsyncIterator[Cluster]:
    """One node of a cluster of two that has met the other."""
    async with Cluster.started(tmp_path, 2, **changes) as cluster:
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
    async with (
        lonely(tmp_path, server=Server(peer_calls=CALLS)) as cluster,
        as_peer(cluster) as peer,
    ):
        waiting = [asyncio.create_task(peer.call(AwaitCatalog(9, 60_000))) for _ in range(CALLS)]
        await asyncio.sleep(0)  # they are asked in this order
        with pytest.raises(Busy, match=f"{CALLS} questions of n2 wait already"):
            await peer.call(AwaitCatalog(0, 1000))
        assert not peer.connection.closed
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


@in_loop
async def test_the_settings_of_a_node_do_not_bound_what_its_peers_have_logged(
    tmp_path: Path,
) -> None:
    """A batch of 64 MiB is legal. Peers may have taken it before their limits were lowered."""
    largest = pack_batches([(bytes(64 << 20), 1)])
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, largest, count=1, append_time=1, runs=1)
    append = Append(Term(1), 1, ORIGIN, (entry,), Index(0))
    envelope = Envelope(GroupId(CLUSTER, 77), NodeId("n2"), NodeId("n1"), BootId(1, 1), append)
    async with lonely(tmp_path) as cluster, as_peer(cluster) as peer:
        peer.connection.send(encode_envelopes([envelope]))
        assert await peer.call(AwaitCatalog(0, 1000)) == CatalogReached(0)
        assert cluster.nodes["n1"].metrics.stray_messages == 1


@in_loop
async def test_a_frame_of_a_peer_that_is_refused_is_told_once_in_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = encode_frame(FrameKind.PEER, bytes(4), PEER.bulk + 1)
    async with lonely(tmp_path) as cluster:
        for _ in range(3):
            async with as_peer(cluster) as peer:
                peer.connection.send([too_long])
                await peer.ended
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (line,) = (line for line in told if "frame of a peer" in line)
    assert line == (
        f"a frame of a peer is refused, its link ends peer=n2 error=TOO_LARGE: frame PEER: bulk "
        f"part of {PEER.bulk + 1} bytes, limit {PEER.bulk}"
    )


@in_loop
async def test_a_link_of_a_peer_that_ends_for_silence_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        lonely(tmp_path, network=NetworkLimits(peer_keepalive_ms=50)) as cluster,
        as_peer(cluster) as peer,
    ):
        peer.connection.pause_reading()  # so that no PING is answered
        await until(lambda: "link of a peer closed peer=n2" in caplog.text)
        assert "no sign of life for 150 ms" in caplog.text
        peer.connection.resume_reading()


def test_whatever_legal_settings_let_a_leader_send_is_taken() -> None:
    """Entries are at least 64 bytes long, and the control part has four for each."""
    rows = RUNS_MAX * (RUN_BYTES + 24) + HEADER_BYTES
    for section, name in (
        (Limits, "batch_bytes"),
        (Limits, "entry_bytes"),
        (Limits, "append_bytes"),
        (NetworkLimits, "peer_frame_bytes"),
    ):
        (most,) = (one.metadata["range"][1] for one in fields(section) if one.name == name)
        assert most + rows <= PEER.bulk, name
    message = len(encode_envelopes([beat()])[0])
    assert PEER.bulk // HEADER_BYTES * 4 + MESSAGES_PER_FRAME * 2 * message <= PEER.control


@in_loop
async def test_a_batch_that_only_the_leader_would_take_is_acknowledged(tmp_path: Path) -> None:
    """A change of limits that has come to one node so far."""
    cluster = Cluster(tmp_path)
    n1 = NodeId("n1")
    limits = Limits(batch_bytes=8 << 20)
    config = Config(CONFIG.timing, limits, Storage(segment_bytes=32 << 20))
    cluster.settings[n1] = replace(cluster.settings[n1], config=config, record_bytes=8 << 20)
    try:
        await asyncio.gather(*map(cluster.start, cluster.settings))
        for attempt in count():
            name = f"orders-{attempt}"
            log = await create(cluster, name)
            if (await find(cluster, name)).leader == n1:
                break
        async with WireClient.to(cluster.address("n1")) as client:
            assert await client.append(log, bytes(6 << 20)) == 0
            assert await client.append(log, b"and after it") == 1
        async with WireClient.to(cluster.address("n2")) as client:
            (row,) = (await client.fetch(log, 0, 1, wait_ms=10_000)).rows
            assert sum(len(batch) for batch, _ in row[2].batches()) > 6 << 20
    finally:
        await asyncio.gather(*map(cluster.stop, list(cluster.running)))


def beat() -> Envelope:
    """A message for a log that is not there."""
    message = Heartbeat(Term(1), 1, ORIGIN)
    return Envelope(GroupId(CLUSTER, 77), NodeId("n2"), NodeId("n1"), BootId(1, 1), message)


@in_loop
async def test_messages_for_a_log_that_is_not_here_are_counted(tmp_path: Path) -> None:
    async with lonely(tmp_path) as cluster, as_peer(cluster) as peer:
        peer.connection.send(encode_envelopes([beat()] * 2000))
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
