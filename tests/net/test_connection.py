"""One connection, both ends: frames whole and in order, and every way in which it can end."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import (
    Door,
    Recorder,
    enter,
    intrude_politely,
    intruded,
    listening,
    number_of,
    numbered,
    pair,
)

from quorate.errors import InvalidArgument, TooLarge
from quorate.net.connection import READ_BYTES
from quorate.net.dialling import format_address, parse_address
from quorate.wire.frames import Frame, FrameKind, FrameLimits, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Run = Callable[[Coroutine[Any, Any, None]], None]

MIB = 1 << 20


# -- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:7401", ("127.0.0.1", 7401)),
        ("node-1.example:1", ("node-1.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert parse_address(address) == parts
    assert format_address(*parts) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":1", "[]:1", "host:-1", "host:65536", "host:1x", "host:²", "::1:1"),
        # More digits than Python makes a number of.
        "host:" + "1" * 5000,
    ],
)
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(InvalidArgument, match="address ") as caught:
        parse_address(address)
    assert repr(address) in str(caught.value)


# -- frames ------------------------------------------------------------------------------------


def test_frames_of_all_sizes_arrive_whole_and_in_order(run: Run) -> None:
    generator = random.Random(1)
    bulks = [generator.randbytes(size) for size in (0, 1, 16, 1000, 70_000, 8 * MIB)]

    async def main() -> None:
        async with pair() as (near, far):
            for number in range(600):
                bulk = bulks[number % 5] if number % 100 else bulks[5]
                near.connection.send(numbered(number, bulk))
                far.connection.send(numbered(number))
            there, back = await far.received(600), await near.received(600)
            assert [number_of(frame) for frame in there] == list(range(600))
            assert [number_of(frame) for frame in back] == list(range(600))
            for number, frame in enumerate(there):
                assert frame.bulk == (bulks[number % 5] if number % 100 else bulks[5])

    run(main())


def test_a_frame_may_come_byte_by_byte(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            for byte in b"".join(numbered(7, b"bulk")):
                await stranger.send(bytes([byte]))
            [frame] = await guest.received(1)
            assert (number_of(frame), frame.bulk) == (7, b"bulk")

    run(main())


@pytest.mark.parametrize("size", [1000, 4 * MIB])
def test_a_frame_that_comes_in_pieces_is_told_of_once_before_it_is_whole(
    run: Run, size: int
) -> None:
    head, bulk = numbered(7, bytes(size))

    def has(begun: list[Frame], count: int) -> bool:
        return len(begun) == count

    async def main() -> None:
        async with intruded() as (stranger, guest):
            begun: list[Frame] = []

            def tell(frame: Frame) -> None:
                assert len(guest.frames) == len(begun)
                begun.append(frame)
                guest.change()

            guest.connection.tell_begun(tell)
            for number in range(1, 4):
                await stranger.send(head + bulk[: size // 2])
                await guest.until(partial(has, begun, number))
                await stranger.send(bulk[size // 2 : -1])
                await stranger.send(bulk[-1:])
                await guest.received(number)
            assert [(number_of(frame), frame.bulk) for frame in begun] == [(7, b"")] * 3
            assert [frame.bulk for frame in guest.frames] == [bulk] * 3
            await stranger.send(head + bulk)
            await guest.received(4)
            assert len(begun) == (4 if size > READ_BYTES else 3)

    run(main())


def test_the_rest_of_a_chunk_goes_to_the_handler_that_is_set_meanwhile(run: Run) -> None:
    """A listener hands over at HELLO: what was sent right behind it is for the next handler."""

    class HandsOver(Recorder):
        def frame_received(self, frame: Frame) -> None:
            super().frame_received(frame)
            self.heir = Recorder(self.connection)

    async def main() -> None:
        async with pair() as (near, far):
            first = HandsOver(far.connection)
            near.connection.send([*numbered(1), *numbered(2), *numbered(3)])
            await first.received(1)
            rest = await first.heir.received(2)
            assert [number_of(frame) for frame in first.frames] == [1]
            assert [number_of(frame) for frame in rest] == [2, 3]

    run(main())


def test_a_transport_is_given_no_empty_buffer(run: Run) -> None:
    """The selector loop of Python 3.12 and later tries to send one for ever."""

    class Watched:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport
            self.given: list[bytes] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def writelines(self, buffers: list[bytes]) -> None:
            self.given += buffers
            self._transport.writelines(buffers)

    async def main() -> None:
        async with pair() as (near, far):
            watched = Watched(near.connection._transport)
            near.connection._transport = watched  # type: ignore[assignment]  # it does the same
            near.connection.send([*numbered(1), *numbered(2, b"bulk"), b""])
            assert len(await far.received(2)) == 2
            assert watched.given and all(watched.given)

    run(main())


def test_nothing_is_delivered_after_close(run: Run) -> None:
    class Closes(Recorder):
        def frame_received(self, frame: Frame) -> None:
            super().frame_received(frame)
            self.connection.close()

    async def main() -> None:
        async with pair() as (near, far):
            closes = Closes(far.connection)
            near.connection.send([*numbered(1), *numbered(2)])
            assert await closes.end() is None
            assert len(closes.frames) == 1
            assert far.connection.closed
            far.connection.send(numbered(3))  # nothing happens
            assert await near.end() is None
            assert near.frames == []

    run(main())


def test_close_sends_what_is_queued(run: Run) -> None:
    async def main() -> None:
        async with pair() as (near, far):
            for number in range(4):
                near.connection.send(numbered(number, bytes(8 * MIB)))
            assert near.connection.buffered
            near.connection.close()
            assert await far.end() is None
            assert [number_of(frame) for frame in far.frames] == [0, 1, 2, 3]

    run(main())


def test_pausing_reading_holds_the_other_side_back(run: Run) -> None:
    async def main() -> None:
        async with pair() as (near, far):
            far.connection.pause_reading()
            number = 0
            while not near.writables:
                near.connection.send(numbered(number, bytes(MIB)))
                number += 1
                await asyncio.sleep(0)
            assert near.writables == [False]
            assert len(far.frames) < number
            far.connection.resume_reading()
            frames = await far.received(number)
            assert [number_of(frame) for frame in frames] == list(range(number))
            await near.until(lambda: near.writables == [False, True])

    run(main())


# -- what is not a frame -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", InvalidArgument),
        (encode_frame(FrameKind.APPEND, bytes(4), 1 << 30), TooLarge),
        (encode_frame(FrameKind.APPEND, bytes(4))[:-1] + b"x", InvalidArgument),
    ],
    ids=["no magic", "too large", "wrong CRC"],
)
def test_what_is_not_a_frame_ends_the_connection(
    run: Run, data: bytes, error: type[Exception]
) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            bystander = await enter(listener.address)
            async with await intrude_politely(listener.address) as stranger:
                await stranger.send(data)
                guest = await door.guest(1)
                assert isinstance(await guest.end(), error)
            bystander.connection.send(numbered(1))
            assert len(await (await door.guest(0)).received(1)) == 1

    run(main())


def test_limits_may_change_between_frames(run: Run) -> None:
    async def main() -> None:
        async with pair() as (near, far):
            far.connection.limits = FrameLimits(4, 10)
            assert far.connection.limits == (4, 10)
            near.connection.send(numbered(1, bytes(10)))
            await far.received(1)
            near.connection.send(numbered(2, bytes(11)))
            assert isinstance(await far.end(), TooLarge)

    run(main())


# -- the other side goes -----------------------------------------------------------------------


@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
def test_an_end_within_a_frame_is_an_error(run: Run, reset: bool) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            async with await intrude_politely(listener.address) as stranger:
                guest = await door.guest()
                await stranger.send(b"".join(numbered(1, bytes(100)))[:-1])
                await stranger.send(b"")
                if reset:
                    stranger.reset()
                else:
                    stranger.socket.close()
                assert isinstance(await guest.end(), ConnectionResetError)
            assert guest.frames == []
            assert guest.connection.closed
            guest.connection.send(numbered(1))  # nothing happens
            guest.connection.pause_reading()
            guest.connection.resume_reading()
            guest.connection.close()

    run(main())


def test_an_end_between_frames_is_none(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            async with await intrude_politely(listener.address) as stranger:
                await stranger.send(b"".join(numbered(1, b"x")))
            guest = await door.guest()
            assert await guest.end() is None
            assert len(guest.frames) == 1
            assert guest.ends == [None]

    run(main())


def test_a_handler_that_comes_too_late_is_told_the_end(run: Run) -> None:
    async def main() -> None:
        async with pair() as (near, far):
            far.connection.abort(InvalidArgument("gone"))
            assert isinstance(await far.end(), InvalidArgument)
            late = Recorder(far.connection)
            assert isinstance(await late.end(), InvalidArgument)
            assert len(far.ends) == 1
            await near.end()

    run(main())
