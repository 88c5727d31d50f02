"""What a connection does not put up with: silence, half frames, deaf readers, failing handlers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import (
    QUICK,
    Door,
    Recorder,
    enter,
    intrude,
    intrude_politely,
    intruded,
    listening,
    numbered,
    pair,
)

from quorate.config import NetworkLimits
from quorate.errors import Busy, InvalidArgument, InvariantBroken, Timeout
from quorate.net.connection import SIGNS_MAX
from quorate.wire.frames import Frame, FrameKind, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Run = Callable[[Coroutine[Any, Any, None]], None]

MIB = 1 << 20


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"network.redial_min_ms = 2000 must be at most"):
        NetworkLimits(redial_min_ms=2000)
    with pytest.raises(InvalidArgument, match=r"network.peer_buffer_bytes = .* must be at most"):
        NetworkLimits(write_buffer_bytes=MIB)
    with pytest.raises(InvalidArgument, match=r"connections = 0 is not a whole number between"):
        NetworkLimits(connections=0)


# -- keepalive ---------------------------------------------------------------------------------


def test_ping_is_answered_without_the_handler(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            await stranger.send(encode_frame(FrameKind.PING, b""))
            [frame] = await stranger.frames()
            assert frame.kind is FrameKind.PONG
            assert guest.frames == []

    run(main())


def test_pings_that_come_together_get_one_answer(run: Run) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            answer = encode_frame(FrameKind.RESULT, b"")
            # In one read, whatever the system makes of what is sent.
            pings = encode_frame(FrameKind.PING, b"") * SIGNS_MAX
            guest.connection._deliver(guest.connection._framer.feed(pings))
            guest.connection.send([answer])
            kinds: list[FrameKind] = []
            while FrameKind.RESULT not in kinds:
                kinds += [frame.kind for frame in await stranger.frames()]
            assert kinds == [FrameKind.PONG, FrameKind.RESULT]

    run(main())


@pytest.mark.parametrize("kind", [FrameKind.PING, FrameKind.PONG])
def test_a_flood_of_pings_ends_the_connection(run: Run, kind: FrameKind) -> None:
    async def main() -> None:
        async with intruded() as (stranger, guest):
            with contextlib.suppress(ConnectionError):
                await stranger.send(encode_frame(kind, b"") * (1 << 16))
            end = await guest.end()
            assert isinstance(end, InvalidArgument)
            assert f"over {SIGNS_MAX} PINGs and PONGs at once" in str(end)

    run(main())


def test_nobody_is_asked_before_he_said_who_he_is(run: Run) -> None:
    """His answer would come before his HELLO, and be refused."""

    async def main() -> None:
        async with (
            listening(Door(), QUICK) as listener,
            await intrude(listener.address) as stranger,
        ):
            with contextlib.suppress(ConnectionResetError):
                assert await stranger.frames() == []

    run(main())


def test_a_silent_side_is_pinged_and_given_up(run: Run) -> None:
    """Half open: the other host is gone, and nothing says so."""

    async def main() -> None:
        async with intruded(QUICK) as (stranger, guest):
            [frame] = await stranger.frames()
            assert frame.kind is FrameKind.PING
            end = await guest.end()
            assert isinstance(end, Timeout)
            assert "no sign of life for 60 ms" in str(end)

    run(main())


def test_who_answers_pings_stays(run: Run) -> None:
    """It sends nothing but PONG, for longer than the silent one next to it lives."""

    async def main() -> None:
        door = Door()
        async with listening(door, NetworkLimits(keepalive_ms=100)) as listener:
            quiet = await enter(listener.address)
            for number in range(1, 4):
                async with await intrude_politely(listener.address):
                    assert isinstance(await (await door.guest(number)).end(), Timeout)
            assert (await door.guest(0)).ends == []
            quiet.connection.send(numbered(1))
            await (await door.guest(0)).received(1)
            quiet.connection.close()
            await quiet.end()

    run(main())


def test_who_is_not_read_from_is_not_silent(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door, QUICK) as listener:
            paused = await enter(listener.address)
            (await door.guest(0)).connection.pause_reading()
            async with await intrude_politely(listener.address):
                assert isinstance(await (await door.guest(1)).end(), Timeout)
            assert (await door.guest(0)).ends == []
            paused.connection.close()
            await paused.end()

    run(main())


def test_a_loop_that_stood_still_takes_nobody_for_dead(run: Run) -> None:
    """What arrived meanwhile is still in the system: silence is counted, not timed."""

    async def main() -> None:
        async with pair(QUICK) as (near, far):
            for number in range(1, 4):
                asyncio.get_running_loop().call_soon(time.sleep, 0.2)
                await asyncio.sleep(0)
                near.connection.send(numbered(number))
                assert len(await far.received(number)) == number
            assert near.ends == far.ends == []

    run(main())


def test_a_frame_that_trickles_in_is_not_waited_for(run: Run) -> None:
    """Slow-loris: there is always a sign of life, and never a frame."""

    async def main() -> None:
        async with intruded(NetworkLimits(keepalive_ms=50, frame_ms=100)) as (stranger, guest):
            for byte in b"".join(numbered(1, bytes(MIB))):
                try:
                    await stranger.send(bytes([byte]))
                except ConnectionError:
                    break
                await asyncio.sleep(0.001)
            end = await guest.end()
            assert isinstance(end, Timeout)
            assert "a frame was not complete after 100 ms" in str(end)
            assert guest.frames == []

    run(main())


# -- the other side does not read --------------------------------------------------------------


def test_who_does_not_read_is_cut_off(run: Run) -> None:
    """Memory is bounded: first the sender is told to pause, then the connection ends."""
    network = NetworkLimits(
        write_pause_bytes=MIB, write_buffer_bytes=4 * MIB, peer_buffer_bytes=MIB
    )

    async def main() -> None:
        async with intruded(network) as (_, guest):
            most = 0
            while not guest.connection.closed:
                guest.connection.send(numbered(1, bytes(MIB)))
                most = max(most, guest.connection.buffered)
                await asyncio.sleep(0)
            end = await guest.end()
            assert isinstance(end, Busy)
            assert "does not read" in str(end)
            assert guest.writables == [False]
            assert most <= 6 * MIB

    run(main())


def test_what_is_stuck_for_long_is_given_up(run: Run) -> None:
    """Nobody reads on either side, so nothing would ever be heard."""

    async def main() -> None:
        async with intruded(QUICK) as (_, guest):
            guest.connection.pause_reading()
            while not guest.writables:
                guest.connection.send(numbered(1, bytes(MIB)))
                await asyncio.sleep(0)
            assert isinstance(await guest.end(), Timeout)

    run(main())


# -- handlers that fail ------------------------------------------------------------------------


class Fails(Recorder):
    """Raises at every frame."""

    def __init__(self, recorder: Recorder, error: Exception) -> None:
        super().__init__(recorder.connection)
        self.error = error

    def frame_received(self, frame: Frame) -> None:
        raise self.error


def test_an_exception_in_a_handler_costs_its_connection_only(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            victim, bystander = await enter(listener.address), await enter(listener.address)
            fails = Fails(await door.guest(0), ZeroDivisionError("a bug"))
            victim.connection.send([*numbered(1), *numbered(2)])
            assert isinstance(await fails.end(), ZeroDivisionError)
            await victim.end()
            bystander.connection.send(numbered(3))
            assert len(await (await door.guest(1)).received(1)) == 1
            bystander.connection.close()
            await bystander.end()

    run(main())
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_text is not None
    assert "ZeroDivisionError: a bug" in record.exc_text


def test_an_exception_in_closed_or_writable_is_logged_too(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Recorder):
        def closed(self, error: Exception | None) -> None:
            super().closed(error)
            raise ZeroDivisionError("when told the end")

        def writable(self, yes: bool) -> None:
            raise ZeroDivisionError("when told to pause")

    async def main() -> None:
        async with pair() as (near, far):
            near.connection.pause_reading()
            clumsy = Clumsy(far.connection)
            while not clumsy.connection.closed:
                clumsy.connection.send(numbered(1, bytes(MIB)))
                await asyncio.sleep(0)
            assert isinstance(await clumsy.end(), ZeroDivisionError)

    run(main())
    texts = [record.exc_text for record in caplog.records if record.exc_info]
    assert len(texts) == 2
    assert "when told to pause" in str(texts[0])
    assert "when told the end" in str(texts[1])


def test_an_error_that_a_handler_raises_ends_the_connection_quietly(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pair() as (near, far):
            fails = Fails(far, InvalidArgument("no such kind here"))
            near.connection.send(numbered(1))
            assert await fails.end() is fails.error
            await near.end()

    run(main())
    assert not [record for record in caplog.records if record.exc_info]


def test_a_halt_is_handed_to_whoever_runs_the_loop(run: Run) -> None:
    async def main() -> None:
        seen: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context))
        async with pair() as (near, far):
            fails = Fails(far, InvariantBroken("a rule"))
            near.connection.send(numbered(1))
            assert await fails.end() is fails.error
            assert [context["exception"] for context in seen] == [fails.error]
            await near.end()

    run(main())
