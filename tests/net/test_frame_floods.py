"""Many short frames in one read: how many of them a pass of the event loop handles."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from net_rig import Door, Recorder, enter, intruded, listening, number_of, numbered

from quorate.errors import InvalidArgument
from quorate.net.connection import FRAMES_MAX, FRAMES_MAX_PAUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.wire.frames import Frame

    Run = Callable[[Coroutine[Any, Any, None]], None]

MANY = 3 * FRAMES_MAX + 7


class Counter(Recorder):
    """Counts the frames of each pass of the loop."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.passes = [0]
        self.pauses_at = 0

    def frame_received(self, frame: Frame) -> None:
        super().frame_received(frame)
        if self.passes[-1] == 0:
            asyncio.get_running_loop().call_soon(self.passes.append, 0)
        self.passes[-1] += 1
        if len(self.frames) == self.pauses_at:
            self.connection.pause_reading()


def read(connection: Connection, data: bytes) -> None:
    """Let the connection find ``data`` in one read, whatever the system makes of what is sent."""
    connection._deliver(connection._framer.feed(data))


def frames(count: int, first: int = 0) -> bytes:
    return b"".join(b"".join(numbered(number)) for number in range(first, first + count))


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_pass_handles_a_part_of_the_frames_of_one_read(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (_, guest):
            counter = Counter(guest.connection)
            read(guest.connection, frames(MANY))
            await counter.received(MANY)
            assert [number_of(frame) for frame in counter.frames] == list(range(MANY))
            assert counter.passes[:4] == [FRAMES_MAX, FRAMES_MAX, FRAMES_MAX, 7]

    run(main())


def test_a_flood_is_received_whole_and_in_order(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            counter = Counter(guest.connection)
            await stranger.send(frames(20 * MANY))
            # The rest of a frame comes behind frames that were put off.
            head, bulk = numbered(20 * MANY, bytes(1 << 20))
            await stranger.send(head + bulk)
            await counter.received(20 * MANY + 1)
            assert [number_of(frame) for frame in counter.frames] == list(range(20 * MANY + 1))
            assert counter.frames[-1].bulk == bulk

    run(main())


def test_connections_take_turns(run: Run) -> None:
    """The frame of another connection, a peer's for example, does not wait for the whole flood."""

    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            ends = [await enter(listener.address) for _ in range(2)]
            flooded, other = [(await door.guest(number)).connection for number in range(2)]
            flood, quiet = Counter(flooded), Counter(other)
            read(flooded, frames(MANY))
            read(other, frames(MANY))
            await quiet.received(1)
            assert len(flood.frames) == FRAMES_MAX
            await quiet.received(MANY)
            assert flood.passes[:4] == quiet.passes[:4]
            for end in ends:
                end.connection.close()
                await end.end()

    run(main())


def test_a_handler_that_pauses_gets_few_more_frames(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            counter = Counter(guest.connection)
            counter.pauses_at = 3
            read(guest.connection, frames(MANY))
            await stranger.send(frames(1, first=MANY))
            await passes(10)
            assert len(counter.frames) == 3 + FRAMES_MAX_PAUSED - 1
            guest.connection.resume_reading()
            guest.connection.pause_reading()
            await passes(10)
            assert len(counter.frames) == 3 + FRAMES_MAX_PAUSED - 1
            guest.connection.resume_reading()
            guest.connection.resume_reading()
            await counter.received(MANY + 1)
            assert [number_of(frame) for frame in counter.frames] == list(range(MANY + 1))
            assert max(counter.passes) == FRAMES_MAX

    run(main())


def test_what_is_not_a_frame_ends_the_connection_in_a_later_pass_too(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (_, guest):
            counter = Counter(guest.connection)
            read(guest.connection, frames(FRAMES_MAX + 1) + b"no frame, sixteen")
            assert isinstance(await counter.end(), InvalidArgument)
            assert len(counter.frames) == FRAMES_MAX + 1

    run(main())


def test_frames_that_were_put_off_end_with_their_connection(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (_, guest):
            counter = Counter(guest.connection)
            read(guest.connection, frames(MANY))
            guest.connection.abort()
            await counter.end()
            await passes(3)
            assert len(counter.frames) == FRAMES_MAX

    run(main())
