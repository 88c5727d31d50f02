"""Who gets in: strangers in time, clients while there are slots, peers always."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import (
    CLIENT,
    ROOM,
    Door,
    Recorder,
    Stranger,
    enter,
    free_address,
    introduction,
    intrude,
    intrude_politely,
    listening,
    numbered,
)

from quorate.config import NetworkLimits
from quorate.errors import Busy, InvalidArgument, QuorateError, Timeout, Unauthorized
from quorate.net.dialling import dial, parse_address
from quorate.net.listener import Listener
from quorate.wire.frames import FrameKind, encode_frame
from quorate.wire.handshake import Hello, encode_hello, open_welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from quorate.net.connection import Connection
    from quorate.wire.handshake import Welcome

    Run = Callable[[Coroutine[Any, Any, None]], None]

PEER = Hello("control", cluster="c1", node="n2", target="n1", introduction=introduction())


async def refusal_of(stranger: Stranger) -> QuorateError:
    """What the stranger is refused with, right before the end of its connection."""
    [frame] = await stranger.frames()
    with pytest.raises(QuorateError) as caught:
        open_welcome(frame)
    assert await stranger.frames() == []
    return caught.value


# -- listening ---------------------------------------------------------------------------------


def test_it_listens_where_it_says(run: Run) -> None:
    async def main() -> None:
        listener = Listener(Door())
        await listener.start("[::1]:0")
        host, port = parse_address(listener.address)
        assert host == "::1"
        assert port > 0
        guest = await enter(listener.address)
        assert guest.connection.address == listener.address
        await listener.close()
        assert await guest.end() is None

    run(main())


def test_an_address_in_use_is_named(run: Run) -> None:
    async def main() -> None:
        async with listening(Door()) as listener:
            second = Listener(Door())
            with pytest.raises(OSError, match=f"cannot listen at {listener.address}") as caught:
                await second.start(listener.address)
            assert caught.value.errno == errno.EADDRINUSE
            await second.close()

    run(main())


def test_the_address_is_free_again_after_close(run: Run) -> None:
    """Although the one who closed first, the listener, keeps its side in TIME_WAIT."""

    async def main() -> None:
        address = free_address()
        for _ in range(3):
            listener = Listener(Door())
            await listener.start(address)
            guest = await enter(address)
            await listener.close()
            assert await guest.end() is None

    run(main())


def test_stop_accepting_keeps_who_is_in(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            guest = await enter(listener.address)
            listener.stop_accepting()
            with pytest.raises(ConnectionRefusedError):
                await enter(listener.address)
            guest.connection.send(numbered(1))
            assert len(await (await door.guest()).received(1)) == 1
            guest.connection.close()
            await guest.end()

    run(main())


def test_close_does_not_wait_for_who_does_not_read(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with (
            listening(door, NetworkLimits(close_ms=50)) as listener,
            await intrude_politely(listener.address),
        ):
            guest = await door.guest()
            while not guest.writables:
                guest.connection.send(numbered(1, bytes(1 << 20)))
                await asyncio.sleep(0)
            await listener.close()
            assert len(guest.ends) == 1

    run(main())


@pytest.mark.parametrize("passes", range(6))
def test_an_abort_cuts_off_who_is_just_being_let_in(run: Run, passes: int) -> None:
    """It takes a few passes of the loop until a socket has a transport that can be ended."""

    async def main() -> None:
        door = Door()
        async with listening(door) as listener, Stranger() as stranger:
            # All of it before the listener gets its turn.
            stranger.socket.setblocking(True)
            stranger.socket.connect(parse_address(listener.address))
            stranger.socket.sendall(encode_hello(CLIENT))
            stranger.socket.setblocking(False)
            for _ in range(passes):
                await asyncio.sleep(0)
            heard = len(door.hellos)
            listener.abort()
            with contextlib.suppress(ConnectionResetError):
                while await stranger.frames():
                    pass
            assert len(door.hellos) == heard
            await listener.close()
            assert not listener._incoming

    run(main())


# -- strangers ---------------------------------------------------------------------------------


def test_a_stranger_that_says_nothing_is_refused_in_time(run: Run) -> None:
    async def main() -> None:
        async with (
            listening(Door(), NetworkLimits(handshake_ms=30)) as listener,
            await intrude(listener.address) as stranger,
        ):
            error = await refusal_of(stranger)
            assert isinstance(error, Timeout)
            assert str(error) == "no HELLO came in 30 ms"

    run(main())


def test_a_stranger_that_says_it_byte_by_byte_is_refused_in_time(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with (
            listening(door, NetworkLimits(handshake_ms=30)) as listener,
            await intrude(listener.address) as stranger,
        ):
            for byte in encode_frame(FrameKind.HELLO, bytes(4096)):
                try:
                    await stranger.send(bytes([byte]))
                except ConnectionError:
                    break
                await asyncio.sleep(0.001)
            assert door.hellos == []

    run(main())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_frame(FrameKind.CALL, bytes(4)), "a connection begins with HELLO, not with CALL"),
        (encode_frame(FrameKind.PING, b""), "a connection begins with HELLO, not with PING"),
        (encode_frame(FrameKind.PONG, b""), "a connection begins with HELLO, not with PONG"),
        (encode_frame(FrameKind.HELLO, b"\x80"), "HELLO: "),
    ],
    ids=["not HELLO", "PING", "PONG", "a bad HELLO"],
)
def test_a_stranger_that_says_something_else_is_refused(run: Run, data: bytes, text: str) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener, await intrude(listener.address) as stranger:
            await stranger.send(data)
            error = await refusal_of(stranger)
            assert isinstance(error, InvalidArgument)
            assert text in str(error)
            assert door.hellos == []

    run(main())


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", encode_frame(FrameKind.HELLO, bytes(4097))]
)
def test_a_stranger_that_speaks_no_frames_is_cut_off(run: Run, data: bytes) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener, await intrude(listener.address) as stranger:
            await stranger.send(data)
            with contextlib.suppress(ConnectionResetError):  # RST if not all of it was read
                assert await stranger.frames() == []
            assert door.hellos == []

    run(main())


def test_a_refusal_reaches_the_one_who_was_judged(run: Run) -> None:
    async def main() -> None:
        door = Door(refusal=Unauthorized("not you"))
        async with listening(door) as listener, await intrude(listener.address) as stranger:
            await stranger.send(encode_hello(CLIENT))
            error = await refusal_of(stranger)
            assert isinstance(error, Unauthorized)
            assert listener.clients == 0
            assert door.guests == []

    run(main())


def test_a_crowd_of_strangers_keeps_nobody_out(run: Run) -> None:
    """Each newcomer takes the place of the stranger that waited longest."""

    async def main() -> None:
        door = Door()
        async with listening(door, NetworkLimits(unidentified=8)) as listener:
            crowd = [await intrude(listener.address) for _ in range(100)]
            guest = await enter(listener.address)
            link, _ = await dial(listener.address, PEER, timeout=20, limits=ROOM)
            assert isinstance(await refusal_of(crowd[0]), Busy)
            await crowd[-1].send(encode_hello(CLIENT))
            [frame] = await crowd[-1].frames()
            assert frame.kind is FrameKind.WELCOME
            for stranger in crowd:
                stranger.socket.close()
            ends = [guest, Recorder(link)]
            await listener.close()
            for end in ends:
                assert await end.end() is None

    run(main())


# -- slots -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (NetworkLimits(connections=2), "2 clients are connected, limit 2"),
        (
            NetworkLimits(connections_per_address=2),
            "2 clients of 127.0.0.1 are connected, limit 2",
        ),
    ],
    ids=["in all", "per address"],
)
def test_over_the_limit_clients_are_refused_and_told_so(
    run: Run, network: NetworkLimits, text: str
) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door, network) as listener:
            inside = [await enter(listener.address) for _ in range(2)]
            with pytest.raises(Busy, match=text):
                await enter(listener.address)
            assert listener.clients == 2
            inside[0].connection.close()
            await (await door.guest(0)).end()
            inside.append(await enter(listener.address))
            with pytest.raises(Busy):
                await enter(listener.address)
            await listener.close()
            for guest in inside:
                await guest.end()
            assert listener.clients == 0

    run(main())


def test_each_address_has_slots_of_its_own(run: Run) -> None:
    async def main() -> None:
        async with (
            listening(Door(), NetworkLimits(connections_per_address=1)) as listener,
            await intrude_politely(listener.address, "127.0.0.1"),
            await intrude_politely(listener.address, "127.0.0.2"),
            await intrude(listener.address, "127.0.0.2") as third,
        ):
            await third.send(encode_hello(CLIENT))
            assert "clients of 127.0.0.2" in str(await refusal_of(third))

    run(main())


def test_clients_leave_peers_their_slots(run: Run) -> None:
    async def main() -> None:
        door = Door()
        network = NetworkLimits(connections=1, connections_per_address=1)
        async with listening(door, network) as listener:
            client = await enter(listener.address)
            links = []
            bulk = Hello("bulk", cluster="c1", node="n2", introduction=introduction())
            for hello in (PEER, bulk):
                connection, _ = await dial(listener.address, hello, timeout=20, limits=ROOM)
                links.append(Recorder(connection))
            with pytest.raises(Busy):
                await enter(listener.address)
            assert [guest.ends for guest in door.guests] == [[], [], []]
            await listener.close()
            for end in (client, *links):
                await end.end()

    run(main())


def test_a_new_link_of_a_peer_replaces_the_old_one(run: Run) -> None:
    """The old one may be half open: the peer is gone from it, and nobody here was told."""

    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            old, _ = await dial(listener.address, PEER, timeout=20, limits=ROOM)
            ends = Recorder(old)
            new, _ = await dial(listener.address, PEER, timeout=20, limits=ROOM)
            assert isinstance(await (await door.guest(0)).end(), ConnectionAbortedError)
            await ends.end()
            new.send(numbered(1))
            assert len(await (await door.guest(1)).received(1)) == 1
            ends = Recorder(new)
            new.close()
            await ends.end()

    run(main())


# -- what goes wrong ---------------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Whoever asks the system for another file or socket gets EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_sockets_accepting_waits(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, whoever is in is served on, and whoever waits gets in when there are some."""

    async def main() -> None:
        door = Door()
        async with listening(door, NetworkLimits(accept_retry_ms=1, spare_files=0)) as listener:
            inside = await enter(listener.address)
            async with Stranger() as late:
                with no_descriptors_left():
                    await late.connect(listener.address)
                    await late.send(encode_hello(CLIENT))
                    number = 0
                    while number < 100 or not caplog.records:
                        inside.connection.send(numbered(number))
                        number += 1
                        await (await door.guest()).received(number)
                        await asyncio.sleep(0.001)  # accepting is tried again meanwhile
                    assert listener.clients == 1
                [frame] = await late.frames()
                assert frame.kind is FrameKind.WELCOME
            await listener.close()
            await inside.end()

    caplog.set_level(logging.WARNING)
    run(main())
    [record] = caplog.records
    assert "accepting nobody for now" in record.getMessage()
    assert "Too many open files" in record.getMessage()


