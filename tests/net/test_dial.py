"""Dialling: the one who was meant answers, or the caller learns why not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import CLIENT, PATIENT, ROOM, Door, Recorder, free_address, listening, welcome

from quorate.errors import Busy, InvalidArgument, WrongCluster
from quorate.net.dialling import _Greeting, dial, parse_address
from quorate.wire.frames import FrameKind, encode_frame
from quorate.wire.handshake import Hello, encode_hello, encode_welcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.wire.handshake import Welcome

    Run = Callable[[Coroutine[Any, Any, None]], None]


async def call_at(address: str, hello: Hello = CLIENT) -> tuple[Connection, Welcome]:
    return await dial(address, hello, timeout=20, limits=ROOM)


@contextlib.asynccontextmanager
async def answering(data: bytes, *, then_close: bool) -> AsyncIterator[str]:
    """A server that says ``data`` to whoever says anything."""
    address = free_address()
    done = asyncio.Event()
    with socket.create_server(parse_address(address)) as server:
        server.setblocking(False)
        loop = asyncio.get_running_loop()

        async def answer() -> None:
            accepted, _ = await loop.sock_accept(server)
            with accepted:
                await loop.sock_recv(accepted, 4096)
                await loop.sock_sendall(accepted, data)
                if not then_close:
                    await done.wait()

        task = asyncio.create_task(answer())
        yield address
        done.set()
        await task


def test_the_one_who_answers_is_known(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            hello = Hello("client", cluster="c1", target="n1")
            connection, answer = await call_at(listener.address, hello)
            assert answer == welcome()
            assert door.hellos == [hello]
            assert connection.address == listener.address
            assert connection.limits == ROOM
            ends = Recorder(connection)
            connection.close()
            assert await ends.end() is None

    run(main())


def test_a_name_is_resolved(run: Run) -> None:
    """It may stand for two addresses, of which one does not listen."""

    async def main() -> None:
        async with listening(Door()) as listener:
            _, port = parse_address(listener.address)
            connection, _ = await call_at(f"localhost:{port}")
            ends = Recorder(connection)
            connection.close()
            await ends.end()

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens(run: Run, host: str) -> None:
    async def main() -> None:
        _, port = parse_address(free_address())
        with pytest.raises(ConnectionRefusedError):
            await call_at(f"{host}:{port}")

    run(main())


def test_a_refusal_is_raised_as_what_it_is(run: Run) -> None:
    async def main() -> None:
        door = Door(refusal=Busy("come back later"))
        async with listening(door) as listener:
            with pytest.raises(Busy, match="come back later"):
                await call_at(listener.address)

    run(main())


@pytest.mark.parametrize(
    "hello",
    [Hello("client", cluster="c2"), Hello("client", target="n2")],
    ids=["another cluster", "another node"],
)
def test_who_was_not_meant_is_not_talked_to(run: Run, hello: Hello) -> None:
    async def main() -> None:
        door = Door()
        async with listening(door) as listener:
            with pytest.raises(WrongCluster):
                await call_at(listener.address, hello)
            await (await door.guest()).end()

    run(main())


def test_who_listens_and_says_nothing_is_waited_for_in_vain(run: Run) -> None:
    """A stopped process: its system still takes connections."""

    async def main() -> None:
        address = free_address()
        text = f"{address} did not say WELCOME in 0.05 s"
        with socket.create_server(parse_address(address)), pytest.raises(TimeoutError, match=text):
            await dial(address, CLIENT, timeout=0.05, limits=ROOM)

    run(main())


def test_giving_up_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        async with answering(b"", then_close=False) as address:
            task = asyncio.create_task(call_at(address))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with socket.create_connection(parse_address(address)) as other:
                other.send(b"so that the server ends, too")

    run(main())


def test_who_gave_up_is_not_told_the_end(run: Run) -> None:
    """He went between the connection and his HELLO: nobody asks how it ended."""

    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        greeting = _Greeting("127.0.0.1:1", PATIENT, lambda _: None)
        greeting.closed(None)
        del greeting
        gc.collect()
        assert told == []

    run(main())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ConnectionResetError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidArgument),
        (encode_hello(CLIENT), InvalidArgument),
        (encode_frame(FrameKind.WELCOME, b"nothing of the kind"), InvalidArgument),
        (encode_welcome(welcome())[:-1], ConnectionResetError),
    ],
    ids=["nothing", "another protocol", "HELLO", "a bad WELCOME", "half a WELCOME"],
)
def test_no_answer_at_all(run: Run, data: bytes, error: type[Exception]) -> None:
    async def main() -> None:
        async with answering(data, then_close=True) as address:
            with pytest.raises(error):
                await call_at(address)

    run(main())


def test_who_speaks_unasked_is_cut_off(run: Run) -> None:
    async def main() -> None:
        data = encode_welcome(welcome()) + encode_frame(FrameKind.RESULT, bytes(4))
        async with answering(data, then_close=False) as address:
            connection, _ = await call_at(address)
            end = await Recorder(connection).end()
            assert isinstance(end, InvalidArgument)
            assert "RESULT came before anything was asked" in str(end)

    run(main())
