"""The parts that client sessions share, each alone: limits, the share of work, unsent answers."""

from __future__ import annotations

from collections import deque
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from server_rig import Cluster, WireClient, create, in_loop, until

from quorate.batch import encode_batch
from quorate.config import NetworkLimits, Server
from quorate.errors import Busy, TooLarge
from quorate.server.sessions.answers import AnswerBuffer, UnsentAnswers
from quorate.server.sessions.client_limits import ClientLimits, Pending
from quorate.server.sessions.fair_share import FairShare
from quorate.wire.plain import encode_plain

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.net.connection import Connection

# -- limits ------------------------------------------------------------------------------------


def test_appends_together_are_refused_if_one_of_them_would_be() -> None:
    random = Random(1)
    refused = 0
    for _ in range(3000):
        server = Server(client_appends=random.randint(1, 8), client_append_bytes=150)
        limits, own = ClientLimits(server, 100), Pending()
        limits.add_appends(Pending(), random.randint(0, 3), random.randint(0, 60))
        limits.add_appends(own, random.randint(0, 3), random.randint(0, 60))
        sizes = [random.randint(1, 40) for _ in range(random.randint(1, 4))]
        together = limits.append_refusal(own, sizes)
        alone = []
        for size in sizes:
            alone.append(limits.append_refusal(own, [size]))
            limits.add_appends(own, 1, size)
        assert (together is not None) == any(alone)
        refused += together is not None
    assert 500 < refused < 2500


def test_what_was_counted_is_subtracted_again() -> None:
    limits, own = ClientLimits(Server(), 1000), Pending()
    limits.add_appends(own, 3, 300)
    limits.add_call(own, 5000)
    assert (limits.total.appends, limits.total.append_bytes, own.call_bytes) == (3, 300, 5000)
    limits.remove_appends(own, 3, 300)
    limits.remove_call(own, 5000)
    for pending in (own, limits.total):
        assert (pending.appends, pending.append_bytes, pending.call_bytes) == (0, 0, 0)


def test_a_batch_of_the_largest_size_finds_room() -> None:
    limits = ClientLimits(Server(client_append_bytes=100), 100)
    assert limits.append_refusal(Pending(), [100]) is None
    assert isinstance(limits.append_refusal(Pending(), [101]), TooLarge)


def test_one_connection_gets_half_of_the_bytes_of_long_calls() -> None:
    server = Server(call_bytes=10_000, control_bytes=5000, short_call_bytes=100)
    limits, own, other = ClientLimits(server, 1), Pending(), Pending()
    assert not limits.is_long(100)
    assert limits.is_long(101)
    assert limits.call_refusal(own, 5000) is None
    limits.add_call(own, 5000)
    assert isinstance(limits.call_refusal(own, 101), Busy)
    assert limits.call_refusal(other, 5000) is None
    limits.add_call(other, 5000)
    assert isinstance(limits.call_refusal(Pending(), 101), Busy)


# -- the share of work -------------------------------------------------------------------------


class Queue:
    """Frames of one connection; each notes its connection when it is handled."""

    def __init__(self, name: str, frames: int, share: FairShare, handled: list[str]) -> None:
        self.frames = deque([name] * frames)
        self.share = share
        self.handled = handled

    def next_size(self) -> int:
        return 1

    def serve_one(self) -> None:
        self.handled.append(self.frames.popleft())
        if self.frames:
            self.share.wait(self)


@in_loop
async def test_connections_that_wait_take_turns_one_frame_each() -> None:
    share = FairShare(Server(pass_frames=2))
    handled: list[str] = []
    assert share.grants(1) and share.grants(1) and not share.grants(1)
    for name, frames in (("a", 4), ("b", 1), ("c", 2)):
        share.wait(Queue(name, frames, share, handled))
    gone = Queue("gone", 1, share, handled)
    share.wait(gone)
    share.wait_no_more(gone)
    await until(lambda: len(handled) == 7)
    assert handled == ["a", "b", "c", "a", "c", "a", "a"]


@in_loop
async def test_bytes_use_up_the_share_as_frames_do() -> None:
    share = FairShare(Server(pass_bytes=100))
    assert share.frames_left == Server().pass_frames
    share.spend(3, 99)
    assert share.frames_left == Server().pass_frames - 3
    assert share.grants(1)
    assert share.frames_left == 0
    assert not share.grants(1)
    await until(lambda: share.frames_left == Server().pass_frames)


# -- answers -----------------------------------------------------------------------------------


def buffer_of(unsent: UnsentAnswers, size: int, aborted: list[int]) -> AnswerBuffer:
    """The buffer of a client that has not read ``size`` bytes."""
    connection = SimpleNamespace(
        address="client", buffered=size, abort=lambda error: aborted.append(size)
    )
    return AnswerBuffer(unsent, cast("Connection", connection))


@in_loop
async def test_the_connection_that_holds_most_is_closed() -> None:
    unsent = UnsentAnswers(Server(unsent_busy_bytes=90, unsent_close_bytes=100), NetworkLimits())
    aborted: list[int] = []
    reader, _, greedy = (buffer_of(unsent, size, aborted) for size in (0, 90, 95))
    unsent.most_bytes = 185
    with pytest.raises(Busy, match="185 bytes wait for clients that read slowly, 95 of them"):
        greedy.check()
    assert aborted == []
    reader.check()
    assert aborted == [95]
    assert len(unsent.buffers) == 2


# -- a connection that ends --------------------------------------------------------------------


@in_loop
async def test_frames_that_wait_are_dropped_when_their_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1, server=Server(pass_frames=1)) as cluster:
        log = await create(cluster, "orders")
        node = cluster.nodes["n1"].service
        async with WireClient.to(cluster.address("n1")) as client:
            before = await client.append(log, b"a")
            [buffer] = node.answers.buffers
            batches = [encode_batch([b"b"])] * 50
            data = encode_plain(range(1, 51), log.to_bytes(16, "little"), batches, 1000)
            proposed: list[bytes] = []
            hosted = node.replicas.get(log)
            assert hosted is not None
            propose = hosted.replica.propose

            def propose_and_abort(batch: bytes, *rest: Any) -> None:
                proposed.append(batch)
                propose(batch, *rest)
                buffer.connection.abort()

            monkeypatch.setattr(hosted.replica, "propose", propose_and_abort)
            client.connection.send([data])
            await client.ended
        assert (before, len(proposed)) == (0, 1)