def test_without_sockets_a_stranger_gives_its_own_back(run: Run) -> None:
    async def main() -> None:
        async with (
            listening(Door(), NetworkLimits(accept_retry_ms=1, spare_files=0)) as listener,
            await intrude_politely(listener.address),
            await intrude(listener.address) as idle,
            Stranger() as late,
        ):
            await asyncio.sleep(0)
            with no_descriptors_left():
                await late.connect(listener.address)
                await late.send(encode_hello(CLIENT))
                error = await refusal_of(idle)
                assert isinstance(error, Busy)
                assert str(error) == "no sockets are left"
                [frame] = await late.frames()
                assert frame.kind is FrameKind.WELCOME

    run(main())


def test_the_last_files_are_for_peers_and_for_the_disk(run: Run) -> None:
    """Whoever cannot open a file must halt: no crowd of clients may bring that about."""

    async def main() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with listening(Door(), NetworkLimits(spare_files=64)) as listener:
            lowest = os.dup(0)
            os.close(lowest)
            # Enough for two connections, both ends of which are ours.
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 5, hard))
            try:
                with pytest.raises(Busy, match=f"too many files are open, limit {lowest + 5}"):
                    await enter(listener.address)
                peer, _ = await dial(listener.address, PEER, timeout=20, limits=ROOM)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            ends = Recorder(peer)
            await listener.close()
            await ends.end()

    run(main())


