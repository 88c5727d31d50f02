"""A slow line that takes at once whatever is sent: an SSH tunnel, a proxy that ends TLS."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from net_rig import (
    EAGER,
    PEER,
    Door,
    Events,
    both_up,
    intruded,
    linked,
    listening,
    numbered,
)

from quorate.entry import make_entry
from quorate.net.dialling import parse_address
from quorate.raft.messages import Append, Envelope
from quorate.types import ORIGIN, BootId, EntryKind, GroupId, Index, NodeId, Term
from quorate.wire.frames import FrameKind, encode_frame
from quorate.wire.messages import decode_envelopes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.wire.handshake import Hello, Welcome

    Run = Callable[[Coroutine[Any, Any, None]], None]

# 512 KiB take half a second, many times as long as silence is put up with.
LONG_BYTES = 512 << 10
PIECE_BYTES = 2048
PIECE_S = 0.002
# A link is given up after 60 ms of silence, and a frame of a client after as long.
HASTY = replace(EAGER, keepalive_ms=20, peer_keepalive_ms=20, frame_ms=60)


class Node(Door):
    """Takes everybody for a peer, as a node does whom peers dial."""

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        connection.treat_as_peer()
        super().serve(hello, welcome, connection)


@contextlib.asynccontextmanager
async def slow_line(target: str) -> AsyncIterator[str]:
    """The address of a line to ``target``."""
    joined: set[asyncio.Task[None] | None] = set()

    async def join(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        joined.add(asyncio.current_task())
        far, far_out = await asyncio.open_connection(*parse_address(target))
        async with asyncio.TaskGroup() as group:
            group.create_task(_carry(near, far_out))
            group.create_task(_carry(far, near_out))

    server = await asyncio.start_server(join, "127.0.0.1", 0, limit=2 * LONG_BYTES)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        await asyncio.gather(*(task for task in joined if task is not None))


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """A piece at a time; the reader takes all that comes meanwhile."""
    try:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(PIECE_BYTES):
                sink.write(piece)
                await asyncio.sleep(PIECE_S)
    finally:
        sink.close()
        with contextlib.suppress(ConnectionError):
            await sink.wait_closed()


def long_append(number: int) -> Envelope:
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, bytes(LONG_BYTES))
    message = Append(Term(1), number, ORIGIN, (entry,), Index(0))
    return Envelope(GroupId("c1", 7), NodeId("n1"), PEER, BootId(1, 2), message)


def test_what_takes_long_on_a_slow_line_arrives_over_the_link_that_it_was_sent_on(
    run: Run,
) -> None:
    """The sender has nothing left to send, hears no answer, and its PING waits behind the rest: the
    other side says by itself that it is there. And the frame is whole when its bytes are."""

    async def main() -> None:
        door, events = Node("n2"), Events()
        async with (
            listening(door, HASTY) as listener,
            slow_line(listener.address) as address,
            linked(address, events, HASTY) as links,
        ):
            _, bulk = await both_up(door, events)
            links.send([long_append(1), long_append(2)])
            found = [
                envelope.message
                for frame in await bulk.received(1)
                for envelope in decode_envelopes(frame, "c1", NodeId("n1"), PEER)
            ]
            assert [type(message) for message in found] == [Append, Append]
            assert bulk.ends == []
            assert (len(door.guests), events.seen) == (2, [])

    run(main())


def test_who_sends_much_hears_that_it_comes(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            far = guest.connection

            async def look_after(data: bytes) -> None:
                received = far.received + len(data)
                await stranger.send(data)
                while far.received < received:  # noqa: ASYNC110  # half a frame tells nobody
                    await asyncio.sleep(0)
                far._look()

            async def heard() -> list[FrameKind]:
                """What was said by now: one more frame shows where that ends."""
                far.send([encode_frame(FrameKind.RESULT, b"")])
                kinds: list[FrameKind] = []
                while FrameKind.RESULT not in kinds:
                    kinds += [frame.kind for frame in await stranger.frames()]
                return kinds[:-1]

            far._look()  # HELLO was answered
            frame = b"".join(numbered(1, bytes(10_000)))
            await look_after(frame[:10])
            assert await heard() == [FrameKind.PONG]
            await look_after(frame[10:])
            assert await heard() == [FrameKind.PONG]
            # Two idle sides would answer each other for ever.
            await look_after(encode_frame(FrameKind.PONG, b""))
            assert await heard() == []
            await look_after(b"".join(numbered(2)))
            assert await heard() == []
            assert len(guest.frames) == 2

    run(main())