class Faulty(Door):
    """Fails at whoever names another cluster: at judging, or at serving."""

    def judge(self, hello: Hello, address: str) -> Welcome | QuorateError:
        if hello.cluster == "judge":
            raise ZeroDivisionError("a bug in judge")
        return super().judge(hello, address)

    def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
        if hello.cluster == "serve":
            raise ZeroDivisionError("a bug in serve")
        super().serve(hello, welcome, connection)


@pytest.mark.parametrize("where", ["judge", "serve"])
def test_a_bug_costs_its_connection_only(
    run: Run, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with listening(Faulty()) as listener:
            async with await intrude(listener.address) as stranger:
                await stranger.send(encode_hello(Hello("client", cluster=where)))
                while await stranger.frames():
                    pass  # WELCOME came first if serving failed
            survivor = await enter(listener.address)
            assert listener.clients == 1
            survivor.connection.close()
            await survivor.end()

    run(main())
    [record] = [record for record in caplog.records if record.exc_info]
    assert f"a bug in {where}" in str(record.exc_text)


def test_frames_before_anybody_serves_are_an_error(run: Run) -> None:
    class Forgetful(Door):
        def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
            self.connection = connection

    async def main() -> None:
        door = Forgetful()
        async with listening(door) as listener:
            guest = await enter(listener.address)
            guest.connection.send([encode_frame(FrameKind.PONG, b""), *numbered(1)])
            await guest.end()
            assert door.connection.closed

    run(main())


def test_thousands_of_visits_leave_nothing(run: Run) -> None:
    """Slots, timers and sockets are given back, however a visit ends."""

    async def visit(address: str, number: int) -> None:
        async with await intrude(address) as stranger:
            if number % 3:
                await stranger.send(encode_hello(CLIENT))
            if number % 3 == 2:
                await stranger.frames()
            if number % 2:
                stranger.reset()

    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            for first in range(0, 2_000, 50):
                visits = [visit(listener.address, first + number) for number in range(50)]
                await asyncio.gather(*visits)
            last = await enter(listener.address)
            last.connection.close()
            await last.end()
            await listener.close()
            assert listener.clients == 0
            assert all(len(guest.ends) == 1 for guest in door.guests)

    run(main())
